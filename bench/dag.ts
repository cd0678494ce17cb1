import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'

/** Parents of every task, by task name; the form that all sides of a comparison are given. */
export type Dag = Record<string, string[]>

const traces = join(import.meta.dirname, '../../shared/data/wfinstances')

/** Path of a recorded trace (WfFormat), which is not part of this repository. */
export const tracePath = (file: string): string => {
  const path = join(traces, file)
  if (!existsSync(path)) throw new Error(`${path} is missing: this benchmark runs on a recorded trace of WfInstances; put it there`)
  return path
}

/** The dependencies of a recorded workflow, without its files and times. Names are lower-case with dashes, as activities are named. */
export const traceDag = (file: string): Dag => {
  const { workflow } = JSON.parse(readFileSync(tracePath(file), 'utf8')) as {
    workflow: { specification: { tasks: { id: string; parents: string[] }[] } }
  }
  const name = (id: string): string => id.toLowerCase().replace(/[^a-z0-9]+/g, '-')
  return Object.fromEntries(workflow.specification.tasks.map(({ id, parents }) => [name(id), parents.map(name)]))
}

/** The 1,066-task mosaic of the engine's figures. */
export const montage = (): Dag => traceDag('montage-chameleon-dss-125d-001.json')

/** `length` tasks, one after the other. */
export const chainDag = (length: number): Dag =>
  Object.fromEntries(Array.from({ length }, (_, i) => [`t${String(i)}`, i === 0 ? [] : [`t${String(i - 1)}`]]))

/** A document for `POST /workflow-definitions/` with one activity per task. */
export const authored = (name: string, dag: Dag, command: (task: string) => Record<string, unknown>) => ({
  name,
  spec: {
    namespace: 'bench',
    image: 'none',
    activities: Object.entries(dag).map(([task, parents]) => ({
      name: task,
      cpuLimit: '1',
      memoryLimit: '1Mi',
      stage: 'declared',
      command: command(task),
      dependsOn: parents,
    })),
  },
})

/** Throws when `times` (start and end per task, one clock) lacks a task or has one that began before a parent ended. */
export const checkOrder = (who: string, dag: Dag, times: ReadonlyMap<string, readonly [start: number, end: number]>): void => {
  const tasks = Object.entries(dag)
  if (times.size !== tasks.length) throw new Error(`${who} did ${String(times.size)} tasks of ${String(tasks.length)}`)
  for (const [task, parents] of tasks) {
    const start = times.get(task)?.[0]
    if (start === undefined) throw new Error(`${who} did not do ${task}`)
    for (const parent of parents) {
      const end = times.get(parent)?.[1] ?? Infinity
      if (end > start) throw new Error(`${who} began ${task} at ${String(start)}, before ${parent} ended at ${String(end)}`)
    }
  }
}
