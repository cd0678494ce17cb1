import { z } from 'zod'
import { sql, type Db, type Sql } from '../../db/sql.ts'
import { nameOfBytes } from '../../drivers/storage/paths.ts'
import { rootsOfRules } from './index-policy.ts'
import { bytesOfParent, endOfRange, parentOfBytes } from './index-paths.ts'
import { forgetFindings, type IndexWork } from './index-store.ts'

/** Rows of one statement. The bound keeps each statement short. */
const batch = 10_000

const EntryKey = z.object({
  parent: z.instanceof(Uint8Array),
  name: z.instanceof(Uint8Array),
  isDirectory: z.boolean(),
})
type EntryKey = z.output<typeof EntryKey>

const behind = (last: EntryKey | undefined): Sql =>
  last === undefined
    ? sql``
    : sql`and (parent, name, is_directory) > (${last.parent}, ${last.name}, ${last.isDirectory})`

/**
 * Removes the entries that are gone, and all entries below gone directories.
 * @returns the number of removed rows
 */
const removeRows = async (tx: Db, { id, storageId }: IndexWork): Promise<number> => {
  let removed = 0
  let last: EntryKey | undefined
  for (;;) {
    const gone: EntryKey[] = await tx.many(
      EntryKey,
      sql`select parent, name, is_directory from storage_index_changes
        where run_id = ${id} and type is null ${behind(last)} order by parent, name, is_directory limit ${batch}`,
    )
    if (gone.length === 0) return removed
    removed += await tx.run(sql`delete from storage_index_entries e
      using unnest(${gone.map(({ parent }) => parent)}::bytea[], ${gone.map(({ name }) => name)}::bytea[],
        ${gone.map(({ isDirectory }) => isDirectory)}::boolean[]) as g (parent, name, is_directory)
      where e.storage_id = ${storageId} and e.parent = g.parent and e.name = g.name
        and e.is_directory = g.is_directory`)
    for (const { parent, name, isDirectory } of gone) {
      if (!isDirectory) continue
      const path = [...parentOfBytes(parent), nameOfBytes(name)]
      removed += await tx.run(sql`delete from storage_index_entries where storage_id = ${storageId}
        and parent >= ${bytesOfParent(path)} and parent < ${endOfRange(path)}`)
    }
    last = gone.at(-1)
  }
}

const Upserted = z.object({ added: z.number(), all: z.number() })

const putRows = async (tx: Db, { id, storageId }: IndexWork): Promise<{ added: number; changed: number }> => {
  let [added, changed] = [0, 0]
  let last: EntryKey | undefined
  for (;;) {
    const left = sql`storage_index_changes where run_id = ${id} and type is not null ${behind(last)}`
    const [end] = await tx.many(
      EntryKey,
      sql`select parent, name, is_directory from ${left}
        order by parent, name, is_directory offset ${batch - 1} limit 1`,
    )
    const upTo =
      end === undefined
        ? sql``
        : sql`and (parent, name, is_directory) <= (${end.parent}, ${end.name}, ${end.isDirectory})`
    const put = await tx.one(
      Upserted,
      sql`with put as (
          insert into storage_index_entries as e
            (storage_id, parent, name, is_directory, type, size_bytes, modified_at, media_type, sha256)
          select ${storageId}, parent, name, is_directory, type, size_bytes, modified_at, media_type, sha256
          from ${left} ${upTo}
          on conflict (storage_id, parent, name, is_directory) do update set type = excluded.type,
            size_bytes = excluded.size_bytes, modified_at = excluded.modified_at,
            media_type = excluded.media_type, sha256 = excluded.sha256
          returning (xmax = 0) as is_new)
        select count(*) filter (where is_new) as added, count(*) as all from put`,
    )
    added += put.added
    changed += put.all - put.added
    if (end === undefined) return { added, changed }
    last = end
  }
}

/** Removes rows outside of the roots, where the last run had other roots. */
const removeOutside = async (tx: Db, work: IndexWork): Promise<number> => {
  const { id, storageId, policy } = work
  const before = await tx.value(
    z.array(z.string()),
    sql`select policy -> 'roots' from storage_index_runs
      where storage_id = ${storageId} and recorded_at is not null and id <> ${id}
      order by recorded_at desc limit 1`,
  )
  const roots = rootsOfRules(policy)
  if (before === undefined || sameRoots(before, policy.roots) || roots.some(({ length }) => length === 0))
    return 0
  return tx.run(sql`delete from storage_index_entries e where e.storage_id = ${storageId} and not exists (
    select from unnest(${roots.map(bytesOfParent)}::bytea[], ${roots.map(endOfRange)}::bytea[]) as r (low, high)
    where e.parent >= r.low and e.parent < r.high)`)
}
const sameRoots = (a: readonly string[], b: readonly string[]): boolean =>
  a.toSorted().join(' ') === b.toSorted().join(' ')

/**
 * Writes the findings of a run into the index, in one transaction: until then readers see the index
 * of the last run. A repeated call is harmless.
 */
export const recordIndex = (db: Db, work: IndexWork): Promise<void> =>
  db.transaction(async (tx) => {
    const isRecorded = await tx.value(
      z.boolean(),
      sql`select recorded_at is not null as is_recorded from storage_index_runs
        where id = ${work.id} and status = 'running' for update`,
    )
    if (isRecorded !== false) return
    // The planner has no figures of fresh rows, and would sort all that are left for each batch: a
    // first run of 200,000 files recorded them in 4.4 s, not in 2.8 s.
    await tx.run(sql`set local enable_sort = off`)
    const removed = (await removeOutside(tx, work)) + (await removeRows(tx, work))
    const { added, changed } = await putRows(tx, work)
    await forgetFindings(tx, work.id)
    await tx.run(sql`update storage_index_runs set recorded_at = now(), added_entries = ${added},
      changed_entries = ${changed}, removed_entries = ${removed} where id = ${work.id}`)
  })
