import { createHash, randomUUID } from 'node:crypto'
import { buffer } from 'node:stream/consumers'
import type { z } from 'zod'
import type { Db } from '../../db/sql.ts'
import type { Entry, StorageDriver } from '../../drivers/storage/contract.ts'
import { writtenTo } from '../../drivers/storage/faults.ts'
import { bytesOf, textOf, type ByteName, type StoragePath } from '../../drivers/storage/paths.ts'
import { unacceptableAt } from '../../refusal.ts'
import { addArtifactVersion } from '../artifacts/store.ts'
import { refusing } from './errors.ts'
import type { OpenedStorage } from './open.ts'
import type { StorageRouteParts } from './promoted.ts'
import type { NewArtifact, NewData } from './schemas.ts'
import { isUnchanged } from './send.ts'
import { mediaTypeOf, shown, uriOf } from './view.ts'

/**
 * The head of a SIF file: its start line (32 bytes), the magic (10), its version (3), the
 * architecture (3).
 */
const headBytes = 48
const magic = 'SIF_MAGIC\0'
const architectures: Readonly<Record<string, string>> = {
  '01': '386',
  '02': 'amd64',
  '03': 'arm',
  '04': 'arm64',
  '05': 'ppc64',
  '06': 'ppc64le',
  '10': 's390x',
  '11': 'riscv64',
}

/** The architecture in the head of a SIF file; undefined where the bytes are no SIF. */
export const sifArchitecture = (head: Buffer): string | undefined => {
  if (head.length < headBytes || head.toString('latin1', 32, 42) !== magic) return undefined
  return architectures[head.toString('latin1', 45, 47)] ?? 'unknown'
}

/**
 * The digest of a file that was seen as `entry`.
 * @throws StorageError `changed` where it is that of other bytes
 */
const digestOf = async (
  source: StorageDriver,
  path: StoragePath,
  entry: Entry,
  signal: AbortSignal,
): Promise<string> => {
  const digest = await source.digest(path, { signal })
  if (!(await isUnchanged({ source }, { from: path, signal }, entry))) throw writtenTo(path)
  return digest
}

/** Records a SIF image as a version of an artifact, with the digest of the stored bytes. */
export const promoteArtifact = async (
  db: Db,
  { facts, driver }: OpenedStorage,
  path: StoragePath,
  given: Pick<z.output<typeof NewArtifact>, 'id' | 'name' | 'version' | 'scope' | 'scopeId'>,
  signal: AbortSignal,
): Promise<{ id: string; isNew: boolean }> => {
  const name = path.at(-1)
  const file = name === undefined ? '' : textOf(name)
  if (!/\.sif$/i.test(file))
    throw unacceptableAt(
      'path',
      `${JSON.stringify(file)} does not end in .sif; only SIF images are promoted to artifacts`,
    )
  return refusing('body', async () => {
    const { entry, stream } = await driver.read(path, { offset: 0, length: headBytes, signal })
    const architecture = sifArchitecture(await buffer(stream))
    if (architecture === undefined)
      throw unacceptableAt(
        'path',
        `${JSON.stringify(file)} is no SIF image: its magic is missing; build it with apptainer build`,
      )
    const digest = await digestOf(driver, path, entry, signal)
    const { sizeBytes = 0 } = entry
    const scope = given.scope ?? 'environment'
    const artifactId = given.id ?? `artifact-${randomUUID()}`
    const asked = {
      artifactId: given.id,
      ...{ name: given.name, version: given.version, scope: given.scope, scopeId: given.scopeId },
    }
    return addArtifactVersion(
      db,
      {
        ...{ artifactId, name: given.name ?? artifactId, version: given.version ?? '1', scope },
        scopeId: given.scopeId ?? (scope === 'environment' ? facts.environmentId : ''),
        ...{ format: 'sif', architecture, digest: `sha256:${digest}`, sizeBytes },
        ...{ storageId: facts.id, uri: uriOf(facts.id, path) },
      },
      asked,
    )
  })
}

/** The most files of one directory that one request promotes. */
const mostFiles = 10_000
const pageSize = 500

interface TreeFile {
  path: ByteName
  digest: string
  sizeBytes: number
}

/**
 * The files below a directory with their digests. Links and other non-files are left out.
 * @throws Refusal 422 for too many
 */
const filesBelow = async (
  driver: StorageDriver,
  path: StoragePath,
  signal: AbortSignal,
): Promise<TreeFile[]> => {
  const files: TreeFile[] = []
  const folders: StoragePath[] = [[]]
  for (let folder = folders.pop(); folder !== undefined; folder = folders.pop()) {
    let after: string | undefined
    do {
      const page = await driver.list([...path, ...folder], { limit: pageSize, after, signal })
      for (const entry of page.entries) {
        const below = [...folder, entry.name]
        if (entry.type === 'directory') folders.push(below)
        if (entry.type !== 'file') continue
        if (files.length === mostFiles)
          throw unacceptableAt(
            'path',
            `${JSON.stringify(shown(path))} holds more than ${mostFiles} files; promote the ` +
              'directories below it',
          )
        const digest = await digestOf(driver, [...path, ...below], entry, signal)
        files.push({ path: below.join('/') as ByteName, digest, sizeBytes: entry.sizeBytes ?? 0 })
      }
      after = page.next
    } while (after !== undefined)
  }
  return files
}

/** SHA-256 of the lines `digest path` of a directory's files, in the order of the paths' bytes. */
const treeDigest = (files: readonly TreeFile[]): string => {
  const hash = createHash('sha256')
  for (const { path, digest } of files.toSorted((a, b) => (a.path < b.path ? -1 : 1))) {
    hash.update(`${digest} `)
    hash.update(bytesOf(path))
    hash.update('\n')
  }
  return hash.digest('hex')
}

/** Records a file or a directory as scientific data, with the digest of the stored bytes. */
export const promoteData = async (
  { db, promoted }: Omit<StorageRouteParts, 'storages'>,
  { facts, driver }: OpenedStorage,
  path: StoragePath,
  given: Pick<z.output<typeof NewData>, 'id' | 'workflowVersionId' | 'runId' | 'activityId'>,
  signal: AbortSignal,
): Promise<{ id: string; isNew: boolean }> =>
  refusing('body', async () => {
    const entry = await driver.stat(path, { signal })
    if (entry.type !== 'file' && entry.type !== 'directory')
      throw unacceptableAt('path', `${JSON.stringify(shown(path))} is neither a file nor a directory`)
    const files = entry.type === 'directory' ? await filesBelow(driver, path, signal) : undefined
    const digest = files === undefined ? await digestOf(driver, path, entry, signal) : treeDigest(files)
    const sizeBytes =
      files === undefined ? (entry.sizeBytes ?? 0) : files.reduce((sum, file) => sum + file.sizeBytes, 0)
    const name = textOf(path.at(-1) ?? ('' as ByteName))
    return promoted.record(db, {
      ...{ ...given, name, digest: `sha256:${digest}`, sizeBytes },
      ...{
        mediaType: files === undefined ? (mediaTypeOf(name) ?? 'application/octet-stream') : undefined,
        storageId: facts.id,
        uri: uriOf(facts.id, path),
      },
    })
  })
