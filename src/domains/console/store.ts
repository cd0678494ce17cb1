import { z } from 'zod'
import { columnsOf } from '../../db/projection.ts'
import { sql, type Db } from '../../db/sql.ts'
import type { Place } from '../../executor/sites.ts'
import { deleteOperation } from '../../operations/records.ts'
import { openMasks } from './masks.ts'
import { commandKind } from './operation.ts'
import { ConsolePlace, type Console } from './place.ts'
import type { Command, CommandDocument } from './schemas.ts'
import { isUncleared, keptLongEnough } from './sessions.ts'

/** The texts of a command that may hold values of the vault. */
const texts = {
  command: z.string(),
  workingDirectory: z.string().optional(),
  environment: z.record(z.string(), z.string()).optional(),
}
const CommandRow = z.object({
  id: z.string(),
  generation: z.number(),
  status: z.enum(['accepted', 'running', 'completed', 'failed', 'cancelled']),
  resourceId: z.string(),
  runtimeId: z.string(),
  connectionId: z.string().optional(),
  actorId: z.string().optional(),
  ...texts,
  masked: z.object(texts).optional(),
  cpuCores: z.number().optional(),
  memoryBytes: z.number().optional(),
  timeoutSeconds: z.number(),
  place: ConsolePlace,
  stdout: z.instanceof(Buffer).optional(),
  stderr: z.instanceof(Buffer).optional(),
  stdoutTruncated: z.boolean(),
  stderrTruncated: z.boolean(),
  exitCode: z.number().optional(),
  externalId: z.string().optional(),
  failureReason: z.string().optional(),
  cancelReason: z.string().optional(),
  createdAt: z.string(),
  startedAt: z.string().optional(),
  finishedAt: z.string().optional(),
})
export type CommandRow = Omit<z.output<typeof CommandRow>, 'place'> & { place: Place }
const columns = columnsOf(CommandRow, 'c')

const textOf = (bytes: Buffer): string => bytes.toString('utf8')

/**
 * A row as its answer. A command that waits for its start is shown as running, and a cancelled one
 * as failed.
 */
export const commandDocument = (row: CommandRow): Command => {
  const { id, resourceId, runtimeId, connectionId = '', timeoutSeconds, status } = row
  const { command, workingDirectory, environment } = row.masked ?? row
  const { actorId, cpuCores, memoryBytes, exitCode, externalId } = row
  const { stdout, stderr, createdAt, startedAt = createdAt, finishedAt, cancelReason } = row
  return {
    ...{ id, resourceId, runtimeId, connectionId, command, timeoutSeconds },
    ...{ actorId, workingDirectory, environment, cpuCores, memoryBytes, exitCode, externalId },
    status: status === 'accepted' ? 'running' : status === 'cancelled' ? 'failed' : status,
    stdout: stdout && textOf(stdout),
    stderr: stderr && textOf(stderr),
    stdoutTruncated: row.stdoutTruncated || undefined,
    stderrTruncated: row.stderrTruncated || undefined,
    failure:
      status === 'cancelled'
        ? `cancelled${cancelReason === undefined ? '' : `: ${cancelReason}`}`
        : row.failureReason,
    ...{ createdAt, startedAt, finishedAt },
  }
}

/**
 * The texts of a command with a mark in place of each value of the vault, as JSON; null where none
 * holds one.
 */
const maskedTexts = (
  { command, workingDirectory, environment }: CommandDocument,
  secrets: readonly string[],
): string | null => {
  const masks = openMasks(secrets)
  const mask = (text: string): string => textOf(masks.whole(Buffer.from(text)))
  const variables = Object.entries(environment ?? {}).map(([name, value]): [string, string] => [
    mask(name),
    mask(value),
  ])
  const masked = JSON.stringify({
    command: mask(command),
    workingDirectory: workingDirectory === undefined ? undefined : mask(workingDirectory),
    environment: environment === undefined ? undefined : Object.fromEntries(variables),
  })
  return masked === JSON.stringify({ command, workingDirectory, environment }) ? null : masked
}

/**
 * Records a command before it runs. `secrets`: values of the vault, which answers mask. The texts that
 * run stay in the row until the command has ended.
 */
