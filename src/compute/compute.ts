import { MessageChannel } from 'node:worker_threads'
import { Piscina } from 'piscina'
import type { NetworkModel } from '../simulator/channel.ts'
import type { Placed, SimulationResult } from '../simulator/simulate.ts'
import { CyclicWorkflow, Infeasible } from '../schedulers/algorithm.ts'
import type { AlgorithmId, AlgorithmOptions, AlgorithmStep } from '../schedulers/algorithm.ts'
import type { PlanningProblem, Schedule } from '../schedulers/problem.ts'

/**
 * Planning and simulation on threads of their own, so that the event loop of the caller stays free.
 * The functions are the pure ones of the planners and the simulator; documents cross by structured
 * clone.
 */
export interface Compute extends AsyncDisposable {
  /**
   * Rejects with the algorithm's error (`Infeasible`, `CyclicWorkflow`) or `PlanningTooLong`; an
   * aborted signal ends the thread and rejects with its reason.
   */
  plan(request: PlanRequest, watch?: ComputeWatch): Promise<PlanResult>
  simulate(request: SimulationRequest, watch?: Pick<ComputeWatch, 'signal'>): Promise<SimulationResult>
}

export interface PlanRequest {
  problem: PlanningProblem
  algorithm: AlgorithmId
  options?: AlgorithmOptions
  /**
   * Seconds of its thread after which the best schedule so far is returned, or `PlanningTooLong`
   * thrown where there is none; default `longestPlanning`.
   */
  maxSeconds?: number
}

export interface SimulationRequest {
  problem: PlanningProblem
  placed: readonly Placed[]
  model?: NetworkModel
}

export interface ComputeWatch {
  onProgress?: (progress: Progress) => void
  signal?: AbortSignal
}

export type Progress = Pick<AlgorithmStep, 'bound' | 'workDone' | 'progress'>

export interface PlanResult {
  /** The best one first; only algorithms of `multiple` have others. */
  schedules: readonly Schedule[]
  bound: number
  workDone: number
}

/**
 * Seconds that an algorithm may take: a million tasks take a few, and others wait for its thread.
 */
export const longestPlanning = 900

export class PlanningTooLong extends Error {
  constructor(seconds: number) {
    super(
      `no plan was found in ${String(seconds)} s; plan fewer activities, or describe the resources with fewer ` +
        'cores or links',
    )
  }
}

/** The answer of a planning thread. */
export type PlanOutcome =
  | ({ kind: 'planned' } & PlanResult)
  | { kind: 'infeasible'; activities: Infeasible['activities'] }
  | { kind: 'cyclic'; cycle: CyclicWorkflow['cycle'] }
  | { kind: 'late'; seconds: number }
  | { kind: 'nothing' }

/**
 * Seconds for which an idle thread is kept: starting one and loading the code takes about 0.1 s.
 */
const idleSeconds = 30

/**
 * Threads start with the first request and end when idle; further requests wait in order.
 * Simulations have as many threads of their own: a client that sends a plan waits for its
 * simulation, and a session may plan for minutes. A thread that fails rejects its own request only.
 */
export function openCompute({ threads }: { threads: number }): Compute {
  // The thread's file has the extension of this one: .ts from source, .js when compiled.
  const file = new URL(`./compute-thread${import.meta.url.endsWith('.ts') ? '.ts' : '.js'}`, import.meta.url)
  const pool = () =>
    new Piscina({ filename: file.href, minThreads: 0, maxThreads: threads, idleTimeout: idleSeconds * 1000 })
  const pools = { plan: pool(), simulateOnThread: pool() }
  const run = async (
    name: keyof typeof pools,
    request: object,
    { onProgress, signal }: ComputeWatch,
  ): Promise<unknown> => {
    signal?.throwIfAborted()
    const channel = onProgress === undefined ? undefined : new MessageChannel()
    channel?.port1.on('message', onProgress!)
    try {
      const task = channel === undefined ? request : { ...request, port: channel.port2 }
      return await pools[name].run(task, {
        name,
        signal: signal ?? null,
        transferList: channel === undefined ? [] : [channel.port2],
      })
    } catch (error) {
      signal?.throwIfAborted()
      throw error
    } finally {
      channel?.port1.close()
    }
  }
  return {
    plan: async (request, watch = {}) => {
      const outcome = (await run('plan', request, watch)) as PlanOutcome
      if (outcome.kind === 'infeasible') throw new Infeasible(outcome.activities)
      if (outcome.kind === 'cyclic') throw new CyclicWorkflow(outcome.cycle)
      if (outcome.kind === 'late') throw new PlanningTooLong(outcome.seconds)
      if (outcome.kind === 'nothing')
        throw new Error(`algorithm ${request.algorithm} ended without a schedule`)
      return { schedules: outcome.schedules, bound: outcome.bound, workDone: outcome.workDone }
    },
    simulate: async (request, watch = {}) =>
      (await run('simulateOnThread', request, watch)) as SimulationResult,
    [Symbol.asyncDispose]: async () => {
      await Promise.all(Object.values(pools).map((each) => each.destroy()))
    },
  }
}
