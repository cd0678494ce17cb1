import { hash } from 'node:crypto'
import type { WorkflowKind } from './kind.ts'

/** Characters of a workflow id that each of Temporal's databases stores. */
const mostCharacters = 255
/** Temporal's frontend takes 1,000 bytes. */
const mostTaken = 1_000
const mostBytes = 980

const plainIdOf = (name: string, id: string, generation: number): string =>
  `${name}/${id}/${String(generation)}`

/**
 * Workflow id of a record in one of its generations: `<kind>/<id>/<generation>`. Where that is too
 * long for Temporal it is `<kind>#<SHA-256 of the id>/<generation>`, which no id of a record gives:
 * the name of a kind has no `#`. Starting it twice is harmless.
 */
export const temporalIdOf = (
  { name }: Pick<WorkflowKind, 'name'>,
  id: string,
  generation: number,
): string => {
  const text = plainIdOf(name, id, generation)
  return [...text].length <= mostCharacters && Buffer.byteLength(text) <= mostBytes
    ? text
    : `${name}#${hash('sha256', id)}/${String(generation)}`
}

/**
 * The other workflow id that an open record may have: earlier versions gave the plain one to every
 * record, which the embedded Temporal stored up to its own bound. Undefined where both are one, or
 * Temporal takes no such id.
 */
export const earlierTemporalIdOf = (
  kind: Pick<WorkflowKind, 'name'>,
  id: string,
  generation: number,
): string | undefined => {
  const text = plainIdOf(kind.name, id, generation)
  return text === temporalIdOf(kind, id, generation) || Buffer.byteLength(text) > mostTaken ? undefined : text
}
