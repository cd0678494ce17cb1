import { createHash, hash } from 'node:crypto'
import { lstatSync, readdirSync, readFileSync, readlinkSync, statSync, type BigIntStats } from 'node:fs'
import { open } from 'node:fs/promises'
import { join } from 'node:path'
import { setImmediate } from 'node:timers/promises'
import { pathOfBytes, namedPath, systemPath } from '../../../outside-path.ts'
import type { OutputManifest } from '../contract/driver.ts'
import { causeOf, isErrno } from '../contract/errno.ts'
import { manifestWith } from '../contract/results.ts'
import { sameContent } from './same-content.ts'
import type { StagedFile } from './staging.ts'

type ManifestFile = OutputManifest['files'][number]
type Found = { path: string; stat: BigIntStats }
type Warn = (text: string) => void

/**
 * Files up to this size are hashed in one synchronous step; larger ones in chunks with other work
 * in between.
 */
const smallBytes = 64 * 1024
const chunkBytes = 1024 * 1024
const hashedAtOnce = 4
const emptyChecksum = `sha256:${hash('sha256', '', 'hex')}`
/** Further warnings are counted. */
const mostWarnings = 20

/** `sha256:<hex>` of a file's content. `signal` ends it, with its reason as the error. */
export async function checksum(path: string, sizeBytes: number, signal?: AbortSignal): Promise<string> {
  if (sizeBytes === 0) return emptyChecksum
  const file = systemPath(path)
  if (sizeBytes <= smallBytes) return `sha256:${hash('sha256', readFileSync(file), 'hex')}`
  await using handle = await open(file, 'r')
  const sum = createHash('sha256')
  const buffer = Buffer.allocUnsafe(chunkBytes)
  for (;;) {
    signal?.throwIfAborted()
    const { bytesRead } = await handle.read(buffer, 0, chunkBytes, null)
    if (bytesRead === 0) return `sha256:${sum.digest('hex')}`
    sum.update(buffer.subarray(0, bytesRead))
  }
}

/**
 * Entries of the work directory; none, and a warning, where the task has removed or replaced it: a
 * link in its place would lead elsewhere.
 */
const isThere = (root: string, warn: Warn): boolean => {
  try {
    const stat = lstatSync(root, { throwIfNoEntry: false })
    if (stat?.isDirectory() === true) return true
    warn(
      stat === undefined
        ? 'its work directory is gone: the task removed or moved it, so none of its files is listed'
        : 'its work directory is no folder any more: the task replaced it, so none of its files is listed',
    )
  } catch (error) {
    warn(`its work directory could not be read (${causeOf(error)}), so none of its files is listed`)
  }
  return false
}

/**
 * Regular files and links below `root`, by path. Links are not followed; sockets, pipes and devices
 * are not data. What cannot be read is named in a warning.
 */
async function filesBelow(root: string, warn: Warn, signal?: AbortSignal): Promise<Map<string, Found>> {
  const found = new Map<string, Found>()
  const folders = isThere(root, warn) ? [''] : []
  for (let folder = folders.pop(); folder !== undefined; folder = folders.pop()) {
    if (signal?.aborted === true) break
    try {
      const at = systemPath(join(root, folder))
      for (const entry of readdirSync(at, { withFileTypes: true, encoding: 'buffer' })) {
        const name = pathOfBytes(entry.name)
        const path = folder === '' ? name : `${folder}/${name}`
        if (entry.isDirectory()) folders.push(path)
        else if (entry.isFile() || entry.isSymbolicLink()) {
          const stat = statOf(root, path, warn)
          if (stat !== undefined) found.set(path, { path, stat })
          if (found.size % 256 === 0) await setImmediate()
        }
      }
    } catch (error) {
      if (!isErrno(error, 'ENOENT'))
        warn(
          `folder ${namedPath(folder || '.')} could not be read (${causeOf(error)}); its files are not listed`,
        )
    }
  }
  return found
}

const statOf = (root: string, path: string, warn: Warn): BigIntStats | undefined => {
  try {
    return lstatSync(systemPath(join(root, path)), { bigint: true, throwIfNoEntry: false })
  } catch (error) {
    warn(`${namedPath(path)} could not be looked at (${causeOf(error)}); it is not listed`)
    return undefined
  }
}

