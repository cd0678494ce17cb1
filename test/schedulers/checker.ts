/**
 * A slow judge of schedules, written from the rules of the documentation alone: it imports nothing
 * from the product and uses the plainest algorithm for each rule. Answers every broken rule in
 * words; empty: the schedule is valid and its figures are right.
 */
interface Instance {
  activities: readonly { id: string; cpu: number; memoryBytes: number; selector?: number }[]
  edges: readonly { from: number; to: number; bytes: number }[]
  resources: readonly {
    id: string
    lanes: number
    cpuCapacity: number
    memoryBytes: number
    batch: boolean
    opaque: boolean
    pricePerSecond: number
    bootOverheadSeconds: number
    containerOverheadSeconds: number
    activeWindow: boolean
  }[]
  links:
    | readonly {
        source: number
        target: number
        bandwidthBitsPerSecond: number
        latencySeconds: number
        pricePerByte: number
        bidirectional: boolean
      }[]
    | undefined
  durations: ArrayLike<number>
}

interface Judged {
  assignments: readonly {
    activity: number
    resource: number
    coreIds: readonly string[]
    slotId: string
    orderOnResource: number
    startAt: number
    finishAt: number
    cost: number
  }[]
  makespanSeconds: number
  cost: number
}

const tolerance = 1e-7
const differs = (a: number, b: number): boolean =>
  Math.abs(a - b) > tolerance * Math.max(1, Math.abs(a), Math.abs(b))

