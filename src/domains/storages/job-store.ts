import { z } from 'zod'
import { sql, where, type Db, type Sql } from '../../db/sql.ts'
import {
  bytesOf,
  nameOfBytes,
  parseNames,
  type ByteName,
  type StoragePath,
} from '../../drivers/storage/paths.ts'
import type { RecordRef } from '../../operations/kind.ts'
import { idOfRecord } from '../../operations/records.ts'
import { storableJson } from '../../outside-text.ts'
import { unacceptableAt } from '../../refusal.ts'
import { downloadKind } from './job-kind.ts'
import type { CopyWay, LiveJob } from './schemas.ts'

/**
 * The reaction to an existing entry of the same name at the destination: fail, keep one with the
 * same bytes, or replace it.
 */
export type OnConflict = 'fail' | 'skip-equal' | 'overwrite'

const JobRow = z.object({
  id: z.string(),
  generation: z.number(),
  storageId: z.string(),
  path: z.instanceof(Uint8Array),
  destinationStorageId: z.string(),
  destinationPath: z.instanceof(Uint8Array),
  onConflict: z.enum(['fail', 'skip-equal', 'overwrite']),
  bytesPerSecond: z.number().optional(),
  hostId: z.string().optional(),
  strategy: z.string(),
  isListed: z.boolean(),
  isOpen: z.boolean(),
})
/** An accepted copy or archive. */
export type StorageJob = Omit<z.output<typeof JobRow>, 'path' | 'destinationPath'> & {
  path: StoragePath
  destinationPath: StoragePath
}

export const storedPath = (path: StoragePath): Buffer => bytesOf(path.join('/') as ByteName)
export const pathOfStored = (path: Uint8Array): StoragePath => parseNames(nameOfBytes(path))

export interface NewJob {
  id: string
  storageId: string
  path: StoragePath
  destinationStorageId: string
  destinationPath: StoragePath
  strategy: string
  onConflict: OnConflict
  bytesPerSecond?: number | undefined
  hostId?: string | undefined
}

/** Accepts a copy or an archive. @throws Refusal 422 for an id that is taken */
export const acceptJob = async (db: Db, job: NewJob): Promise<void> => {
  const added = await db.run(sql`insert into storage_downloads (id, storage_id, path, strategy, status,
      destination_storage_id, destination_path,
      on_conflict, bytes_per_second, host_id)
    values (${job.id}, ${job.storageId}, ${storedPath(job.path)}, ${job.strategy}, 'queued',
      ${job.destinationStorageId},
      ${storedPath(job.destinationPath)}, ${job.onConflict}, ${job.bytesPerSecond ?? null}, ${job.hostId ?? null})
    on conflict on constraint storage_downloads_pkey do nothing`)
  if (added === 0) throw unacceptableAt('id', `${JSON.stringify(job.id)} is taken; choose another id`)
}

export const readStorageJob = async (db: Db, of: RecordRef): Promise<StorageJob | undefined> => {
  const row = await db.maybe(
    JobRow,
    sql`select id, generation, storage_id, path, destination_storage_id, destination_path, on_conflict,
      bytes_per_second, host_id, strategy,
          listed_at is not null as is_listed, status in ('queued', 'streaming') as is_open
        from storage_downloads where id = ${idOfRecord(downloadKind, of)} and destination_storage_id is not null`,
  )
  return row && { ...row, path: pathOfStored(row.path), destinationPath: pathOfStored(row.destinationPath) }
}

