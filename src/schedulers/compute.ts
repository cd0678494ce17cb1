import { MessageChannel } from 'node:worker_threads'
import { Piscina } from 'piscina'
import type { NetworkModel } from '../simulator/channel.ts'
import type { Placed, SimulationResult } from '../simulator/simulate.ts'
import { CyclicWorkflow, Infeasible } from './algorithm.ts'
import type { AlgorithmId, AlgorithmOptions, Step } from './algorithm.ts'
import type { Problem, Schedule } from './problem.ts'

/**
 * Planning and simulation on threads of their own, so that the event loop of the caller stays free. The functions are the pure ones of
 * this folder; documents cross by structured clone.
 */
export interface Compute extends AsyncDisposable {
  /** Throws what the algorithm throws (`Infeasible`, `CyclicWorkflow`); an aborted signal ends the thread and rejects with its reason. */
  plan(request: PlanRequest, watch?: Watch): Promise<Plan>
  simulate(request: SimulationRequest, watch?: Pick<Watch, 'signal'>): Promise<SimulationResult>
}

export interface PlanRequest {
  problem: Problem
  algorithm: AlgorithmId
  options?: AlgorithmOptions
  /** Seconds after which the best schedule so far is taken; a first schedule is always finished. */
  maxSeconds?: number
}

export interface SimulationRequest {
  problem: Problem
  placed: readonly Placed[]
  model?: NetworkModel
}

export interface Watch {
  onProgress?: (progress: Progress) => void
  signal?: AbortSignal
}

export type Progress = Pick<Step, 'bound' | 'workDone' | 'progress'>

export interface Plan {
  schedule: Schedule
  bound: number
  workDone: number
}

/** What a planning thread answers. */
export type PlanOutcome =
  | ({ kind: 'planned' } & Plan)
  | { kind: 'infeasible'; activities: Infeasible['activities'] }
  | { kind: 'cyclic'; cycle: CyclicWorkflow['cycle'] }
  | { kind: 'nothing' }

/** Seconds a thread without work is kept: starting one and loading the code takes about 0.1 s. */
const idleSeconds = 30

/**
 * Threads start with the first request and end when idle; more requests than threads wait in order. Simulations have threads of their own, as
 * many: a client that sends a plan waits for one, and a session may plan for minutes. A thread that dies rejects its own request only.
 */
export function openCompute({ threads }: { threads: number }): Compute {
  // The thread's file has the extension of this one: .ts from source, .js when compiled.
  const file = new URL(`./compute-thread${import.meta.url.endsWith('.ts') ? '.ts' : '.js'}`, import.meta.url)
  const pool = () => new Piscina({ filename: file.href, minThreads: 0, maxThreads: threads, idleTimeout: idleSeconds * 1000 })
  const pools = { plan: pool(), simulate: pool() }
  const run = async (name: keyof typeof pools, request: object, { onProgress, signal }: Watch): Promise<unknown> => {
    signal?.throwIfAborted()
    const channel = onProgress === undefined ? undefined : new MessageChannel()
    channel?.port1.on('message', onProgress!)
    try {
      const task = channel === undefined ? request : { ...request, port: channel.port2 }
      return await pools[name].run(task, { name, signal: signal ?? null, transferList: channel === undefined ? [] : [channel.port2] })
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
      if (outcome.kind === 'nothing') throw new Error(`algorithm ${request.algorithm} ended without a schedule`)
      return { schedule: outcome.schedule, bound: outcome.bound, workDone: outcome.workDone }
    },
    simulate: async (request, watch = {}) => (await run('simulate', request, watch)) as SimulationResult,
    [Symbol.asyncDispose]: async () => {
      await Promise.all(Object.values(pools).map((each) => each.destroy()))
    },
  }
}
