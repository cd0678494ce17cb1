import {
  constants,
  copyFileSync,
  lstatSync,
  mkdirSync,
  readdirSync,
  renameSync,
  rmSync,
  symlinkSync,
  utimesSync,
  writeFileSync,
  type Stats,
} from 'node:fs'
import { copyFile, open, rm } from 'node:fs/promises'
import { randomBytes } from 'node:crypto'
import { basename, dirname, join } from 'node:path'
import { setImmediate } from 'node:timers/promises'
import { systemPath } from '../../../outside-path.ts'
import { DriverError, type Stage, type StagedAmount } from '../contract/driver.ts'
import { isErrno, messageOf } from '../contract/errno.ts'
import { planned, whyUnread, type PlannedEntry } from './planned.ts'
import { removeTree } from './remove-tree.ts'

/**
 * A file before the start of the task. `source` is its origin; `target` is set for symbolic links.
 */
export interface StagedFile {
  path: string
  sizeBytes: number
  modifiedMs: number
  source: string
  target?: string
  /** Why it was not brought. Another one may be there in its place, with an entry of its own. */
  unread?: string
}

/**
 * Below this size a synchronous copy costs less processor time than the thread pool's round trips.
 */
const smallBytes = 64 * 1024
const chunkBytes = 1024 * 1024

/**
 * Fills `directory` from `stages` by reflink or copy. All or nothing: it is built beside its place
 * and renamed into it. A crash in the middle leaves a `.NAME.staging-…` folder, which
 * `removeStagingRemains` removes, and a repeat does no harm. A work directory with content stays as
 * it is: it was staged before.
 *
 * `record` gets the list of files before they are visible under `directory`; `isStarted` is called
 * at the last moment.
 *
 * @throws DriverError `user` for conflicts at named paths and for undelivered paths, `refused`
 *   for missing sources, `infrastructure` for a full or broken disk.
 */
export async function stage(
  directory: string,
  stages: readonly Stage[],
  record: (files: readonly StagedFile[]) => void,
  isStarted: () => boolean,
): Promise<void> {
  if (stages.length === 0 || hasContent(directory)) return
  const building = join(
    dirname(directory),
    `.${basename(directory)}.staging-${process.pid}-${randomBytes(4).toString('hex')}`,
  )
  try {
    const { entries, left } = await planned(stages)
    if (entries.size === 0 && left.length === 0) return
    mkdirSync(building, { recursive: true, mode: 0o700 })
    const files = await build(building, entries)
    for (const { path, source, why } of left)
      files.push({ path, sizeBytes: 0, modifiedMs: 0, source, unread: why })
    record(files)
    // Another process that submits the same name may have been first.
    if (isStarted() || !moveInto(building, directory)) rmSync(building, { recursive: true, force: true })
  } catch (error) {
    rmSync(building, { recursive: true, force: true })
    if (error instanceof DriverError) throw error
    throw new DriverError('infrastructure', `cannot stage into ${directory}: ${messageOf(error)}`, {
      cause: error,
    })
  }
}

/** False if there is content at `to`. */
function moveInto(from: string, to: string): boolean {
  try {
    renameSync(from, to)
    return true
  } catch (error) {
    if (isErrno(error, 'ENOTEMPTY', 'EEXIST')) return false
    throw error
  }
}

function hasContent(directory: string): boolean {
  try {
    return readdirSync(directory).length > 0
  } catch (error) {
    if (isErrno(error, 'ENOENT')) return false
    throw new DriverError('infrastructure', `cannot read ${directory}: ${messageOf(error)}`, {
      cause: error,
    })
  }
}

