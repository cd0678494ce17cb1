import { randomUUID } from 'node:crypto'
import { mkdir, readdir, rename } from 'node:fs/promises'
import { hostname } from 'node:os'
import { join } from 'node:path'
import { z } from 'zod'
import { emptyTables } from '../../../db/empty-tables.ts'
import { isDeadlock } from '../../../db/errors.ts'
import { join as joined, raw, sql, type Db } from '../../../db/sql.ts'
import { isErrno } from '../../../drivers/runtime/contract/errno.ts'
import { removeTree } from '../../../drivers/runtime/local/remove-tree.ts'
import type { Engine } from '../../../engine.ts'
import { sitesWithRunFiles } from '../../../executor/removals.ts'
import { withBlank } from '../../../http/keys.ts'
import { route, type Route } from '../../../http/route.ts'
import type { OperationKind } from '../../../operations/kind.ts'
import { requestCancel } from '../../../operations/records.ts'
import { poll } from '../../../pacing/poll.ts'
import { orAfter } from '../../../pacing/within.ts'
import { Refusal, unacceptableAt } from '../../../refusal.ts'
import type { VaultKeys } from '../../../vault/keys.ts'
import { resetType } from '../../audit-events/seal.ts'
import { sealAll } from '../../audit-events/sealer.ts'
import { recordAudit } from '../../audit-events/store.ts'
import { leftOfConsole, openTerminals, requestClose, terminalsTable } from '../../console/sessions.ts'
import { ensureInstance, readSystemInstance } from '../store.ts'
import { counted, type Contents } from './manifest.ts'
import { readArchive } from './store.ts'

export interface ResetParts {
  ownDb: Db
  /** The host of this process. */
  hostId: string
  vaultKeys: VaultKeys | undefined
  engine: Pick<Engine, 'cancel' | 'removeWorkflows'>
  /** Every kind of operation. */
  kinds: readonly OperationKind[]
  /** Folders below a root whose files belong to records. */
  files: readonly { root: string; folders: readonly string[] }[]
}

const stopWithinMs = 20_000
const lookEveryMs = 250
/** A resource that cannot be reached does not prevent a reset. */
const leftWithinMs = 5_000
const openNamed = 100
/** The answer waits this long for the removal of workflows, which goes on after it. */
const workflowsWithinMs = 5_000

/** The number of records of which one more than `openNamed` were read at most. */
const manyOf = ({ length }: readonly unknown[]): string =>
  length > openNamed ? `more than ${String(openNamed)}` : String(length)

const OpenRow = z.object({ kind: z.string(), id: z.string(), status: z.string() })
type Open = z.output<typeof OpenRow>

const terminalKind = 'console-session'

const openWork = (db: Db, { kinds }: Pick<ResetParts, 'kinds'>): Promise<Open[]> =>
  db.many(
    OpenRow,
    sql`${joined(
      [
        ...kinds.map(
          ({ name, table, columns, states }) =>
            sql`select ${name} as kind, ${raw(columns?.id ?? 'id')}::text as id, status from ${raw(table)}
            where status = any(${[states.accepted, states.running]}::text[])`,
        ),
        sql`select ${terminalKind} as kind, id::text, status from (${openTerminals}) terminal`,
      ],
      ' union all ',
    )} order by 1, 2 limit ${openNamed + 1}`,
  )

const refuseOpen = (open: readonly Open[]): never => {
  throw new Refusal(
    'conflict',
    `${manyOf(open)} operations are open; wait for their end, or reset with ?stop=true, which cancels them`,
    {
      details: open
        .slice(0, openNamed)
        .map(({ kind, id, status }) => ({ path: `${kind}/${id}`, message: `is ${status}` })),
      retryAfterSeconds: 5,
    },
  )
}

const Machine = z.object({ id: z.string(), name: z.string(), provider: z.string(), status: z.string() })

/**
 * Refuses while machines at providers may cost money: without their records nothing would destroy
 * them. A reset destroys none, as it would take minutes and may fail half-way.
 */
const refuseMachines = async (db: Db): Promise<void> => {
  const machines = await db.many(
    Machine,
    sql`select id, name, provider, status from cloud_instances
      where status <> 'destroyed' and not machine_gone order by created_at, id limit ${openNamed + 1}`,
  )
  if (machines.length === 0) return
  throw new Refusal(
    'conflict',
    `${manyOf(machines)} machines at providers may cost money; destroy them first ` +
      '(POST /cloud-instances/{id}/destroy/), also with ?stop=true',
    {
      details: machines.slice(0, openNamed).map(({ id, name, provider, status }) => ({
        path: `cloud-instance/${id}`,
        message: `${name} at ${provider} is ${status}`,
      })),
    },
  )
}

const Removal = z.object({ site: z.string(), runId: z.string(), failed: z.boolean() })

