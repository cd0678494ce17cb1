import type { World } from '../support/worlds.ts'

/**
 * Each consumer of these copies the files for itself; of the others the first one at a resource
 * brings them for all.
 */
const copies = new Set(['runtime-local', 'shared-storage'])

/**
 * What is wrong with the transfers of a completed run whose activities made these files (by name of
 * the activity: path, bytes) and kept what they were given: edges between two resources without a
 * record or brought twice, and sums that are not those of the files.
 */
export const transferViolations = (
  world: World,
  transfers: readonly any[],
  made: ReadonlyMap<string, ReadonlyMap<string, number>>,
): string[] => {
  const violations: string[] = []
  const place = new Map(world.assignments.map(({ activityId, resourceId }) => [activityId, resourceId]))
  const resourceOf = (name: string): string => place.get(world.activityId(name)) ?? ''
  const number = new Map(world.tasks.map(({ name }, i) => [name, i]))
  const holds = new Map<string, Map<string, number>>()
  const wanted = new Map<string, { files: number; bytes: number }>()
  for (const { name, after = [] } of inOrder(world)) {
    const own = new Map<string, number>()
    for (const needed of after.toSorted((a, b) => (number.get(a) ?? 0) - (number.get(b) ?? 0))) {
      const came = { files: 0, bytes: 0 }
      for (const [path, bytes] of holds.get(needed) ?? []) {
        if (own.has(path)) continue
        own.set(path, bytes)
        came.files += 1
        came.bytes += bytes
      }
      if (resourceOf(needed) !== resourceOf(name)) wanted.set(`${needed} > ${name}`, came)
    }
    for (const [path, bytes] of made.get(name) ?? []) own.set(path, bytes)
    holds.set(name, own)
  }

  const told = new Map<string, any>()
  for (const transfer of transfers) {
    const [from, to] = [transfer.producerActivityId, transfer.consumerActivityId].map(
      (id) => world.tasks.find(({ name }) => world.activityId(name) === id)?.name,
    )
    const edge = `${String(from)} > ${String(to)}`
    // A further attempt copies again; what was brought from elsewhere is there for it.
    if ((told.get(edge)?.bytes ?? 0) > 0 && transfer.bytes > 0 && !copies.has(transfer.strategy))
      violations.push(`${edge} was brought twice`)
    if ((told.get(edge)?.bytes ?? -1) < transfer.bytes) told.set(edge, transfer)
  }
  // Those that share what was brought are one: the sum of what moved to a resource from one
  // producer.
  const sums = new Map<string, { files: number; bytes: number; wanted: { files: number; bytes: number } }>()
  for (const [edge, amount] of wanted) {
    const transfer = told.get(edge)
    if (transfer === undefined) {
      if (amount.files > 0) violations.push(`${edge} has no transfer`)
      continue
    }
    const alone = copies.has(transfer.strategy)
    const [from = '', to = ''] = edge.split(' > ')
    const key = alone ? edge : `${from} to ${resourceOf(to)}`
    const sum = sums.get(key) ?? { files: 0, bytes: 0, wanted: amount }
    sums.set(key, { ...sum, files: sum.files + transfer.filesTransferred, bytes: sum.bytes + transfer.bytes })
  }
  for (const [key, { files, bytes, wanted: amount }] of sums)
    if (files !== amount.files || bytes !== amount.bytes)
      violations.push(
        `${key}: ${String(files)} files of ${String(bytes)} bytes moved, not ` +
          `${String(amount.files)} of ${String(amount.bytes)}`,
      )
  return violations
}

/** Activities so that each comes after those that it needs. */
const inOrder = (world: World): World['tasks'][number][] => {
  const ordered: World['tasks'][number][] = []
  const placed = new Set<string>()
  for (let before = -1; ordered.length < world.tasks.length && ordered.length > before;) {
    before = ordered.length
    for (const task of world.tasks) {
      if (placed.has(task.name) || (task.after ?? []).some((name) => !placed.has(name))) continue
      placed.add(task.name)
      ordered.push(task)
    }
  }
  return ordered
}
