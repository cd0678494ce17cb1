import { join } from 'node:path'
import { expect } from '@jest/globals'
import { epigenomics, montage, type WfInstance } from '../../bench/workloads.ts'
import { needs } from '../support/needs.ts'
import { recordedTraces } from '../../sites/requirements.ts'
import { readInstance } from './trace.ts'

const { describe, test } = needs('traces')

/** Level of every task: the number of edges of its longest path from a task without parents. */
const levelsOf = (tasks: readonly { id: string; parents: readonly string[] }[]): Map<string, number> => {
  const parents = new Map(tasks.map((task) => [task.id, task.parents]))
  const levels = new Map<string, number>()
  const levelOf = (id: string): number => {
    const level = levels.get(id) ?? 1 + Math.max(-1, ...parents.get(id)!.map(levelOf))
    levels.set(id, level)
    return level
  }
  for (const { id } of tasks) levelOf(id)
  return levels
}

/** What a generated instance has in common with a recorded one, or nearly. */
const measure = ({ workflow: { specification, execution } }: WfInstance) => {
  const { tasks, files } = specification
  const levels = levelsOf(tasks)
  const seconds = new Map(execution.tasks.map((task) => [task.id, task.runtimeInSeconds]))
  const programOf = new Map(execution.tasks.map((task) => [task.id, task.command.program]))
  const sizes = new Map(files.map((file) => [file.id, file.sizeInBytes]))
  const byId = new Map(tasks.map((task) => [task.id, task]))
  const finish = new Map<string, number>()
  for (const { id, parents } of tasks.toSorted((a, b) => levels.get(a.id)! - levels.get(b.id)!))
    finish.set(id, Math.max(0, ...parents.map((parent) => finish.get(parent)!)) + seconds.get(id)!)
  const sum = (values: readonly number[]): number => values.reduce((total, value) => total + value, 0)
  const outputs = (id: string): number => sum(byId.get(id)!.outputFiles.map((file) => sizes.get(file)!))
  return {
    /** How many tasks there are of each level, program, number of parents and of children. */
    shape: Map.groupBy(tasks, ({ id, parents, children }) =>
      [levels.get(id), programOf.get(id), parents.length, children.length].join(' '),
    ),
    programs: Map.groupBy(tasks, ({ id }) => programOf.get(id)!),
    secondsOf: (id: string) => seconds.get(id)!,
    bytesOf: outputs,
    edges: sum(tasks.map(({ parents }) => parents.length)),
    files: files.length,
    totalSeconds: sum([...seconds.values()]),
    totalBytes: sum([...sizes.values()]),
    criticalPathSeconds: Math.max(...finish.values()),
  }
}

/**
 * Kolmogorov and Smirnov's distance of two samples: the most by which their distribution functions
 * differ.
 */
const distance = (a: readonly number[], b: readonly number[]): number => {
  const below = (values: readonly number[], limit: number): number =>
    values.filter((value) => value <= limit).length / values.length
  return Math.max(...[...a, ...b].map((value) => Math.abs(below(a, value) - below(b, value))))
}

const off = (value: number, recorded: number): number => Math.abs(value - recorded) / recorded

const imitations = [
  { file: 'montage-chameleon-dss-125d-001', generate: montage, sameGraph: true, total: 0.01 },
  { file: 'epigenomics-chameleon-ilmn-6seq-50k-001', generate: epigenomics, sameGraph: false, total: 0.05 },
]

describe('a generated instance is as close to the recorded one as bench/workloads.ts states', () => {
  for (const { file, generate, sameGraph, total } of imitations)
    test(file, () => {
      const recorded = measure(readInstance(join(recordedTraces, `${file}.json`)) as WfInstance)
      const generated = measure(generate())
      const sizesOf = (groups: ReadonlyMap<string, readonly unknown[]>) =>
        Object.fromEntries([...groups].map(([key, { length }]) => [key, length]))
      if (sameGraph) expect(sizesOf(generated.shape)).toEqual(sizesOf(recorded.shape))
      expect(sizesOf(generated.programs)).toEqual(sizesOf(recorded.programs))
      expect([generated.edges, generated.files]).toEqual([recorded.edges, recorded.files])
      const figures: Record<string, number> = {
        runtimes: off(generated.totalSeconds, recorded.totalSeconds),
        bytes: off(generated.totalBytes, recorded.totalBytes),
        'critical path': off(generated.criticalPathSeconds, recorded.criticalPathSeconds),
      }
      const wrong = Object.entries(figures).filter(([, share]) => !(share < total))
      expect(wrong).toEqual([])
      let [worstSeconds, worstBytes] = [0, 0]
      // Of programs with a handful of tasks there is no distribution to speak of.
      for (const [program, tasks] of [...recorded.programs].filter(([, { length }]) => length >= 50)) {
        const own = generated.programs.get(program)!
        worstSeconds = Math.max(
          worstSeconds,
          distance(
            own.map(({ id }) => generated.secondsOf(id)),
            tasks.map(({ id }) => recorded.secondsOf(id)),
          ),
        )
        worstBytes = Math.max(
          worstBytes,
          distance(
            own.map(({ id }) => generated.bytesOf(id)),
            tasks.map(({ id }) => recorded.bytesOf(id)),
          ),
        )
      }
      expect(worstSeconds).toBeLessThan(0.12)
      expect(worstBytes).toBeLessThan(0.12)
    })
})
