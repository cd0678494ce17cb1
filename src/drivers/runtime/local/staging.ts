import {
  constants,
  closeSync,
  copyFileSync,
  lstatSync,
  mkdirSync,
  openSync,
  readdirSync,
  readlinkSync,
  readSync,
  renameSync,
  rmSync,
  symlinkSync,
  utimesSync,
  writeFileSync,
  type Stats,
} from 'node:fs'
import { copyFile, open, rm } from 'node:fs/promises'
import { randomBytes } from 'node:crypto'
import { basename, dirname, join, posix } from 'node:path'
import { setImmediate } from 'node:timers/promises'
import { pathOfBytes, namedPath, systemPath } from '../../../outside-path.ts'
import { DriverError, type Stage, type StagedAmount } from '../contract/driver.ts'
import { causeOf, isErrno, messageOf } from '../contract/errno.ts'
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
  /** Why it was left out; it is not there then. */
  unread?: string
}

type Entry = {
  kind: 'file' | 'directory' | 'link' | 'unread'
  label: string
  source: string
  stat: Stats
  target?: string
  unread?: string
  /** It, or a folder above it, was asked for by name. */
  named?: boolean
}

/**
 * Below this size a synchronous copy costs less processor time than the thread pool's round trips.
 */
const smallBytes = 64 * 1024
const chunkBytes = 1024 * 1024

/** A relative path without `..`, empty parts or a leading slash. */
export function isInside(path: string): boolean {
  return path !== '' && !path.includes('\0') && !posix.isAbsolute(path) && !path.split('/').includes('..')
}

/**
 * Whether a link stays inside through all other links: `..` only at its beginning (there the
 * parents are real directories), and not more of them than the link's depth.
 */
export function linkStaysInside(path: string, target: string): boolean {
  if (target === '' || posix.isAbsolute(target)) return false
  const parts = target.split('/').filter((part) => part !== '' && part !== '.')
  const ups = parts.findIndex((part) => part !== '..')
  const leading = ups === -1 ? parts.length : ups
  return leading < path.split('/').length && !parts.slice(leading).includes('..')
}

/** Compares in chunks and yields to other work after each. */
export async function sameContent(a: string, b: string): Promise<boolean> {
  const files: number[] = []
  const opened = (path: string): number => {
    const file = openSync(systemPath(path), 'r')
    files.push(file)
    return file
  }
  try {
    const one = opened(a)
    const other = opened(b)
    const left = Buffer.allocUnsafe(chunkBytes)
    const right = Buffer.allocUnsafe(chunkBytes)
    for (;;) {
      const count = readSync(one, left, 0, chunkBytes, null)
      if (count !== readSync(other, right, 0, chunkBytes, null)) return false
      if (count === 0) return true
      if (left.compare(right, 0, count, 0, count) !== 0) return false
      if (count === chunkBytes) await setImmediate()
    }
  } finally {
    for (const file of files) closeSync(file)
  }
}

async function isSame(a: Entry, b: Entry): Promise<boolean> {
  if (a.kind !== b.kind) return false
  if (a.kind === 'directory' || a.kind === 'unread') return true
  if (a.kind === 'link') return a.target === b.target
  if (a.stat.size !== b.stat.size) return false
  return (a.stat.ino === b.stat.ino && a.stat.dev === b.stat.dev) || sameContent(a.source, b.source)
}

/** @throws DriverError `user` for what was asked for by name; the error where it has another cause */
const whyUnread = (of: { label: string; named: boolean }, path: string, error: unknown): string => {
  if (!isErrno(error, 'EACCES', 'EPERM', 'ENAMETOOLONG', 'ELOOP')) throw error
  if (!of.named) return causeOf(error)
  throw new DriverError(
    'user',
    `${of.label} leaves ${namedPath(path)}, which cannot be read (${causeOf(error)}); ` +
      'leave it readable, or name other paths',
  )
}

/**
 * The planned content of the work directory, by relative path, parents before children. Links are
 * never followed on the way.
 */
