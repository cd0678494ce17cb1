import { createHash, randomUUID } from 'node:crypto'
import { createReadStream, createWriteStream } from 'node:fs'
import { copyFile, link, mkdir, open, rm, stat, type FileHandle } from 'node:fs/promises'
import { join } from 'node:path'
import { pipeline, Readable } from 'node:stream'
import { pipeline as pipelined } from 'node:stream/promises'
import { crc32, createDeflateRaw, createInflateRaw } from 'node:zlib'
import { z } from 'zod'
import { withSnapshot, type Snapshot } from '../../../db/archive-schema.ts'
import type { Database } from '../../../db/pool.ts'
import { sql } from '../../../db/sql.ts'
import { newestMigration } from '../../../db/migrations.ts'
import type { ArtifactStore, BlobKind } from '../../../drivers/build/store.ts'
import { unacceptableAt } from '../../../refusal.ts'
import { version } from '../../../version.ts'
import { zipSize, zipStream, type PackedEntry } from '../../../zip.ts'
import type { InstanceDocument } from '../schemas.ts'
import { readSystemInstance } from '../store.ts'
import { fullOr } from './files.ts'
import {
  artifactPrefix,
  counted,
  databaseEntry,
  format,
  limits,
  manifestEntry,
  type Contents,
  type Manifest,
} from './manifest.ts'
import { credentialColumns, openRedaction, type Redaction } from './redaction.ts'

export interface ExportParts {
  db: Database
  /** Folder for the files of exports and imports. */
  spool: string
  /** Every secret that must not leave: of the vault, of configurations, of the service itself. */
  secrets: () => Promise<string[]>
  artifactStore: Pick<ArtifactStore, 'pathOf' | 'sizeOf'>
}

/**
 * Beyond this ratio an import would refuse the archive as a bomb, so the entry is stored
 * uncompressed.
 */
const mostDense = limits.ratio / 2

/** Bytes that are compressed, searched or sent at once: each piece is a task of Node's thread pool. */
const pieceBytes = 256 * 1024

interface Written {
  counts: Map<string, number>
  digest: string
  crc: number
  size: number
}

/** The lines of all tables, without secrets. `written` is complete when the last one is read. */
const databaseLines = async function* (
  snapshot: Snapshot,
  redaction: Redaction,
  written: Written,
): AsyncGenerator<Buffer> {
  const sum = createHash('sha256')
  let waiting: Buffer[] = []
  let bytes = 0
  const piece = (): Buffer => {
    const all = Buffer.concat(waiting)
    waiting = []
    bytes = 0
    sum.update(all)
    written.crc = crc32(all, written.crc)
    written.size += all.length
    if (written.size > limits.unpackedBytes)
      throw unacceptableAt('', 'the instance has more than 64 GiB of records, which no import takes')
    return all
  }
  const add = (lines: Buffer): void => {
    waiting.push(lines)
    bytes += lines.length
  }
  for (const table of snapshot.tables) {
    const rows = await snapshot.count(table.name)
    written.counts.set(table.name, rows)
    add(Buffer.from(`${JSON.stringify({ table: table.name, columns: table.columns, rows })}\n`))
    const keyed =
      table.kinds.some((kind) => kind === 'json' || kind === 'other') ||
      table.columns.some((column) => credentialColumns.has(column))
    for await (const lines of snapshot.rows(table)) {
      add(redaction.lines(table, lines, keyed))
      if (bytes >= pieceBytes) yield piece()
    }
  }
  yield piece()
  written.digest = sum.digest('hex')
}

const tooManyBytes = (what: string): Error => unacceptableAt('includeArtifacts', what)

const Blob = z.object({ kind: z.custom<BlobKind>(), digest: z.string() })

/** The CRC-32 of a file, or undefined where a secret stands in it. Reads it once. */
const sumUnlessHeld = async (path: string, { heldIn, longest }: Redaction): Promise<number | undefined> => {
  await using file = await open(path)
  // The end of the last piece stands before the next one.
  const buffer = Buffer.allocUnsafe(longest + pieceBytes)
  let kept = 0
  let sum = 0
  for (;;) {
    const { bytesRead } = await file.read(buffer, kept, pieceBytes)
    if (bytesRead === 0) return sum
    sum = crc32(buffer.subarray(kept, kept + bytesRead), sum)
    const filled = kept + bytesRead
    if (heldIn(buffer.subarray(0, filled))) return undefined
    kept = Math.min(filled, longest)
    buffer.copyWithin(0, filled - kept, filled)
  }
}

