import { realpath } from 'node:fs/promises'
import { isAbsolute, join, relative, sep } from 'node:path'
import type { Db } from '../db/sql.ts'
import type { Intent, Stage, StagedAmount } from '../drivers/runtime/driver.ts'
import { isOpaque, type PlannedResource } from '../domains/schedule-plans/problem.ts'
import { loadCommands, type ActivityCommand } from '../domains/workflow-definitions/store.ts'
import { usualPatience, type Copied } from './attempt.ts'
import { nameAt, taskAt, type Book, type BookFacts, type Command, type Step } from './book-state.ts'
import type { LoadedTask } from './journal.ts'
import { attemptDirectory, inputVariable, runScope } from './names.ts'
import { runNetwork, type RunRoute } from './network.ts'
import { containerOf, memoryLimitOf, placer, rehearsalSite, schedulingOf, type Place } from './sites.ts'
import type { SiteParts } from './site-parts.ts'
import type { SiteSnapshot } from './snapshot.ts'

/** Decides, for one task, everything its driver needs; pure apart from the paths it is given and the read of commands. */
export interface SitePlan {
  contentVersionId: string
  onFailure: 'stop' | 'finish-independent'
  /** From it, position and attempt follow the names of effects at the site. */
  effectKey: string
  /** Where a task runs: those of other sites are waited for, not run. */
  siteOf: (task: Pick<LoadedTask, 'runtime_id' | 'resource_id'>) => string
  pricePerSecond: ReadonlyMap<string, number>
  /** The site's own scheduler decides what of a resource runs when: its one slot is a name, not a lane. */
  schedulesItself: (task: Pick<LoadedTask, 'runtime_id' | 'resource_id'>) => boolean
  commandsOf: (positions: readonly number[]) => Promise<Map<number, Command>>
  intentOf: (task: LoadedTask, command: Command, name: string, predecessors: readonly LoadedTask[]) => Intent
  /** The way between two resources for so many bytes. */
  routeOf: (source: string, target: string, bytes: number) => RunRoute
  /** What of `staged` (by entry of the intent's `stage`) came from another resource of the task's own site. */
  copiedFor: (task: LoadedTask, intent: Intent, predecessors: readonly LoadedTask[], staged: readonly StagedAmount[]) => Copied[]
}

/** What the book of a site is opened with. */
export const bookFactsOf = (parts: SiteParts, plan: SitePlan, runId: string, site: string): BookFacts => ({
  runId,
  contentVersionId: plan.contentVersionId,
  effectKey: plan.effectKey,
  site,
  hostId: parts.hostId,
  onFailure: plan.onFailure,
  prices: plan.pricePerSecond,
  patience: { ...usualPatience, ...parts.patience },
  aheadPerLane: parts.aheadPerLane ?? 0,
  hostCores: parts.cores?.count,
  brings: parts.onTransfer !== undefined,
})

/** The intents of a site as its driver gets them, kept from their commit until they are started. */
export const openIntents = (plan: Pick<SitePlan, 'intentOf' | 'copiedFor'>, book: Book) => {
  const made = new Map<number, Intent>()
  const predecessorsOf = (i: number): LoadedTask[] => Array.from(book.frontier.predecessorsOf(i), (p) => taskAt(book, p))
  const of = (i: number): Intent => {
    const task = taskAt(book, i)
    const intent = plan.intentOf(task, book.commands[i] as Command, nameAt(book, i), predecessorsOf(i))
    return task.walltime_extensions === 0 ? intent : { ...intent, walltimeExtensions: task.walltime_extensions }
  }
  return {
    /** The intent of a task's latest attempt; its command has been read. */
    of,
    /** Makes the intents of a step, and completes the step's rows with what only they know. */
    complete(step: Step): void {
      for (const [k, i] of step.positions.entries()) {
        const intent = of(i)
        made.set(i, intent)
        const row = step.entry.intents[k]
        if (row !== undefined) row.directory = intent.directory
      }
    },
    /** The intent of a committed task, to be started. */
    take(i: number): { position: number; name: string; intent: Intent } {
      const intent = made.get(i) ?? of(i)
      made.delete(i)
      return { position: i, name: intent.name, intent }
    },
    copied: (i: number, staged: readonly StagedAmount[]): Copied[] => plan.copiedFor(taskAt(book, i), of(i), predecessorsOf(i), staged),
  }
}

