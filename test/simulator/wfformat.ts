import type { PlanningProblem, ProblemEdge } from '../../src/schedulers/problem.ts'
import { algorithms } from '../../src/schedulers/registry.ts'
import { simulate } from '../../src/simulator/simulate.ts'
import { documents, placedFrom, replay } from './documents.ts'

/** What a problem is made from: a recorded instance or one that bench/workloads.ts generates. */
export interface WfFormat {
  workflow: {
    specification: {
      tasks: {
        id: string
        children?: string[]
        parents?: string[]
        inputFiles?: string[]
        outputFiles?: string[]
      }[]
      files?: { id: string; sizeInBytes: number }[]
    }
    execution: { tasks: { id: string; runtimeInSeconds: number }[] }
  }
}

/**
 * A WfCommons instance as a planning problem: one core a task, reference runtimes, bytes of the
 * files that go from parent to child; hosts of four speeds, each with `lanes` cores, joined by a
 * full mesh of shared links of 1 Gbit/s and 1 ms.
 */
export function problemOf(
  { workflow: { specification, execution } }: WfFormat,
  hosts: number,
  lanes = 1,
): PlanningProblem {
  const indexOf = new Map(specification.tasks.map(({ id }, index) => [id, index]))
  const sizes = new Map((specification.files ?? []).map(({ id, sizeInBytes }) => [id, sizeInBytes]))
  const runtimes = new Map(execution.tasks.map(({ id, runtimeInSeconds }) => [id, runtimeInSeconds]))
  const edges = new Map<string, ProblemEdge>()
  const join = (from: number, to: number): void => {
    const inputs = new Set(specification.tasks[to]!.inputFiles)
    const bytes = (specification.tasks[from]!.outputFiles ?? []).reduce(
      (sum, file) => sum + (inputs.has(file) ? (sizes.get(file) ?? 0) : 0),
      0,
    )
    edges.set(`${from} ${to}`, { from, to, bytes })
  }
  specification.tasks.forEach(({ children, parents }, index) => {
    for (const child of children ?? []) join(index, indexOf.get(child)!)
    for (const parent of parents ?? []) join(indexOf.get(parent)!, index)
  })
  const n = specification.tasks.length
  const durations = new Float64Array(n * hosts)
  specification.tasks.forEach(({ id }, task) => {
    for (let host = 0; host < hosts; host++)
      durations[task * hosts + host] = (runtimes.get(id) ?? 0) / (1 + (host % 4) / 2)
  })
  return {
    activities: specification.tasks.map(({ id }) => ({ id, cpu: 1, memoryBytes: 0, priority: 0 })),
    edges: [...edges.values()],
    resources: Array.from({ length: hosts }, (_, host) => ({
      id: `host-${host}`,
      lanes,
      cpuCapacity: lanes,
      memoryBytes: 1e12,
      batch: false,
      opaque: false,
      pricePerSecond: 0,
      bootOverheadSeconds: 0,
      containerOverheadSeconds: 0,
      activeWindow: false,
    })),
    links: Array.from({ length: hosts * hosts }, (_, k) => ({
      source: Math.floor(k / hosts),
      target: k % hosts,
    }))
      .filter(({ source, target }) => source < target)
      .map((ends) => ({
        ...ends,
        id: `link-${ends.source}-${ends.target}`,
        bandwidthBitsPerSecond: 1e9,
        latencySeconds: 0.001,
        pricePerByte: 0,
        maxConcurrentTransfers: 0,
        bidirectional: true,
        shared: true,
        duplexSplit: false,
      })),
    durations,
    durationSource: new Uint8Array(n * hosts),
  }
}

/**
 * Plans with HEFT, simulates the plan with each network model and replays it in SimGrid. Returns a
 * line for each makespan, start or finish (in seconds) that differs by more than 1e-9 of the
 * makespan without contention, and 1e-6 of it with.
 */
export function differencesFromSimgrid(problem: PlanningProblem): string[] {
  if (problem.activities.length === 0)
    throw new Error('the problem has no activities: there is nothing to compare')
  const schedule = [...algorithms.heft.plan(problem, {})].at(-1)!.best!
  const placed = placedFrom(schedule)
  return (['contention-free', 'max-min', 'lv08'] as const).flatMap((model) => {
    const ours = simulate(problem, placed, model)
    if (ours.state === 'failed') throw new Error(ours.reason)
    const theirs = replay(documents(problem, placed, model))
    const bound = (model === 'contention-free' ? 1e-9 : 1e-6) * theirs.makespanSeconds
    const found: string[] = []
    const compare = (what: string, own: number, other: number, most: number): void => {
      if (!(Math.abs(own - other) <= most))
        found.push(`${model}: ${what} is ${own} here and ${other} in SimGrid`)
    }
    compare('the makespan', ours.makespanSeconds, theirs.makespanSeconds, bound)
    if (ours.tasks.length !== problem.activities.length)
      found.push(`${model}: ${ours.tasks.length} tasks were simulated`)
    for (const { activity, startedAt, finishedAt } of ours.tasks) {
      const { id } = problem.activities[activity]!
      const [start, finish] = theirs.tasks[id]!
      compare(`the start of ${id}`, startedAt, start, Math.max(1e-6, bound))
      compare(`the finish of ${id}`, finishedAt, finish, Math.max(1e-6, bound))
    }
    if (model === 'contention-free')
      compare('the planned makespan', schedule.makespanSeconds, ours.makespanSeconds, bound)
    return found
  })
}
