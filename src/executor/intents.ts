import { realpath } from 'node:fs/promises'
import { isAbsolute, join } from 'node:path'
import type { Db } from '../db/sql.ts'
import type { Intent, Stage, StagedAmount } from '../drivers/runtime/contract/driver.ts'
import { isOpaque, type PlannedResource } from '../domains/schedule-plans/problem.ts'
import { inputVariables } from '../domains/workflow-definitions/names.ts'
import { loadCommands, loadPromises, type ActivityCommand } from '../domains/workflow-definitions/store.ts'
import type { Copied } from './attempt.ts'
import { nameAt, taskAt, type SchedulingState, type TaskCommand, type Step } from './scheduling-state.ts'
import { labelOf, pinOf } from './executables.ts'
import type { LoadedTask } from './journal.ts'
import { taskPath } from '../drivers/runtime/contract/task-script.ts'
import { kindOf } from '../drivers/runtime/registry.ts'
import { attemptDirectory, runScope } from './names.ts'
import { runNetwork, type RouteOf } from './network.ts'
import { liesIn } from '../outside-path.ts'
import {
  containerOf,
  isAlwaysInImage,
  isOwnMachine,
  machineHost,
  memoryLimitOf,
  placer,
  rehearsalSite,
  runsOnMachines,
  schedulingOf,
  type Place,
} from './sites.ts'
import type { SiteSnapshot } from './snapshot.ts'

/**
 * Decides all values for one task that its driver needs; pure apart from the given paths and the
 * read of commands.
 */
export interface SitePlan {
  contentVersionId: string
  onFailure: 'stop' | 'finish-independent'
  /** With position and attempt, it gives the names of effects at the site. */
  effectKey: string
  /** The site of a task: this site waits for tasks of other sites, and does not run them. */
  siteOf: (task: Pick<LoadedTask, 'runtime_id' | 'resource_id'>) => string
  pricePerSecond: ReadonlyMap<string, number>
  /**
   * The site's own scheduler decides when tasks of a resource run: its one slot is a name, not a
   * lane.
   */
  schedulesItself: (task: Pick<LoadedTask, 'runtime_id' | 'resource_id'>) => boolean
  commandsOf: (positions: readonly number[]) => Promise<Map<number, TaskCommand>>
  intentOf: (
    task: LoadedTask,
    command: TaskCommand,
    name: string,
    predecessors: readonly LoadedTask[],
  ) => Intent
  routeOf: RouteOf
  /**
   * The part of `staged` (by entry of the intent's `stage`) from another resource of the task's own
   * site.
   */
  copiedFor: (
    task: LoadedTask,
    intent: Intent,
    predecessors: readonly LoadedTask[],
    staged: readonly StagedAmount[],
  ) => Copied[]
}

/** The intents of a site in the driver's form, kept from their commit until the start. */
export const openIntents = (plan: Pick<SitePlan, 'intentOf' | 'copiedFor'>, state: SchedulingState) => {
  const made = new Map<number, Intent>()
  const predecessorsOf = (i: number): LoadedTask[] =>
    Array.from(state.frontier.predecessorsOf(i), (p) => taskAt(state, p))
  const of = (i: number): Intent => {
    const task = taskAt(state, i)
    const intent = plan.intentOf(task, state.commands[i] as TaskCommand, nameAt(state, i), predecessorsOf(i))
    return task.walltime_extensions === 0
      ? intent
      : { ...intent, walltimeExtensions: task.walltime_extensions }
  }
  return {
    /** The intent of a task's latest attempt; its command has been read. */
    of,
    /**
     * Makes the intents of a step, and adds to the step's rows the fields that only intents have.
     */
    complete(step: Step): void {
      for (const [k, i] of step.positions.entries()) {
        const intent = of(i)
        made.set(i, intent)
        const row = step.entry.intents[k]
        if (row !== undefined) row.directory = intent.directory
      }
    },
    /** The intent of a committed task, for its start. */
    take(i: number): { position: number; name: string; intent: Intent } {
      const intent = made.get(i) ?? of(i)
      made.delete(i)
      return { position: i, name: intent.name, intent }
    },
    copied: (i: number, staged: readonly StagedAmount[]): Copied[] =>
      plan.copiedFor(taskAt(state, i), of(i), predecessorsOf(i), staged),
  }
}