export type Intents = ReturnType<typeof openIntents>

/** Search path of tasks: what a login shell has. Nothing of the service's own environment is passed on. */
const taskPath = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'

export interface SitePlanOptions {
  /** The site of this machine's own files. */
  here: string
  workRoot: string
  seedRoot: string | undefined
  variablePrefix: string
}

/** `workspaceSeedPath` below the seed root, after links; a path that leaves it gives undefined. */
const seedFolder = async (root: string | undefined, path: string): Promise<string | undefined> => {
  if (root === undefined || isAbsolute(path)) return undefined
  const [base, folder] = await Promise.all([realpath(root), realpath(join(root, path)).catch(() => undefined)])
  if (folder === undefined) return undefined
  const inside = relative(base, folder)
  return inside === '..' || inside.startsWith(`..${sep}`) || isAbsolute(inside) ? undefined : folder
}

type Detail = ActivityCommand & { seed: string | undefined; expectedSeconds: number }

/** How long the plan expects tasks to run, in seconds, by position; 0 where nothing gives it. */
const predictedSeconds = async (db: Db, runId: string, positions: readonly number[]): Promise<Map<number, number>> => {
  const rows = await db.prepared<{ position: number; seconds: number }>(
    'predicted_seconds',
    `select a.activity_position as position, case when a.duration_source = 'default' then 0 else a.predicted_runtime_seconds end as seconds from schedule_plan_assignments a join execution_runs r on r.schedule_plan_id = a.schedule_plan_id
     where r.id = $1 and a.activity_position = any($2::integer[])`,
    [runId, `{${positions.join(',')}}`],
  )
  return new Map(rows.map(({ position, seconds }) => [position, seconds]))
}

