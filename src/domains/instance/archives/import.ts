import { createHash, randomBytes } from 'node:crypto'
import { createWriteStream } from 'node:fs'
import { mkdir, open, rm } from 'node:fs/promises'
import { join } from 'node:path'
import { Transform } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { z } from 'zod'
import { createArchiveSchema, type ArchiveTable, type Filling } from '../../../db/archive-schema.ts'
import type { Database } from '../../../db/pool.ts'
import { readMigrations } from '../../../db/migrations.ts'
import type { Upload } from '../../../http/route.ts'
import { Refusal } from '../../../refusal.ts'
import { artifactPath, fullOr, instanceIdOf, removeArchiveFolder, schemaOf, writeArtifact } from './files.ts'
import {
  artifactPrefix,
  counted,
  databaseEntry,
  limits,
  Manifest,
  manifestEntry,
  type Contents,
} from './manifest.ts'
import { insertArchive } from './store.ts'
import { checkArchive, rejected, type CheckedArchive } from './zip-check.ts'

export interface ImportParts {
  db: Database
  spool: string
  /** The end of the time for an import; without it, `limits.minutes` from its begin. */
  deadline?: AbortSignal
}

const tooLarge = (): Refusal => rejected('the archive has more than 8 GiB')
const tooLate = (): Refusal => rejected(`the archive took longer than ${String(limits.minutes)} minutes`)

const toDisk = async (upload: Upload, path: string, signal: AbortSignal): Promise<number> => {
  if ((upload.sizeBytes ?? 0) > limits.packedBytes) throw tooLarge()
  let size = 0
  const counting = new Transform({
    transform(chunk: Buffer, _, done) {
      size += chunk.length
      done(size > limits.packedBytes ? tooLarge() : null, chunk)
    },
  })
  await pipeline(upload.stream, counting, createWriteStream(path, { mode: 0o600, flags: 'wx' }), { signal })
  return size
}

const readManifest = async (archive: CheckedArchive): Promise<Manifest> => {
  const entry = archive.entries.get(manifestEntry)
  if (entry === undefined) throw rejected(`the archive has no ${manifestEntry}`)
  if (entry.uncompressedSize > limits.manifestBytes) throw rejected(`${manifestEntry} has more than 1 MiB`)
  const chunks: Buffer[] = []
  for await (const chunk of await archive.read(entry)) chunks.push(chunk)
  let document: unknown
  try {
    document = JSON.parse(Buffer.concat(chunks).toString('utf8'))
  } catch {
    throw rejected(`${manifestEntry} is not valid JSON`)
  }
  const result = Manifest.safeParse(document)
  if (!result.success) {
    const [issue] = result.error.issues
    const path = issue?.path.join('.') ?? ''
    throw rejected(
      path.startsWith('security')
        ? `${manifestEntry}: the redaction marker (security) is missing, or it states that credentials are included`
        : `${manifestEntry}: ${path} ${issue?.message ?? 'is not acceptable'}`,
      path,
    )
  }
  return result.data
}

const checkVersion = async ({ schemaVersion }: Manifest): Promise<void> => {
  const numbers = (await readMigrations()).map(({ number }) => number)
  const newest = numbers.at(-1) ?? 0
  if (schemaVersion > newest)
    throw rejected(
      `the archive has schema ${String(schemaVersion)}, this version knows up to ${String(newest)}: ` +
        'import it with the version that made it, or a newer one',
      'schemaVersion',
    )
  if (!numbers.includes(schemaVersion))
    throw rejected(`schemaVersion ${String(schemaVersion)} is no schema of this service`, 'schemaVersion')
}

/** Checks that the manifest gives the digests of exactly these entries. */
const checkDigests = async (
  archive: CheckedArchive,
  manifest: Manifest,
  deadline: AbortSignal,
): Promise<void> => {
  const { checksums } = manifest
  for (const name of archive.entries.keys())
    if (name !== manifestEntry && checksums[name] === undefined)
      throw rejected(`the manifest has no checksum of ${JSON.stringify(name)}`, 'checksums')
  for (const [name, digest] of Object.entries(checksums)) {
    const entry = archive.entries.get(name)
    if (entry === undefined)
      throw rejected(
        `the manifest names ${JSON.stringify(name)}, which the archive does not hold`,
        'checksums',
      )
    const sum = createHash('sha256')
    for await (const chunk of withinTime(await archive.read(entry), deadline)) sum.update(chunk)
    const found = sum.digest('hex')
    if (found !== digest || (name.startsWith(artifactPrefix) && !name.endsWith(digest)))
      throw rejected(`the checksum of ${JSON.stringify(name)} does not match`, 'checksums')
  }
}

const Header = z.strictObject({
  table: z.string(),
  columns: z.array(z.string()).min(1).max(1_000),
  rows: z.int().min(0),
})
const mostHeaderBytes = 256 * 1024

/** Reads lines from chunks: some as text, long runs of them unchanged. */
const openLines = (chunks: AsyncIterable<Buffer>) => {
  const source = chunks[Symbol.asyncIterator]()
  let rest: Buffer = Buffer.alloc(0)
  const more = async (): Promise<boolean> => {
    const next = await source.next()
    if (next.done === true) return false
    rest = rest.length === 0 ? next.value : Buffer.concat([rest, next.value])
    return true
  }
  return {
    async line(): Promise<string | undefined> {
      for (;;) {
        const end = rest.indexOf(10)
        if (end >= 0) {
          const text = rest.subarray(0, end).toString('utf8')
          rest = rest.subarray(end + 1)
          return text
        }
        if (rest.length > mostHeaderBytes) throw rejected(`${databaseEntry}: a table's heading is too long`)
        if (!(await more())) {
          if (rest.length > 0) throw rejected(`${databaseEntry} ends within a line`)
          return undefined
        }
      }
    },
    async *run(count: number): AsyncGenerator<Buffer> {
      let left = count
      while (left > 0) {
        let at = 0
        while (left > 0) {
          const end = rest.indexOf(10, at)
          if (end < 0) break
          at = end + 1
          left -= 1
        }
        const part = left > 0 ? rest : rest.subarray(0, at)
        rest = left > 0 ? Buffer.alloc(0) : rest.subarray(at)
        if (part.length > 0) yield part
        if (left > 0 && !(await more())) throw rejected(`${databaseEntry} ends before its last row`)
      }
    },
  }
}