export type Intents = ReturnType<typeof openIntents>

export interface SitePlanOptions {
  /** The site of this machine's own files. */
  here: string
  workRoot: string
  seedRoot: string | undefined
  variablePrefix: string
}

/**
 * `workspaceSeedPath` below the seed root, with links resolved; a path outside it gives undefined.
 */
const seedFolder = async (root: string | undefined, path: string): Promise<string | undefined> => {
  if (root === undefined || isAbsolute(path)) return undefined
  const [base, folder] = await Promise.all([
    realpath(root),
    realpath(join(root, path)).catch(() => undefined),
  ])
  return folder !== undefined && liesIn(base, folder) ? folder : undefined
}

type Detail = ActivityCommand & { seed: string | undefined; expectedSeconds: number }

/** The plan's expected run time of tasks, in seconds, by position; 0 where it gives none. */
const predictedSeconds = async (
  db: Db,
  runId: string,
  positions: readonly number[],
): Promise<Map<number, number>> => {
  const rows = await db.prepared<{ position: number; seconds: number }>(
    'predicted_seconds',
    `select a.activity_position as position, case when a.duration_source = 'default' then 0
      else a.predicted_runtime_seconds end as seconds from schedule_plan_assignments a join execution_runs r
        on r.schedule_plan_id = a.schedule_plan_id
     where r.id = $1 and a.activity_position = any($2::integer[])`,
    [runId, `{${positions.join(',')}}`],
  )
  return new Map(rows.map(({ position, seconds }) => [position, seconds]))
}

/** The facts about a command that the executor needs before its task has an intent. */
const commandOf = ({ command, cpu, memoryBytes, policy, expectedOutputs }: ActivityCommand): TaskCommand => ({
  argv: command.entrypoint === undefined ? [] : [command.entrypoint, ...(command.arguments ?? [])],
  environment: command.environment ?? {},
  ...(command.workingDirectory === undefined ? {} : { workingDirectory: command.workingDirectory }),
  cpu,
  memoryBytes,
  timeoutSeconds: policy.timeoutSeconds,
  maxAttempts: policy.maxAttempts,
  retryDelaySeconds: policy.retryDelaySeconds ?? 0,
  expectedOutputs,
})

/** The start places of a run's tasks, and the places of their files. */
interface Layout {
  place: (task: Pick<LoadedTask, 'runtime_id' | 'resource_id'>) => Place
  /** The path below the root where only the site knows its root. */
  directoryOf: (task: LoadedTask) => string
  /** Copies of its files on the host of the run, for an attempt on a machine that may be gone. */
  keptDirectoryOf: (task: LoadedTask) => string
}

const layoutOf = (snapshot: SiteSnapshot, workRoot: string): Layout => {
  const placed = placer(snapshot)
  const place: Layout['place'] = (task) => placed(task.runtime_id, task.resource_id)
  const below = (root: string, { position, external_id, attempt }: LoadedTask): string =>
    attemptDirectory(root, snapshot.effectKey, position, external_id, attempt)
  return {
    place,
    directoryOf: (task) => below(isOwnMachine(place(task)) ? workRoot : 'work', task),
    keptDirectoryOf: (task) => below(workRoot, task),
  }
}