/** Files of deleted runs at other sites: without the records nothing would find them. */
const pendingRemovals = (db: Db) =>
  db.many(
    Removal,
    sql`select site, execution_run_id as run_id, last_error is not null as failed from site_removals
      where host_id is null
        order by id limit ${openNamed + 1}`,
  )

/**
 * Refuses while files of deleted runs are at other sites. With `stop` a first try to remove them is
 * waited for, and what a site keeps then is named in the audit. @returns the sites that keep files
 */
const removalsLeft = async (db: Db, stop: boolean): Promise<string[]> => {
  let pending = await pendingRemovals(db)
  const isOver = async (): Promise<true | undefined> => {
    pending = await pendingRemovals(db)
    return pending.every(({ failed }) => failed) ? true : undefined
  }
  if (stop && pending.length > 0) await poll(isOver, { everyMs: lookEveryMs, deadlineMs: stopWithinMs })
  if (pending.length === 0 || stop) return [...new Set(pending.map(({ site }) => site))]
  throw new Refusal(
    'conflict',
    `files of ${manyOf(pending)} deleted runs are still at their sites; wait for their removal, or reset ` +
      'with ?stop=true, which leaves there what is not removed within 20 s',
    {
      details: pending.slice(0, openNamed).map(({ site, runId }) => ({
        path: `execution-run/${runId}`,
        message: `its files are at ${site}`,
      })),
      retryAfterSeconds: 5,
    },
  )
}

/** Cancels the open operations and waits for their end. */
const stopWork = async (parts: ResetParts, actorId: string): Promise<void> => {
  const { ownDb, engine, kinds } = parts
  let open: Open[] = []
  const cancelOpen = async (): Promise<true | undefined> => {
    open = await openWork(ownDb, parts)
    if (open.length === 0) return true
    for (const { kind: name, id } of open) {
      if (name === terminalKind) await requestClose(ownDb, id)
      const kind = kinds.find((one) => one.name === name)
      if (kind === undefined) continue
      const found = await requestCancel(ownDb, kind, { id }, { actorId, reason: 'factory reset' })
      if (found !== undefined) await engine.cancel(kind, id, found.generation)
    }
    return undefined
  }
  const over = await poll(cancelOpen, { everyMs: lookEveryMs, deadlineMs: stopWithinMs })
  if (over === undefined) refuseOpen(open)
}

/**
 * Empties the records in one transaction and begins a new chain, which names the head of the old.
 * @throws Refusal 409 for an operation that was accepted since the last look: the locks prevent any
 *   later acceptance
 */
const emptyRecords = (
  parts: ResetParts,
  actor: { id: string; type: string },
  left: Readonly<Record<'sitesWithFiles' | 'consoleLeft', readonly string[]>>,
): Promise<Contents> =>
  parts.ownDb.transaction(async (tx) => {
    const { contents } = await readArchive(tx, 'default')
    for (const table of new Set([...parts.kinds.map((kind) => kind.table), terminalsTable]))
      await tx.run(sql`lock table ${raw(table)} in access exclusive mode`)
    const open = await openWork(tx, parts)
    if (open.length > 0) refuseOpen(open)
    await refuseMachines(tx)
    const head = await sealAll(tx, parts.vaultKeys)
    const ofRuns = await sitesWithRunFiles(tx, parts.hostId, openNamed)
    const sitesWithFiles = [...new Set([...left.sitesWithFiles, ...ofRuns])].toSorted().slice(0, openNamed)
    await emptyTables(tx)
    await ensureInstance(tx, hostname())
    await tx.run(sql`insert into instance_cleanups (id) values (${randomUUID()})`)
    await recordAudit(tx, {
      eventType: resetType,
      actorId: actor.id,
      actorType: actor.type,
      outcome: 'succeeded',
      summary: 'factory reset; the chain of audit records begins anew',
      metadata: {
        ...(head === undefined
          ? {}
          : { previousHead: { number: head.number, eventId: head.eventId, seal: head.seal } }),
        ...Object.fromEntries(
          Object.entries({ ...left, sitesWithFiles }).filter(([, names]) => names.length > 0),
        ),
      },
    })
    return contents ?? (Object.fromEntries(Object.keys(counted).map((name) => [name, 0])) as Contents)
  })

/** PostgreSQL ends one of two transactions that wait for each other's locks, and a reset takes all. */
const unlessDeadlock = (error: unknown): undefined => {
  if (!isDeadlock(error)) throw error
}

const Pending = z.object({ id: z.string(), requestedAt: z.string(), filesAside: z.boolean() })

const pendingResets = (db: Db) =>
  db.many(Pending, sql`select id, requested_at, files_aside from instance_cleanups order by requested_at, id`)

const removedIn = (root: string): string => join(root, 'removed')

