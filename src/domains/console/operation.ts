import { z } from 'zod'
import { sql } from '../../db/sql.ts'
import type { OperationKind } from '../../operations/kind.ts'

const AuditRow = z.object({
  resourceId: z.string(),
  runtimeId: z.string(),
  connectionId: z.string().optional(),
  actorId: z.string().optional(),
})

/** Console commands as operations. The workflow stops a running command and records its end. */
export const commandKind: OperationKind<'consoleCommand'> = {
  name: 'console-command',
  workflow: 'consoleCommand',
  noun: 'console command',
  table: 'console_commands',
  states: { accepted: 'accepted', running: 'running' },
  events: 'console.command',
  cancelEnds: 'accepted',
  // The command itself may hold secrets, so Temporal's page shows only the resource.
  pageSummary: async (db, id) => {
    const resourceId = await db.value(
      z.string(),
      sql`select resource_id from console_commands where id = ${id}`,
    )
    return resourceId === undefined
      ? undefined
      : { line: `console command on ${resourceId}`, path: `/console-commands/${encodeURIComponent(id)}/` }
  },
  audit: async (id, change, tx) => {
    const row = await tx.maybe(
      AuditRow,
      sql`select resource_id, runtime_id, connection_id, actor_id from console_commands where id = ${id}`,
    )
    const { actorId, ...refs } = row ?? {}
    return {
      eventType: `console.command.${change}`,
      externalId: id,
      ...refs,
      ...(actorId === undefined ? {} : { actorId, actorType: 'user' }),
    }
  },
  // The texts that ran may hold values of the vault.
  ended: (tx, id) =>
    tx.run(sql`update console_commands set command = masked ->> 'command', working_directory = masked ->>
      'workingDirectory', environment = masked -> 'environment', masked = null
      where id = ${id} and masked is not null`),
  recordingDigest: (tx, id) =>
    tx.value(
      z.string().optional(),
      sql`select encode(sha256(sha256(stdout) || sha256(coalesce(stderr, ''))), 'hex') as digest
          from console_commands where id = ${id}`,
    ),
}
