import { z } from 'zod'
import { sql, type Db } from '../../db/sql.ts'
import type { Entry } from '../../drivers/storage/contract.ts'
import { bytesOf, nameOfBytes, type ByteName, type StoragePath } from '../../drivers/storage/paths.ts'
import { bytesOfParent, parentOfBytes } from './index-paths.ts'
import { takeStep, type IndexWork } from './index-store.ts'

/** A directory to read, and the position at which its list continues. */
export interface IndexFolder {
  path: StoragePath
  depth: number
  after?: string | undefined
}

const FolderRow = z.object({
  depth: z.number(),
  parent: z.instanceof(Uint8Array),
  after: z.string().optional(),
})

/** The next directories of a run, those near its roots first. */
export const nextFolders = async (db: Db, id: string, limit: number): Promise<IndexFolder[]> =>
  (
    await db.many(
      FolderRow,
      sql`select depth, parent, after from storage_index_folders where run_id = ${id}
        order by depth, parent limit ${limit}`,
    )
  ).map(({ depth, parent, after }) => ({
    depth,
    path: parentOfBytes(parent),
    ...(after === undefined ? {} : { after }),
  }))

const addFolders = (tx: Db, id: string, folders: readonly IndexFolder[]): Promise<number> =>
  tx.run(sql`insert into storage_index_folders (run_id, depth, parent)
    select ${id}, given.depth, given.parent
    from unnest(${folders.map(({ depth }) => depth)}::int[],
      ${folders.map(({ path }) => bytesOfParent(path))}::bytea[]) as given (depth, parent)
    on conflict do nothing`)

/** Begins a walk at its roots, once. */
export const beginWalk = (db: Db, work: IndexWork, roots: readonly StoragePath[]): Promise<void> =>
  db.transaction(async (tx) => {
    await takeStep(tx, work, 0)
    await addFolders(
      tx,
      work.id,
      roots.map((path) => ({ path, depth: 0 })),
    )
  })

/** The findings in one directory. */
export interface FolderFindings {
  folder: IndexFolder
  /** The entries for the index. */
  entries: readonly Entry[]
  /** Names of its subdirectories to read. */
  inner: readonly ByteName[]
  /** Names of its subdirectories beyond the depth limit. They are not read. */
  closed: readonly ByteName[]
  /** The position at which the list continues; absent where it is complete. */
  next?: string | undefined
  /** True where the directory itself no longer exists. */
  isGone: boolean
  skipped: number
}

export interface StepFindings {
  found: readonly FolderFindings[]
  spentMs: number
  /** Why the walk stops after this step. */
  stoppedBy?: 'depth' | 'entries' | 'time' | undefined
  mediaTypeOf: (name: ByteName) => string | undefined
}

/** Columns of entries, for `unnest`. */
const columnsOf = ({ found, mediaTypeOf }: StepFindings) => {
  const all = found.flatMap(({ folder, entries }) => {
    const parent = bytesOfParent(folder.path)
    return entries.map((entry) => ({ parent, entry }))
  })
  return {
    parents: all.map(({ parent }) => parent),
    names: all.map(({ entry }) => bytesOf(entry.name)),
    directories: all.map(({ entry }) => entry.type === 'directory'),
    types: all.map(({ entry }) => entry.type),
    sizes: all.map(({ entry }) => entry.sizeBytes ?? null),
    times: all.map(({ entry }) => (entry.type === 'file' ? (entry.modifiedAt ?? null) : null)),
    media: all.map(({ entry }) => (entry.type === 'file' ? (mediaTypeOf(entry.name) ?? null) : null)),
  }
}
type Columns = ReturnType<typeof columnsOf>

/** Records the differences between the entries and those of the index. */
const addChanges = (tx: Db, { id, storageId, checksums }: IndexWork, columns: Columns): Promise<number> =>
  tx.run(sql`insert into storage_index_changes
      (run_id, parent, name, is_directory, type, size_bytes, modified_at, media_type, sha256, is_unread)
    select ${id}, g.parent, g.name, g.is_directory, g.type, g.size_bytes, g.modified_at, g.media_type,
      case when (e.size_bytes, e.modified_at) is not distinct from (g.size_bytes, g.modified_at)
        then e.sha256 end,
      ${checksums} and g.type = 'file' and (e.sha256 is null
        or (e.size_bytes, e.modified_at) is distinct from (g.size_bytes, g.modified_at))
    from unnest(${columns.parents}::bytea[], ${columns.names}::bytea[], ${columns.directories}::boolean[],
      ${columns.types}::text[], ${columns.sizes}::bigint[], ${columns.times}::double precision[],
      ${columns.media}::text[]) as g (parent, name, is_directory, type, size_bytes, modified_at, media_type)
    left join storage_index_entries e on e.storage_id = ${storageId} and e.parent = g.parent
      and e.name = g.name and e.is_directory = g.is_directory
    where e.name is null
      or (e.type, e.size_bytes, e.modified_at, e.media_type)
        is distinct from (g.type, g.size_bytes, g.modified_at, g.media_type)
      or (${checksums} and g.type = 'file' and e.sha256 is null)
    on conflict (run_id, parent, name, is_directory) do update set type = excluded.type,
      size_bytes = excluded.size_bytes, modified_at = excluded.modified_at, media_type = excluded.media_type,
      sha256 = excluded.sha256, is_unread = excluded.is_unread`)

