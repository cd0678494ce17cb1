import { z } from 'zod'
import { sql, type Db } from '../../db/sql.ts'
import type { Mask } from '../../drivers/ansible/play.ts'
import { CloudError } from '../../drivers/cloud/contract.ts'
import { reasonText } from '../../outside-text.ts'
import { collectOutput, stderrBytes } from '../../shell/outputs.ts'
import { assign, evaluated, withLastLine } from '../../shell/program.ts'
import { LinkError, type SiteShell } from '../../shell/site-shell.ts'
import { variablesOf, wantedConfigurations } from './configurations.ts'
import { maskOf } from './masks.ts'
import type { TargetMachineConfiguration } from './schemas.ts'
import { readTarget } from './store.ts'
import { openVariables } from './target-secrets.ts'
import { whileThere } from './while-there.ts'
import { note, readJob, targetOf, watchedOf, type CloudWorkParts } from './work.ts'

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

const deadlineMs = 60_000
const mostBytes = 1_048_576

/**
 * Runs one check. The signal ends it at the machine. The machine gets the command as input, because
 * each of its accounts can read command lines, and this one holds secret variables.
 * @returns why it failed; undefined where it did not
 * @throws CloudError `refused` where nobody can log in until a person changes something; LinkError;
 *   the signal's reason
 */
const runCheck = async (
  shell: SiteShell,
  { name, command, versionId, mask }: Check,
  signal: AbortSignal,
): Promise<string | undefined> => {
  const check = `the check ${JSON.stringify(name)} of ${versionId}`
  let late: AbortSignal | undefined
  try {
    const stream = await shell.open(evaluated('cat'))
    late = AbortSignal.timeout(deadlineMs)
    const end = AbortSignal.any([signal, late])
    end.addEventListener('abort', () => stream.kill(), { once: true })
    if (end.aborted) stream.kill()
    const { code, stderr } = await collectOutput(stream, {
      ...{ input: withLastLine(command), deadlineMs: 2 * deadlineMs, maxBytes: mostBytes },
    })
    end.throwIfAborted()
    if (code === 0) return undefined
    const cut = { before: Buffer.byteLength(stderr) >= stderrBytes }
    const words = reasonText(mask(stderr, cut), { characters: 500 })
    return `${check} ended with ${String(code ?? 'a signal')}: ${words}`
  } catch (error) {
    signal.throwIfAborted()
    if (late?.aborted === true) return `${check} did not end within ${String(deadlineMs / 1_000)} s`
    if (error instanceof RangeError) return `${check} wrote more than ${String(mostBytes)} bytes`
    if (!(error instanceof LinkError) || !error.permanent) throw error
    throw new CloudError('refused', `${check} cannot run: ${error.message}`, { cause: error })
  }
}

/**
 * Runs the checks of the target's machine configurations.
 * @throws CloudError that names the first failed check, or that the machine is gone; the signal's
 *   reason
 */
export const validateMachine = async (
  parts: CloudWorkParts,
  operationId: string,
  signal: AbortSignal,
): Promise<void> => {
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
    await whileThere(parts.clouds, watchedOf(job), signal, async (stop) => {
      for (const check of checks) {
        const facts = { task: check.name, message: check.versionId }
        await note(db, job, 'validation', 'task.started', facts)
        const message = await runCheck(shell, check, stop)
        if (message === undefined) await note(db, job, 'validation', 'task.completed', facts)
        else await note(db, job, 'validation', 'task.failed', { level: 'error', ...facts, message })
        if (message !== undefined && required.has(check.versionId)) throw new CloudError('refused', message)
      }
    })
    await note(db, job, 'validation', 'validation.completed', { message: `${String(checks.length)} checks` })
  } finally {
    await shell.close()
  }
}