const milliseconds = (nanoseconds: bigint): number => Number(nanoseconds) / 1e6

/**
 * Whether a staged file has changed. Size and modification time (kept when it was staged) decide at
 * once; a file that was touched, or whose inode changed after the start, is compared with its
 * source.
 */
async function isModified(
  root: string,
  before: StagedFile,
  { path, stat }: Found,
  startedAt: number,
): Promise<boolean> {
  const file = systemPath(join(root, path))
  if (before.target !== undefined)
    return !stat.isSymbolicLink() || pathOfBytes(readlinkSync(file, 'buffer')) !== before.target
  if (!stat.isFile() || stat.size !== BigInt(before.sizeBytes)) return true
  // utimes takes a double of seconds: exact to a microsecond.
  const untouched = Math.abs(milliseconds(stat.mtimeNs) - before.modifiedMs) < 0.002
  if (untouched && milliseconds(stat.ctimeNs) < startedAt * 1000) return false
  const source = statSync(systemPath(before.source), { throwIfNoEntry: false })
  if (source === undefined || source.mtimeMs !== before.modifiedMs) return true
  return !(await sameContent(before.source, join(root, path)))
}

/** A list of warnings that names so many and counts the others. */
const openWarnings = () => {
  const warnings: string[] = []
  let count = 0
  return {
    warn: (text: string): void => {
      count += 1
      if (count <= mostWarnings) warnings.push(text)
    },
    all: (): string[] =>
      count > mostWarnings ? [...warnings, `and ${String(count - mostWarnings)} more`] : warnings,
  }
}

/**
 * The changes of a task to its work directory, with SHA-256 of each created or modified file (links
 * have none). It never throws for trouble with the files: what cannot be read has no checksum, or
 * is not listed, and a warning names it.
 *
 * `staged` lists the files before the start, `startedAt` in seconds since epoch. `signal` ends the
 * look: the files so far are listed, further ones without checksums.
 */
export async function outputManifest(task: {
  runtime: string
  hostname: string
  root: string
  staged: readonly StagedFile[]
  startedAt: number
  signal?: AbortSignal
}): Promise<OutputManifest> {
  const { runtime, hostname, root, staged, startedAt, signal } = task
  const { warn, all } = openWarnings()
  const after = await filesBelow(root, warn, signal)
  const before = new Map(staged.filter(({ unread }) => unread === undefined).map((file) => [file.path, file]))
  for (const { path, unread } of staged)
    if (unread !== undefined) warn(`${namedPath(path)} of a predecessor was not brought: ${unread}`)
  const files: ManifestFile[] = []

  /** Undefined where it cannot be read. */
  const read = async <T>(path: string, look: () => Promise<T>): Promise<T | undefined> => {
    try {
      return signal?.aborted === true ? undefined : await look()
    } catch (error) {
      if (signal?.aborted !== true)
        warn(`${namedPath(path)} could not be read (${causeOf(error)}); it is listed without a checksum`)
      return undefined
    }
  }
  const examine = async (found: Found): Promise<void> => {
    const { path, stat } = found
    const old = before.get(path)
    if (old !== undefined && (await read(path, () => isModified(root, old, found, startedAt))) === false)
      return
    const change = old === undefined ? 'created' : 'modified'
    const sizeBytes = Number(stat.size)
    const sum = stat.isFile()
      ? await read(path, () => checksum(join(root, path), sizeBytes, signal))
      : undefined
    files.push({
      path,
      change,
      sizeBytes,
      ...(sum === undefined ? {} : { checksum: sum }),
      modifiedUnixNano: String(stat.mtimeNs),
    })
  }
  const queue = after.values()
  const work = async (): Promise<void> => {
    for (const found of queue) await examine(found)
  }
  await Promise.all(Array.from({ length: Math.min(hashedAtOnce, after.size) }, work))
  if (signal?.aborted === true) warn('the look at its files was ended by a cancel')

  for (const old of before.values()) {
    if (after.has(old.path)) continue
    files.push({ path: old.path, change: 'deleted', sizeBytes: 0, modifiedUnixNano: '0' })
  }
  const counts = { initialFiles: before.size, finalFiles: after.size }
  return manifestWith({ runtime, hostname, root }, files, counts, all())
}
