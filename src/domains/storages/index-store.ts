import { z } from 'zod'
import { readPage } from '../../db/rows.ts'
import { sql, type Db } from '../../db/sql.ts'
import type { Page } from '../../http/paging.ts'
import { storableJson } from '../../outside-text.ts'
import { Refusal, unacceptableAt } from '../../refusal.ts'
import { IndexRules } from './index-policy.ts'
import { IndexRun, type LiveJob } from './schemas.ts'

const Run = IndexRun.omit({ truncated: true }).extend({
  status: z.enum(['queued', ...IndexRun.shape.status.options]),
})
export type IndexRunRow = z.output<typeof Run>
const columns = sql`id, storage_id, status, checksums, indexed_entries, indexed_bytes, skipped_entries,
  truncated_by, added_entries, changed_entries, removed_entries, live, error, created_at, finished_at`

const Open = z.object({ id: z.string(), status: z.string() })

/**
 * Accepts an index run. One run of a storage is open at a time, because it compares with the record
 * of the last one.
 * @throws Refusal 422 for an id that is taken, 409 while another one is open
 */
export const acceptIndexRun = (
  db: Db,
  run: { id: string; storageId: string; rules: IndexRules; checksums: boolean; hostId?: string | undefined },
): Promise<void> =>
  db.transaction(async (tx) => {
    const added =
      await tx.run(sql`insert into storage_index_runs (id, storage_id, status, policy, checksums, host_id)
      values (${run.id}, ${run.storageId}, 'queued', ${JSON.stringify(run.rules)}, ${run.checksums},
        ${run.hostId ?? null})
      on conflict do nothing`)
    if (added > 0) return
    const open = await tx.maybe(
      Open,
      sql`select id, status from storage_index_runs
        where storage_id = ${run.storageId} and status in ('queued', 'running')`,
    )
    if (open === undefined || open.id === run.id)
      throw unacceptableAt('id', `${JSON.stringify(run.id)} is taken; choose another id`)
    throw new Refusal(
      'conflict',
      `the storage is being indexed by run ${JSON.stringify(open.id)}; wait for its end, or cancel it`,
      { extra: { state: 'running', indexRunId: open.id } },
    )
  })

/** One run of a storage; undefined where the storage has no run of that id. */
export const readIndexRun = (db: Db, storageId: string, id: string): Promise<IndexRunRow | undefined> =>
  db.maybe(Run, sql`select ${columns} from storage_index_runs where id = ${id} and storage_id = ${storageId}`)

/** Of one storage, newest first. */
export const listIndexRuns = (db: Db, storageId: string, page: Page) =>
  readPage(db, Run, {
    select: columns,
    from: sql`storage_index_runs where storage_id = ${storageId}`,
    order: sql`created_at desc, id desc`,
    page,
  })

/** The time at which the index of a storage was last recorded. */
export const lastIndexed = (db: Db, storageId: string): Promise<string | undefined> =>
  db.value(
    z.string().optional(),
    sql`select max(finished_at) as last_indexed_at from storage_index_runs
        where storage_id = ${storageId} and status = 'completed'`,
  )

const Work = z.object({
  id: z.string(),
  storageId: z.string(),
  policy: IndexRules,
  checksums: z.boolean(),
  hostId: z.string().optional(),
  step: z.number(),
  spentMs: z.number(),
  isWalked: z.boolean(),
  isRecorded: z.boolean(),
  indexedEntries: z.number(),
  indexedBytes: z.number(),
})
/** The members of an index run that its work reads. */
export type IndexWork = z.output<typeof Work>

export const readIndexWork = (db: Db, id: string): Promise<IndexWork | undefined> =>
  db.maybe(
    Work,
    sql`select id, storage_id, policy, checksums, host_id, step, spent_ms, walked_at is not null as is_walked,
      recorded_at is not null as is_recorded, indexed_entries, indexed_bytes
      from storage_index_runs where id = ${id}`,
  )

/** Records the progress of an open run. */
export const recordIndexLive = (db: Db, id: string, live: LiveJob): Promise<number> =>
  db.run(
    sql`update storage_index_runs set live = ${storableJson(live)} where id = ${id} and status = 'running'`,
  )

/** Takes the next step of a run, so that a process with an earlier step records nothing. */
export const takeStep = async (
  tx: Db,
  { id, step }: Pick<IndexWork, 'id' | 'step'>,
  spentMs: number,
): Promise<void> => {
  const taken = await tx.run(
    sql`update storage_index_runs set step = step + 1, spent_ms = spent_ms + ${Math.round(spentMs)}
      where id = ${id} and step = ${step} and status = 'running'`,
  )
  if (taken === 0) throw new Error(`index run ${id} goes on elsewhere, or is over`)
}

/** Deletes the findings of an open run. */
export const forgetFindings = (db: Db, id: string): Promise<void> =>
  db.transaction(async (tx) => {
    await tx.run(sql`delete from storage_index_folders where run_id = ${id}`)
    await tx.run(sql`delete from storage_index_pages where run_id = ${id}`)
    await tx.run(sql`delete from storage_index_changes where run_id = ${id}`)
  })
