import { Refusal, type Problem as Warning } from '../../refusal.ts'
import type { Compute } from '../../schedulers/compute.ts'
import { durationSources, type DurationSource, type Problem } from '../../schedulers/problem.ts'
import { isNetworkModel, type NetworkModel } from '../../simulator/channel.ts'
import { placementOf, type PlacedAssignment } from './problem.ts'

/** What a plan is expected to take and cost: the simulator's answer, in seconds from the start of the plan. */
export interface Prediction {
  networkModel: NetworkModel
  makespanSeconds: number
  cost: number
  /** Why the plan cannot run at all, e.g. a route that is missing; every figure is 0 then. */
  failure?: string
  /** By position of the activity. */
  tasks: PredictedTask[]
}

export interface PredictedTask {
  /** All data is there. */
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

/** A client waits for its plan this long at most. A simulation of 10,000 tasks takes a fraction of a second. */
const deadlineSeconds = 60

/**
 * Simulates a placement, on the compute threads. The assignments stand by position of their activities.
 * @throws Refusal 503 when no answer came within a minute (only without a `signal` of the caller)
 */
export const predict = async (
  compute: Pick<Compute, 'simulate'>,
  given: { problem: Problem; assignments: readonly PlacedAssignment[]; networkModel: NetworkModel },
  signal?: AbortSignal,
): Promise<Prediction> => {
  const { problem, networkModel } = given
  const placed = placementOf(problem, given.assignments)
  const late = AbortSignal.timeout(deadlineSeconds * 1_000)
  const result = await compute.simulate({ problem, placed, model: networkModel }, { signal: signal ?? late }).catch((error: unknown) => {
    if (signal !== undefined || !late.aborted) throw error
    throw new Refusal('unavailable', `the simulation of the plan took more than ${deadlineSeconds} s; try again when less is planned`, {
      retryAfterSeconds: deadlineSeconds,
      cause: error,
    })
  })
  const width = problem.resources.length
  const sources = placed.map(({ resource }, position) => durationSources[problem.durationSource[position * width + resource]!]!)
  if (result.state === 'failed') {
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
    return { networkModel, makespanSeconds: 0, cost: 0, failure: result.reason, tasks }
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

/** The network model of a session, plan or run: the one that it names, else the first that a version of its scope names, else `by-policy`. */
export const networkModelOf = (named: NetworkModel | undefined, versions: readonly { networkModel?: string | undefined }[]): NetworkModel =>
  named ?? versions.map((version) => version.networkModel ?? '').find(isNetworkModel) ?? 'by-policy'

/** Sums of decimal seconds and prices differ from what their author adds up by some 1e-16 of themselves: a deadline that is met so is met. */
const roundingSlack = 1e-9
const exceeds = (value: number, limit: number): boolean => limit > 0 && value > limit * (1 + roundingSlack)

/** In words why a plan with these figures is not feasible; empty: it is. A deadline or budget of 0 is none. */
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
 * What a reader of simulated times has to know of a topology under a model: links without latency beside links with some, on which
 * the models that share by 1 / latency give flows over routes of latency 0 next to nothing. `path`: where the caller names the topology.
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
    `the topology has links of latency 0 (such as ${JSON.stringify(without.id)}) beside links of latency above 0 (such as ${JSON.stringify(some.id)}, ${some.latencySeconds} s): ` +
    `network model ${model} shares a link by 1 / the latency of each flow's route, and counts 1 where that is 0, so a flow over a route of latency 0 nearly stands still beside the others; ` +
    'give every link a latency above 0, or none of them'
  return [{ path, message }]
}
