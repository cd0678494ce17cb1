import type { Algorithm, AlgorithmOptions, AlgorithmStep, ProblemSize } from './algorithm.ts'
import { problemSize } from './algorithm.ts'
import { beamSearch, thinned } from './beam.ts'
import { evaluate } from './estimate.ts'
import { choicesOf } from './fit.ts'
import { heft } from './heft.ts'
import type { PlanningProblem, Schedule } from './problem.ts'
import { networkRoutesOf } from './routes.ts'
import { graphOf, withReachableConsumers } from './upward-rank.ts'

type Objective = 'time' | 'cost'

/** The options where a session names none (domain-reference 11). */
const defaults = { beamWidth: 120, optionCount: 25, readyBranchLimit: 3 }

/**
 * Placements that a search may weigh, unless `maxWork` says otherwise; 1e8 take about two minutes.
 * A larger problem gets a narrower beam, because other sessions wait for the thread.
 */
const longestSearch = 1e8

/** Assignments of all offered schedules together: each schedule is simulated and stored. */
const mostAssignments = 2e6

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
  descriptor: { id: `prism-${objective}`, name, objective, multiple: true, description, defaults },
  estimate: (size, options) => {
    const { beamWidth, readyBranchLimit } = optionsFor(size, options)
    const placements = size.expandedStates * beamWidth * readyBranchLimit
    const seconds = 0.15 + placements * secondsPerPlacement + size.dependencyCount * 2e-6
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
function optionsFor({ activityCount, expandedStates }: ProblemSize, options: AlgorithmOptions) {
  const { beamWidth, optionCount, readyBranchLimit } = { ...defaults, ...options }
  // A partial schedule is made of 1/64 of its predecessor's columns for each activity.
  const workOfOne = Math.max(1, expandedStates * readyBranchLimit + activityCount ** 2 / 64)
  return {
    beamWidth: Math.min(beamWidth, Math.floor((options.maxWork ?? longestSearch) / workOfOne)),
    optionCount: Math.min(optionCount, Math.ceil(mostAssignments / Math.max(1, activityCount))),
    readyBranchLimit,
  }
}

function* plan(
  problem: PlanningProblem,
  objective: Objective,
  options: AlgorithmOptions,
): Generator<AlgorithmStep, void, void> {
  let first: AlgorithmStep | undefined
  for (first of heft.plan(problem, {})) yield { ...first, progress: 0 }
  const { best: usual, bound, workDone } = first!
  const n = problem.activities.length
  const size = problemSize(problem)
  const { beamWidth, optionCount, readyBranchLimit } = optionsFor(size, options)
  const routes = networkRoutesOf(problem)
  const graph = graphOf(problem)
  const choices = withReachableConsumers(problem, routes, graph, choicesOf(problem))
  const schedules = [usual!]
  if (beamWidth > 0 && choices.every(({ resources }) => resources.length > 0)) {
    const { deadlineSeconds = 0, budget = 0 } = options
    const limits = { objective, beamWidth, readyBranchLimit, deadlineSeconds, budget }
    const search = beamSearch(problem, routes, graph, choices, limits)
    let step = search.next()
    for (; step.done !== true; step = search.next())
      if (step.value % reportEvery === 0)
        yield { best: usual, bound, workDone: workDone + step.value, progress: step.value / n }
    for (const placement of step.value) schedules.push(evaluate(problem, routes, placement))
  }
  const [best, ...others] = offered(schedules, objective, optionCount, options)
  yield { best, others, bound, workDone: workDone + size.expandedStates * beamWidth, progress: 1 }
}

/**
 * Up to `count` schedules that differ in makespan or cost, the best by the objective first: those on
 * the front of makespan and cost, thinned, then the best others. Those above a limit come last.
 */
function offered(
  schedules: readonly Schedule[],
  objective: Objective,
  count: number,
  { deadlineSeconds = 0, budget = 0 }: AlgorithmOptions,
): Schedule[] {
  const isLate = ({ makespanSeconds, cost }: Schedule): boolean =>
    (deadlineSeconds > 0 && makespanSeconds > deadlineSeconds) || (budget > 0 && cost > budget)
  const [primary, secondary] =
    objective === 'time' ? (['makespanSeconds', 'cost'] as const) : (['cost', 'makespanSeconds'] as const)
  const order = (a: Schedule, b: Schedule): number =>
    Number(isLate(a)) - Number(isLate(b)) || a[primary] - b[primary] || a[secondary] - b[secondary]
  const sorted = schedules.toSorted(order)
  const distinct = sorted.filter((one, at) => at === 0 || order(one, sorted[at - 1]!) !== 0)
  let least = Infinity
  const front = distinct.filter((one) => {
    const isBetter = one[secondary] < least
    if (isBetter) least = one[secondary]
    return isBetter
  })
  const kept = new Set(thinned(front, count))
  for (const one of distinct) if (kept.size < count) kept.add(one)
  return [...kept].sort(order)
}
