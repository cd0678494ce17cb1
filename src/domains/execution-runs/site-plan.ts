import { realpath } from 'node:fs/promises'
import { isAbsolute, join, relative, sep } from 'node:path'
import { z } from 'zod'
import { sql, type Db } from '../../db/sql.ts'
import type { Intent, Stage } from '../../drivers/runtime/driver.ts'
import { loadCommands, type ActivityCommand } from '../workflow-definitions/store.ts'
import type { LoadedTask } from './journal.ts'
import { attemptDirectory, inputVariable } from './names.ts'
import type { Command, SitePlan } from './site.ts'

const RuntimeConfiguration = z.looseObject({ launch: z.string().optional(), hostId: z.string().optional() })
const SnapshotRuntime = z.looseObject({ id: z.string(), driver: z.string(), configuration: RuntimeConfiguration.optional() })
const SnapshotResource = z.looseObject({ id: z.string(), pricePerSecond: z.number() })
const Snapshot = z.object({
  contentVersionId: z.string(),
  onFailure: z.enum(['stop', 'finish-independent']),
  hostId: z.string(),
  runtimes: z.array(SnapshotRuntime),
  resources: z.array(SnapshotResource),
})
export type SiteSnapshot = z.output<typeof Snapshot>

/** The site that starts no process: rehearsal and the figures of the engine itself. */
export const rehearsalSite = 'rehearsal'

/** Where tasks of a runtime run: `rehearsal`, or `local@<host>`, the host being named by the runtime or the one that accepted the run. */
export const siteOf = (runtime: z.output<typeof SnapshotRuntime>, hostId: string): string =>
  runtime.configuration?.launch === 'none'
    ? rehearsalSite
    : runtime.driver === 'local'
      ? `local@${runtime.configuration?.hostId ?? hostId}`
      : `${runtime.driver}/${runtime.id}`

/** Tasks of a host are polled from the host's own queue, everything else from the shared one. */
export const taskQueueOf = (site: string, sharedQueue: string): string =>
  site.startsWith('local@') ? `${sharedQueue}@${site.slice('local@'.length)}` : sharedQueue

export const readSiteSnapshot = (db: Db, runId: string): Promise<SiteSnapshot> =>
  db.one(
    Snapshot,
    sql`select r.content_version_id, r.on_failure, r.host_id, s.runtimes, s.resources from execution_runs r join run_snapshots s on s.execution_run_id = r.id where r.id = ${runId}`,
  )

/** Sites that the open tasks of a run need, in a stable order. */
export const sitesOf = async (db: Db, runId: string, snapshot: SiteSnapshot): Promise<string[]> => {
  const used = await db.many(
    z.object({ runtimeId: z.string() }),
    sql`select distinct runtime_id from task_executions where execution_run_id = ${runId} and latest and status not in ('completed', 'failed', 'cancelled')`,
  )
  const known = new Map(snapshot.runtimes.map((runtime) => [runtime.id, siteOf(runtime, snapshot.hostId)]))
  return [...new Set(used.map(({ runtimeId }) => known.get(runtimeId) ?? rehearsalSite))].sort()
}

/** Search path of tasks: what a login shell has. Nothing of the service's own environment is passed on. */
const taskPath = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'

export interface SitePlanOptions {
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

/** Everything a site needs to turn tasks into intents, from what was accepted with the run. */
export const makeSitePlan = (db: Db, runId: string, snapshot: SiteSnapshot, options: SitePlanOptions): SitePlan => {
  const details = new Map<number, ActivityCommand & { seed?: string | undefined }>()
  const directoryOf = (task: LoadedTask): string => attemptDirectory(options.workRoot, runId, task.position, task.external_id, task.attempt)
  const detailOf = (task: LoadedTask): ActivityCommand & { seed?: string | undefined } => {
    const detail = details.get(task.position)
    if (detail === undefined) throw new Error(`the command of ${task.id} was not loaded`)
    return detail
  }

  const siteOfRuntime = new Map(snapshot.runtimes.map((runtime) => [runtime.id, siteOf(runtime, snapshot.hostId)]))

  return {
    contentVersionId: snapshot.contentVersionId,
    onFailure: snapshot.onFailure,
    siteOfRuntime,
    pricePerSecond: new Map(snapshot.resources.map((resource) => [resource.id, resource.pricePerSecond])),

    async commandsOf(positions) {
      const loaded = await loadCommands(db, snapshot.contentVersionId, positions)
      const out = new Map<number, Command>()
      for (const activity of loaded) {
        const seed = activity.workspaceSeedPath === undefined ? undefined : await seedFolder(options.seedRoot, activity.workspaceSeedPath)
        details.set(activity.position, { ...activity, seed })
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

    intentOf(task, command, name, predecessors): Intent {
      const detail = detailOf(task)
      const directory = directoryOf(task)
      const byPosition = new Map(predecessors.map((predecessor) => [predecessor.position, predecessor]))
      const declared = detail.stage === 'declared'
      const stage: Stage[] = []
      if (detail.workspaceSeedPath !== undefined)
        stage.push({
          from: detail.seed ?? join(options.seedRoot ?? '/nonexistent', detail.workspaceSeedPath),
          label: `workspaceSeedPath ${detail.workspaceSeedPath}`,
        })
      for (const predecessor of predecessors) {
        const paths = detail.inputs.filter((input) => input.producerPosition === predecessor.position).map((input) => input.logicalName)
        // What only rehearses leaves no files.
        if ((declared && paths.length === 0) || siteOfRuntime.get(predecessor.runtime_id) === rehearsalSite) continue
        stage.push({ from: directoryOf(predecessor), label: predecessor.external_id, ...(declared ? { paths } : {}) })
      }
      const inputs = detail.inputs
        .filter((input) => byPosition.has(input.producerPosition))
        .map((input) => [inputVariable(options.variablePrefix, input.logicalName), join(directory, input.logicalName)] as const)
      const own = { RUN_ID: runId, ACTIVITY_ID: task.activity_id, ATTEMPT: String(task.attempt), RESOURCE_ID: task.resource_id }
      return {
        name,
        directory,
        argv: command.argv,
        environment: {
          PATH: taskPath,
          LANG: 'C.UTF-8',
          HOME: directory,
          ...command.environment,
          ...Object.fromEntries(inputs),
          ...Object.fromEntries(Object.entries(own).map(([key, value]) => [`${options.variablePrefix}${key}`, value])),
        },
        ...(command.workingDirectory === undefined || command.workingDirectory === ''
          ? {}
          : { workingDirectory: command.workingDirectory }),
        stage,
        expectedOutputs: command.expectedOutputs,
        cores: Math.max(1, Math.ceil(command.cpu)),
        memoryBytes: command.memoryBytes,
        timeoutSeconds: command.timeoutSeconds,
      }
    },

    // Control edges between different resources carry their declared bytes; on one host they are copied, not sent.
    transfersOf(task, predecessors) {
      const { inputs } = detailOf(task)
      return predecessors.flatMap((producer) => {
        const bytes = inputs
          .filter((input) => input.producerPosition === producer.position)
          .reduce((sum, input) => sum + input.sizeBytes, 0)
        return producer.resource_id === task.resource_id || bytes === 0 ? [] : [{ producer, bytes, cost: 0 }]
      })
    },
  }
}