export function violations(instance: Instance, schedule: Judged): string[] {
  const found: string[] = []
  const { activities, edges, resources } = instance
  const placed = new Map<number, Judged['assignments'][number]>()
  for (const assignment of schedule.assignments) {
    if (placed.has(assignment.activity)) found.push(`activity ${assignment.activity} is placed twice`)
    placed.set(assignment.activity, assignment)
  }
  activities.forEach((_, k) => {
    if (!placed.has(k)) found.push(`activity ${k} is not placed`)
  })
  if (found.length > 0) return found

  const lanesOf = (k: number): string[] => {
    const { resource, coreIds, slotId } = placed.get(k)!
    return coreIds.length === 0
      ? [`${resource} ${slotId}`]
      : coreIds.map((core) => `${resource} ${core} ${slotId}`)
  }
  const lanes = new Map<string, number[]>()
  activities.forEach((_, k) => {
    for (const lane of lanesOf(k)) lanes.set(lane, [...(lanes.get(lane) ?? []), k])
  })
  for (const [lane, tasks] of lanes) {
    tasks.sort((a, b) => placed.get(a)!.orderOnResource - placed.get(b)!.orderOnResource)
    for (let i = 1; i < tasks.length; i++) {
      const [a, b] = [placed.get(tasks[i - 1]!)!, placed.get(tasks[i]!)!]
      if (a.orderOnResource === b.orderOnResource)
        found.push(`lane ${lane}: order ${a.orderOnResource} twice`)
      if (b.startAt < a.finishAt - tolerance)
        found.push(
          `lane ${lane}: ${b.activity} starts at ${b.startAt} before ${a.activity} ends at ${a.finishAt}`,
        )
    }
  }

  let cost = 0
  const owed = new Map<number, number>()
  activities.forEach((activity, k) => {
    const { resource: at, coreIds, slotId, startAt, finishAt } = placed.get(k)!
    const resource = resources[at]!
    if (activity.selector !== undefined && activity.selector !== at)
      found.push(`${activity.id} ignores its selector`)
    if (
      resource.opaque
        ? coreIds.length !== 0 || slotId !== `${resource.id}-slot`
        : coreIds.length < Math.min(resource.lanes, Math.max(1, Math.ceil(activity.cpu)))
    )
      found.push(`${activity.id} holds the wrong lanes`)
    const names = Array.from({ length: resource.lanes }, (_, lane) => `${resource.id}-core-${lane}`)
    if (new Set(coreIds).size !== coreIds.length || coreIds.some((core) => !names.includes(core)))
      found.push(`${activity.id} holds lanes that are not there`)
    const first = lanesOf(k).some((lane) => lanes.get(lane)![0] === k)
    const occupied =
      (first ? resource.bootOverheadSeconds : 0) +
      resource.containerOverheadSeconds +
      instance.durations[k * resources.length + at]!
    if (differs(finishAt - startAt, occupied))
      found.push(`${activity.id} occupies ${finishAt - startAt} s, not ${occupied} s`)
    let own = resource.activeWindow ? 0 : occupied * resource.pricePerSecond
    for (const edge of edges.filter(({ to }) => to === k)) {
      const producer = placed.get(edge.from)!
      const way =
        edge.bytes > 0 && producer.resource !== at
          ? fastest(instance, producer.resource, at, edge.bytes)
          : { seconds: 0, prices: [0] }
      if (startAt < producer.finishAt + way.seconds - tolerance)
        found.push(
          `${activity.id} starts at ${startAt} before the data of ${edge.from} arrives at ` +
            `${producer.finishAt + way.seconds}`,
        )
      own += edge.bytes * Math.min(...way.prices)
    }
    owed.set(k, own)
    cost += own
  })
  resources.forEach((resource, at) => {
    const tasks = schedule.assignments.filter((each) => each.resource === at)
    if (resource.activeWindow && tasks.length > 0)
      cost +=
        (Math.max(...tasks.map((each) => each.finishAt)) - Math.min(...tasks.map((each) => each.startAt))) *
        resource.pricePerSecond
    if (resource.batch) return
    for (const { startAt } of tasks) {
      const running = tasks
        .filter((each) => each.startAt <= startAt + tolerance && each.finishAt > startAt + tolerance)
        .map((each) => activities[each.activity]!)
      const cpu = running.reduce((sum, each) => sum + each.cpu, 0)
      const memory = running.reduce((sum, each) => sum + each.memoryBytes, 0)
      if (cpu > resource.cpuCapacity + tolerance || memory > resource.memoryBytes + tolerance)
        found.push(`${resource.id} is overcommitted at ${startAt}: cpu ${cpu}, memory ${memory}`)
    }
  })
  if (differs(schedule.cost, cost)) found.push(`cost is ${cost}, not ${schedule.cost}`)
  if (!resources.some(({ activeWindow }) => activeWindow))
    for (const { activity, cost: said } of schedule.assignments)
      if (differs(said, owed.get(activity)!))
        found.push(`${activity} costs ${owed.get(activity)}, not ${said}`)
  const makespan =
    Math.max(...schedule.assignments.map((each) => each.finishAt)) -
    Math.min(...schedule.assignments.map((each) => each.startAt))
  if (differs(schedule.makespanSeconds, makespan))
    found.push(`makespan is ${makespan}, not ${schedule.makespanSeconds}`)
  return found
}

/** Tries every simple path. `prices` are those of all paths that take the least time. */
export function fastest(
  { resources, links }: Pick<Instance, 'resources' | 'links'>,
  source: number,
  target: number,
  bytes: number,
): { seconds: number; prices: number[] } {
  if (links === undefined) return { seconds: 0, prices: [0] }
  let best = { seconds: Infinity, prices: [] as number[] }
  const walk = (
    at: number,
    seen: readonly number[],
    latency: number,
    bandwidth: number,
    price: number,
  ): void => {
    if (at === target) {
      const seconds = latency + (bytes * 8) / bandwidth
      if (seconds < best.seconds - 1e-12) best = { seconds, prices: [price] }
      else if (seconds <= best.seconds + 1e-12) best.prices.push(price)
      return
    }
    for (const link of links) {
      for (const [from, to] of link.bidirectional
        ? [
            [link.source, link.target],
            [link.target, link.source],
          ]
        : [[link.source, link.target]]) {
        if (from !== at || seen.includes(to!)) continue
        walk(
          to!,
          [...seen, to!],
          latency + link.latencySeconds,
          Math.min(bandwidth, link.bandwidthBitsPerSecond),
          price + link.pricePerByte,
        )
      }
    }
  }
  if (resources.length > 0) walk(source, [source], 0, Infinity, 0)
  return best
}