/**
 * Records entries of the index that are missing from directories that were read. `isEnd`: also
 * those of every directory that was not read.
 */
const addRemovals = (
  tx: Db,
  { id, storageId }: IndexWork,
  columns: Columns,
  whole: readonly Buffer[],
  isEnd: boolean,
): Promise<number> =>
  tx.run(sql`with whole as materialized (
      select unnest(${whole}::bytea[]) as parent
      union select parent from storage_index_folders where run_id = ${id} and ${isEnd}
    ), seen as materialized (
      select parent, name, is_directory
      from unnest(${columns.parents}::bytea[], ${columns.names}::bytea[], ${columns.directories}::boolean[])
        as g (parent, name, is_directory)
      union all select p.parent, n.name, n.is_directory
      from storage_index_pages p join whole using (parent),
        unnest(p.names, p.directories) as n (name, is_directory)
      where p.run_id = ${id}
    )
    insert into storage_index_changes (run_id, parent, name, is_directory)
    select ${id}, e.parent, e.name, e.is_directory
    from storage_index_entries e join whole using (parent) left join seen using (parent, name, is_directory)
    where e.storage_id = ${storageId} and seen.name is null
    on conflict (run_id, parent, name, is_directory) do update set type = null`)

/** Stores the names in directories whose list continues, or continued before. */
const addPages = async (tx: Db, { id, step }: IndexWork, found: readonly FolderFindings[]): Promise<void> => {
  for (const { folder, entries, next } of found) {
    if (next === undefined && folder.after === undefined) continue
    await tx.run(sql`insert into storage_index_pages (run_id, parent, step, names, directories)
      values (${id}, ${bytesOfParent(folder.path)}, ${step}, ${entries.map(({ name }) => bytesOf(name))}::bytea[],
        ${entries.map(({ type }) => type === 'directory')}::boolean[])`)
  }
}

/** Removes directories that no longer exist from the index, with everything below them. */
const removeGone = (tx: Db, { id }: IndexWork, gone: readonly FolderFindings[]): Promise<number> => {
  const below = gone.filter(({ folder }) => folder.path.length > 0)
  return tx.run(sql`insert into storage_index_changes (run_id, parent, name, is_directory)
    select ${id}, g.parent, g.name, true
    from unnest(${below.map(({ folder }) => bytesOfParent(folder.path.slice(0, -1)))}::bytea[],
      ${below.map(({ folder }) => bytesOf(folder.path.at(-1)!))}::bytea[]) as g (parent, name)
    on conflict (run_id, parent, name, is_directory) do update set type = null`)
}

/** Advances the list of directories. */
const moveOn = async (tx: Db, { id }: IndexWork, { found, stoppedBy }: StepFindings): Promise<void> => {
  if (stoppedBy !== undefined) {
    await tx.run(sql`delete from storage_index_folders where run_id = ${id}`)
    await tx.run(sql`delete from storage_index_pages where run_id = ${id}`)
    return
  }
  const done = found
    .filter(({ next }) => next === undefined)
    .map(({ folder }) => ({ ...folder, parent: bytesOfParent(folder.path) }))
  await tx.run(sql`delete from storage_index_folders f
    using unnest(${done.map(({ depth }) => depth)}::int[], ${done.map(({ parent }) => parent)}::bytea[])
      as d (depth, parent)
    where f.run_id = ${id} and f.depth = d.depth and f.parent = d.parent`)
  const paged = done.filter(({ after }) => after !== undefined).map(({ parent }) => parent)
  if (paged.length > 0)
    await tx.run(
      sql`delete from storage_index_pages where run_id = ${id} and parent = any(${paged}::bytea[])`,
    )
  for (const { folder, next } of found)
    if (next !== undefined)
      await tx.run(sql`update storage_index_folders set after = ${next}
        where run_id = ${id} and depth = ${folder.depth} and parent = ${bytesOfParent(folder.path)}`)
}