const EntryRow = z.object({
  position: z.number(),
  path: z.instanceof(Uint8Array),
  type: z.enum(['file', 'directory', 'link']),
  sizeBytes: z.number().optional(),
  attempt: z.number(),
  modifiedAt: z.number().optional(),
  mode: z.number().optional(),
  linkTarget: z.instanceof(Uint8Array).optional(),
  upload: z.string().optional(),
})
/** One file, directory or link of a job; `path` is below that of the job. */
export type JobEntry = Omit<z.output<typeof EntryRow>, 'path' | 'linkTarget'> & {
  path: StoragePath
  linkTarget: ByteName | undefined
}
const entryOf = ({ path, linkTarget, ...row }: z.output<typeof EntryRow>): JobEntry => ({
  ...row,
  path: pathOfStored(path),
  linkTarget: linkTarget === undefined ? undefined : nameOfBytes(linkTarget),
})
const entryColumns = sql`e.position, e.path, e.type, e.size_bytes, e.attempt, e.modified_at, e.mode, e.link_target,
  e.upload`

export interface NewEntry {
  path: StoragePath
  type: JobEntry['type']
  sizeBytes: number
  modifiedAt?: number | undefined
  mode?: number | undefined
  linkTarget?: ByteName | undefined
}

/** The list of a job's entries that was begun last: `listing` counts its beginnings. */
export interface JobList {
  id: string
  listing: number
}

/**
 * Begins the list of a job's entries: the list of an attempt before this one takes no more entries,
 * and never counts as complete. @returns undefined where the list is complete
 */
export const beginList = (db: Db, id: string): Promise<JobList | undefined> =>
  db.transaction(async (tx) => {
    const listing = await tx.value(
      z.number(),
      sql`update storage_downloads set listing = listing + 1 where id = ${id} and listed_at is null
        returning listing`,
    )
    if (listing === undefined) return undefined
    await removeEntries(tx, id)
    return { id, listing }
  })

const isOpenList = ({ id, listing }: JobList): Sql =>
  sql`id = ${id} and listing = ${listing} and listed_at is null`
const isListedElsewhere = ({ id }: JobList): Error =>
  new Error(`another attempt lists the entries of storage download ${id}`)

/** Adds entries after those that a list has. @throws Error where another attempt has begun the list anew */
export const addEntries = async (
  db: Db,
  list: JobList,
  first: number,
  entries: readonly NewEntry[],
): Promise<void> => {
  if (entries.length === 0) return
  const [paths, types, sizes] = [
    entries.map(({ path }) => storedPath(path)),
    entries.map(({ type }) => type),
    entries.map((e) => e.sizeBytes),
  ]
  const times = entries.map(({ modifiedAt }) => modifiedAt ?? null)
  const modes = entries.map(({ mode }) => mode ?? null)
  const targets = entries.map(({ linkTarget }) => (linkTarget === undefined ? null : bytesOf(linkTarget)))
  const added = await db.run(sql`with open as (
      select id from storage_downloads where ${isOpenList(list)} for share)
    insert into storage_download_entries (download_id, position, path, type, size_bytes, modified_at,
      mode, link_target)
    select open.id, ${first} + given.at - 1, given.path, given.type, given.size, given.modified_at, given.mode,
      given.target
    from open, unnest(${paths}::bytea[], ${types}::text[], ${sizes}::bigint[], ${times}::double precision[],
      ${modes}::integer[], ${targets}::bytea[]) with ordinality
      as given (path, type, size, modified_at, mode, target, at)`)
  if (added === 0) throw isListedElsewhere(list)
}

const removeEntries = (db: Db, id: string): Promise<number> =>
  db.run(sql`delete from storage_download_entries where download_id = ${id}`)

/**
 * Records that the list of entries is complete, and the number of skipped ones.
 * @throws Error where another attempt has begun the list anew
 */
export const markListed = async (
  db: Db,
  list: JobList,
  skipped: number,
  verification: 'sha256' | undefined,
): Promise<void> => {
  const marked =
    await db.run(sql`update storage_downloads d set listed_at = now(), updated_at = now(), skipped_entries =
    ${skipped}, verification = ${verification ?? null}, entries = found.entries, size_bytes = found.bytes
    from (select count(*) as entries, coalesce(sum(size_bytes), 0) as bytes from storage_download_entries
      where download_id = ${list.id}) found
    where ${isOpenList(list)}`)
  if (marked === 0) throw isListedElsewhere(list)
}

