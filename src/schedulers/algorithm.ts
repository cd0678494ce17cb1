import { choicesOf, taskPlacesOf } from './fit.ts'
import { describeCycle } from './graph.ts'
import type { PlanningProblem, Schedule } from './problem.ts'

export type AlgorithmId = 'heft' | 'prism-cost' | 'prism-time'

/**
 * The limits and options of an algorithm. Algorithms have no clock: the caller measures the time
 * and stops requesting steps.
 */
export interface AlgorithmOptions {
  /**
   * Limit of work, in the algorithm's own unit (`Step.workDone`), after which it seeks no further
   * improvement; the result is then reproducible. A first schedule is always finished.
   */
  maxWork?: number
  /** Limits of makespan (seconds) and cost of a feasible schedule; 0 or absent: none. */
  deadlineSeconds?: number
  budget?: number
  /** Options of a beam search: partial schedules that it keeps, schedules that it offers … */
  beamWidth?: number
  optionCount?: number
  /** … and activities by which it continues each partial schedule. */
  readyBranchLimit?: number
}

/** The progress of a running algorithm. */
export interface AlgorithmStep {
  /** The best schedule so far; undefined until there is a first one. */
  best: Schedule | undefined
  /** At the last step: further schedules that the algorithm offers. */
  others?: readonly Schedule[]
  /** A makespan in seconds that no schedule can beat. */
  bound: number
  workDone: number
  /** 0…1. */
  progress: number
}

/** The description of an algorithm for users at `/planning-algorithms/`. */
export interface AlgorithmDescription {
  id: AlgorithmId
  name: string
  objective: 'time' | 'cost'
  /** Whether it offers several candidates. */
  multiple: boolean
  description: string
  defaults?: Record<string, number>
}

export interface Algorithm {
  descriptor: AlgorithmDescription
  /**
   * The expected planning of a problem of this size: seconds, rounded to 0.1, and the options of a
   * beam search as they apply to it.
   */
  estimate(
    size: ProblemSize,
    options: AlgorithmOptions,
  ): { durationSeconds: number; beamWidth?: number; readyBranchLimit?: number }
  /**
   * Yields its progress; the last step has a schedule and progress 1. Deterministic: the same
   * problem and options give the same steps. Throws `Infeasible` when an activity has no possible
   * resource, `CyclicWorkflow` when the dependencies have a cycle.
   */
  plan(problem: PlanningProblem, options: AlgorithmOptions): Generator<AlgorithmStep, void, void>
}

/** No placement for some activities; every one of them is listed with its reason. */
export class Infeasible extends Error {
  readonly activities: readonly { id: string; reason: string }[]

  constructor(activities: readonly { id: string; reason: string }[]) {
    const [first] = activities
    const more = activities.length > 1 ? ` (and ${activities.length - 1} more activities)` : ''
    super(
      first === undefined
        ? 'no feasible placement'
        : `activity ${JSON.stringify(first.id)} fits nowhere: ${first.reason}${more}`,
    )
    this.name = 'Infeasible'
    this.activities = activities
  }
}

/** The dependencies have a cycle: its activities in order. */
export class CyclicWorkflow extends Error {
  readonly cycle: readonly string[]

  constructor(cycle: readonly string[]) {
    super(`the dependencies have a cycle: ${describeCycle(cycle)}`)
    this.name = 'CyclicWorkflow'
    this.cycle = cycle
  }
}

/** The input for the expected duration of planning. */
export interface ProblemSize {
  activityCount: number
  dependencyCount: number
  /** Resources that at least one activity can use. */
  compatibleResources: number
  /** Pairs of an activity and a resource that it can use. */
  expandedStates: number
}

export function problemSize(problem: PlanningProblem): ProblemSize {
  const choices = choicesOf(problem)
  return {
    activityCount: problem.activities.length,
    dependencyCount: problem.edges.length,
    compatibleResources: taskPlacesOf(choices).length,
    expandedStates: choices.reduce((sum, { resources }) => sum + resources.length, 0),
  }
}
