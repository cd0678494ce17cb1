import type { TypeTime } from '../mosaic/measure.ts'

/** Planned, simulated and measured seconds and cost of one item. */
export interface Triple {
  planned: number
  simulated: number
  measured: number
}

/** A type of activity, or all of them. `cost` is in the currency of `pricePerSecond`. */
export interface Line {
  activityType: string
  tasks: number
  /** Sum over the tasks, seconds. */
  seconds: Triple
  cost: Triple
}

export interface Task {
  activityType: string
  seconds: Triple
  cost: Triple
}

const sum = (triples: readonly Triple[]): Triple => ({
  planned: triples.reduce((total, { planned }) => total + planned, 0),
  simulated: triples.reduce((total, { simulated }) => total + simulated, 0),
  measured: triples.reduce((total, { measured }) => total + measured, 0),
})

const line = (activityType: string, tasks: readonly Task[]): Line => ({
  activityType,
  tasks: tasks.length,
  seconds: sum(tasks.map(({ seconds }) => seconds)),
  cost: sum(tasks.map(({ cost }) => cost)),
})

/** One line per type, in the order of their first tasks, and the total. */
export const linesOf = (tasks: readonly Task[]): { types: Line[]; all: Line } => ({
  types: [...Map.groupBy(tasks, ({ activityType }) => activityType)].map(([type, members]) =>
    line(type, members),
  ),
  all: line('all', tasks),
})

/**
 * The difference of the measurement from the plan, as a share of the plan; undefined where the plan
 * is 0.
 */
export const errorOf = ({ planned, measured }: Triple): number | undefined =>
  planned === 0 ? undefined : (measured - planned) / planned

/** A range in seconds. */
export interface Band {
  lowest: number
  highest: number
}

/**
 * The planned makespan as a band: its lower and upper bound if each task takes as long as in the
 * fastest, or in the slowest, measured pass of its type. Undefined without measurements.
 */
export const bandOf = (
  makespanSeconds: number,
  lines: readonly Line[],
  times: readonly TypeTime[],
): Band | undefined => {
  const sums = { lowest: 0, planned: 0, highest: 0 }
  for (const { activityType, tasks } of lines) {
    const time = times.find((each) => each.activityType === activityType)
    if (time === undefined) continue
    sums.lowest += tasks * time.lowestSeconds
    sums.planned += tasks * time.runtimeSeconds
    sums.highest += tasks * time.highestSeconds
  }
  if (sums.planned === 0) return undefined
  return {
    lowest: (makespanSeconds * sums.lowest) / sums.planned,
    highest: (makespanSeconds * sums.highest) / sums.planned,
  }
}
