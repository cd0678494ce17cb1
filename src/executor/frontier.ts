/** The state of a task for the executor. */
export const waiting = 0
export const inFlight = 1
export const completed = 2
/** Failed permanently, cancelled, or behind such a task: it will not run in this generation. */
export const dead = 3

export interface FrontierInput {
  /** One of the four states above, by position. */
  states: Uint8Array
  /** Control edges by position: `to[k]` needs `from[k]`. */
  from: ArrayLike<number>
  to: ArrayLike<number>
  /** Names of a task's lanes, and its place in them. */
  lanes: readonly (readonly string[])[]
  orders: ArrayLike<number>
  /** Tasks of the executing site; only these become ready. */
  mine: ArrayLike<boolean>
}

/** The tasks of a lane in their order, and the index of the first that is not over. */
interface Lane {
  members: number[]
  first: number
}

/** Adjacency in compressed rows: neighbours of i are `items[start[i] … start[i + 1])`. */
const rowsOf = (
  n: number,
  keys: ArrayLike<number>,
  values: ArrayLike<number>,
): { start: Int32Array; items: Int32Array } => {
  const start = new Int32Array(n + 1)
  for (let k = 0; k < keys.length; k++) start[(keys[k] as number) + 1]! += 1
  for (let i = 0; i < n; i++) start[i + 1]! += start[i] as number
  const items = new Int32Array(values.length)
  const cursor = start.slice(0, n)
  for (let k = 0; k < keys.length; k++) items[cursor[keys[k] as number]!++] = values[k] as number
  return { start, items }
}

/**
 * Computes the tasks that may start: all predecessors completed, and every earlier task of their
 * lanes over. A plan leaves no choice, so this is arithmetic only; states are derived from the rows
 * at every load and never stored twice.
 */
export const createFrontier = ({ states, from, to, lanes, orders, mine }: FrontierInput) => {
  const n = states.length
  // Own tasks that are not over; kept as a number because every step needs it.
  let open = 0
  /** Tasks of other sites that may start, or that died, since they were last taken. */
  const elsewhere: number[] = []
  const successors = rowsOf(n, from, to)
  const predecessors = rowsOf(n, to, from)

  // A lane is free for the first of its tasks that is not over. The state of the task just before is
  // not enough: a failed predecessor ends that task while earlier tasks of the lane still wait.
  const laneOfName = new Map<string, Lane>()
  const lanesOf = lanes.map((names, i) =>
    [...new Set(names)].map((name) => {
      const lane = laneOfName.get(name) ?? { members: [], first: 0 }
      laneOfName.set(name, lane)
      lane.members.push(i)
      return lane
    }),
  )
  for (const { members } of laneOfName.values())
    members.sort((a, b) => (orders[a] as number) - (orders[b] as number) || a - b)
  /** Moves the lane to the first of its tasks that is not over. */
  const advance = (lane: Lane): void => {
    const { members } = lane
    while (lane.first < members.length && (states[members[lane.first] as number] as number) >= completed)
      lane.first += 1
  }

  const needs = new Int32Array(n)
  const count = (): void => {
    for (let k = 0; k < from.length; k++)
      if (states[from[k] as number] !== completed) needs[to[k] as number]! += 1
    for (const lane of laneOfName.values()) {
      advance(lane)
      for (let k = lane.first + 1; k < lane.members.length; k++) needs[lane.members[k] as number]! += 1
    }
  }

  /** Marks all successors of `roots`, direct and indirect, as `dead`; returns those it marked. */
  const killBehind = (roots: readonly number[]): number[] => {
    const killed: number[] = []
    const stack = [...roots]
    while (stack.length > 0) {
      const i = stack.pop() as number
      for (let k = successors.start[i] as number; k < (successors.start[i + 1] as number); k++) {
        const next = successors.items[k] as number
        if (states[next] !== waiting) continue
        states[next] = dead
        if (mine[next] === true) open -= 1
        else elsewhere.push(next)
        killed.push(next)
        stack.push(next)
      }
    }
    return killed
  }
  for (let i = 0; i < n; i++) if (mine[i] === true && (states[i] as number) < completed) open += 1
  killBehind([...states.keys()].filter((i) => states[i] === dead))
  elsewhere.length = 0
  count()

  const release = (next: number, ready: number[]): void => {
    needs[next]! -= 1
    if (needs[next] !== 0 || states[next] !== waiting) return
    if (mine[next] === true) ready.push(next)
    else elsewhere.push(next)
  }
  const releaseLanes = (i: number, ready: number[]): void => {
    for (const lane of lanesOf[i] as Lane[]) {
      const before = lane.first
      advance(lane)
      if (lane.first > before && lane.first < lane.members.length)
        release(lane.members[lane.first] as number, ready)
    }
  }

  return {
    states,
    predecessorsOf: (i: number): Int32Array =>
      predecessors.items.subarray(predecessors.start[i], predecessors.start[i + 1]),
    /** Own tasks that are not over. */
    get open(): number {
      return open
    },
    /** All own tasks that may start now, by position. */
    ready: (): number[] =>
      [...needs.keys()].filter((i) => needs[i] === 0 && states[i] === waiting && mine[i] === true),
    /** The tasks of other sites that the ends since the last call let start, or let never start. */
    takeElsewhere: (): number[] => elsewhere.splice(0),
    take(i: number): void {
      states[i] = inFlight
    },
    /** The task that comes next in all lanes of `i` and has no others, over or not. */
    followerOf(i: number): number | undefined {
      const own = lanesOf[i] as Lane[]
      const next = own.map(({ members }) => members[members.indexOf(i) + 1])
      return next.every((one) => one === next[0]) &&
        next[0] !== undefined &&
        (lanesOf[next[0]] as unknown[]).length === own.length
        ? next[0]
        : undefined
    },
    /**
     * The own waiting task that comes next in all lanes of `i` and has no others, whether or not it
     * may start by then.
     */
    heirOf(i: number): number | undefined {
      const own = lanesOf[i] as Lane[]
      let heir: number | undefined
      for (const lane of own) {
        let k = lane.members.indexOf(i, lane.first) + 1
        while (k < lane.members.length && (states[lane.members[k] as number] as number) >= completed) k += 1
        const next = lane.members[k]
        if (next === undefined || (heir ?? next) !== next) return undefined
        heir = next
      }
      if (heir === undefined || states[heir] !== waiting || mine[heir] !== true) return undefined
      return (lanesOf[heir] as unknown[]).length === own.length ? heir : undefined
    },
    /** The task did not start after all (its lane is held by another run). */
    putBack(i: number): void {
      states[i] = waiting
    },
    /** The task has completed; returns the tasks that may start now because of it. */
    complete(i: number): number[] {
      states[i] = completed
      if (mine[i] === true) open -= 1
      const ready: number[] = []
      for (let k = successors.start[i] as number; k < (successors.start[i + 1] as number); k++)
        release(successors.items[k] as number, ready)
      releaseLanes(i, ready)
      return ready
    },
    /**
     * The task will never complete, and neither will its successors. Its lanes pass to their next
     * tasks. Returns the tasks that may start.
     */
    kill(i: number): number[] {
      states[i] = dead
      if (mine[i] === true) open -= 1
      const ready: number[] = []
      const killed = killBehind([i])
      for (const gone of [i, ...killed]) releaseLanes(gone, ready)
      return ready.filter((next) => states[next] === waiting)
    },
  }
}
