import type { Algorithm, AlgorithmOptions, AlgorithmStep, ProblemSize } from './algorithm.ts'
import { problemSize } from './algorithm.ts'
import { beamSearch, chosen } from './beam.ts'
import { evaluate, type Placement } from './estimate.ts'
import { choicesOf } from './fit.ts'
import { heft } from './heft.ts'
import { exceeds } from './limits.ts'
import type { PlanningProblem, Schedule } from './problem.ts'
import { networkRoutesOf } from './routes.ts'
import { graphOf, withReachableConsumers } from './upward-rank.ts'

type Objective = 'time' | 'cost'

/** The options where a session names none (domain-reference 11). */
export const beamDefaults = { beamWidth: 120, optionCount: 25, readyBranchLimit: 3 }

/**
 * Placements that a search may weigh, unless `maxWork` says otherwise; 1e8 take about two minutes.
 * A larger problem gets a narrower beam, because other sessions wait for the thread.
 */
const longestSearch = 1e8

/** Names of lanes in all offered schedules together: each schedule is simulated and stored. */
const mostNames = 2e6

/** Placements that are judged at one step: each is an object until the next beam is chosen. */
const mostAtOnce = 2e6

/** Activities placed between two reports of progress. */
const reportEvery = 8

/** Seconds for one placement that is weighed: measured on recorded workflows (58 to 1,066 tasks, 16 hosts). */
const secondsPerPlacement = 1.2e-6

/**
 * PRISM: a beam search (see `beamSearch`) whose last step offers up to `optionCount` schedules of
 * different makespan or cost. HEFT's schedule is its first result and takes part, so that a problem
 * too large to search, or cut off by the caller, has a schedule.
 */
const prism = (objective: Objective, name: string, description: string): Algorithm => ({
  descriptor: {
    id: `prism-${objective}`,
    name,
    objective,
    multiple: true,
    description,
    defaults: beamDefaults,
  },
  estimate: (size, options) => {
    const { beamWidth, readyBranchLimit, placements } = optionsFor(size, options)
    const work = placements * beamWidth * readyBranchLimit
    const seconds = 0.15 + work * secondsPerPlacement + size.dependencyCount * 2e-6
    return { durationSeconds: Math.round(seconds * 10) / 10, beamWidth, readyBranchLimit }
  },
  plan: (problem, options) => plan(problem, objective, options),
})

export const prismTime = prism(
  'time',
  'PRISM Time',
  'Beam search for the shortest makespan, with the alternatives of makespan and cost that it finds.',
)
export const prismCost = prism(
  'cost',
  'PRISM Cost',
  'Beam search for the lowest cost, with the alternatives of makespan and cost that it finds.',
)

/** The options of a search on a problem of this size; a beam of 0 is no search. */
function optionsFor(size: ProblemSize, options: AlgorithmOptions) {
  const { activityCount, dependencyCount, compatibleResources, expandedStates } = size
  const { beamWidth, optionCount, readyBranchLimit } = { ...beamDefaults, ...options }
  // A placement asks for the arrival of each input at each resource. A partial schedule is made of
  // 1/64 of its predecessor's columns for each activity.
  const placements = expandedStates + (dependencyCount * compatibleResources) / 32
  const workOfOne = Math.max(1, placements * readyBranchLimit + activityCount ** 2 / 64)
  return {
    beamWidth: Math.min(
      beamWidth,
      Math.floor((options.maxWork ?? longestSearch) / workOfOne),
      Math.floor(mostAtOnce / (readyBranchLimit * Math.max(1, compatibleResources))),
    ),
    optionCount,
    readyBranchLimit,
    placements,
  }
}

/** A schedule by its figures; without `placement` it is HEFT's. */
type Rated = Pick<Schedule, 'makespanSeconds' | 'cost'> & { placement?: Placement }

function* plan(
  problem: PlanningProblem,
  objective: Objective,
  options: AlgorithmOptions,
): Generator<AlgorithmStep, void, void> {
  let first: AlgorithmStep | undefined
  for (first of heft.plan(problem, {})) yield { ...first, progress: 0 }
  const { best: usual, bound, workDone } = first!
  const { beamWidth, optionCount, readyBranchLimit, placements } = optionsFor(problemSize(problem), options)
  if (beamWidth === 0) {
    yield { best: usual, bound, workDone, progress: 1 }
    return
  }
  const routes = networkRoutesOf(problem)
  const graph = graphOf(problem)
  const choices = withReachableConsumers(problem, routes, graph, choicesOf(problem))
  const rated: Rated[] = [usual!]
  if (choices.every(({ resources }) => resources.length > 0)) {
    const { deadlineSeconds = 0, budget = 0 } = options
    const limits = { objective, beamWidth, readyBranchLimit, deadlineSeconds, budget }
    const search = beamSearch(problem, routes, graph, choices, limits)
    const n = problem.activities.length
    let step = search.next()
    for (; step.done !== true; step = search.next())
      if (step.value % reportEvery === 0)
        yield { best: usual, bound, workDone: workDone + step.value, progress: step.value / n }
    for (const placement of step.value) {
      const { makespanSeconds, cost } = evaluate(problem, routes, placement)
      rated.push({ makespanSeconds, cost, placement })
    }
  }
  // Each assignment names all its lanes.
  const names = usual!.assignments.reduce((sum, { coreIds }) => sum + Math.max(1, coreIds.length), 0)
  const count = Math.min(optionCount, Math.ceil(mostNames / Math.max(1, names)))
  const [best, ...others] = offered(rated, objective, count, options).map(({ placement }) =>
    placement === undefined ? usual! : evaluate(problem, routes, placement),
  )
  yield { best, others, bound, workDone: workDone + placements * beamWidth, progress: 1 }
}

/**
 * Up to `count` schedules that differ in makespan or cost, the best by the objective first: those on
 * the front of makespan and cost, thinned, then the best others. Those above a limit come last.
 */
function offered(
  schedules: readonly Rated[],
  objective: Objective,
  count: number,
  { deadlineSeconds = 0, budget = 0 }: AlgorithmOptions,
): Rated[] {
  const isLate = ({ makespanSeconds, cost }: Rated): boolean =>
    exceeds(makespanSeconds, deadlineSeconds) || exceeds(cost, budget)
  const [primary, secondary] =
    objective === 'time' ? (['makespanSeconds', 'cost'] as const) : (['cost', 'makespanSeconds'] as const)
  const order = (a: Rated, b: Rated): number =>
    Number(isLate(a)) - Number(isLate(b)) || a[primary] - b[primary] || a[secondary] - b[secondary]
  const sorted = schedules.toSorted(order)
  const distinct = sorted.filter((one, at) => at === 0 || order(one, sorted[at - 1]!) !== 0)
  return chosen(distinct, { isLate, other: (one) => one[secondary], most: count, count }).sort(order)
}
