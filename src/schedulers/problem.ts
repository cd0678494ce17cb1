/**
 * The planning problem as plain data: one workflow on the schedulable resources of one scope, over
 * one topology. Indices everywhere; names only for the answer. Times in seconds, sizes in bytes,
 * prices in currency units. Pure: no clock, no randomness, no I/O. The rules are one for planner,
 * simulator and run: durations, cost, lanes, flows as documented in docs/architecture.md ("Time,
 * cost, lanes, flows").
 */
export interface PlanningProblem {
  activities: ProblemActivity[]
  /**
   * Control edges by activity index, `bytes` summed over the data dependencies of the same pair. No
   * duplicates, no cycles.
   */
  edges: ProblemEdge[]
  resources: ProblemResource[]
  /** Undefined: no topology, so no network; every transfer takes no time and costs nothing. */
  links: ProblemLink[] | undefined
  /** Row-major activities × resources: runtime in seconds. */
  durations: Float64Array
  /** Same layout: which rule gave the duration (index into `durationSources`). */
  durationSource: Uint8Array
}

export const durationSources = ['baseRuntime', 'profile', 'simulation', 'flops', 'plan', 'default'] as const
export type DurationSource = (typeof durationSources)[number]

export interface ProblemActivity {
  id: string
  cpu: number
  memoryBytes: number
  /** Index of the only resource allowed by its resourceSelector. */
  selector?: number
  priority: number
}

export interface ProblemEdge {
  from: number
  to: number
  bytes: number
}

export interface ProblemResource {
  id: string
  /** Lanes a task may occupy: cpuCores, else max(1, floor(cpuCapacity)). */
  lanes: number
  /** Below 0: it takes no task and only forwards data. */
  cpuCapacity: number
  memoryBytes: number
  /** Batch target: CPU and memory are not checked, its own scheduler decides which tasks fit. */
  batch: boolean
  /**
   * Batch target of type batch_queue, hpc_partition or slurm_reservation: it shows one lane,
   * `<id>-slot`.
   */
  opaque: boolean
  pricePerSecond: number
  bootOverheadSeconds: number
  containerOverheadSeconds: number
  /** Seconds from the start at which it is there: its machine is made first. Absent: 0. */
  availableAt?: number
  /** Cost by the window between its first start and last finish instead of by task. */
  activeWindow: boolean
}

export interface ProblemLink {
  id: string
  source: number
  target: number
  bandwidthBitsPerSecond: number
  latencySeconds: number
  pricePerByte: number
  /** 0 = unlimited. */
  maxConcurrentTransfers: number
  bidirectional: boolean
  /** False for `independent` and `fatpipe`: every flow has the whole bandwidth. */
  shared: boolean
  /** A shared bidirectional link has one capacity for both directions unless split. */
  duplexSplit: boolean
}

/** A placement of every activity; the content of a plan. */
export interface ProblemAssignment {
  activity: number
  resource: number
  /** Lane names this task holds; the first is `coreId`. */
  coreIds: string[]
  slotId: string
  /** Unique per lane; tasks of a lane run in this order. */
  orderOnResource: number
  readyAt: number
  startAt: number
  finishAt: number
  runtimeSeconds: number
  transferSeconds: number
  bootOverheadSeconds: number
  containerOverheadSeconds: number
  cost: number
}

export interface Schedule {
  assignments: ProblemAssignment[]
  makespanSeconds: number
  cost: number
}
