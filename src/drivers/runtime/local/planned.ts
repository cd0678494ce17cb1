import { lstatSync, readdirSync, readlinkSync, realpathSync, type Stats } from 'node:fs'
import { join } from 'node:path'
import { setImmediate } from 'node:timers/promises'
import { namedPath, pathOfBytes, systemPath } from '../../../outside-path.ts'
import { DriverError, type Left, type Stage } from '../contract/driver.ts'
import { causeOf, isErrno } from '../contract/errno.ts'
import {
  leadOf,
  makeRoom,
  namesOf,
  replaced,
  stageRoots,
  walkStage,
  type Lead,
  type Listed,
} from '../contract/links.ts'
import { sameContent } from './same-content.ts'

/** What a work directory gets at a path; `target`: of a link. */
export interface PlannedEntry {
  kind: 'file' | 'directory' | 'link'
  label: string
  source: string
  stat: Stats
  target?: string
  /** It, or a folder above it, was asked for by name. */
  asked: boolean
  /** Of its stage: `namesOf`. */
  named: (path: string) => boolean
}

/** The planned content of a work directory. */
export interface Planned {
  /** By relative path, parents before children. */
  entries: Map<string, PlannedEntry>
  /** What is not brought; `source`: its place. */
  left: (Left & { source: string })[]
}

/** Why a file is left out. @throws DriverError `user` for what was asked for; the error of another cause */
export const whyUnread = (
  of: Pick<PlannedEntry, 'label' | 'asked'>,
  path: string,
  error: unknown,
): string => {
  if (!isErrno(error, 'EACCES', 'EPERM', 'ENAMETOOLONG', 'ELOOP')) throw error
  if (!of.asked) return causeOf(error)
  throw new DriverError(
    'user',
    `${of.label} leaves ${namedPath(path)}, which cannot be read (${causeOf(error)}); ` +
      'leave it readable, or name other paths',
  )
}

async function isSame(a: PlannedEntry, b: PlannedEntry): Promise<boolean> {
  if (a.kind !== b.kind) return false
  if (a.kind === 'directory') return true
  if (a.kind === 'link') return a.target === b.target
  if (a.stat.size !== b.stat.size) return false
  return (a.stat.ino === b.stat.ino && a.stat.dev === b.stat.dev) || sameContent(a.source, b.source)
}

/** Collects entries of all stages; where two differ at a path that neither names, the later one stays. */
const openPlan = () => {
  const planned: Planned = { entries: new Map(), left: [] }
  const { entries, left } = planned

  const replace = (path: string, other: PlannedEntry, entry: PlannedEntry): void => {
    const labels = [other.label, entry.label] as const
    makeRoom(entries, { path, before: { isFolder: other.kind === 'directory' }, next: entry }, labels)
    left.push({ path, source: other.source, why: replaced(...labels) })
  }

  return {
    planned,
    add: async (path: string, entry: PlannedEntry): Promise<void> => {
      const other = entries.get(path)
      if (other !== undefined) {
        if (await isSame(other, entry)) return
        replace(path, other, entry)
      }
      entries.set(path, entry)
    },
  }
}

type Plan = ReturnType<typeof openPlan>

const statAt = (root: string, path: string): Stats | undefined => {
  try {
    return lstatSync(systemPath(join(root, path)), { throwIfNoEntry: false })
  } catch (error) {
    if (isErrno(error, 'EACCES', 'EPERM', 'ENAMETOOLONG', 'ELOOP', 'ENOTDIR')) return undefined
    throw error
  }
}

const linkAt = (root: string, path: string): string =>
  pathOfBytes(readlinkSync(systemPath(join(root, path)), 'buffer'))

/** An entry of a folder on this machine. */
interface Found extends Listed {
  kind: PlannedEntry['kind'] | 'other'
  stat: Stats
}