/**
 * Keeps the bytes of a file readable under another name, whatever becomes of its own: a copy where
 * the two file systems differ, or have no hard links.
 */
const keep = (path: string, as: string): Promise<void> => link(path, as).catch(() => copyFile(path, as))

interface Artifacts {
  files: { entry: PackedEntry; digest: string }[]
  /** Digests of those that hold a secret, so that they stay here. */
  withheld: string[]
}

/**
 * The artifacts and build contexts that the store of this host holds, but for those in which a
 * secret stands. Their bytes are kept in `folder` until they are sent.
 * @throws Refusal 422 where an import would refuse their number or size
 */
const collectArtifacts = async (
  { db, secrets, artifactStore }: ExportParts,
  folder: string,
  time: Date,
): Promise<Artifacts> => {
  const blobs = await db.many(
    Blob,
    sql`select 'images' as kind, digest from artifact_locations where available and uri like 'artifact://images/%'
      union select 'contexts', digest from build_contexts order by 2, 1`,
  )
  const redaction = openRedaction(await secrets())
  const files = new Map<string, Artifacts['files'][number]>()
  const withheld = new Set<string>()
  let total = 0
  for (const { kind, digest } of blobs) {
    if ((await artifactStore.sizeOf(kind, digest)) === undefined || files.has(digest)) continue
    const hex = digest.replace(/^sha256:/, '')
    const path = join(folder, hex)
    await mkdir(folder, { recursive: true, mode: 0o700 })
    await keep(artifactStore.pathOf(kind, digest), path)
    const crc = await sumUnlessHeld(path, redaction)
    if (crc === undefined) {
      withheld.add(digest)
      await rm(path)
      continue
    }
    const { size } = await stat(path)
    const name = artifactPrefix + hex
    const open = () => createReadStream(path, { highWaterMark: pieceBytes })
    // Images are compressed already.
    files.set(digest, { entry: { name, time, open, method: 0, crc, size, packedSize: size }, digest: hex })
    total += size
  }
  if (files.size > limits.entries - 2)
    throw tooManyBytes(`the instance holds ${String(files.size)} artifacts, more than an import takes`)
  if (withheld.size > limits.entries)
    throw tooManyBytes(
      `secrets stand in ${String(withheld.size)} artifacts, and an import takes a list of ${String(limits.entries)}`,
    )
  if (total > limits.packedBytes)
    throw tooManyBytes('the artifacts have more than 8 GiB, which no import takes')
  return { files: [...files.values()], withheld: [...withheld] }
}

/** Rows are six times smaller at the fastest level, and a seventh smaller at the usual one. */
const rowsLevel = 1

type Identity = Pick<Manifest['instance'], 'id' | 'name' | 'description'>

/** What the manifest names of the instance, without secrets, as its row in the archive is. */
const identityOf = (
  redaction: Redaction,
  { id = 'default', name = 'Default instance', description }: Partial<InstanceDocument> = {},
): Identity =>
  JSON.parse(
    redaction
      .lines({ name: 'system_instance', key: ['id'] }, JSON.stringify({ id, name, description }), false)
      .toString(),
  ) as Identity

/** Writes all rows of one state of the database to a file, deflated. */
const packDatabase = (
  { db, secrets }: ExportParts,
  path: string,
): Promise<Pick<Manifest, 'contents' | 'redacted'> & Written & { packedSize: number; identity: Identity }> =>
  withSnapshot(
    () => db.session(),
    async (snapshot) => {
      const redaction = openRedaction(await secrets())
      const written: Written = { counts: new Map(), digest: '', crc: 0, size: 0 }
      await pipelined(
        databaseLines(snapshot, redaction, written),
        createDeflateRaw({ level: rowsLevel, chunkSize: pieceBytes }),
        createWriteStream(path, { mode: 0o600 }),
      )
      const contents = Object.fromEntries(
        Object.entries(counted).map(([name, table]) => [name, written.counts.get(table) ?? 0]),
      ) as Contents
      const { size: packedSize } = await stat(path)
      const redacted = {
        values: redaction.count,
        places: [...redaction.hits],
        references: redaction.references(),
      }
      const identity = identityOf(redaction, await readSystemInstance(db))
      return { ...written, packedSize, contents, redacted, identity }
    },
  )

