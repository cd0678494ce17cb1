/**
 * The numbers that documents may hold, by kind: 0 where the kind has it, else from `least` to
 * `most`. Within them no product or sum of a plan overflows, and no time passes beyond the calendar.
 */
export const ranges = {
  /** Durations and latencies that people write; 1e9 s are 31 years. */
  seconds: { least: 1e-9, most: 1e9, unit: 'seconds' },
  /** Times and durations that a plan sums up. */
  planSeconds: { least: 0, most: 1e18, unit: 'seconds' },
  /** Prices per second, byte or hour, and budgets. */
  money: { least: 1e-18, most: 1e15, unit: 'units of currency' },
  /** Costs that a plan sums up. */
  cost: { least: 0, most: 1e30, unit: 'units of currency' },
  /** How many times as fast as the reference. */
  speed: { least: 1e-6, most: 1e6, unit: 'times the reference speed' },
  bandwidth: { least: 1, most: 1e18, unit: 'bits per second' },
  operations: { least: 1e-3, most: 1e30, unit: 'floating-point operations' },
  cores: { least: 1e-3, most: 1e9, unit: 'cores' },
  energy: { least: 1e-9, most: 1e18, unit: 'joules' },
  ratio: { least: 1e-9, most: 1e9, unit: '' },
  /** Priorities and other numbers that only order things; below 0 too. */
  rank: { least: 0, most: 1e15, unit: '' },
} as const

/** `least`: of what is above 0. */
export interface Range {
  least: number
  most: number
  unit: string
}

/** Bytes that a number of the database holds (bigint). */
export const mostBytes = 2n ** 63n - 1n
/** Bytes of all data dependencies of a workflow, so that their sums stay below `mostBytes`. */
export const mostDataBytes = 9e18
/** A plan that takes longer is refused: its times pass beyond the year 5000. */
export const longestPlanSeconds = 1e11
/** Cores of one activity. */
export const mostCores = 1e6
/** The shortest limit of a runtime that every runner holds: they count in hundredths of a second. */
export const shortestTimeoutSeconds = 0.01
