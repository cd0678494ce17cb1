import {
  Infeasible,
  problemSize,
  type Algorithm,
  type AlgorithmOptions,
  type AlgorithmStep,
} from './algorithm.ts'
import { beamDefaults, optionsFor } from './beam-size.ts'
import { beamSearch, chosen } from './beam.ts'
import { evaluate, lowerBound, type Placement } from './estimate.ts'
import { choicesOf } from './fit.ts'
import { heft } from './heft.ts'
import { exceeds } from './limits.ts'
import type { PlanningProblem, Schedule } from './problem.ts'
import { networkRoutesOf } from './routes.ts'
import { graphOf, withReachableConsumers } from './upward-rank.ts'

type Objective = 'time' | 'cost'

/** Names of lanes in all offered schedules together: each schedule is simulated and stored. */
const mostNames = 2e6

/** Activities placed between two reports of progress. */
const reportEvery = 8

/** Seconds for one placement that is weighed: measured on recorded workflows (58 to 1,066 tasks, 16 hosts). */
const secondsPerPlacement = 1.2e-6

/**
 * PRISM: a beam search (see `beamSearch`) whose last step offers up to `optionCount` schedules of
 * different makespan or cost. HEFT's schedule is its first result and takes part, so that a problem
 * too large to search, or cut off by the caller, has a schedule. Where HEFT finds none, the search
 * alone decides.
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

/** A schedule by its figures; without `placement` it is HEFT's. */
type Rated = Pick<Schedule, 'makespanSeconds' | 'cost'> & { placement?: Placement }

function* plan(
  problem: PlanningProblem,
  objective: Objective,
  options: AlgorithmOptions,
): Generator<AlgorithmStep, void, void> {
  let first: AlgorithmStep | undefined
  let refusal: Infeasible | undefined
  try {
    for (first of heft.plan(problem, {})) yield { ...first, progress: 0 }
  } catch (error) {
    if (!(error instanceof Infeasible)) throw error
    refusal = error
  }
  const usual = first?.best
  const { bound, workDone } = first ?? { bound: lowerBound(problem), workDone: 0 }
  const { beamWidth, optionCount, readyBranchLimit, placements } = optionsFor(problemSize(problem), options)
  if (beamWidth === 0) {
    if (refusal !== undefined) throw refusal
    yield { best: usual, bound, workDone, progress: 1 }
    return
  }
  const routes = networkRoutesOf(problem)
  const graph = graphOf(problem)
  const choices = withReachableConsumers(problem, routes, graph, choicesOf(problem))
  const made = ({ placement }: Rated): Schedule =>
    placement === undefined ? usual! : evaluate(problem, routes, placement)
  const rated: Rated[] = usual === undefined ? [] : [usual]
  if (choices.every(({ resources }) => resources.length > 0)) {
    const { deadlineSeconds = 0, budget = 0 } = options
    const limits = { objective, beamWidth, readyBranchLimit, deadlineSeconds, budget }
    const search = beamSearch(problem, routes, graph, choices, limits)
    const n = problem.activities.length
    let step = search.next()
    for (; step.done !== true; step = search.next())
      if (step.value % reportEvery === 0)
        yield { best: usual, bound, workDone: workDone + step.value, progress: step.value / n }
    for (const [k, placement] of step.value.entries()) {
      // The caller looks at the time.
      if (k > 0 && k % reportEvery === 0)
        yield { best: made(rated[0]!), bound, workDone: workDone + n, progress: Math.max(0, n - 1) / n }
      const { makespanSeconds, cost } = evaluate(problem, routes, placement)
      rated.push({ makespanSeconds, cost, placement })
    }
  }
  if (refusal !== undefined && rated.length === 0) throw refusal
  // Each assignment names all its lanes.
  const names = made(rated[0]!).assignments.reduce((sum, { coreIds }) => sum + Math.max(1, coreIds.length), 0)
  const count = Math.min(optionCount, Math.ceil(mostNames / Math.max(1, names)))
  const [best, ...others] = offered(rated, objective, count, options).map(made)
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
