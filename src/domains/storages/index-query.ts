import { hash } from 'node:crypto'
import { z } from 'zod'
import { sql, where, type Db, type Sql } from '../../db/sql.ts'
import {
  bytesOf,
  nameOfBytes,
  quotedPath,
  pathInAnswer,
  textOf,
  type ByteName,
  type StoragePath,
} from '../../drivers/storage/paths.ts'
import { present } from '../../json-object.ts'
import { invalid, Refusal } from '../../refusal.ts'
import { openGlob } from './glob.ts'
import { bytesOfParent, endOfRange, parentOfBytes } from './index-paths.ts'
import type { IndexEntry, IndexPage, IndexQuery } from './schemas.ts'
import { timeInAnswer } from './view.ts'

/**
 * The most rows that one statement examines, and one request: a page may hold fewer entries than
 * its limit.
 */
const rowsAtOnce = 10_000
const mostRows = 50_000

type Query = z.output<typeof IndexQuery>

const Row = z.object({
  parent: z.instanceof(Uint8Array),
  name: z.instanceof(Uint8Array),
  isDirectory: z.boolean(),
  type: z.enum(['file', 'directory', 'symlink']),
  sizeBytes: z.number().optional(),
  modifiedAt: z.number().optional(),
  mediaType: z.string().optional(),
  sha256: z.instanceof(Uint8Array).optional(),
  fits: z.boolean(),
  isLast: z.boolean(),
})
type Row = z.output<typeof Row>
type Key = Pick<Row, 'parent' | 'name' | 'isDirectory'>

const pathOfRow = ({ parent, name }: Key): StoragePath => [...parentOfBytes(parent), nameOfBytes(name)]

const entryOf = (row: Row): z.output<typeof IndexEntry> =>
  present({
    ...{ ...pathInAnswer(pathOfRow(row)), name: textOf(nameOfBytes(row.name)), type: row.type },
    ...{ sizeBytes: row.sizeBytes, modifiedAt: timeInAnswer(row.modifiedAt), mediaType: row.mediaType },
    checksum: row.sha256 === undefined ? undefined : `sha256:${Buffer.from(row.sha256).toString('hex')}`,
  })

const TotalsRow = z.object({ entries: z.number(), bytes: z.number() })
type Totals = z.output<typeof TotalsRow>

/** The rows below a directory. */
const belowOf = (path: StoragePath): Sql => {
  const high = endOfRange(path)
  return high === null ? sql`true` : sql`parent >= ${bytesOfParent(path)} and parent < ${high}`
}

/** The rows of an entry itself. */
const itselfOf = (path: StoragePath): Sql => {
  const name = path.at(-1)
  return name === undefined
    ? sql`false`
    : sql`parent = ${bytesOfParent(path.slice(0, -1))} and name = ${bytesOf(name)}`
}

/**
 * The rows that may be seen: the index keeps what was below earlier roots until its next run.
 */
const visibleBelow = (roots: readonly StoragePath[]): Sql =>
  roots.reduce((all, root) => sql`${all} or ${belowOf(root)} or ${itselfOf(root)}`, sql`false`)

/** The visible rows of a path: those below a directory, or the file itself. */
const scopeOf = async (
  db: Db,
  storageId: string,
  path: StoragePath,
  roots: readonly StoragePath[],
): Promise<Sql> => {
  const visible = sql`(${visibleBelow(roots)})`
  const [below, itself] = [sql`${belowOf(path)} and ${visible}`, sql`${itselfOf(path)} and ${visible}`]
  if (path.length === 0) return below
  const type = await db.value(
    z.string(),
    sql`(select type from storage_index_entries where storage_id = ${storageId} and ${itself} and is_directory)
      union all (select 'directory' from storage_index_entries where storage_id = ${storageId} and ${below} limit 1)
      union all (select type from storage_index_entries where storage_id = ${storageId} and ${itself})
      limit 1`,
  )
  if (type === undefined)
    throw new Refusal(
      'missing',
      `the index of the storage does not hold ${quotedPath(path)}; name another path, or index it again`,
    )
  return type === 'directory' ? below : itself
}

const filtersOf = (query: Query): Sql => {
  const { type, mediaType, minSizeBytes, maxSizeBytes, modifiedAfter, modifiedBefore } = query
  const conditions = [
    type !== undefined && sql`type = ${type}`,
    mediaType !== undefined && sql`media_type = ${mediaType}`,
    minSizeBytes !== undefined && sql`size_bytes >= ${minSizeBytes}`,
    maxSizeBytes !== undefined && sql`size_bytes <= ${maxSizeBytes}`,
    modifiedAfter !== undefined && sql`modified_at >= ${Date.parse(modifiedAfter)}`,
    modifiedBefore !== undefined && sql`modified_at < ${Date.parse(modifiedBefore)}`,
  ].filter((piece): piece is Sql => piece !== false)
  return conditions.reduce((all, piece) => sql`${all} and ${piece}`, sql`true`)
}

