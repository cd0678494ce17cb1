import { createHash } from 'node:crypto'
import type { WorkflowKind } from './kind.ts'

/** Characters of a workflow id that each of Temporal's databases stores. */
const mostCharacters = 255
/** Temporal's frontend takes 1,000 bytes. */
const mostBytes = 980

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
  const text = `${name}/${id}/${String(generation)}`
  return [...text].length <= mostCharacters && Buffer.byteLength(text) <= mostBytes
    ? text
    : `${name}#${createHash('sha256').update(id).digest('hex')}/${String(generation)}`
}
