import { realpath } from 'node:fs/promises'
import { isAbsolute, join, relative, sep } from 'node:path'
import { z } from 'zod'
import { sql, type Db } from '../../db/sql.ts'
import type { Intent, Stage } from '../../drivers/runtime/contract/driver.ts'
import { isOpaque, type PlannedLink, type PlannedResource } from '../schedule-plans/problem.ts'
import { loadCommands, type ActivityCommand } from '../workflow-definitions/store.ts'
import type { LoadedTask } from './journal.ts'
import { attemptDirectory, inputVariable, intentName, runScope } from './names.ts'
import { runNetwork } from './network.ts'
import type { Command, SitePlan } from './site.ts'
import {
  containerOf,
  memoryLimitOf,
  placer,
  rehearsalSite,
  schedulingOf,
  SnapshotBinding,
  SnapshotResource,
  SnapshotRuntime,
  type Place,
} from './sites.ts'

const Snapshot = z.object({
  generation: z.number(),
  contentVersionId: z.string(),
  onFailure: z.enum(['stop', 'finish-independent']),
  hostId: z.string(),
  effectKey: z.string(),
  runtimes: z.array(SnapshotRuntime),
  resources: z.array(SnapshotResource),
  runtimeBindings: z.array(SnapshotBinding),
  storageMounts: z.array(z.object({ runtimeId: z.string(), storageId: z.string(), path: z.string() })),
  networkTopology: z.looseObject({ links: z.array(z.custom<PlannedLink>()) }).optional(),
})
export type SiteSnapshot = z.output<typeof Snapshot>

export const readSiteSnapshot = (db: Db, runId: string): Promise<SiteSnapshot> =>
  db.one(
    Snapshot,
    sql`select r.generation, r.content_version_id, r.on_failure, r.host_id, r.effect_key, s.runtimes, s.resources, s.runtime_bindings, s.storage_mounts, s.network_topology from execution_runs r join run_snapshots s on s.execution_run_id = r.id where r.id = ${runId}`,
  )

const BoundResourceRow = z.object({ runtimeId: z.string(), resourceId: z.string(), open: z.boolean() })

/** Every pair of runtime and resource that a run uses; `open`: a task there is not over. */
export const usedPairs = (db: Db, runId: string) =>
  db.many(
    BoundResourceRow,
    sql`select runtime_id, planned_resource_id as resource_id, bool_or(status not in ('completed', 'failed', 'cancelled')) as open
      from task_executions where execution_run_id = ${runId} and latest group by 1, 2 order by 1, 2`,
  )

/** The latest attempts of an activity and of what it waits for. */
export const loadTaskWithPredecessors = async (
  db: Db,
  runId: string,
  contentVersionId: string,
  position: number,
): Promise<{ task: LoadedTask; predecessors: LoadedTask[] }> => {
  const tasks = await db.prepared<LoadedTask>(
    'task_with_predecessors',
    `select t.id, t.activity_position as position, t.activity_id, t.external_id, t.planned_resource_id as resource_id, t.runtime_id, t.attempt, t.user_attempts, t.status, t.core_ids,
       t.slot_id, t.order_on_resource, t.ready_at, t.queued_at, t.started_at, t.finished_at, t.not_before
     from task_executions t where t.execution_run_id = $1 and t.latest and (t.activity_position = $3
       or t.activity_position in (select depends_on_position from activity_dependencies where workflow_version_id = $2 and activity_position = $3))
     order by t.activity_position`,
    [runId, contentVersionId, position],
  )
  const task = tasks.find((candidate) => candidate.position === position)
  if (task === undefined) throw new Error(`run ${runId} has no task at ${String(position)}`)
  return { task, predecessors: tasks.filter((candidate) => candidate !== task) }
}

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
    nameOf: ({ position, attempt }) => intentName(snapshot.effectKey, position, attempt),
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
