import { mkdir, open, readdir, rm, stat } from 'node:fs/promises'
import { join } from 'node:path'
import { z } from 'zod'
import { sql, type Db } from '../../../db/sql.ts'
import { isFull } from '../../../drivers/build/errors.ts'
import { readRange, type ArtifactStore } from '../../../drivers/build/store.ts'
import { Refusal, existing } from '../../../refusal.ts'
import { artifactPrefix } from './manifest.ts'

/** The names of an archive, made of the same random mark: of its instance and of its schema. */
export const instanceIdOf = (mark: string): string => `instance-${mark}`
export const schemaOf = (mark: string): string => `archive_${mark}`
const idOfSchema = (schema: string): string => instanceIdOf(schema.replace(/^archive_/, ''))

/** Where the bytes of an archive's artifacts lie. `spool` is the folder of exports and imports. */
export const archiveFolder = (spool: string, instanceId: string): string => join(spool, instanceId)

/**
 * The path of an artifact's bytes in an archive's folder. `digest` is `sha256:…` or its digits.
 * @throws Refusal `missing` for any other text: rows of an archive come from outside, and a path
 *   made of one could lead to any file of this host
 */
export const artifactPath = (spool: string, instanceId: string, digest: string): string => {
  const hex = /^(?:sha256:)?([0-9a-f]{64})$/.exec(digest)?.[1]
  return join(
    archiveFolder(spool, instanceId),
    artifactPrefix,
    existing(hex, 'the bytes, in this archive, of', digest.slice(0, 100)),
  )
}

/** Writes the bytes of an artifact to disk, whole, before the archive is recorded. */
export const writeArtifact = async (path: string, bytes: AsyncIterable<Buffer>): Promise<void> => {
  await mkdir(join(path, '..'), { recursive: true, mode: 0o700 })
  await using file = await open(path, 'wx', 0o600)
  for await (const chunk of bytes) await file.writeFile(chunk)
  await file.sync()
}

/**
 * The artifacts of the instance that a request reads: an archive has those that travelled with it,
 * and no others. `archive` gives the schema of the archive that is read.
 */
export const selectedArtifacts = (
  own: ArtifactStore,
  archive: () => string | undefined,
  spool: string,
): ArtifactStore => {
  const inArchive = (digest: string): string | undefined => {
    const schema = archive()
    return schema === undefined ? undefined : artifactPath(spool, idOfSchema(schema), digest)
  }
  return {
    ...own,
    pathOf: (kind, digest) => inArchive(digest) ?? own.pathOf(kind, digest),
    sizeOf: async (kind, digest) => {
      // Lists of packages do not travel.
      if (kind === 'sboms' && archive() !== undefined) return undefined
      const path = inArchive(digest)
      if (path === undefined) return own.sizeOf(kind, digest)
      const found = existing(
        await stat(path).catch(() => undefined),
        'the bytes, in this archive, of',
        digest,
      )
      return found.size
    },
    read: (kind, digest, range) => {
      const path = inArchive(digest)
      return path === undefined ? own.read(kind, digest, range) : readRange(path, range)
    },
  }
}

/** The refusal of an export or import where the file system of the spool is full. */
export const fullOr = (error: unknown, spool: string): unknown =>
  isFull(error)
    ? new Refusal('unavailable', `the file system of ${spool} is full: make room, then try again`, {
        cause: error,
      })
    : error

export const removeArchiveFolder = (spool: string, instanceId: string): Promise<void> =>
  rm(archiveFolder(spool, instanceId), { recursive: true, force: true })

/**
 * Removes what killed exports, imports and deletions have left in the folder. Only the process that
 * holds the data folder calls this, before it takes requests.
 */
export const sweepSpool = async (db: Db, spool: string): Promise<void> => {
  const names = await readdir(spool).catch(() => [])
  if (names.length === 0) return
  const kept = new Set(await db.values(z.string(), sql`select id from instance_archives`))
  for (const name of names) if (!kept.has(name)) await rm(join(spool, name), { recursive: true, force: true })
}
