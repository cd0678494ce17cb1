import type { MessagePort } from 'node:worker_threads'
import { simulate, type SimulationResult } from '../simulator/simulate.ts'
import { CyclicWorkflow, Infeasible } from '../schedulers/algorithm.ts'
import { longestPlanning } from './compute.ts'
import type { Progress, PlanOutcome, PlanRequest, SimulationRequest } from './compute.ts'
import { algorithms } from '../schedulers/registry.ts'

/**
 * Runs an algorithm to its end or its time limit. Errors that the caller handles travel as data,
 * because an error from a thread loses its class.
 */
export function plan({
  problem,
  algorithm,
  options,
  maxSeconds: seconds = longestPlanning,
  port,
}: PlanRequest & { port?: MessagePort }): PlanOutcome {
  const until = performance.now() + seconds * 1_000
  let outcome: PlanOutcome = { kind: 'nothing' }
  try {
    for (const { best, others = [], bound, workDone, progress } of algorithms[algorithm].plan(
      problem,
      options ?? {},
    )) {
      port?.postMessage({ bound, workDone, progress } satisfies Progress)
      if (best !== undefined) outcome = { kind: 'planned', schedules: [best, ...others], bound, workDone }
      if (performance.now() >= until) return outcome.kind === 'nothing' ? { kind: 'late', seconds } : outcome
    }
    return outcome
  } catch (error) {
    if (error instanceof Infeasible) return { kind: 'infeasible', activities: error.activities }
    if (error instanceof CyclicWorkflow) return { kind: 'cyclic', cycle: error.cycle }
    throw error
  } finally {
    port?.close()
  }
}

export function simulateOnThread({ problem, placed, model }: SimulationRequest): SimulationResult {
  return simulate(problem, placed, model)
}