/**
 * The next unfinished entries, marked as being sent. Those of an interrupted attempt come first, in
 * their order. They are a range of the primary key: where the table was empty at its last analysis,
 * a join with the chosen positions compares each of them with every entry of the job.
 */
export const claimEntries = async (db: Db, id: string, limit: number): Promise<JobEntry[]> => {
  const rows = await db.many(
    EntryRow,
    sql`with next as materialized (
          select position from storage_download_entries where download_id = ${id} and state <> 'done'
          order by position limit ${limit})
        update storage_download_entries e set state = 'sending', attempt = e.attempt + 1
        where e.download_id = ${id} and e.state <> 'done'
          and e.position >= (select min(position) from next) and e.position <= (select max(position) from next)
        returning ${entryColumns}`,
  )
  return rows.map(entryOf).toSorted((a, b) => a.position - b.position)
}

/** Entries that may have left an unfinished upload at the destination. */
export const sendingEntries = async (db: Db, id: string): Promise<JobEntry[]> =>
  (
    await db.many(
      EntryRow,
      sql`select ${entryColumns} from storage_download_entries e
        where e.download_id = ${id} and e.state = 'sending' order by e.position`,
    )
  ).map(entryOf)

/** Records the upload of an entry before its first byte is sent. */
export const recordUpload = (
  db: Db,
  id: string,
  { position, attempt }: JobEntry,
  upload: string,
): Promise<number> =>
  db.run(
    sql`update storage_download_entries set upload = ${upload} where download_id = ${id} and position = ${position}
      and attempt = ${attempt}`,
  )

/** Records that the copy itself has made a directory: its mode and time are set at the end. */
export const recordMade = (db: Db, id: string, position: number): Promise<number> =>
  db.run(
    sql`update storage_download_entries set is_made = true where download_id = ${id} and position = ${position}`,
  )

const pageSize = 1_000
/** Entries of a job, those at later positions first. */
async function* entriesDown(db: Db, id: string, only: Sql): AsyncGenerator<JobEntry> {
  for (let last: number | undefined; ;) {
    const rows: z.output<typeof EntryRow>[] = await db.many(
      EntryRow,
      sql`select ${entryColumns} from storage_download_entries e ${where(
        sql`e.download_id = ${id}`,
        only,
        last !== undefined && sql`e.position < ${last}`,
      )} order by e.position desc limit ${pageSize}`,
    )
    for (const row of rows) yield entryOf(row)
    if (rows.length < pageSize) return
    last = rows.at(-1)?.position
  }
}

/** Directories that the copy has made, those below before those above. */
export const madeDirectories = (db: Db, id: string): AsyncGenerator<JobEntry> =>
  entriesDown(db, id, sql`e.is_made`)

export const markDone = (db: Db, id: string, positions: readonly number[]): Promise<number> =>
  db.run(
    sql`update storage_download_entries set state = 'done' where download_id = ${id}
      and position = any(${positions}::bigint[])`,
  )

/** Records how the large files of a copy go now. */
export const recordRoute = (db: Db, id: string, route: CopyWay): Promise<number> =>
  db.run(
    sql`update storage_downloads set route = ${storableJson(route)}, updated_at = now() where id = ${id}`,
  )

const ProgressRow = z.object({
  sentBytes: z.number(),
  entries: z.number(),
  bytes: z.number(),
  allEntries: z.number(),
  allBytes: z.number(),
  /** Of the largest file. */
  mostBytes: z.number(),
})
export type JobProgress = z.output<typeof ProgressRow>

/** The finished part of a job. */
export const readProgress = (db: Db, id: string): Promise<JobProgress> =>
  db.one(
    ProgressRow,
    sql`select count(*) filter (where state = 'done') as entries, coalesce(sum(size_bytes) filter (where state
      = 'done'), 0)::bigint as bytes,
          count(*) as all_entries, coalesce(sum(size_bytes), 0)::bigint as all_bytes,
          coalesce(max(size_bytes), 0)::bigint as most_bytes,
          (select coalesce(max(sent_bytes), 0)::bigint from storage_downloads where id = ${id}) as sent_bytes
        from storage_download_entries where download_id = ${id}`,
  )

