import { createHash, hash } from 'node:crypto'
import { lstatSync, readdirSync, readFileSync, readlinkSync, statSync, type BigIntStats } from 'node:fs'
import { open } from 'node:fs/promises'
import { join } from 'node:path'
import { setImmediate } from 'node:timers/promises'
import type { OutputManifest } from '../contract/driver.ts'
import { sameContent, type StagedFile } from './staging.ts'

type ManifestFile = OutputManifest['files'][number]
type Found = { path: string; stat: BigIntStats }

/**
 * Files up to this size are hashed in one synchronous step; larger ones in chunks with other work
 * in between.
 */
const smallBytes = 64 * 1024
const chunkBytes = 1024 * 1024
const hashedAtOnce = 4
const emptyChecksum = `sha256:${hash('sha256', '', 'hex')}`

/** `sha256:<hex>` of a file's content. */
export async function checksum(path: string, sizeBytes: number): Promise<string> {
  if (sizeBytes === 0) return emptyChecksum
  if (sizeBytes <= smallBytes) return `sha256:${hash('sha256', readFileSync(path), 'hex')}`
  const file = await open(path, 'r')
  try {
    const sum = createHash('sha256')
    const buffer = Buffer.allocUnsafe(chunkBytes)
    for (;;) {
      const { bytesRead } = await file.read(buffer, 0, chunkBytes, null)
      if (bytesRead === 0) return `sha256:${sum.digest('hex')}`
      sum.update(buffer.subarray(0, bytesRead))
    }
  } finally {
    await file.close()
  }
}

/**
 * Regular files and links below `root`, by path. Links are not followed; sockets, pipes and devices
 * are not data.
 */
async function filesBelow(root: string): Promise<Map<string, Found>> {
  const found = new Map<string, Found>()
  const folders = ['']
  for (let folder = folders.pop(); folder !== undefined; folder = folders.pop()) {
    for (const entry of readdirSync(join(root, folder), { withFileTypes: true })) {
      const path = folder === '' ? entry.name : `${folder}/${entry.name}`
      if (entry.isDirectory()) folders.push(path)
      else if (entry.isFile() || entry.isSymbolicLink()) {
        found.set(path, { path, stat: lstatSync(join(root, path), { bigint: true }) })
        if (found.size % 256 === 0) await setImmediate()
      }
    }
  }
  return found
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
  if (before.target !== undefined)
    return !stat.isSymbolicLink() || readlinkSync(join(root, path)) !== before.target
  if (!stat.isFile() || stat.size !== BigInt(before.sizeBytes)) return true
  // utimes takes a double of seconds: exact to a microsecond.
  const untouched = Math.abs(milliseconds(stat.mtimeNs) - before.modifiedMs) < 0.002
  if (untouched && milliseconds(stat.ctimeNs) < startedAt * 1000) return false
  const source = statSync(before.source, { throwIfNoEntry: false })
  if (source === undefined || source.mtimeMs !== before.modifiedMs) return true
  return !(await sameContent(before.source, join(root, path)))
}

/**
 * The changes of a task to its work directory, with SHA-256 of each created or modified file (links
 * have none).
 *
 * `staged` lists the files before the start, `startedAt` in seconds since epoch.
 */
export async function outputManifest(task: {
  runtime: string
  hostname: string
  root: string
  staged: readonly StagedFile[]
  startedAt: number
}): Promise<OutputManifest> {
  const { runtime, hostname, root, staged, startedAt } = task
  const after = await filesBelow(root)
  const before = new Map(staged.map((file) => [file.path, file]))
  const files: ManifestFile[] = []
  const count = { created: 0, modified: 0, deleted: 0 }

  const examine = async (found: Found): Promise<void> => {
    const { path, stat } = found
    const old = before.get(path)
    if (old !== undefined && !(await isModified(root, old, found, startedAt))) return
    const change = old === undefined ? 'created' : 'modified'
    const sizeBytes = Number(stat.size)
    const sum = stat.isFile() ? { checksum: await checksum(join(root, path), sizeBytes) } : {}
    count[change]++
    files.push({ path, change, sizeBytes, ...sum, modifiedUnixNano: String(stat.mtimeNs) })
  }
  const queue = after.values()
  const work = async (): Promise<void> => {
    for (const found of queue) await examine(found)
  }
  await Promise.all(Array.from({ length: Math.min(hashedAtOnce, after.size) }, work))

  for (const old of before.values()) {
    if (after.has(old.path)) continue
    count.deleted++
    files.push({ path: old.path, change: 'deleted', sizeBytes: 0, modifiedUnixNano: '0' })
  }
  files.sort((a, b) => (a.path < b.path ? -1 : 1))
  return {
    schemaVersion: 1,
    runtime,
    hostname,
    root,
    files,
    summary: {
      initialFiles: before.size,
      finalFiles: after.size,
      createdFiles: count.created,
      modifiedFiles: count.modified,
      deletedFiles: count.deleted,
      outputBytes: files.reduce((sum, file) => sum + file.sizeBytes, 0),
    },
  }
}