export const acceptCommand = (
  db: Db,
  id: string,
  document: CommandDocument,
  { place: { runtimeId, place }, secrets }: { place: Console; secrets: readonly string[] },
): Promise<number> => {
  const { resourceId, actorId, command, workingDirectory, environment, cpuCores, memoryBytes } = document
  return db.run(sql`insert into console_commands (id, resource_id, runtime_id, connection_id, actor_id,
    command, working_directory, environment, masked, cpu_cores, memory_bytes, timeout_seconds, place)
    values (${id}, ${resourceId}, ${runtimeId}, ${place.connectionId}, ${actorId}, ${command}, ${workingDirectory},
      ${environment === undefined ? null : JSON.stringify(environment)},
      ${maskedTexts(document, secrets)}, ${cpuCores}, ${memoryBytes},
      ${document.timeoutSeconds}, ${JSON.stringify(place)})`)
}

export const readCommand = async (db: Db, id: string): Promise<CommandRow | undefined> =>
  (await db.maybe(CommandRow, sql`select ${columns} from console_commands c where c.id = ${id}`)) as
    | CommandRow
    | undefined

/** Bytes of each output in a list: with all of them, a list of a thousand would hold 2 GiB. */
const listedBytes = 16_384
const beginningOf = (name: 'stdout' | 'stderr') => ({
  [name]: `substring(c.${name} from 1 for ${listedBytes})`,
  [`${name}Truncated`]: `(c.${name}_truncated or coalesce(octet_length(c.${name}), 0) > ${listedBytes})`,
})

/** Newest first, with the beginning of their output. */
export const listCommands = async (db: Db, limit: number): Promise<Command[]> => {
  const rows = await db.many(
    CommandRow,
    sql`select ${columnsOf(CommandRow, 'c', { ...beginningOf('stdout'), ...beginningOf('stderr') })}
      from console_commands c order by c.created_at desc, c.id desc limit ${limit}`,
  )
  return rows.map((row) => commandDocument(row as CommandRow))
}

/** Deletes commands, with their events, that ended this many days ago. */
export const removeOldCommands = async (db: Db, days: number): Promise<void> => {
  for (let left = true; left;) {
    const old = await db.values(
      z.string(),
      sql`select id from console_commands where ${keptLongEnough(days)} order by finished_at limit 100`,
    )
    for (const id of old) await deleteOperation(db, commandKind, id)
    left = old.length === 100
  }
}

/** What is left of a cancelled command stops a start that is still on its way. */
const isSettled = sql`finished_at < now() - interval '2 minutes'`

const UnclearedRow = z.object({ id: z.string(), place: ConsolePlace })
/**
 * Commands that ended in the last 30 days and may have left something at their resource, as far as
 * this host reaches it; oldest first, `limit` at most.
 */
export const unclearedCommands = async (
  db: Db,
  hostId: string,
  limit: number,
): Promise<{ id: string; place: Place }[]> =>
  (await db.many(
    UnclearedRow,
    sql`select id, place from console_commands
      where ${isUncleared(hostId)} and ${isSettled} order by finished_at limit ${limit}`,
  )) as { id: string; place: Place }[]

/** Whether a session or a command waits for its clearing by this host. */
export const anyUncleared = (db: Db, hostId: string): Promise<boolean> =>
  db.only(
    z.boolean(),
    sql`select exists (select from console_sessions where ${isUncleared(hostId)})
      or exists (select from console_commands where ${isUncleared(hostId)} and ${isSettled}) as any`,
  )

/** Records that a command has left nothing at its resource. */
export const clearCommand = (db: Db, id: string): Promise<number> =>
  db.run(sql`update console_commands set cleared_at = clock_timestamp() where id = ${id}`)

/** Whether a command is over. */
export const commandIsOver = async (db: Db, id: string): Promise<boolean> => {
  const status = await db.value(z.string(), sql`select status from console_commands where id = ${id}`)
  return status === undefined || !['accepted', 'running'].includes(status)
}

/** One stream of output, up to the stored limit. */
export interface Output {
  bytes: Buffer
  truncated: boolean
}

/** Records the output of a command and why it failed, once. */
export const recordOutput = (
  db: Db,
  id: string,
  {
    stdout,
    stderr,
    exitCode,
    externalId,
    failure,
  }: {
    stdout: Output
    stderr: Output
    exitCode: number | undefined
    externalId: string
    failure: string | undefined
  },
): Promise<number> =>
  db.run(sql`update console_commands set stdout = ${stdout.bytes}, stderr = ${stderr.bytes}, stdout_truncated
    = ${stdout.truncated},
      stderr_truncated = ${stderr.truncated}, exit_code = ${exitCode ?? null}, external_id = ${externalId},
      failure_reason = ${failure ?? null}
        where id = ${id} and stdout is null`)