/** The content of a task's directory: its seed, then the files of its predecessors. */
const stagesOf = (
  { place, directoryOf, keptDirectoryOf }: Layout,
  options: Pick<SitePlanOptions, 'here' | 'seedRoot'>,
  task: LoadedTask,
  { workspaceSeedPath, seed, stage, inputs }: Detail,
  predecessors: readonly LoadedTask[],
  promised: ReadonlyMap<number, readonly string[]>,
): Stage[] => {
  const own = place(task)
  const declared = stage === 'declared'
  const stages: Stage[] = []
  if (workspaceSeedPath !== undefined)
    stages.push({
      from: seed ?? join(options.seedRoot ?? '/nonexistent', workspaceSeedPath),
      label: `workspaceSeedPath ${workspaceSeedPath}`,
      ...(isOwnMachine(own) ? {} : { at: options.here }),
    })
  for (const predecessor of predecessors) {
    const paths = inputs
      .filter((input) => input.producerPosition === predecessor.position)
      .map((input) => input.logicalName)
    const producer = place(predecessor)
    const isKept = runsOnMachines(producer) && !isOnMachine(own, producer, predecessor)
    const from = isKept ? options.here : producer.site
    // Rehearsals leave no files.
    if ((declared && paths.length === 0) || from === rehearsalSite) continue
    stages.push({
      from: isKept ? keptDirectoryOf(predecessor) : directoryOf(predecessor),
      label: predecessor.external_id,
      producer: predecessor.position,
      ...(declared ? { paths } : {}),
      named: [...(promised.get(predecessor.position) ?? []), ...paths],
      ...(from === own.site ? {} : { at: from }),
    })
  }
  return stages
}

/**
 * Whether the files of a predecessor are on the machine of the task itself. An attempt of this
 * holder has no host on record yet.
 */
const isOnMachine = (own: Place, producer: Place, { host_id: host }: LoadedTask): boolean =>
  own.machine !== undefined &&
  producer.site === own.site &&
  (host == null || host === machineHost(own.machine))

/** The variables of an attempt: those with paths become absolute here or at the site. */
const variablesOf = (
  facts: {
    runId: string
    prefix: string
    directory: string
    isHere: boolean
    inImage: boolean
    inputs: ReadonlyMap<string, string>
  },
  task: LoadedTask,
  command: Pick<TaskCommand, 'environment'>,
  names: readonly string[],
): Pick<Intent, 'environment' | 'pathVariables'> => {
  const paths = names.map((name) => [`${facts.prefix}${facts.inputs.get(name) ?? ''}`, name] as const)
  const own = {
    RUN_ID: facts.runId,
    ACTIVITY_ID: task.activity_id,
    ATTEMPT: String(task.attempt),
    RESOURCE_ID: task.resource_id,
  }
  const variables = {
    // An image has values of its own; the script of the task adds those that an image lacks.
    ...(facts.inImage ? {} : { PATH: taskPath, LANG: 'C.UTF-8' }),
    ...command.environment,
    ...Object.fromEntries(Object.entries(own).map(([key, value]) => [`${facts.prefix}${key}`, value])),
  }
  if (!facts.isHere) return { environment: variables, pathVariables: Object.fromEntries(paths) }
  const absolute = paths.map(([key, path]) => [key, join(facts.directory, path)] as const)
  return { environment: { ...variables, ...Object.fromEntries(absolute) } }
}

/** The staged files from another resource of the task's own site, and their route. */
const copiedOf = (
  routeOf: RouteOf,
  task: LoadedTask,
  stages: readonly Stage[],
  predecessors: readonly LoadedTask[],
  staged: readonly StagedAmount[],
): Copied[] => {
  const producers = new Map(predecessors.map((predecessor) => [predecessor.position, predecessor]))
  return stages.flatMap(({ at, producer: position }, number) => {
    const producer = position === undefined ? undefined : producers.get(position)
    const amount = staged[number]
    // Within one resource no file moves, and files from another site were counted on their way.
    if (
      producer === undefined ||
      amount === undefined ||
      at !== undefined ||
      producer.resource_id === task.resource_id
    )
      return []
    return amount.files === 0
      ? []
      : [{ producer, ...amount, route: routeOf(producer.resource_id, task.resource_id, amount.bytes) }]
  })
}

/** The container of a task, with the executable that the run's snapshot pins for it. */
const containerFor = (
  snapshot: SiteSnapshot,
  place: Place,
  position: number,
  { command, metadata }: Pick<Detail, 'command' | 'metadata'>,
): Intent['container'] => {
  const pin = pinOf(snapshot.executables, position)
  // The place of a file that is brought is known when it is there.
  const image = pin === undefined ? command.image : (pin.image ?? 'brought')
  const container = containerOf(place, image, metadata, runScope(snapshot.effectKey))
  if (container === undefined || pin === undefined) return container
  return {
    ...container,
    ...(pin.engine === undefined ? {} : { engine: pin.engine }),
    ...(pin.inPlace === true ? { inPlace: true } : {}),
    ...(pin.image === undefined ? { brought: { id: pin.id, label: labelOf(pin) } } : {}),
  }
}

