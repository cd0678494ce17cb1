import { montageWorkload, type WfInstance } from './workloads.ts'

/** Parents of every task, by task name: the form that all sides of a comparison get. */
export type Dag = Record<string, string[]>

/**
 * The dependencies of an instance, without its files and times. Names are lower-case with dashes,
 * like names of activities.
 */
const dagOf = ({ workflow: { specification } }: WfInstance): Dag => {
  const name = (id: string): string => id.toLowerCase().replace(/[^a-z0-9]+/g, '-')
  return Object.fromEntries(specification.tasks.map(({ id, parents }) => [name(id), parents.map(name)]))
}

/** The 1,066-task mosaic of the engine's figures, or a tiny one; `origin` is for the report. */
export const montageDag = (tiny: boolean): { dag: Dag; origin: string } => {
  const { instance, origin } = montageWorkload(tiny)
  return { dag: dagOf(instance), origin: `workload: Montage, ${origin}` }
}

/** `length` tasks, one after the other. */
export const chainDag = (length: number): Dag =>
  Object.fromEntries(
    Array.from({ length }, (_, i) => [`t${String(i)}`, i === 0 ? [] : [`t${String(i - 1)}`]]),
  )

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

/**
 * Throws when `times` (start and end per task, one clock) lacks a task or has one that began before
 * a parent ended.
 */
export const checkOrder = (
  who: string,
  dag: Dag,
  times: ReadonlyMap<string, readonly [start: number, end: number]>,
): void => {
  const tasks = Object.entries(dag)
  if (times.size !== tasks.length)
    throw new Error(`${who} did ${String(times.size)} tasks of ${String(tasks.length)}`)
  for (const [task, parents] of tasks) {
    const start = times.get(task)?.[0]
    if (start === undefined) throw new Error(`${who} did not do ${task}`)
    for (const parent of parents) {
      const end = times.get(parent)?.[1] ?? Infinity
      if (end > start)
        throw new Error(`${who} began ${task} at ${String(start)}, before ${parent} ended at ${String(end)}`)
    }
  }
}
