import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import type { Problem, ProblemEdge } from '../../src/schedulers/problem.ts'

/** A path below the data that lies beside the checkout. */
export const shared = (path: string): string => fileURLToPath(new URL(`../../../shared/data/${path}`, import.meta.url))

interface WfFormat {
  workflow: {
    specification: {
      tasks: { id: string; children?: string[]; parents?: string[]; inputFiles?: string[]; outputFiles?: string[] }[]
      files?: { id: string; sizeInBytes: number }[]
    }
    execution: { tasks: { id: string; runtimeInSeconds: number }[] }
  }
}

/**
 * A WfCommons trace as a planning problem: one core a task, reference runtimes, bytes of the files that go from parent to child; hosts of
 * four speeds, each with `lanes` cores, joined by a full mesh of shared links of 1 Gbit/s and 1 ms.
 */
export function traceProblem(path: string, hosts: number, lanes = 1): Problem {
  const { specification, execution } = (JSON.parse(readFileSync(path, 'utf8')) as WfFormat).workflow
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
    for (let host = 0; host < hosts; host++) durations[task * hosts + host] = (runtimes.get(id) ?? 0) / (1 + (host % 4) / 2)
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
    links: Array.from({ length: hosts * hosts }, (_, k) => ({ source: Math.floor(k / hosts), target: k % hosts }))
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
