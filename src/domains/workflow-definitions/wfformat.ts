import { JsonObject, jsonObjectBounds } from '../../http/schema.ts'
import { append, firstItems } from '../../lists.ts'
import type { Problem } from '../../refusal.ts'
import { readAuthoring, type Reading } from './authoring.ts'
import type { AuthoringDraft } from './draft.ts'
import { distinctSlugs, slug, withoutControls } from './names.ts'
import { duplicates } from './rules.ts'
import type { AuthoringActivity, AuthoringDataDependency, WfFormatDocument } from './schemas.ts'

/** The number of warnings of one kind that are listed. One more warning counts the rest. */
const listed = 100
/**
 * The limit of pairs of a producer and a consumer of one file: a few thousand tasks that all read and
 * write the same files would have billions.
 */
const mostPairs = 2_000_000
const defaultNamespace = 'default'
/** The limit of a description: metadata has at most 1,048,576 characters in all. */
const longestDescription = 1_000_000
const tasksPath = 'workflow.specification.tasks'
const filesPath = 'workflow.specification.files'
const executionPath = 'workflow.execution.tasks'

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
  { namespace = defaultNamespace }: { namespace?: string | undefined },
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

  const names = distinctSlugs(tasks.map(({ id }) => id))
  append(warnings, renamed(tasks, names))
  const parents = controlParents(tasks, problems)
  const flows = fileFlows(specification, names, parents, problems, warnings)
  const measured = measurements(document, problems, warnings)
  const { description } = document
  if (description !== undefined && description.length > longestDescription)
    warnings.push({ path: 'description', message: `is cut to its first ${longestDescription} characters` })
  const metadata = tasks.map((task) => metadataOf(task, measured.get(task.id)?.facts))
  append(warnings, shortened(metadata))

  const draft: AuthoringDraft = {
    name: document.name,
    namespace,
    raw: {
      metadata: {
        format: `wfformat-${document.schemaVersion}`,
        ...(description === undefined
          ? {}
          : { description: description.slice(0, longestDescription).toWellFormed() }),
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
        measured.get(task.id)?.facts,
        metadata[i]?.kept,
      ),
    ),
    dataDependencies: flows.data,
  }
  const reading = readAuthoring(draft)
  const placeOfFile = new Map((document.workflow.specification.files ?? []).map(({ id }, i) => [id, i]))
  const at = ({ path, message }: Problem): Problem => ({
    path: writtenAt(path, document, draft, measured, placeOfFile),
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

/** The first of the warnings of one kind, and a count of the rest. */
const bounded = (warnings: readonly Problem[], path: string): Problem[] =>
  firstItems(warnings, listed, (more) => ({ path, message: `and ${more} more like it` }))

/** The tasks whose identifier is not the one that their id alone would become. */
const renamed = (tasks: Specification['tasks'], names: readonly string[]): Problem[] =>
  bounded(
    tasks.flatMap(({ id }, i) => {
      const name = names[i] ?? ''
      const wanted = slug(id)
      if (name === wanted) return []
      const why = wanted === '' ? 'it has no letter or digit' : `another task is ${JSON.stringify(wanted)}`
      return [
        {
          path: `${tasksPath}.${i}.id`,
          message: `${JSON.stringify(id)} becomes ${JSON.stringify(name)}, as ${why}; metadata.taskId keeps the id`,
        },
      ]
    }),
    tasksPath,
  )

/** What was measured of a task, and its position in the document. */
interface Measured {
  facts: Execution
  position: number
}

/** The measurements by the id of their task. Those of a task that is not there are not used. */
function measurements(
  { workflow: { specification, execution } }: WfFormatDocument,
  problems: Problem[],
  warnings: Problem[],
): Map<string, Measured> {
  const ids = new Set(specification.tasks.map(({ id }) => id))
  const measured = new Map<string, Measured>()
  const strange: Problem[] = []
  execution?.tasks?.forEach((facts, position) => {
    const path = `${executionPath}.${position}.id`
    if (measured.has(facts.id))
      problems.push({
        path,
        message: `${JSON.stringify(facts.id)} is listed more than once; list it once`,
      })
    else if (!ids.has(facts.id))
      strange.push({
        path,
        message: `${JSON.stringify(facts.id)} names no task of the specification; its measurements are not used`,
      })
    measured.set(facts.id, { facts, position })
  })
  append(warnings, bounded(strange, executionPath))
  return measured
}

/** The members of a task's execution that become members of an activity. */
const measuredMembers: Readonly<Record<string, string>> = {
  cpuLimit: 'coreCount',
  memoryLimit: 'memoryInBytes',
  simulation: 'runtimeInSeconds',
  activityType: 'command.program',
}

/** The member of the document that became the member at `path` of the authoring form. */
function writtenAt(
  path: string,
  { workflow: { specification } }: WfFormatDocument,
  { dataDependencies }: AuthoringDraft,
  measured: ReadonlyMap<string, Measured>,
  placeOfFile: ReadonlyMap<string, number>,
): string {
  if (path === 'spec.dataDependencies') return filesPath
  const data = /^spec\.dataDependencies\.(\d+)/.exec(path)?.[1]
  if (data !== undefined) {
    const file = dataDependencies[Number(data)]?.logicalName
    const place = file === undefined ? undefined : placeOfFile.get(file)
    return place === undefined ? filesPath : `${filesPath}.${place}.id`
  }
  const [, position, member = ''] = /^spec\.activities\.(\d+)\.(\w+)/.exec(path) ?? []
  if (position === undefined) return path.replace(/^spec\.activities/, tasksPath)
  const task = specification.tasks[Number(position)]
  const found = task === undefined ? undefined : measured.get(task.id)
  const source = measuredMembers[member]
  if (
    source === undefined ||
    found === undefined ||
    (member === 'activityType' && !namedByProgram(found.facts))
  )
    return `${tasksPath}.${position}.${member === 'activityType' ? 'name' : 'id'}`
  return `${executionPath}.${found.position}.${source}`
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
  problems: Problem[],
  warnings: Problem[],
): { data: AuthoringDataDependency[]; external: { count: number; bytes: number } } {
  const sizes = fileSizes(files ?? [], warnings)
  const written = tasks.map(({ outputFiles }) => new Set(outputFiles))
  const producers = new Map<string, number[]>()
  written.forEach((files, i) => {
    for (const file of files) {
      const others = producers.get(file)
      if (others === undefined) producers.set(file, [i])
      else others.push(i)
    }
  })

  const data: AuthoringDataDependency[] = []
  const external = new Set<string>()
  const unlisted = new Set<string>()
  let loose = 0
  let listedLoose = 0
  let pairs = 0
  for (const [i, { inputFiles }] of tasks.entries()) {
    const before = parents[i] ?? new Set<number>()
    for (const file of new Set(inputFiles)) {
      const size = sizes.get(file)
      const from = producers.get(file) ?? []
      if (from.length === 0) external.add(file)
      if (size === undefined) unlisted.add(file)
      pairs += Math.min(from.length, before.size)
      if (pairs > mostPairs) break
      const isOfParent = (producer: number): boolean =>
        producer !== i && before.has(producer) && written[producer]?.has(file) === true
      const known = (from.length <= before.size ? from : [...before]).filter(isOfParent)
      if (size !== undefined && size > 0)
        for (const producer of known)
          data.push({
            producerActivity: names[producer] ?? '',
            consumerActivity: names[i] ?? '',
            logicalName: file,
            sizeBytes: size,
          })
      const others = from.length - known.length - (written[i]?.has(file) === true ? 1 : 0)
      loose += others
      if (others === 0) continue
      for (const producer of from) {
        if (listedLoose === listed) break
        if (producer === i || before.has(producer)) continue
        listedLoose++
        warnings.push({
          path: `${tasksPath}.${i}.inputFiles`,
          message:
            `${JSON.stringify(file)} comes from ${JSON.stringify(tasks[producer]?.id)}, which is no ` +
            'parent; it is not transferred',
        })
      }
    }
  }
  if (pairs > mostPairs)
    problems.push({
      path: tasksPath,
      message:
        `has more than ${mostPairs} pairs of a task that writes a file and one that reads it; ` +
        'split the workflow, or give tasks files of their own',
    })
  if (loose > listed)
    warnings.push({ path: tasksPath, message: `${loose - listed} more files are shared without an edge` })
  if (unlisted.size > 0) {
    const shown = [...unlisted]
      .slice(0, 3)
      .map((file) => JSON.stringify(file))
      .join(', ')
    warnings.push({
      path: filesPath,
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

/** Files by id. Where one has several sizes the last counts, with a warning. */
function fileSizes(files: NonNullable<Specification['files']>, warnings: Problem[]): Map<string, number> {
  const sizes = new Map<string, number>()
  const differing = files.flatMap(({ id, sizeInBytes }, i) => {
    const before = sizes.get(id)
    const size = Math.round(sizeInBytes)
    sizes.set(id, size)
    if (before === undefined || before === size) return []
    return [
      {
        path: `${filesPath}.${i}.sizeInBytes`,
        message: `${JSON.stringify(id)} had ${before} bytes before and has ${size} here; the last size counts`,
      },
    ]
  })
  append(warnings, bounded(differing, filesPath))
  return sizes
}

/** Whether the program of a task becomes its type. */
const namedByProgram = (measured: Execution | undefined): boolean =>
  /^\S{1,100}$/.test(measured?.command?.program ?? '')

/** The limit of characters of a type. */
const longestType = 200

/** The facts that are only kept: all of them, or those that the bounds of metadata leave room for. */
const metadataOf = (
  { id }: Specification['tasks'][number],
  measured: Execution | undefined,
): { kept: JsonObject | undefined; whole: boolean } => {
  const all = { taskId: id, ...(measured?.command === undefined ? {} : { command: measured.command }) }
  const kept = [all, { taskId: id }].find((metadata) => JsonObject.safeParse(metadata).success)
  return { kept, whole: kept === all }
}

/** The tasks whose facts are too large. */
const shortened = (metadata: readonly ReturnType<typeof metadataOf>[]): Problem[] =>
  bounded(
    metadata.flatMap(({ kept, whole }, i) =>
      whole
        ? []
        : [
            {
              path: `${tasksPath}.${i}.id`,
              message:
                `metadata keeps ${kept === undefined ? 'neither the id nor the command' : 'no command'} of ` +
                `the task: metadata has at most ${jsonObjectBounds.values} values and ` +
                `${jsonObjectBounds.characters} characters, ${jsonObjectBounds.depth} levels deep`,
            },
          ],
    ),
    tasksPath,
  )

function activityOf(
  task: Specification['tasks'][number],
  name: string,
  dependsOn: string[],
  measured: Execution | undefined,
  metadata: JsonObject | undefined,
): AuthoringActivity {
  const given = namedByProgram(measured)
    ? measured?.command?.program
    : task.name !== task.id
      ? task.name
      : undefined
  const label = (given === undefined ? undefined : withoutControls(given))
    ?.trim()
    .slice(0, longestType)
    .toWellFormed()
  return {
    name,
    cpuLimit: String(measured?.coreCount === undefined || measured.coreCount === 0 ? 1 : measured.coreCount),
    memoryLimit: String(Math.round(measured?.memoryInBytes ?? 0)),
    dependsOn,
    simulation: {
      model: 'deterministic',
      ...(measured?.runtimeInSeconds === undefined ? {} : { durationSeconds: measured.runtimeInSeconds }),
    },
    ...(label === undefined || slug(label) === '' ? {} : { activityType: label }),
    ...(metadata === undefined ? {} : { metadata }),
  }
}
