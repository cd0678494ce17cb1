import { append } from '../../lists.ts'
import type { Problem } from '../../refusal.ts'
import { readAuthoring, type Reading } from './authoring.ts'
import type { AuthoringDraft } from './draft.ts'
import { slug } from './names.ts'
import { duplicates } from './rules.ts'
import type { AuthoringActivity, AuthoringDataDependency, WfFormatDocument } from './schemas.ts'

/** The number of warnings of one kind that are listed. One more warning counts the rest. */
const listed = 100
const defaultNamespace = 'default'
const tasksPath = 'workflow.specification.tasks'

type Specification = WfFormatDocument['workflow']['specification']
type Execution = NonNullable<NonNullable<WfFormatDocument['workflow']['execution']>['tasks']>[number]

/**
 * A WfCommons instance (WfFormat 1.5, 1.6) as a workflow that can be simulated: an activity per
 * task, control edges from parents and children together, a data dependency per file of an edge.
 * The measurements become the simulation: runtime at reference speed, cores, memory. The command is
 * stored in `metadata` only, because its files are not available.
 */
export function readWfFormat(
  document: WfFormatDocument,
  override: { name?: string; namespace?: string },
): Reading {
  const { specification, execution } = document.workflow
  const problems: Problem[] = []
  const warnings: Problem[] = []
  const { tasks } = specification
  append(
    problems,
    duplicates(
      tasks.map(({ id }) => id),
      (i) => `${tasksPath}.${i}.id`,
      'id',
    ),
  )

  const names = tasks.map(({ id }) => slug(id))
  const parents = controlParents(tasks, problems)
  const flows = fileFlows(specification, names, parents, warnings)
  const measured = new Map<string, Execution>()
  execution?.tasks?.forEach((task, i) => {
    if (measured.has(task.id))
      problems.push({
        path: `workflow.execution.tasks.${i}.id`,
        message: `${JSON.stringify(task.id)} is listed more than once; list it once`,
      })
    measured.set(task.id, task)
  })

  const draft: AuthoringDraft = {
    name: override.name ?? document.name,
    namespace: override.namespace ?? defaultNamespace,
    raw: {
      metadata: {
        format: `wfformat-${document.schemaVersion}`,
        ...(document.description === undefined ? {} : { description: document.description }),
        ...(execution?.makespanInSeconds === undefined
          ? {}
          : { measuredMakespanSeconds: execution.makespanInSeconds }),
        externalInputs: flows.external,
      },
    },
    activities: tasks.map((task, i) =>
      activityOf(
        task,
        names[i] ?? '',
        [...(parents[i] ?? [])].map((parent) => names[parent] ?? ''),
        measured.get(task.id),
      ),
    ),
    dataDependencies: flows.data,
  }
  const reading = readAuthoring(draft)
  const at = ({ path, message }: Problem): Problem => ({
    path: path
      .replace(/^spec\.activities\.(\d+)\.name$/, `${tasksPath}.$1.id`)
      .replace(/^spec\.activities/, tasksPath)
      .replace(/^spec\.dataDependencies\.\d+.*/, 'workflow.specification.files'),
    message,
  })
  const reported = new Set(problems.map(({ path }) => path))
  append(
    problems,
    reading.problems.map(at).filter(({ path }) => !reported.has(path)),
  )
  return {
    id: reading.id,
    problems,
    warnings: [...warnings, ...reading.warnings.map(at)],
    workflow: problems.length > 0 ? undefined : reading.workflow,
  }
}

/**
 * The positions of each task's parents: those that it names and those that name it as their child.
 */