/** The totals are part of the cursor: they are counted once for all pages. */
const Cursor = z.tuple([z.string(), z.string(), z.string(), z.boolean(), z.number(), z.number()])
interface Behind {
  key: Key
  totals: Totals
}
/** The list that a cursor belongs to. Another list has other filters or roots. */
const listOf = (
  storageId: string,
  { path, roots, query }: { path: StoragePath; roots: readonly StoragePath[]; query: Query },
): string => {
  const { cursor: _, limit: _1, path: _2, pathBytes: _3, ...filters } = query
  const of = hash('sha256', JSON.stringify(roots), 'base64url')
  return JSON.stringify([storageId, path.join('/'), of, Object.entries(filters).map(String).toSorted()])
}
const cursorOf = (list: string, { parent, name, isDirectory }: Key, totals: Totals): string =>
  Buffer.from(
    JSON.stringify([
      list,
      Buffer.from(parent).toString('base64'),
      Buffer.from(name).toString('base64'),
      isDirectory,
      totals.entries,
      totals.bytes,
    ]),
  ).toString('base64url')

const readCursor = (text: string, list: string): Behind => {
  try {
    const [of, parent, name, isDirectory, entries, bytes] = Cursor.parse(
      JSON.parse(Buffer.from(text, 'base64url').toString()),
    )
    if (of === list)
      return {
        key: { parent: Buffer.from(parent, 'base64'), name: Buffer.from(name, 'base64'), isDirectory },
        totals: { entries, bytes },
      }
  } catch {
    // Refused below.
  }
  throw invalid('the cursor is not one of this list; begin without it', [
    { path: 'cursor', message: 'must be nextCursor of a page with the same path and filters' },
  ])
}

const totalsOf = (db: Db, storageId: string, scope: Sql): Promise<Totals> =>
  db.one(
    TotalsRow,
    sql`select count(*) as entries, coalesce(sum(size_bytes), 0)::bigint as bytes from storage_index_entries
      where storage_id = ${storageId} and ${scope}`,
  )

/** The next rows after a position, each with the verdict of the filters. */
const rowsBehind = (
  db: Db,
  storageId: string,
  { scope, query, after, limit }: { scope: Sql; query: Query; after: Key | undefined; limit: number },
): Promise<Row[]> => {
  const digest = query.checksum?.replace('sha256:', '')
  return db.many(
    Row,
    sql`with behind as materialized (
        select parent, name, is_directory, type, size_bytes, modified_at, media_type, sha256
        from storage_index_entries ${where(
          sql`storage_id = ${storageId}`,
          scope,
          digest !== undefined && sql`sha256 = ${Buffer.from(digest, 'hex')}`,
          after && sql`(parent, name, is_directory) > (${after.parent}, ${after.name}, ${after.isDirectory})`,
        )} order by parent, name, is_directory limit ${limit}),
      judged as (select *, coalesce(${filtersOf(query)}, false) as fits,
        row_number() over (order by parent, name, is_directory) = ${limit} as is_last from behind)
      select parent, name, is_directory, type, size_bytes, modified_at, media_type, sha256, fits, is_last
      from judged where fits or is_last order by parent, name, is_directory`,
  )
}

/**
 * Entries of the index below the roots that pass all filters, in the order of their directories.
 * @throws Refusal 404 for a path that the index does not hold, 400 for a cursor of another list
 */
export const readIndex = async (
  db: Db,
  storageId: string,
  path: StoragePath,
  { roots, query, limit }: { roots: readonly StoragePath[]; query: Query; limit: number },
): Promise<Pick<z.output<typeof IndexPage>, 'entries' | 'totals' | 'nextCursor'>> => {
  const list = listOf(storageId, { path, roots, query })
  const behind = query.cursor === undefined ? undefined : readCursor(query.cursor, list)
  const scope = await scopeOf(db, storageId, path, roots)
  const totals = behind?.totals ?? (await totalsOf(db, storageId, scope))
  const fitsGlob = query.glob === undefined ? () => true : openGlob(query.glob)
  const entries: z.output<typeof IndexEntry>[] = []
  let after = behind?.key
  // A list without filters reads no more rows than its page needs.
  const isPlain = Object.keys(query).every((name) => /^(path|pathBytes|cursor|limit)$/.test(name))
  const atOnce = isPlain ? limit + 1 : rowsAtOnce
  for (let looked = 0; looked < mostRows; looked += atOnce) {
    const rows = await rowsBehind(db, storageId, { scope, query, after, limit: atOnce })
    for (const row of rows) {
      const isKept = row.fits && fitsGlob(textOf(pathOfRow(row).join('/') as ByteName))
      if (isKept && entries.length === limit)
        return { entries, totals, nextCursor: cursorOf(list, after!, totals) }
      if (isKept) entries.push(entryOf(row))
      after = row
    }
    // The statement marks its last row where more rows may follow.
    if (rows.at(-1)?.isLast !== true) return { entries, totals }
  }
  return { entries, totals, nextCursor: cursorOf(list, after!, totals) }
}
