import { z } from 'zod'
import { sql, type Db } from '../../db/sql.ts'
import type { Mask } from '../../drivers/ansible/play.ts'
import { CloudError } from '../../drivers/cloud/contract.ts'
import { reasonText } from '../../outside-text.ts'
import { stderrBytes } from '../../shell/outputs.ts'
import { assign } from '../../shell/program.ts'
import { variablesOf, wantedConfigurations } from './configurations.ts'
import { maskOf } from './masks.ts'
import type { TargetMachineConfiguration } from './schemas.ts'
import { readTarget } from './store.ts'
import { openVariables } from './target-secrets.ts'
import { note, readJob, targetOf, type CloudWorkParts } from './work.ts'

const CheckRow = z.object({
  id: z.string(),
  checks: z.array(z.object({ name: z.string(), command: z.string() })).nullish(),
  variablesSchema: z.record(z.string(), z.unknown()).nullish(),
})

interface Check {
  name: string
  command: string
  versionId: string
  mask: Mask
}

/** Variables of a configuration as variables of `sh`, where they are names and single values. */
const assigned = (variables: Record<string, unknown>): string =>
  assign(
    Object.fromEntries(
      Object.entries(variables).flatMap(([name, value]) =>
        /^[a-z_][a-z0-9_]*$/i.test(name) && ['string', 'number', 'boolean'].includes(typeof value)
          ? [[name, String(value)]]
          : [],
      ),
    ),
  )

/** The checks of a target's configurations, in the order of the configurations. */
const checksOf = async (db: Db, wanted: readonly TargetMachineConfiguration[]): Promise<Check[]> => {
  const rows = await db.many(
    CheckRow,
    sql`select id, validation_checks as checks, variables_schema from machine_configuration_versions
      where id = any(${wanted.map(({ configurationVersionId }) => configurationVersionId)})`,
  )
  return wanted.flatMap((named) => {
    const row = rows.find(({ id }) => id === named.configurationVersionId)
    const variables = variablesOf(named, row?.variablesSchema)
    return (row?.checks ?? []).map(({ name, command }) => ({
      ...{ name, versionId: named.configurationVersionId, mask: maskOf(variables) },
      command: `${assigned(variables)}${command}`,
    }))
  })
}

/**
 * Runs the checks of the target's machine configurations.
 * @throws CloudError that names the first failed check
 */
export const validateMachine = async (parts: CloudWorkParts, operationId: string): Promise<void> => {
  const { db } = parts
  const job = await readJob(db, operationId)
  const target = await readTarget(db, job.targetId)
  const { environmentId = '', machineConfigurations = [] } = target ?? {}
  const opened = await openVariables(parts.vault, job.targetId, environmentId, machineConfigurations)
  const wanted = wantedConfigurations(opened)
  const required = new Set(
    wanted.filter((one) => one.required).map(({ configurationVersionId }) => configurationVersionId),
  )
  const checks = await checksOf(db, wanted)
  const shell = parts.sshSessions.shell(targetOf(parts, job))
  try {
    for (const { name, command, versionId, mask } of checks) {
      await note(db, job, 'validation', 'task.started', { task: name, message: versionId })
      const { code, stderr } = await shell.run(command, { deadlineMs: 60_000, maxBytes: 1_048_576 })
      const cut = { before: Buffer.byteLength(stderr) >= stderrBytes }
      const message =
        `the check ${JSON.stringify(name)} of ${versionId} ended with ` +
        `${String(code ?? 'a signal')}: ${reasonText(mask(stderr, cut), { characters: 500 })}`
      if (code === 0) await note(db, job, 'validation', 'task.completed', { task: name, message: versionId })
      else await note(db, job, 'validation', 'task.failed', { level: 'error', task: name, message })
      if (code !== 0 && required.has(versionId)) throw new CloudError('refused', message)
    }
    await note(db, job, 'validation', 'validation.completed', { message: `${String(checks.length)} checks` })
  } finally {
    await shell.close()
  }
}