const headingOf = (text: string): z.output<typeof Header> => {
  let document: unknown
  try {
    document = JSON.parse(text)
  } catch {
    throw rejected(`${databaseEntry}: the heading of a table is not valid JSON`)
  }
  const result = Header.safeParse(document)
  if (!result.success)
    throw rejected(`${databaseEntry}: a line that should be the heading of a table is none`)
  return result.data
}

const checkColumns = ({ name, columns }: ArchiveTable, given: readonly string[]): void => {
  const foreign = given.find((column) => !columns.includes(column)) ?? ''
  if (foreign !== '') throw rejected(`table ${name} has no column ${JSON.stringify(foreign.slice(0, 100))}`)
  if (new Set(given).size !== columns.length || given.length !== columns.length)
    throw rejected(`table ${name} has other columns than its schema`)
}

const fillTables = async (
  filling: Filling,
  bytes: AsyncIterable<Buffer>,
  { contents }: Manifest,
): Promise<void> => {
  const lines = openLines(bytes)
  const seen = new Set<string>()
  for (let text = await lines.line(); text !== undefined; text = await lines.line()) {
    const { table: name, columns, rows } = headingOf(text)
    const table = filling.tables.find((one) => one.name === name)
    if (table === undefined)
      throw rejected(`${databaseEntry}: ${JSON.stringify(name.slice(0, 100))} is no table of an archive`)
    if (seen.has(name)) throw rejected(`${databaseEntry}: table ${name} is there twice`)
    seen.add(name)
    checkColumns(table, columns)
    const loaded = await filling.load(table, columns, lines.run(rows)).catch((error: unknown) => {
      throw error instanceof SyntaxError ? rejected(`rows of table ${name}: ${error.message}`, name) : error
    })
    if (loaded !== rows)
      throw rejected(`table ${name} has ${String(loaded)} rows, its heading names ${String(rows)}`)
  }
  const absent = filling.tables.find(({ name }) => !seen.has(name))
  if (absent !== undefined) throw rejected(`${databaseEntry} has no table ${absent.name}`)
  for (const [key, table] of Object.entries(counted) as [keyof Contents, string][]) {
    const found = await filling.count(table)
    if (found !== contents[key])
      throw rejected(
        `the manifest counts ${String(contents[key])} ${key}, the database has ${String(found)}`,
        `contents.${key}`,
      )
  }
}

/** Errors of PostgreSQL that rows cause: their form, and constraints. */
const ofRows = /^2[23]/

const rowsRefused = (error: unknown): unknown => {
  const { code, constraint, table, message } = error as {
    code?: string
    constraint?: string
    table?: string
    message: string
  }
  if (code === undefined || !ofRows.test(code)) return error
  if (constraint !== undefined)
    return rejected(`rows of table ${table ?? ''} break the constraint ${constraint}`, table ?? '')
  return rejected(`rows of ${databaseEntry} cannot be read: ${message.slice(0, 300)}`)
}

const withinTime = async function* (bytes: AsyncIterable<Buffer>, signal: AbortSignal) {
  for await (const chunk of bytes) {
    if (signal.aborted) throw tooLate()
    yield chunk
  }
}

/**
 * Imports an archive: stores the file, checks everything that can be wrong with it, then loads its
 * rows into a schema of their own, all before one deadline. A refusal or a kill leaves no data.
 * @returns the id of the archived instance
 */
export const importInstance = async (
  { db, spool, deadline = AbortSignal.timeout(limits.minutes * 60_000) }: ImportParts,
  upload: Upload,
): Promise<string> => {
  await mkdir(spool, { recursive: true, mode: 0o700 })
  const mark = randomBytes(6).toString('hex')
  const path = join(spool, `import-${mark}.zip`)
  const id = instanceIdOf(mark)
  let whole = false
  try {
    const size = await toDisk(upload, path, deadline)
    await using file = await open(path, 'r')
    const archive = await checkArchive(file, size)
    const manifest = await readManifest(archive)
    await checkVersion(manifest)
    const entry = archive.entries.get(databaseEntry)
    if (entry === undefined) throw rejected(`the archive has no ${databaseEntry}`)
    await checkDigests(archive, manifest, deadline)
    // The bytes are on disk before the record of the archive is committed. Without that record the
    // next start of the service removes them.
    for (const [name, file] of archive.entries)
      if (name.startsWith(artifactPrefix))
        await writeArtifact(
          artifactPath(spool, id, name.slice(artifactPrefix.length)),
          withinTime(await archive.read(file), deadline),
        )
    const schema = schemaOf(mark)
    await createArchiveSchema(
      () => db.session(),
      schema,
      manifest.schemaVersion,
      async (filling) => {
        await fillTables(filling, withinTime(await archive.read(entry), deadline), manifest)
        await insertArchive(filling, { id, schema, manifest })
      },
      deadline,
    )
    whole = true
    return id
  } catch (error) {
    throw deadline.aborted ? tooLate() : fullOr(rowsRefused(error), spool)
  } finally {
    if (!whole) await removeArchiveFolder(spool, id)
    await rm(path, { force: true })
  }
}