/** The data with which a site turns tasks into intents, from the run's accepted snapshot. */
export const makeSitePlan = (
  db: Db,
  runId: string,
  snapshot: SiteSnapshot,
  options: SitePlanOptions,
): SitePlan => {
  const details = new Map<number, Detail>()
  /** Expected outputs of predecessors. */
  const promised = new Map<number, readonly string[]>()
  const layout = layoutOf(snapshot, options.workRoot)
  const { place, directoryOf } = layout
  const resources = new Map(snapshot.resources.map((resource) => [resource.id, resource]))
  const routeOf = runNetwork(
    snapshot.resources as unknown as PlannedResource[],
    snapshot.networkTopology?.links,
  )
  const detailOf = (task: LoadedTask): Detail => {
    const detail = details.get(task.position)
    if (detail === undefined) throw new Error(`the command of ${task.id} was not loaded`)
    return detail
  }

  return {
    contentVersionId: snapshot.contentVersionId,
    onFailure: snapshot.onFailure,
    siteOf: (task) => place(task).site,
    effectKey: snapshot.effectKey,
    schedulesItself: (task) => {
      const resource = resources.get(task.resource_id)
      return kindOf(place(task).kind).hasPartitions && resource !== undefined && isOpaque(resource)
    },
    pricePerSecond: new Map(snapshot.resources.map((resource) => [resource.id, resource.pricePerSecond])),

    async commandsOf(positions) {
      const [loaded, promises, expected] = await Promise.all([
        loadCommands(db, snapshot.contentVersionId, positions),
        loadPromises(db, snapshot.contentVersionId, positions),
        predictedSeconds(db, runId, positions),
      ])
      for (const [position, paths] of promises) promised.set(position, paths)
      const out = new Map<number, TaskCommand>()
      for (const activity of loaded) {
        const { position, workspaceSeedPath: path } = activity
        const seed = path === undefined ? undefined : await seedFolder(options.seedRoot, path)
        details.set(position, { ...activity, seed, expectedSeconds: expected.get(position) ?? 0 })
        out.set(position, commandOf(activity))
      }
      return out
    },

    routeOf,

    intentOf(task, command, name, predecessors): Intent {
      const detail = detailOf(task)
      const own = place(task)
      const directory = directoryOf(task)
      const positions = new Set(predecessors.map(({ position }) => position))
      const container = containerFor(snapshot, own, task.position, detail)
      const { workingDirectory } = command
      return {
        name,
        directory,
        argv: command.argv,
        ...variablesOf(
          {
            runId,
            prefix: options.variablePrefix,
            directory,
            isHere: isOwnMachine(own),
            inImage: container !== undefined || isAlwaysInImage(own),
            inputs: inputVariables(detail.inputs.map(({ logicalName }) => logicalName)),
          },
          task,
          command,
          detail.inputs
            .filter(({ producerPosition }) => positions.has(producerPosition))
            .map(({ logicalName }) => logicalName),
        ),
        ...(workingDirectory === undefined || workingDirectory === '' ? {} : { workingDirectory }),
        stage: stagesOf(layout, options, task, detail, predecessors, promised),
        expectedOutputs: command.expectedOutputs,
        cores: Math.max(1, Math.ceil(command.cpu)),
        memoryBytes: command.memoryBytes,
        ...memoryLimitOf(own, command.memoryBytes),
        timeoutSeconds: command.timeoutSeconds,
        ...(container === undefined ? {} : { container }),
        ...(isOwnMachine(own)
          ? {}
          : {
              gpus: detail.gpu,
              expectedSeconds: detail.expectedSeconds,
              site: schedulingOf(own, resources.get(task.resource_id), detail.metadata),
            }),
      }
    },

    copiedFor: (task, { stage }, predecessors, staged) =>
      copiedOf(routeOf, task, stage, predecessors, staged),
  }
}
