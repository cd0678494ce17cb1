import { Refusal, unacceptableAt } from './refusal.ts'

/**
 * Values that documents may name and that this version does not support. A request for one is
 * refused with `notBuilt` before any record is stored. Drivers of runtimes are not listed:
 * `drivers/runtime/registry.ts` lists the existing ones. Later versions shorten this file.
 */

/**
 * Types of connections that the service uses. Any other text is stored without use (API
 * specification: not validated).
 */
const usedTypes: ReadonlySet<string> = new Set(['ssh', 'kubernetes', 'cloud', 'local'])

/**
 * The refusal to use a connection of a type that this version lacks, or without a type; undefined
 * for the types that it has.
 */
export const unbuiltConnectionType = (type: string): Refusal | undefined =>
  usedTypes.has(type)
    ? undefined
    : type === ''
      ? unacceptableAt('type', `the connection has none; save it with one of ${[...usedTypes].join(', ')}`)
      : notBuilt(
          `connections of type ${JSON.stringify(type.slice(0, 60))}`,
          `use one of ${[...usedTypes].join(', ')}`,
        )

/**
 * 503 `not_built` without `Retry-After`, because waiting does not help. `remedy` names the
 * alternative.
 */
export const notBuilt = (what: string, remedy?: string): Refusal =>
  new Refusal(
    'not_built',
    `${what}: part of the API, not built in this version${remedy === undefined ? '' : `; ${remedy}`}`,
  )