/** Records the progress of an open job. */
export const recordLive = (db: Db, id: string, live: LiveJob): Promise<number> =>
  db.run(sql`update storage_downloads set live = ${storableJson(live)}, transferred_bytes = ${live.bytes},
    sent_bytes = coalesce(${live.sentBytes ?? null}, sent_bytes), updated_at = now()
    where id = ${id} and status in ('queued', 'streaming')`)

/** Those of the paths, below that of the job, that its list has as files. */
export const writtenFiles = async (
  db: Db,
  id: string,
  paths: readonly StoragePath[],
): Promise<StoragePath[]> => {
  if (paths.length === 0) return []
  const written = await db.values(
    z.instanceof(Uint8Array),
    sql`select distinct path from storage_download_entries where download_id = ${id} and type = 'file'
      and attempt > 0 and path = any(${paths.map(storedPath)}::bytea[])`,
  )
  return written.map(pathOfStored)
}

/** Records that the store itself has copied a file of the job. */
export const recordByStore = (db: Db, id: string): Promise<number> =>
  db.run(sql`update storage_downloads set verification = 'store', updated_at = now() where id = ${id}`)

/** Records that all entries of a job are done. Only its end is left to record. */
export const recordWhole = (db: Db, id: string, bytes: number, sentBytes: number): Promise<void> =>
  db.transaction(async (tx) => {
    await tx.run(
      sql`update storage_downloads set transferred_bytes = ${bytes}, sent_bytes = ${sentBytes}, updated_at = now()
        where id = ${id}`,
    )
    await removeEntries(tx, id)
  })

/**
 * Orders the listed entries of an archive by the bytes of their paths, at positions below 0, and
 * adds the archive itself as the entry to send.
 */
export const sortArchive = async (db: Db, id: string): Promise<void> => {
  await db.run(sql`update storage_download_entries e set position = sorted.place, state = 'done'
    from (select position, -(row_number() over (order by path))::bigint as place from storage_download_entries
      where download_id = ${id}) sorted
    where e.download_id = ${id} and e.position = sorted.position`)
  await db.run(
    sql`insert into storage_download_entries (download_id, position, path, type, size_bytes)
      values (${id}, 1, '', 'file', 0)`,
  )
}

/** The entries of an archive, in its order. */
export const archivedEntries = (db: Db, id: string): AsyncGenerator<JobEntry> =>
  entriesDown(db, id, sql`e.position < 0`)

const ArchiveRow = z.object({ totalEntries: z.number(), totalBytes: z.number() })

/**
 * The archive as an entry, for one more attempt, with the totals of its content; undefined where it
 * is written already.
 */
export const archiveAttempt = async (
  db: Db,
  id: string,
): Promise<{ entry: JobEntry; totalEntries: number; totalBytes: number } | undefined> => {
  const [entry] = await claimEntries(db, id, 1)
  if (entry === undefined) return undefined
  const totals = await db.one(
    ArchiveRow,
    sql`select count(*) as total_entries, coalesce(sum(size_bytes), 0)::bigint as total_bytes
      from storage_download_entries
        where download_id = ${id} and position < 0`,
  )
  // Each archive has its directory: another attempt has recorded it since.
  return totals.totalEntries === 0 ? undefined : { entry, ...totals }
}

/** Records a complete archive. */
export const recordArchive = (db: Db, id: string, entries: number, sizeBytes: number): Promise<void> =>
  db.transaction(async (tx) => {
    await tx.run(
      sql`update storage_downloads set entries = ${entries}, size_bytes = ${sizeBytes}, transferred_bytes =
        ${sizeBytes}, updated_at = now() where id = ${id}`,
    )
    await removeEntries(tx, id)
  })
