import { readFileSync } from 'node:fs'
import { parse } from 'yaml'
import { z } from 'zod'

const Requests = z.array(z.strictObject({ operation: z.string(), path: z.string(), body: z.unknown() }))
/** A request that the service accepts: `path` is below the API's prefix. */
export type RequestExample = z.output<typeof Requests>[number]

/** The requests of `examples/requests.yaml`, in an order in which a new service accepts them. */
export const readRequestExamples = (): readonly RequestExample[] =>
  Requests.parse(
    parse(readFileSync(new URL('../../examples/requests.yaml', import.meta.url), 'utf8'), { merge: true }),
  )

/** The document that the API's document shows for an operation; undefined where it takes none. */
export const openRequestExamples = (): ((operationId: string) => unknown) => {
  let bodies: Map<string, unknown> | undefined
  return (operationId) => {
    bodies ??= new Map(readRequestExamples().map(({ operation, body }) => [operation, body]))
    return bodies.get(operationId)
  }
}
