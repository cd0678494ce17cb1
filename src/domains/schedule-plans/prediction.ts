import { greatest } from '../../lists.ts'
import { ranges, longestPlanSeconds } from '../../ranges.ts'
import { Refusal, type Problem as Warning } from '../../refusal.ts'
import type { Compute } from '../../compute/compute.ts'
import { exceeds } from '../../schedulers/limits.ts'
import { durationSources, type DurationSource, type PlanningProblem } from '../../schedulers/problem.ts'
import { isNetworkModel, type NetworkModel } from '../../simulator/channel.ts'
import type { SimulationResult } from '../../simulator/simulate.ts'
import { placementOf, type PlacedAssignment } from './problem.ts'

/**
 * The predicted makespan and cost of a plan: the simulator's result, in seconds from the start of
 * the plan.
 */
export interface Prediction {
  networkModel: NetworkModel
  makespanSeconds: number
  cost: number
  /** Why the plan cannot run at all, e.g. a missing route. Every figure is 0 in that case. */
  failure?: string
  /** By position of the activity. */
  tasks: PredictedTask[]
}

export interface PredictedTask {
  /** The time at which all data has arrived. */
  readyAt: number
  startAt: number
  finishAt: number
  runtimeSeconds: number
  /** The wait for data after the last predecessor's finish. */
  transferSeconds: number
  cost: number
  bootOverheadSeconds: number
  containerOverheadSeconds: number
  durationSource: DurationSource
}

/**
 * A client waits for its plan at most this long. A simulation of 10,000 tasks takes a fraction of a
 * second.
 */
const deadlineSeconds = 60

/** Why a simulated plan is longer, later or dearer than any may be, with the activity that takes longest. */
export const overflow = (
  { activities, resources }: PlanningProblem,
  placed: readonly { resource: number }[],
  { makespanSeconds, cost, tasks }: Extract<SimulationResult, { state: 'completed' }>,
): string | undefined => {
  const isLong = !(makespanSeconds <= longestPlanSeconds)
  const end = greatest(
    tasks.map(({ finishedAt }) => finishedAt),
    0,
  )
  if (!isLong && end > longestPlanSeconds)
    return (
      `it ends at ${end} s, beyond the ${longestPlanSeconds} s that a plan may take, because its machines ` +
      'are there late; check earliestStart and expectedDuration in its lifecycleActions'
    )
  if (!isLong && cost <= ranges.cost.most) return undefined
  const longest = tasks.reduce((a, b) => (b.finishedAt - b.readyAt > a.finishedAt - a.readyAt ? b : a))
  const at = resources[placed[longest.activity]!.resource]!
  return (
    (isLong
      ? `its makespan ${makespanSeconds} s is beyond the ${longestPlanSeconds} s that a plan may take`
      : `its cost ${cost} is beyond the ${ranges.cost.most} that a plan may cost`) +
    `; the longest activity is ${JSON.stringify(activities[longest.activity]!.id)} on ` +
    `${JSON.stringify(at.id)}: ${longest.transferSeconds} s of transfers, ${longest.runtimeSeconds} s of ` +
    'runtime; check its duration, the speedup and price of the resource, and the bandwidth of its links'
  )
}

/**
 * Simulates a placement on the compute threads. The assignments are by position of their
 * activities.
 * @throws Refusal 503 where no result arrives within a minute (only without a `signal` of the
 *   caller)
 */