async function build(root: string, entries: ReadonlyMap<string, PlannedEntry>): Promise<StagedFile[]> {
  const files: StagedFile[] = []
  let done = 0
  for (const [path, { kind, label, source, stat, target, asked }] of entries) {
    if (++done % 256 === 0) await setImmediate()
    const to = systemPath(join(root, path))
    if (kind === 'directory') mkdirSync(to, { recursive: true, mode: stat.mode | 0o700 })
    else if (target !== undefined) {
      symlinkSync(systemPath(target), to)
      files.push({ path, sizeBytes: 0, modifiedMs: 0, source, target })
    } else {
      try {
        await copy(systemPath(source), to, stat)
        utimesSync(to, timeOf(stat.atimeMs), timeOf(stat.mtimeMs))
        files.push({ path, sizeBytes: stat.size, modifiedMs: stat.mtimeMs, source })
      } catch (error) {
        const why = whyUnread({ label, asked }, path, error)
        // What was copied up to the error is no input.
        await rm(to, { force: true })
        files.push({ path, sizeBytes: 0, modifiedMs: 0, source, unread: why })
      }
    }
  }
  return files
}

/** A time for `utimes`, which takes numbers below 0 for now. */
const timeOf = (ms: number): number | Date => (ms < 0 ? new Date(ms) : ms / 1_000)

/** Copies a file by reflink or content; the holes of a sparse one stay holes. */
async function copy(source: string | Buffer, to: string | Buffer, stat: Stats): Promise<void> {
  const exclusive = constants.COPYFILE_EXCL
  if (stat.size <= smallBytes) copyFileSync(source, to, constants.COPYFILE_FICLONE | exclusive)
  else if (stat.blocks * 512 >= stat.size) await copyFile(source, to, constants.COPYFILE_FICLONE | exclusive)
  else {
    try {
      await copyFile(source, to, constants.COPYFILE_FICLONE_FORCE | exclusive)
    } catch (error) {
      if (isErrno(error, 'EEXIST')) throw error
      await copySparse(source, to, stat)
    }
  }
}

const zeros = Buffer.alloc(chunkBytes)

/** Writes what is not zero; the rest becomes holes. */
async function copySparse(source: string | Buffer, to: string | Buffer, { mode }: Stats): Promise<void> {
  const from = await open(source, 'r')
  try {
    const into = await open(to, 'w', mode)
    try {
      const chunk = Buffer.allocUnsafe(chunkBytes)
      for (let at = 0; ;) {
        const { bytesRead } = await from.read(chunk, 0, chunkBytes, at)
        if (bytesRead === 0) return await into.truncate(at)
        const isHole = chunk.compare(zeros, 0, bytesRead, 0, bytesRead) === 0
        if (!isHole)
          for (let done = 0; done < bytesRead;)
            done += (await into.write(chunk, done, bytesRead - done, at + done)).bytesWritten
        at += bytesRead
      }
    } finally {
      await into.close()
    }
  } finally {
    await from.close()
  }
}

/** The amount from each of the folders, by the list of staged files. */
export function amountsFrom(sources: readonly string[], files: readonly StagedFile[]): StagedAmount[] {
  return sources.map((source) => {
    const own = files.filter((file) => file.unread === undefined && file.source === join(source, file.path))
    return { files: own.length, bytes: own.reduce((sum, { sizeBytes }) => sum + sizeBytes, 0) }
  })
}

/** Removes what a crash during staging left beside `directory`. */
export async function removeStagingRemains(directory: string): Promise<void> {
  const parent = dirname(directory)
  const prefix = `.${basename(directory)}.staging-`
  if (lstatSync(parent, { throwIfNoEntry: false }) === undefined) return
  for (const name of readdirSync(parent)) if (name.startsWith(prefix)) await removeTree(join(parent, name))
}

/** Writes the list so that it is complete or absent. */
export function writeStagedFiles(path: string, files: readonly StagedFile[]): void {
  mkdirSync(dirname(path), { recursive: true, mode: 0o700 })
  const draft = `${path}.${process.pid}-${randomBytes(4).toString('hex')}`
  writeFileSync(draft, JSON.stringify(files), { mode: 0o600 })
  renameSync(draft, path)
}