/** Records one step of a walk, completely or not at all. */
export const recordIndexStep = (db: Db, work: IndexWork, step: StepFindings): Promise<void> =>
  db.transaction(async (tx) => {
    const { found, stoppedBy, spentMs } = step
    await takeStep(tx, work, spentMs)
    const inner = found.flatMap(({ folder, inner }) =>
      inner.map((name) => ({ path: [...folder.path, name], depth: folder.depth + 1 })),
    )
    await addFolders(tx, work.id, inner)
    const columns = columnsOf(step)
    await addChanges(tx, work, columns)
    const gone = found.filter(({ isGone }) => isGone)
    await removeGone(tx, work, gone)
    await addPages(tx, work, found)
    const whole = found.flatMap(({ folder, next, closed }) => [
      ...(next === undefined ? [bytesOfParent(folder.path)] : []),
      ...closed.map((name) => bytesOfParent([...folder.path, name])),
    ])
    await addRemovals(tx, work, columns, whole, stoppedBy !== undefined)
    await moveOn(tx, work, step)
    const bytes = columns.sizes.reduce<number>((sum, size) => sum + (size ?? 0), 0)
    const skipped = found.reduce((sum, each) => sum + each.skipped, 0)
    const isDeep = found.some(({ closed }) => closed.length > 0)
    await tx.run(sql`update storage_index_runs set indexed_bytes = indexed_bytes + ${bytes},
      indexed_entries = greatest(0, indexed_entries + ${columns.names.length - gone.length}::bigint),
      skipped_entries = skipped_entries + ${skipped},
      truncated_by = coalesce(${stoppedBy ?? null}, truncated_by, ${isDeep ? 'depth' : null})
      where id = ${work.id}`)
  })

/** Records that no directory is left to read. */
export const endWalk = (db: Db, id: string): Promise<number> =>
  db.run(sql`update storage_index_runs set walked_at = now() where id = ${id} and walked_at is null`)

const UnreadRow = z.object({
  parent: z.instanceof(Uint8Array),
  name: z.instanceof(Uint8Array),
  sizeBytes: z.number().optional(),
  modifiedAt: z.number().optional(),
})
/** A file as it was listed. */
export interface UnreadFile {
  path: StoragePath
  sizeBytes: number
  modifiedAt: number | undefined
}

const HashedRow = z.object({
  entries: z.number(),
  bytes: z.number(),
  totalEntries: z.number(),
  totalBytes: z.number(),
})

/** The files of a run that get a digest, and how many of them have been read. */
export const hashedSoFar = (db: Db, id: string): Promise<z.output<typeof HashedRow>> =>
  db.one(
    HashedRow,
    sql`select count(*) filter (where not is_unread) as entries, count(*) as total_entries,
        coalesce(sum(size_bytes) filter (where not is_unread), 0)::bigint as bytes,
        coalesce(sum(size_bytes), 0)::bigint as total_bytes
      from storage_index_changes where run_id = ${id} and type = 'file'`,
  )

/** Files of a run without a digest yet, in order. */
export const unreadFiles = async (db: Db, id: string, limit: number): Promise<UnreadFile[]> =>
  (
    await db.many(
      UnreadRow,
      sql`select parent, name, size_bytes, modified_at from storage_index_changes where run_id = ${id} and is_unread
        order by parent, name limit ${limit}`,
    )
  ).map(({ parent, name, sizeBytes, modifiedAt }) => ({
    path: [...parentOfBytes(parent), nameOfBytes(name)],
    sizeBytes: sizeBytes ?? 0,
    modifiedAt,
  }))

/** Records digests; a file without one could not be read. */
export const recordDigests = (
  db: Db,
  work: IndexWork,
  files: readonly { path: StoragePath; sha256?: string | undefined }[],
  spentMs: number,
): Promise<void> =>
  db.transaction(async (tx) => {
    await takeStep(tx, work, spentMs)
    await tx.run(sql`update storage_index_changes c set is_unread = false, sha256 = g.sha256
      from unnest(${files.map(({ path }) => bytesOfParent(path.slice(0, -1)))}::bytea[],
        ${files.map(({ path }) => bytesOf(path.at(-1)!))}::bytea[],
        ${files.map(({ sha256 }) => (sha256 === undefined ? null : Buffer.from(sha256, 'hex')))}::bytea[])
        as g (parent, name, sha256)
      where c.run_id = ${work.id} and c.parent = g.parent and c.name = g.name and not c.is_directory`)
  })

/** Skips the remaining digests, because the policy's time is over. */
export const leaveUnread = (db: Db, id: string): Promise<void> =>
  db.transaction(async (tx) => {
    const left = await tx.run(
      sql`update storage_index_changes set is_unread = false where run_id = ${id} and is_unread`,
    )
    if (left > 0) await tx.run(sql`update storage_index_runs set truncated_by = 'time' where id = ${id}`)
  })
