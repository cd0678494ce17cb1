import { join } from 'node:path'
import { Client, credentials, Metadata, status, type ServiceError } from '@grpc/grpc-js'
import { loadSync, type ServiceDefinition } from '@grpc/proto-loader'
import { z } from 'zod'
import { lateText, NoAnswerError } from './no-answer.ts'

const control = loadSync(join(import.meta.dirname, 'buildkit.proto'), { longs: Number })[
  'moby.buildkit.v1.Control'
] as ServiceDefinition

const Workers = z.object({
  record: z.array(z.object({ version: z.object({ version: z.string() }).nullish() })),
})

const Progress = z.object({
  vertexes: z.array(
    z.object({
      digest: z.string().default(''),
      name: z.string().default(''),
      cached: z.boolean().default(false),
      started: z.unknown().nullish(),
      completed: z.unknown().nullish(),
      error: z.string().default(''),
    }),
  ),
  statuses: z.array(
    z.object({ name: z.string().default(''), current: z.number().default(0), total: z.number().default(0) }),
  ),
  logs: z.array(z.object({ msg: z.instanceof(Uint8Array) })),
  warnings: z.array(z.object({ short: z.instanceof(Uint8Array) })),
})

const textOf = (bytes: Uint8Array): string => Buffer.from(bytes).toString()

/** A step that takes an image, as the builder itself names it; a step of another kind has its word there. */
const imageStep = /^(?:(?:\[[^\]]*\] )?FROM (?:--platform=\S+ )?|docker-image:\/\/)([\w.:@/+-]{1,512})$/

/**
 * One message of a build's progress (`StatusResponse`, in protobuf). `lines`: steps that begin,
 * come from the cache or fail, what they print, the share of what is loaded, warnings. `images`:
 * names of images that steps take, with the digest behind `@` where a registry gave it. A message
 * that cannot be read has none.
 */
export const readBuildProgress = (message: Buffer): { lines: string[]; images: string[] } => {
  let decoded: unknown
  try {
    decoded = control['Status']!.responseDeserialize(message)
  } catch {
    return { lines: [], images: [] }
  }
  const { data } = Progress.partial().safeParse(decoded)
  const { vertexes = [], statuses = [], logs = [], warnings = [] } = data ?? {}
  const lines = [
    ...vertexes.flatMap(({ digest, name, cached, started, completed, error }) => [
      ...(name !== '' && started != null && completed == null ? [`[${digest.slice(0, 12)}] ${name}`] : []),
      ...(error === '' ? [] : [`ERROR: ${error}`]),
      ...(completed != null && cached ? [`CACHED: ${name}`] : []),
    ]),
    ...logs.map(({ msg }) => textOf(msg)),
    ...statuses
      .filter(({ name, total }) => name !== '' && total > 0)
      .map(
        ({ name, current, total }) =>
          `${name}: ${String(Math.floor((current / total) * 100))}% (${String(current)}/${String(total)})`,
      ),
    ...warnings.map(({ short }) => `WARNING: ${textOf(short)}`),
  ]
  return { lines, images: vertexes.flatMap(({ name }) => imageStep.exec(name)?.[1] ?? []) }
}

const reasons: Partial<Record<status, string>> = {
  [status.UNAVAILABLE]: 'it is not started, or this account may not use its socket',
  [status.PERMISSION_DENIED]: 'it refuses this account',
  [status.UNAUTHENTICATED]: 'it refuses this account',
  [status.UNIMPLEMENTED]: 'what answers is no BuildKit daemon',
}

/**
 * Asks the BuildKit daemon at a Unix socket for its workers, which it needs to build, and for its
 * version, where it gives one.
 * @throws NoAnswerError
 */
export const listWorkers = async (
  socketPath: string,
  deadlineMs: number,
): Promise<{ workers: number; version?: string }> => {
  const { path, requestSerialize, responseDeserialize } = control['ListWorkers']!
  const client = new Client(`unix:${socketPath}`, credentials.createInsecure(), {
    'grpc.enable_http_proxy': 0,
    'grpc.enable_retries': 0,
  })
  try {
    const answer = await new Promise<unknown>((resolve, reject) => {
      const deadline = Date.now() + deadlineMs
      client.makeUnaryRequest(
        path,
        requestSerialize,
        responseDeserialize,
        {},
        new Metadata(),
        { deadline },
        (error, value) => {
          if (error === null) resolve(value)
          else reject(error)
        },
      )
    })
    const { record = [] } = Workers.partial().parse(answer)
    const version = record.find((worker) => worker.version?.version)?.version?.version
    return { workers: record.length, ...(version === undefined ? {} : { version }) }
  } catch (error) {
    const { code } = error as Partial<ServiceError>
    const late = code === status.DEADLINE_EXCEEDED ? lateText(deadlineMs) : undefined
    throw new NoAnswerError(
      late ?? (code === undefined ? undefined : reasons[code]) ?? 'it answers with an error',
      { cause: error },
    )
  } finally {
    client.close()
  }
}
