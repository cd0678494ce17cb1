import type { Problem } from '../../refusal.ts'
import { describeCycle } from '../../schedulers/graph.ts'
import { mentionsOf, type Mention, type Mentions, type Pair, type Parent } from './mentions.ts'

/** Every repeated occurrence of an item that must be unique; `what` names the kind of item. */
const repeated = <T>(
  items: readonly T[],
  keyOf: (item: T) => string,
  at: (item: T) => Mention | { path: string },
  what: (item: T, first: T) => string,
): Problem[] => {
  const first = new Map<string, T>()
  return items.flatMap((item) => {
    const key = keyOf(item)
    const before = first.get(key)
    if (before !== undefined) return [{ path: at(item).path, message: what(item, before) }]
    first.set(key, item)
    return []
  })
}

const repeatedMentions = (mentions: readonly Mention[], noun: string): Problem[] =>
  repeated(
    mentions,
    ({ value }) => value,
    (item) => item,
    (item, first) =>
      `the ${noun} ${JSON.stringify(item.value)} stands at ${first.path} already; give each its own`,
  )

const quoted = ({ left, right }: Pair): string =>
  `${JSON.stringify(left.value)} and ${JSON.stringify(right.value)}`
const keyOfPair = ({ left, right }: Pair): string => JSON.stringify([left.value, right.value])

const repeatedPairs = <T extends Pair>(
  pairs: readonly T[],
  noun: string,
  keyOf: (pair: T) => string = keyOfPair,
): Problem[] =>
  repeated(
    pairs,
    keyOf,
    (item) => item,
    (item, first) => `the ${noun} of ${quoted(item)} stands at ${first.path} already; remove one`,
  )

/** Parents that lead back to their child. Each cycle is reported once, at one of its links. */
const parentCycles = ({ parents }: Mentions): Problem[] => {
  const parentOf = new Map(parents.map((parent) => [parent.child, parent]))
  const walk = new Map<string, number>()
  return parents.flatMap((start, number) => {
    const trail: Parent[] = []
    let at: Parent | undefined = start
    while (at !== undefined && !walk.has(at.child)) {
      walk.set(at.child, number)
      trail.push(at)
      at = parentOf.get(at.value)
    }
    if (at === undefined || walk.get(at.child) !== number) return []
    const cycle = trail.slice(trail.findIndex(({ child }) => child === at.child))
    const name = describeCycle(cycle.map(({ child }) => child))
    return [
      { path: at.path, message: `makes a resource its own ancestor: ${name}; remove one parentResourceId` },
    ]
  })
}

/**
 * Every rule that a definition can break by itself: duplicates, relations to itself, cycles of
 * parents, storage bindings to a runtime of another version, two default storages. Takes any value
 * and skips members of the wrong shape. Reads no other data.
 */
export const documentProblems = (document: unknown): Problem[] => {
  const names = mentionsOf(document)
  const runtimes = new Set(names.runtimes.map(({ value }) => value))
  return [
    ...repeatedMentions(names.runtimes, 'runtime id'),
    ...repeatedMentions(names.runtimeNames, 'runtime name'),
    ...repeatedMentions(names.resources, 'resource id'),
    ...repeatedMentions(names.providerIds, 'providerId'),
    ...parentCycles(names),
    ...repeatedPairs(names.bindings, 'binding'),
    ...repeatedPairs(names.relations, 'relation', (relation) =>
      JSON.stringify([relation.left.value, relation.right.value, relation.type]),
    ),
    ...names.relations
      .filter(({ left, right }) => left.value === right.value)
      .map(({ right }) => ({
        path: right.path,
        message: `${JSON.stringify(right.value)} is the source of the relation too; name two resources`,
      })),
    ...repeatedMentions(names.storages, 'storage id'),
    ...repeatedMentions(names.storageNames, 'storage name'),
    ...repeatedPairs(names.storageBindings, 'storage binding'),
    ...names.storageBindings
      .filter(({ right }) => !runtimes.has(right.value))
      .map(({ right }) => ({
        path: right.path,
        message:
          `${JSON.stringify(right.value)} is no runtime of this version; a storage is bound to a ` +
          'runtime of its own document',
      })),
    ...repeated(
      names.storageBindings.filter((binding) => binding.default),
      ({ right }) => right.value,
      (item) => ({ path: `${item.path}.default` }),
      (item, first) =>
        `the runtime ${JSON.stringify(item.right.value)} has its default storage at ${first.path} ` +
        'already; at most one storage is the default of a runtime',
    ),
    ...repeatedMentions(names.profiles, 'profile id'),
    ...repeatedPairs(names.profileTargets, 'profile', (target) =>
      JSON.stringify([target.left.value, target.right.value, target.modelVersion]),
    ),
    ...repeatedMentions(names.connections, 'connection id'),
    ...repeatedMentions(names.connectionNames, 'connection name'),
  ]
}
