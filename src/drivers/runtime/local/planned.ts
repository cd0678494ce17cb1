import { lstatSync, readdirSync, readlinkSync, realpathSync, type Stats } from 'node:fs'
import { join } from 'node:path'
import { setImmediate } from 'node:timers/promises'
import { namedPath, pathOfBytes, systemPath } from '../../../outside-path.ts'
import { DriverError, type Left, type Stage } from '../contract/driver.ts'
import { causeOf, isErrno } from '../contract/errno.ts'
import {
  askedPaths,
  foldersAbove,
  leadOf,
  makeRoom,
  namesOf,
  notDelivered,
  replaced,
  stageRoots,
  targetInCopy,
  whyLeft,
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

/** What is at a path of a folder, as `leadOf` asks for it. */
const listedAt =
  (root: string) =>
  (path: string): Listed | undefined => {
    const stat = statAt(root, path)
    if (stat === undefined) return undefined
    if (stat.isSymbolicLink()) return { kind: 'link', target: linkAt(root, path) }
    return { kind: stat.isDirectory() ? 'directory' : 'file' }
  }

/** The absolute paths of a folder, also where the way to it has links. */
const allRootsOf = (stage: Pick<Stage, 'from' | 'madeAt'>): string[] => [
  ...new Set([...stageRoots(stage), pathOfBytes(realpathSync.native(stage.from, 'buffer'))]),
]

/** Where paths of a work directory on this machine lead, through all links on their way. */
export const leadsAt = (root: string): ((path: string) => Lead) => {
  const [roots, at] = [allRootsOf({ from: root }), listedAt(root)]
  return (path) => leadOf(path, roots, at)
}

/** Adds what one stage brings. */
const addStage = async (stage: Stage, { planned, add }: Plan): Promise<void> => {
  const { from, label } = stage
  const roots = allRootsOf(stage)
  const at = listedAt(from)
  const asked = askedPaths(stage)
  const isWhole = stage.paths === undefined || asked.includes('')
  const common = { label, asked: stage.paths !== undefined, named: namesOf(stage) }
  /** What is asked for, and what it leads to; it grows while links are followed. */
  const tops = new Set<string>()
  /** Links on the way: each is brought, and not all that it leads to. */
  const ways = new Set<string>()
  const leftHere = new Set<string>()
  const leave = (path: string, why: string): void => {
    if (leftHere.has(path)) return
    leftHere.add(path)
    planned.left.push({ path, source: join(from, path), why })
  }
  const follow = (lead: Lead): void => {
    if (isWhole || lead.leads !== 'inside') return
    for (const link of lead.links) ways.add(link)
    if (lead.path !== '') tops.add(lead.path)
  }

  let seen = 0
  const visit = async (path: string, stat: Stats): Promise<void> => {
    if (++seen % 256 === 0) await setImmediate()
    const source = join(from, path)
    if (stat.isDirectory()) {
      let names: string[]
      try {
        names = readdirSync(systemPath(source), { encoding: 'buffer' }).map(pathOfBytes)
      } catch (error) {
        return leave(path === '' ? '.' : path, whyUnread(common, path, error))
      }
      if (path !== '') await add(path, { kind: 'directory', source, stat, ...common })
      for (const name of names) {
        const below = path === '' ? name : `${path}/${name}`
        let found: Stats | undefined
        try {
          found = lstatSync(systemPath(join(source, name)))
        } catch (error) {
          leave(below, whyUnread(common, below, error))
        }
        if (found !== undefined) await visit(below, found)
      }
    } else if (stat.isSymbolicLink()) {
      const lead = leadOf(path, roots, at)
      const target = targetInCopy(path, linkAt(from, path), roots, lead)
      if (target === undefined) return leave(path, whyLeft(path, lead))
      await add(path, { kind: 'link', source, stat, target, ...common })
      follow(lead)
    } else if (stat.isFile()) await add(path, { kind: 'file', source, stat, ...common })
    // Sockets, pipes and devices are not data.
  }

  if (isWhole) return visit('', lstatSync(from))
  for (const path of asked) {
    const lead = leadOf(path, roots, at)
    if (lead.leads !== 'inside') throw notDelivered(label, path, lead)
    follow(lead)
  }
  const addAbove = async (below: string): Promise<void> => {
    for (const path of foldersAbove(below)) {
      const source = join(from, path)
      await add(path, { kind: 'directory', source, stat: lstatSync(systemPath(source)), ...common })
    }
  }
  const whole = new Set<string>()
  for (const top of tops) {
    if (foldersAbove(top).some((folder) => whole.has(folder))) continue
    await addAbove(top)
    const stat = statAt(from, top)
    if (stat?.isDirectory() === true) whole.add(top)
    if (stat !== undefined) await visit(top, stat)
  }
  for (const path of ways) {
    const stat = statAt(from, path)
    if (stat?.isSymbolicLink() !== true) continue
    await addAbove(path)
    await visit(path, stat)
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
