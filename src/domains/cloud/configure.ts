import { z } from 'zod'
import { sql, type Db } from '../../db/sql.ts'
import type { PlayEnd, PlayEvent } from '../../drivers/ansible/play.ts'
import { CloudError } from '../../drivers/cloud/contract.ts'
import { missing, existing } from '../../refusal.ts'
import { openConfigurations, programsFault, variablesOf, wantedConfigurations } from './configurations.ts'
import { maskOf } from './masks.ts'
import type { TargetMachineConfiguration } from './schemas.ts'
import { readTarget } from './store.ts'
import { openVariables } from './target-secrets.ts'
import { whileThere } from './while-there.ts'
import { note, readJob, targetOf, watchedOf, type CloudJob, type CloudWorkParts } from './work.ts'

const VersionRow = z.object({
  id: z.string(),
  playbookYaml: z.string(),
  operatingSystems: z.array(z.string()).nullish(),
  variablesSchema: z.record(z.string(), z.unknown()).nullish(),
})
type Version = z.output<typeof VersionRow>

const readVersions = (db: Db, ids: readonly string[]): Promise<Version[]> =>
  db.many(
    VersionRow,
    sql`select id, playbook_yaml, compatibility -> 'operatingSystems' as operating_systems, variables_schema
      from machine_configuration_versions where id = any(${ids})`,
  )

/** Whether playbooks run on the machines of a target. */
export const isConfigured = async (db: Db, targetId: string): Promise<boolean> =>
  wantedConfigurations((await readTarget(db, targetId))?.machineConfigurations ?? []).length > 0

const DoneRow = z.object({ configured: z.array(z.string()) })

/** The operating system of a machine, as `/etc/os-release` names it: `debian-12`. */
const systemOf = async (parts: CloudWorkParts, job: CloudJob): Promise<string> => {
  const shell = parts.sshSessions.shell(targetOf(parts, job))
  try {
    const { stdout } = await shell.run(`. /etc/os-release && printf '%s-%s' "$ID" "$VERSION_ID"`, {
      ...{ deadlineMs: 30_000, maxBytes: 4_096 },
    })
    return stdout.toString()
  } finally {
    await shell.close()
  }
}

const eventNames: Readonly<Record<PlayEvent['event'], string>> = {
  ...{ started: 'task.started', ok: 'task.completed', changed: 'task.completed' },
  ...{ skipped: 'task.completed', failed: 'task.failed', unreachable: 'task.failed' },
}

const noteTask = (
  parts: CloudWorkParts,
  job: CloudJob,
  { event, task, message, seconds, ignored }: PlayEvent,
): Promise<void> => {
  const text = message ?? (event === 'started' || event === 'ok' ? undefined : event)
  return note(parts.db, job, 'configuration', eventNames[event], {
    ...{ tool: 'ansible', host: job.id },
    ...(task === undefined ? {} : { task }),
    ...(text === undefined ? {} : { message: text }),
    ...(seconds === undefined ? {} : { durationSeconds: seconds }),
    ...(event === 'unreachable' || (event === 'failed' && ignored !== true) ? { level: 'error' } : {}),
  })
}

const play = (
  parts: CloudWorkParts,
  job: CloudJob,
  { named, version }: { named: TargetMachineConfiguration; version: Version },
  signal: AbortSignal,
): Promise<PlayEnd> => {
  const variables = variablesOf(named, version.variablesSchema)
  return parts.plays.run({
    ...{ versionId: version.id, playbook: version.playbookYaml, variables, mask: maskOf(variables), signal },
    machine: { name: job.id, target: targetOf(parts, job), hostKey: job.hostKey ?? '' },
    onEvent: (event) => noteTask(parts, job, event),
  })
}

/**
 * Runs one configuration.
 * @throws CloudError `refused` where it fails and is required; `away` where the machine gave no answer,
 *   or where a required one was killed at this worker
 */
const configureOne = async (
  parts: CloudWorkParts,
  job: CloudJob,
  of: { named: TargetMachineConfiguration; version: Version; system: string },
  signal: AbortSignal,
): Promise<void> => {
  const { named, version, system } = of
  const facts = { tool: 'ansible', message: version.id }
  await note(parts.db, job, 'configuration', 'command.started', facts)
  const begun = performance.now()
  const operatingSystems = version.operatingSystems ?? []
  const end: PlayEnd =
    operatingSystems.length > 0 && !operatingSystems.includes(system)
      ? {
          state: 'failed',
          reason: `it is for ${operatingSystems.join(', ')}, and the machine runs ${system}`,
        }
      : await play(parts, job, of, signal)
  const durationSeconds = Math.round((performance.now() - begun) / 10) / 100
  if (end.state === 'ok') {
    await note(parts.db, job, 'configuration', 'command.completed', { ...facts, durationSeconds })
    return
  }
  const message = `the configuration ${version.id} failed: ${end.reason ?? ''}`
  await note(parts.db, job, 'configuration', 'configuration.failed', {
    ...{ tool: 'ansible', level: 'error', message, durationSeconds },
  })
  // A machine that gives no answer may be gone, whatever the configuration is for.
  if (end.state === 'unreachable') throw new CloudError('away', message)
  if (named.required) throw new CloudError(end.state === 'killed' ? 'away' : 'refused', message)
}

/**
 * Runs the playbooks of the target's machine configurations on the machine, in their order. Those
 * that ended well before in this operation are not run again.
 * @throws CloudError that names the configuration and its failed task, or that the machine is gone;
 *   Refusal `unavailable` where this worker lacks a program
 */
export const configureMachine = async (
  parts: CloudWorkParts,
  operationId: string,
  signal: AbortSignal,
): Promise<void> => {
  const { db } = parts
  const job = await readJob(db, operationId)
  const target = existing(await readTarget(db, job.targetId), 'capacity target', job.targetId)
  const { environmentId, machineConfigurations } = target
  const opened = await openVariables(parts.vault, target.id, environmentId, machineConfigurations)
  const wanted = wantedConfigurations(opened)
  const fault = wanted.length === 0 ? undefined : await programsFault()
  if (fault !== undefined) throw fault
  await db.run(sql`update cloud_instances set status = 'configuring',
    configuring_at = coalesce(configuring_at, now()) where id = ${job.id}`)
  const versions = new Map(
    (
      await readVersions(
        db,
        wanted.map(({ configurationVersionId }) => configurationVersionId),
      )
    ).map((one) => [one.id, one]),
  )
  const { configured } = await db.one(
    DoneRow,
    sql`select configured from cloud_operations where id = ${operationId}`,
  )
  const open = openConfigurations(wanted, configured)
  if (open.length === 0) return
  await whileThere(parts.clouds, watchedOf(job), signal, async (stop) => {
    const system = await systemOf(parts, job)
    for (const { named, end } of open) {
      const version = versions.get(named.configurationVersionId)
      if (version === undefined) throw missing('machine configuration version', named.configurationVersionId)
      await configureOne(parts, job, { named, version, system }, stop)
      parts.failpoint('cloud-configured')
      await db.run(sql`update cloud_operations set configured = configured || ${JSON.stringify([end])}::jsonb
        where id = ${operationId}`)
    }
  })
  // The groups of the login were read when the connection was made.
  await parts.sshSessions.forget([targetOf(parts, job)])
}