async function plan(stages: readonly Stage[]): Promise<Map<string, Entry>> {
  const entries = new Map<string, Entry>()
  let seen = 0

  const add = async (path: string, entry: Entry): Promise<void> => {
    const other = entries.get(path)
    if (other === undefined) entries.set(path, entry)
    else if (!(await isSame(other, entry))) {
      throw new DriverError(
        'user',
        `${other.label} and ${entry.label} both leave ${namedPath(path)}, with different ` +
          'content; write to different paths',
      )
    }
  }

  /** A folder or file that this account cannot read is left out, unless it was asked for by name. */
  const unreadable = async (stage: Stage, path: string, stat: Stats, error: unknown): Promise<void> => {
    const { label } = stage
    const unread = whyUnread({ label, named: stage.paths !== undefined }, path, error)
    await add(path, { kind: 'unread', label, source: join(stage.from, path), stat, unread })
  }

  const visit = async (stage: Stage, path: string, stat: Stats): Promise<void> => {
    if (++seen % 256 === 0) await setImmediate()
    const source = join(stage.from, path)
    const { label } = stage
    if (stat.isDirectory()) {
      let names: string[]
      try {
        names = readdirSync(systemPath(source), { encoding: 'buffer' }).map(pathOfBytes)
      } catch (error) {
        return unreadable(stage, path === '' ? '.' : path, stat, error)
      }
      if (path !== '') await add(path, { kind: 'directory', label, source, stat })
      for (const name of names) {
        const below = path === '' ? name : `${path}/${name}`
        let found: Stats | undefined
        try {
          found = lstatSync(systemPath(join(source, name)))
        } catch (error) {
          await unreadable(stage, below, stat, error)
        }
        if (found !== undefined) await visit(stage, below, found)
      }
    } else if (stat.isSymbolicLink()) {
      const target = pathOfBytes(readlinkSync(systemPath(source), 'buffer'))
      if (!linkStaysInside(path, target)) {
        throw new DriverError(
          'user',
          `${label} leaves a link ${namedPath(path)} to ${namedPath(target)}, outside of ` +
            'its work directory; copy the file instead',
        )
      }
      await add(path, { kind: 'link', label, source, stat, target })
    } else if (stat.isFile())
      await add(path, { kind: 'file', label, source, stat, named: stage.paths !== undefined })
    // Sockets, pipes and devices are not data.
  }

  for (const stage of stages) {
    const top = lstatSync(stage.from, { throwIfNoEntry: false })
    if (top === undefined || !top.isDirectory()) {
      throw new DriverError(
        'refused',
        `the files of ${stage.label} are not at ${stage.from}; it is no directory there`,
      )
    }
    if (stage.paths === undefined) {
      await visit(stage, '', top)
      continue
    }
    for (const asked of stage.paths) {
      if (!isInside(asked))
        throw new DriverError(
          'refused',
          `path ${JSON.stringify(asked)} of ${stage.label} is not inside its work directory`,
        )
      const path = posix.normalize(asked).replace(/\/$/, '')
      const parts = path.split('/')
      for (const [depth] of parts.entries()) {
        const part = parts.slice(0, depth + 1).join('/')
        const stat = lstatSync(systemPath(join(stage.from, part)), { throwIfNoEntry: false })
        const last = depth === parts.length - 1
        if (stat === undefined || (!last && !stat.isDirectory())) {
          throw new DriverError(
            'user',
            `${stage.label} did not leave ${JSON.stringify(path)}; declare it among its expected outputs`,
          )
        }
        if (last) await visit(stage, path, stat)
        else await add(part, { kind: 'directory', label: stage.label, source: join(stage.from, part), stat })
      }
    }
  }
  return entries
}

/**
 * Fills `directory` from `stages` by reflink or copy. All or nothing: it is built beside its place
 * and renamed into it. A crash in the middle leaves a `.NAME.staging-…` folder, which
 * `removeStagingRemains` removes, and a repeat does no harm. A work directory with content stays as
 * it is: it was staged before.
 *
 * `record` gets the list of files before they are visible under `directory`; `isStarted` is called
 * at the last moment.
 *
 * @throws DriverError `user` for conflicts, links to the outside and undelivered paths, `refused`
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
    const entries = await plan(stages)
    if (entries.size === 0) return
    mkdirSync(building, { recursive: true, mode: 0o700 })
    const files = await build(building, entries)
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

async function build(root: string, entries: ReadonlyMap<string, Entry>): Promise<StagedFile[]> {
  const files: StagedFile[] = []
  let done = 0
  for (const [path, { kind, label, source, stat, target, unread, named = false }] of entries) {
    if (++done % 256 === 0) await setImmediate()
    const to = systemPath(join(root, path))
    if (unread !== undefined) files.push({ path, sizeBytes: 0, modifiedMs: 0, source, unread })
    else if (kind === 'directory') mkdirSync(to, { recursive: true, mode: stat.mode | 0o700 })
    else if (target !== undefined) {
      symlinkSync(systemPath(target), to)
      files.push({ path, sizeBytes: 0, modifiedMs: 0, source, target })
    } else {
      try {
        await copy(systemPath(source), to, stat)
        utimesSync(to, stat.atimeMs / 1000, stat.mtimeMs / 1000)
        files.push({ path, sizeBytes: stat.size, modifiedMs: stat.mtimeMs, source })
      } catch (error) {
        const why = whyUnread({ label, named }, path, error)
        // What was copied up to the error is no input.
        await rm(to, { force: true })
        files.push({ path, sizeBytes: 0, modifiedMs: 0, source, unread: why })
      }
    }
  }
  return files
}

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