/** The rows as entries of their two forms, read from an open file. */
const rowsIn = (
  file: FileHandle,
  time: Date,
  { crc, size, packedSize }: Written & { packedSize: number },
): Record<'deflated' | 'stored', PackedEntry> => {
  const packed = () => file.createReadStream({ start: 0, autoClose: false, highWaterMark: pieceBytes })
  const inflated = () => pipeline(packed(), createInflateRaw({ chunkSize: pieceBytes }), () => undefined)
  const common = { name: databaseEntry, time, crc, size }
  return {
    deflated: { ...common, method: 8, packedSize, open: packed },
    stored: { ...common, method: 0, packedSize: size, open: inflated },
  }
}

/** The archive's entries in their order, and its size. @throws Refusal 422 where an import would refuse it */
const zipOfInstance = async (
  rows: ReturnType<typeof rowsIn>,
  artifacts: Artifacts['files'],
  manifest: Manifest,
): Promise<{ entries: PackedEntry[]; size: number }> => {
  const text = Buffer.from(JSON.stringify(manifest, undefined, 2))
  if (text.length > limits.manifestBytes)
    throw tooManyBytes('the list of artifacts has more than 1 MiB, which no import takes')
  const all = artifacts.reduce((sum, { entry }) => sum + entry.size, rows.stored.size)
  if (all > limits.unpackedBytes)
    throw tooManyBytes('records and artifacts have more than 64 GiB, which no import takes')
  const zipWith = async (first: PackedEntry) => {
    const { time } = first
    const sizes = { crc: crc32(text), size: text.length, packedSize: text.length }
    const last: PackedEntry = {
      ...{ name: manifestEntry, time, method: 0, ...sizes },
      open: () => Readable.from([text], { objectMode: false }),
    }
    const entries = [first, ...artifacts.map(({ entry }) => entry), last]
    return { entries, size: await zipSize(entries) }
  }
  const packed = await zipWith(rows.deflated)
  const zip = all / packed.size > mostDense ? await zipWith(rows.stored) : packed
  if (zip.size > limits.packedBytes)
    throw unacceptableAt('', 'the archive would have more than 8 GiB, which no import takes')
  return zip
}

/**
 * An archive of the default instance. Everything in it is searched and on disk before its first byte
 * is read.
 * `includeArtifacts`: with the bytes of artifacts that this host holds.
 */
export const exportInstance = async (
  parts: ExportParts,
  { includeArtifacts }: { includeArtifacts: boolean },
): Promise<{ stream: Readable; size: number; fileName: string }> => {
  await mkdir(parts.spool, { recursive: true, mode: 0o700 })
  const folder = join(parts.spool, `export-${randomUUID()}`)
  const packed = `${folder}.rows`
  const kept = new AsyncDisposableStack()
  kept.defer(() => rm(folder, { recursive: true, force: true }))
  try {
    const now = new Date()
    const exportedAt = now.toISOString()
    const { contents, redacted, identity, ...rows } = await packDatabase(parts, packed)
    // The open file is read to its end after its name is removed.
    const file = kept.use(await open(packed))
    const artifacts = includeArtifacts
      ? await collectArtifacts(parts, folder, now)
      : { files: [], withheld: [] }
    const manifest: Manifest = {
      format,
      formatVersion: 1,
      exportedAt,
      schemaVersion: await newestMigration(),
      instance: {
        ...identity,
        source: 'export',
        status: 'snapshot',
        readOnly: true,
        credentialsSet: false,
        exportedAt,
        akoflowVersion: version,
      },
      security: { credentialsIncluded: false, credentialsRedacted: true },
      contents,
      redacted: {
        ...redacted,
        ...(artifacts.withheld.length === 0 ? {} : { artifacts: artifacts.withheld }),
      },
      checksums: {
        [databaseEntry]: rows.digest,
        ...Object.fromEntries(artifacts.files.map(({ entry, digest }) => [entry.name, digest])),
      },
    }
    const { entries, size } = await zipOfInstance(rowsIn(file, now, rows), artifacts.files, manifest)
    const stream = zipStream(entries)
    // Its bytes are freed with its reader.
    const last = kept.move()
    stream.once('close', () => void last.disposeAsync().catch(() => undefined))
    return {
      ...{ stream, size },
      fileName: `${identity.id.replaceAll(/[^\w.-]+/g, '-').slice(0, 100)}-instance.zip`,
    }
  } catch (error) {
    throw fullOr(error, parts.spool)
  } finally {
    await rm(packed, { force: true })
    await kept.disposeAsync()
  }
}