type Trying = (work: () => Promise<void>) => Promise<void>

/** Moves the files of removed records out of the way, so that files created later stay. */
const moveAside = async (
  id: string,
  { root, folders }: ResetParts['files'][number],
  trying: Trying,
): Promise<void> => {
  for (const folder of folders)
    await trying(async () => {
      const aside = join(removedIn(root), id, folder)
      await mkdir(aside, { recursive: true, mode: 0o700 })
      const names = await readdir(join(root, folder)).catch((error: unknown) => {
        if (isErrno(error, 'ENOENT')) return []
        throw error
      })
      for (const name of names) await trying(() => moveOne(join(root, folder, name), join(aside, name)))
    })
}

const moveOne = (path: string, aside: string): Promise<void> =>
  rename(path, aside).catch((error: unknown) => {
    // A folder that is closed for writing cannot be moved.
    if (isErrno(error, 'EACCES', 'EPERM')) return removeTree(path)
    if (!isErrno(error, 'ENOENT')) throw error
  })

/**
 * Removes the files and the workflows of records that resets have removed. A reset is noted until
 * both are gone, so the next start goes on with one that was killed.
 * @returns the removal of the workflows, which goes on, and fails for files that cannot be removed too
 */
export const finishResets = async ({
  ownDb,
  engine,
  files,
}: Omit<ResetParts, 'kinds' | 'vaultKeys' | 'hostId'>): Promise<{ rest: Promise<void> }> => {
  const pending = await pendingResets(ownDb)
  const troubles: unknown[] = []
  /** The records are gone: files that stay are no reason to stop. */
  const trying: Trying = (work) => work().catch((error: unknown) => void troubles.push(error))
  for (const { id, filesAside } of pending) {
    if (filesAside) continue
    for (const each of files) await moveAside(id, each, trying)
    // Also where some could not be moved: at the next start the folders hold files of later records.
    await ownDb.run(sql`update instance_cleanups set files_aside = true where id = ${id}`)
  }
  for (const { id } of pending)
    for (const { root } of files) await trying(() => removeTree(join(removedIn(root), id)))
  const rest = async (): Promise<void> => {
    for (const { id, requestedAt } of pending) {
      await engine.removeWorkflows(requestedAt)
      if (troubles.length === 0) await ownDb.run(sql`delete from instance_cleanups where id = ${id}`)
    }
    if (troubles.length > 0) throw new AggregateError(troubles, 'files of removed records cannot be removed')
  }
  return { rest: rest() }
}

// A blank name confirms nothing.
const Body = z
  .strictObject({
    confirm: withBlank(z.string()).optional().describe('name of this instance; another one is refused'),
  })
  .optional()
const Query = z.strictObject({
  stop: z
    .enum(['true', 'false'])
    .optional()
    .describe('true: ends open work first; by default the request is refused while any is open'),
})
const Answer = z.strictObject({
  restarting: z.literal(false),
  removed: z.record(z.string(), z.int()),
})

export const resetRoutes = (parts: ResetParts): Route[] => [
  route('resetInstance', 'POST /factory-reset/', {
    summary: 'Empty the default instance: records, credentials and work directories; archives stay',
    query: Query,
    body: Body,
    response: Answer,
    status: 202,
    refuses: [409],
    audit: false,
    handle: async ({ query, body, actor }) => {
      const instance = await readSystemInstance(parts.ownDb)
      if (body?.confirm !== undefined && body.confirm !== instance?.name)
        throw unacceptableAt(
          'confirm',
          `must be the name of this instance, ${JSON.stringify(instance?.name)}`,
        )
      await refuseMachines(parts.ownDb)
      if (query.stop === 'true') await stopWork(parts, actor.id)
      else {
        const open = await openWork(parts.ownDb, parts)
        if (open.length > 0) refuseOpen(open)
      }
      const sitesWithFiles = await removalsLeft(parts.ownDb, query.stop === 'true')
      // Without their records nothing would end a shell, or remove a recording, that is left.
      let consoleLeft: string[] = []
      const isCleared = async (): Promise<true | undefined> => {
        consoleLeft = await leftOfConsole(parts.ownDb)
        return consoleLeft.length === 0 || undefined
      }
      await poll(isCleared, { everyMs: lookEveryMs, deadlineMs: leftWithinMs })
      const empty = (): Promise<Contents> => emptyRecords(parts, actor, { sitesWithFiles, consoleLeft })
      const again = { everyMs: lookEveryMs, deadlineMs: leftWithinMs }
      const removed = (await poll(() => empty().catch(unlessDeadlock), again)) ?? (await empty())
      const { rest } = await finishResets(parts)
      await orAfter(rest, workflowsWithinMs, undefined).catch(() => undefined)
      return { restarting: false as const, removed }
    },
  }),
]