export const predict = async (
  compute: Pick<Compute, 'simulate'>,
  given: { problem: PlanningProblem; assignments: readonly PlacedAssignment[]; networkModel: NetworkModel },
  signal?: AbortSignal,
): Promise<Prediction> => {
  const { problem, networkModel } = given
  const placed = placementOf(problem, given.assignments)
  const late = AbortSignal.timeout(deadlineSeconds * 1_000)
  const result = await compute
    .simulate({ problem, placed, model: networkModel }, { signal: signal ?? late })
    .catch((error: unknown) => {
      if (signal !== undefined || !late.aborted) throw error
      throw new Refusal(
        'unavailable',
        `the simulation of the plan took more than ${deadlineSeconds} s; try again when less is planned`,
        {
          retryAfterSeconds: deadlineSeconds,
          cause: error,
        },
      )
    })
  const width = problem.resources.length
  const sources = placed.map(
    ({ resource }, position) => durationSources[problem.durationSource[position * width + resource]!]!,
  )
  const failure = result.state === 'failed' ? result.reason : overflow(problem, placed, result)
  if (result.state === 'failed' || failure !== undefined) {
    const nothing = {
      readyAt: 0,
      startAt: 0,
      finishAt: 0,
      transferSeconds: 0,
      cost: 0,
      bootOverheadSeconds: 0,
      containerOverheadSeconds: 0,
    }
    const tasks = placed.map(({ resource }, position) => ({
      ...nothing,
      runtimeSeconds: problem.durations[position * width + resource]!,
      durationSource: sources[position]!,
    }))
    return { networkModel, makespanSeconds: 0, cost: 0, failure: failure ?? '', tasks }
  }
  const tasks = result.tasks.map((task, position) => ({
    readyAt: task.dataReadyAt,
    startAt: task.startedAt,
    finishAt: task.finishedAt,
    runtimeSeconds: task.runtimeSeconds,
    transferSeconds: task.transferSeconds,
    cost: task.cost,
    bootOverheadSeconds: task.bootOverheadSeconds,
    containerOverheadSeconds: task.containerOverheadSeconds,
    durationSource: sources[position]!,
  }))
  return { networkModel, makespanSeconds: result.makespanSeconds, cost: result.cost, tasks }
}

/**
 * The network model of a session, plan or run: its own, else the first one named by a version of
 * its scope, else `by-policy`.
 */
export const networkModelOf = (
  named: NetworkModel | undefined,
  versions: readonly { networkModel?: string | undefined }[],
): NetworkModel =>
  named ?? versions.map((version) => version.networkModel ?? '').find(isNetworkModel) ?? 'by-policy'

/**
 * The reasons, as text, why a plan with these figures is not feasible; empty where it is. A
 * deadline or budget of 0 means none.
 */
export const infeasibilities = (plan: {
  makespanSeconds: number
  cost: number
  failure?: string | undefined
  deadlineSeconds: number
  budget: number
}): string[] => [
  ...(plan.failure === undefined ? [] : [plan.failure]),
  ...(exceeds(plan.makespanSeconds, plan.deadlineSeconds)
    ? [`its makespan ${plan.makespanSeconds} s is beyond the deadline ${plan.deadlineSeconds} s`]
    : []),
  ...(exceeds(plan.cost, plan.budget) ? [`its cost ${plan.cost} is beyond the budget ${plan.budget}`] : []),
]

/**
 * Warnings about simulated times of a topology under a model, where some links have a latency and
 * others have none. Models that share bandwidth by 1 / latency give almost none of it to flows over
 * routes of latency 0. `path`: the topology's path in the caller's document.
 */
export const topologyWarnings = (
  path: string,
  model: NetworkModel,
  links: readonly { id: string; latencySeconds: number }[] | undefined,
): Warning[] => {
  if (model === 'contention-free' || links === undefined) return []
  const without = links.find(({ latencySeconds }) => latencySeconds === 0)
  const some = links.find(({ latencySeconds }) => latencySeconds > 0)
  if (without === undefined || some === undefined) return []
  const message =
    `the topology has links of latency 0 (such as ${JSON.stringify(without.id)}) beside links of ` +
    `latency above 0 (such as ${JSON.stringify(some.id)}, ${some.latencySeconds} s): ` +
    `network model ${model} shares a link by 1 / the latency of each flow's route, and counts 1 ` +
    'where that is 0, so a flow over a route of latency 0 nearly stands still beside the others; ' +
    'give every link a latency above 0, or none of them'
  return [{ path, message }]
}