function controlParents(tasks: Specification['tasks'], problems: Problem[]): Set<number>[] {
  const positions = new Map(tasks.map(({ id }, i) => [id, i]))
  const parents = tasks.map(() => new Set<number>())
  tasks.forEach((task, i) => {
    task.parents?.forEach((id, k) => {
      const parent = positions.get(id)
      if (parent === undefined)
        problems.push({
          path: `${tasksPath}.${i}.parents.${k}`,
          message: `${JSON.stringify(id)} names no task; name the id of one`,
        })
      else parents[i]?.add(parent)
    })
    task.children?.forEach((id, k) => {
      const child = positions.get(id)
      if (child === undefined)
        problems.push({
          path: `${tasksPath}.${i}.children.${k}`,
          message: `${JSON.stringify(id)} names no task; name the id of one`,
        })
      else parents[child]?.add(i)
    })
  })
  return parents
}

/**
 * One data dependency per edge and file of more than 0 bytes that its producer writes and its
 * consumer reads.
 */
function fileFlows(
  { tasks, files }: Specification,
  names: readonly string[],
  parents: readonly ReadonlySet<number>[],
  warnings: Problem[],
): { data: AuthoringDataDependency[]; external: { count: number; bytes: number } } {
  const sizes = new Map(files?.map(({ id, sizeInBytes }) => [id, Math.round(sizeInBytes)]))
  const producers = new Map<string, number[]>()
  tasks.forEach(({ outputFiles }, i) => {
    for (const file of new Set(outputFiles)) {
      const others = producers.get(file)
      if (others === undefined) producers.set(file, [i])
      else others.push(i)
    }
  })

  const data: AuthoringDataDependency[] = []
  const external = new Set<string>()
  const unlisted = new Set<string>()
  let loose = 0
  tasks.forEach(({ inputFiles }, i) => {
    for (const file of new Set(inputFiles)) {
      const size = sizes.get(file)
      const from = producers.get(file)
      if (from === undefined) external.add(file)
      if (size === undefined) unlisted.add(file)
      for (const producer of from ?? []) {
        if (producer === i) continue
        if (parents[i]?.has(producer) === true) {
          if (size !== undefined && size > 0)
            data.push({
              producerActivity: names[producer] ?? '',
              consumerActivity: names[i] ?? '',
              logicalName: file,
              sizeBytes: size,
            })
        } else if (loose++ < listed) {
          warnings.push({
            path: `${tasksPath}.${i}.inputFiles`,
            message:
              `${JSON.stringify(file)} comes from ${JSON.stringify(tasks[producer]?.id)}, which is no ` +
              'parent; it is not transferred',
          })
        }
      }
    }
  })
  if (loose > listed)
    warnings.push({ path: tasksPath, message: `${loose - listed} more files are shared without an edge` })
  if (unlisted.size > 0) {
    const shown = [...unlisted]
      .slice(0, 3)
      .map((file) => JSON.stringify(file))
      .join(', ')
    warnings.push({
      path: 'workflow.specification.files',
      message:
        `${unlisted.size} input files have no entry and count as 0 bytes: ` +
        `${shown}${unlisted.size > 3 ? ', ...' : ''}`,
    })
  }
  return {
    data,
    external: {
      count: external.size,
      bytes: [...external].reduce((sum, file) => sum + (sizes.get(file) ?? 0), 0),
    },
  }
}

function activityOf(
  task: Specification['tasks'][number],
  name: string,
  dependsOn: string[],
  measured: Execution | undefined,
): AuthoringActivity {
  const program = measured?.command?.program
  const label =
    program !== undefined && /^\S{1,100}$/.test(program)
      ? program
      : task.name !== task.id
        ? task.name
        : undefined
  return {
    name,
    cpuLimit: String(measured?.coreCount === undefined || measured.coreCount === 0 ? 1 : measured.coreCount),
    memoryLimit: String(Math.round(measured?.memoryInBytes ?? 0)),
    dependsOn,
    simulation: {
      model: 'deterministic',
      ...(measured?.runtimeInSeconds === undefined ? {} : { durationSeconds: measured.runtimeInSeconds }),
    },
    ...(label === undefined || slug(label) === ''
      ? {}
      : { activityType: label.slice(0, 200).toWellFormed() }),
    metadata: { taskId: task.id, ...(measured?.command === undefined ? {} : { command: measured.command }) },
  }
}