const foundOf = (root: string, path: string, stat: Stats): Found => {
  if (stat.isSymbolicLink()) return { kind: 'link', stat, target: linkAt(root, path) }
  return { kind: stat.isDirectory() ? 'directory' : stat.isFile() ? 'file' : 'other', stat }
}

/** What is at a path of a folder, as `leadOf` asks for it. */
const foundAt =
  (root: string) =>
  (path: string): Found | undefined => {
    const stat = statAt(root, path)
    return stat === undefined ? undefined : foundOf(root, path, stat)
  }

/** All entries below a folder of `root`; calls `unread` for each one that cannot be read. */
function* foundBelow(
  root: string,
  folder: string,
  unread: (path: string, error: unknown) => void,
): Generator<[path: string, found: Found]> {
  const open: string[] = []
  /** False where the folder cannot be read. */
  const opened = (path: string): boolean => {
    try {
      const names = readdirSync(systemPath(join(root, path)), { encoding: 'buffer' }).map(pathOfBytes)
      for (const name of names.toReversed()) open.push(path === '' ? name : `${path}/${name}`)
      return true
    } catch (error) {
      unread(path, error)
      return false
    }
  }
  opened(folder)
  // Each is looked at in its turn: a look at all names of a large folder at once would hold up the
  // whole process.
  for (let path = open.pop(); path !== undefined; path = open.pop()) {
    let found: Found
    try {
      found = foundOf(root, path, lstatSync(systemPath(join(root, path))))
    } catch (error) {
      unread(path, error)
      continue
    }
    if (found.kind !== 'directory' || opened(path)) yield [path, found]
  }
}

/** The absolute paths of a folder, also where the way to it has links. */
const allRootsOf = (stage: Pick<Stage, 'from' | 'madeAt'>): string[] => [
  ...new Set([...stageRoots(stage), pathOfBytes(realpathSync.native(stage.from, 'buffer'))]),
]

/** Where paths of a work directory on this machine lead, through all links on their way. */
export const leadsAt = (root: string): ((path: string) => Lead) => {
  const [roots, at] = [allRootsOf({ from: root }), foundAt(root)]
  return (path) => leadOf(path, roots, at)
}

/** Adds what one stage brings. */
const addStage = async (stage: Stage, { planned, add }: Plan): Promise<void> => {
  const { from, label } = stage
  const common = { label, asked: stage.paths !== undefined, named: namesOf(stage) }
  const leave = (path: string, why: string): void =>
    void planned.left.push({ path, source: join(from, path), why })
  const { found } = walkStage(stage, allRootsOf(stage), {
    at: foundAt(from),
    below: (folder) =>
      foundBelow(from, folder, (path, error) => leave(path || '.', whyUnread(common, path, error))),
  })
  let seen = 0
  for (const one of found) {
    if (++seen % 256 === 0) await setImmediate()
    const { path } = one
    if ('why' in one) {
      leave(path, one.why)
      continue
    }
    const { kind, stat, target } = one.entry
    // Sockets, pipes and devices are not data.
    if (kind === 'other') continue
    const source = join(from, path)
    await add(path, { kind, source, stat, ...(target === undefined ? {} : { target }), ...common })
  }
}

/**
 * The planned content of a work directory, from all stages in their order. Links are never followed
 * on the way: those that lead inside stay links, the others are left out.
 *
 * @throws DriverError `user` for conflicts at named paths and for asked paths that are not there or
 *   lead out, `refused` for missing sources
 */
export async function planned(stages: readonly Stage[]): Promise<Planned> {
  const plan = openPlan()
  for (const stage of stages) {
    const top = lstatSync(stage.from, { throwIfNoEntry: false })
    if (top === undefined || !top.isDirectory()) {
      throw new DriverError(
        'refused',
        `the files of ${stage.label} are not at ${stage.from}; it is no directory there`,
      )
    }
    for (const { path, why } of stage.left ?? [])
      plan.planned.left.push({ path, why, source: join(stage.from, path) })
    await addStage(stage, plan)
  }
  return plan.planned
}