/** Everything a site needs to turn tasks into intents, from what was accepted with the run. */
export const makeSitePlan = (db: Db, runId: string, snapshot: SiteSnapshot, options: SitePlanOptions): SitePlan => {
  const details = new Map<number, Detail>()
  const placed = placer(snapshot)
  const place = (task: Pick<LoadedTask, 'runtime_id' | 'resource_id'>): Place => placed(task.runtime_id, task.resource_id)
  const resources = new Map(snapshot.resources.map((resource) => [resource.id, resource]))
  const routeOf = runNetwork(snapshot.resources as unknown as PlannedResource[], snapshot.networkTopology?.links)
  /** Where only the site knows its root, the path below it. */
  const directoryOf = (task: LoadedTask): string => {
    const local = place(task).kind === 'local' || place(task).kind === 'rehearsal'
    return attemptDirectory(local ? options.workRoot : 'work', snapshot.effectKey, task.position, task.external_id, task.attempt)
  }
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
      return place(task).kind === 'slurm' && resource !== undefined && isOpaque(resource)
    },
    pricePerSecond: new Map(snapshot.resources.map((resource) => [resource.id, resource.pricePerSecond])),

    async commandsOf(positions) {
      const loaded = await loadCommands(db, snapshot.contentVersionId, positions)
      const expected = await predictedSeconds(db, runId, positions)
      const out = new Map<number, Command>()
      for (const activity of loaded) {
        const seed = activity.workspaceSeedPath === undefined ? undefined : await seedFolder(options.seedRoot, activity.workspaceSeedPath)
        details.set(activity.position, { ...activity, seed, expectedSeconds: expected.get(activity.position) ?? 0 })
        out.set(activity.position, {
          argv: activity.command.entrypoint === undefined ? [] : [activity.command.entrypoint, ...(activity.command.arguments ?? [])],
          environment: activity.command.environment ?? {},
          ...(activity.command.workingDirectory === undefined ? {} : { workingDirectory: activity.command.workingDirectory }),
          cpu: activity.cpu,
          memoryBytes: activity.memoryBytes,
          timeoutSeconds: activity.policy.timeoutSeconds,
          maxAttempts: activity.policy.maxAttempts,
          retryDelaySeconds: activity.policy.retryDelaySeconds ?? 0,
          expectedOutputs: activity.expectedOutputs,
        })
      }
      return out
    },

    routeOf,

    intentOf(task, command, name, predecessors): Intent {
      const detail = detailOf(task)
      const { site, kind } = place(task)
      const local = kind === 'local' || kind === 'rehearsal'
      const directory = directoryOf(task)
      const byPosition = new Map(predecessors.map((predecessor) => [predecessor.position, predecessor]))
      const declared = detail.stage === 'declared'
      const stage: Stage[] = []
      if (detail.workspaceSeedPath !== undefined)
        stage.push({
          from: detail.seed ?? join(options.seedRoot ?? '/nonexistent', detail.workspaceSeedPath),
          label: `workspaceSeedPath ${detail.workspaceSeedPath}`,
          ...(local ? {} : { at: options.here }),
        })
      for (const predecessor of predecessors) {
        const paths = detail.inputs.filter((input) => input.producerPosition === predecessor.position).map((input) => input.logicalName)
        const from = place(predecessor).site
        // What only rehearses leaves no files.
        if ((declared && paths.length === 0) || from === rehearsalSite) continue
        stage.push({
          from: directoryOf(predecessor),
          label: predecessor.external_id,
          ...(declared ? { paths } : {}),
          ...(from === site ? {} : { at: from }),
        })
      }
      const inputs = detail.inputs
        .filter((input) => byPosition.has(input.producerPosition))
        .map((input) => [inputVariable(options.variablePrefix, input.logicalName), input.logicalName] as const)
      const pathVariables = { HOME: '.', ...Object.fromEntries(inputs) }
      const own = { RUN_ID: runId, ACTIVITY_ID: task.activity_id, ATTEMPT: String(task.attempt), RESOURCE_ID: task.resource_id }
      const container = containerOf(place(task), detail.command.image, detail.metadata, runScope(snapshot.effectKey))
      const variables = {
        // An image has a search path of its own.
        ...(container === undefined ? { PATH: taskPath } : {}),
        LANG: 'C.UTF-8',
        ...command.environment,
        ...Object.fromEntries(Object.entries(own).map(([key, value]) => [`${options.variablePrefix}${key}`, value])),
      }
      const { HOME: home } = command.environment
      return {
        name,
        directory,
        argv: command.argv,
        ...(local
          ? {
              environment: {
                ...variables,
                HOME: home ?? directory,
                ...Object.fromEntries(inputs.map(([key, path]) => [key, join(directory, path)])),
              },
            }
          : { environment: variables, pathVariables: home === undefined ? pathVariables : Object.fromEntries(inputs) }),
        ...(command.workingDirectory === undefined || command.workingDirectory === ''
          ? {}
          : { workingDirectory: command.workingDirectory }),
        stage,
        expectedOutputs: command.expectedOutputs,
        cores: Math.max(1, Math.ceil(command.cpu)),
        memoryBytes: command.memoryBytes,
        ...memoryLimitOf(place(task), command.memoryBytes),
        timeoutSeconds: command.timeoutSeconds,
        ...(container === undefined ? {} : { container }),
        ...(local
          ? {}
          : {
              gpus: detail.gpu,
              expectedSeconds: detail.expectedSeconds,
              site: schedulingOf(place(task), resources.get(task.resource_id), detail.metadata),
            }),
      }
    },

    copiedFor(task, { stage }, predecessors, staged) {
      const producers = new Map(predecessors.map((predecessor) => [predecessor.external_id, predecessor]))
      return stage.flatMap(({ at, label }, number) => {
        const producer = producers.get(label)
        const amount = staged[number]
        // On one resource the files stay where they are used, and what came from another site was counted on its way.
        if (producer === undefined || amount === undefined || at !== undefined || producer.resource_id === task.resource_id) return []
        return amount.files === 0 ? [] : [{ producer, ...amount, route: routeOf(producer.resource_id, task.resource_id, amount.bytes) }]
      })
    },
  }
}
