import { posix } from 'node:path'
import { append } from '../../../lists.ts'
import { namedPath } from '../../../outside-path.ts'
import { DriverError, type Collected, type Left, type Stage } from './driver.ts'

/** What a listing of a work directory says of a path in it. */
export interface Listed {
  kind: string
  /** Of a link. */
  target?: string | undefined
}

/** Where a path of a work directory leads, through all links on its way. */
export type Lead =
  /**
   * `path`: the real one, '' for the work directory itself; `links`: those on the way; `isRound`: the
   * way leads out of the directory and in again.
   */
  | { leads: 'inside'; path: string; links: readonly string[]; isRound: boolean }
  /** `last`: the link that leads away; undefined where the path is not there at all. */
  | { leads: 'outside' | 'nowhere' | 'in a circle'; last: { path: string; target: string } | undefined }

/** As many links as the kernel follows. */
const mostLinks = 40

/** A relative path without `..`, empty parts or a leading slash. */
export function isInside(path: string): boolean {
  return path !== '' && !path.includes('\0') && !posix.isAbsolute(path) && !path.split('/').includes('..')
}

/**
 * Whether a link stays inside through all other links: `..` only at its beginning (there the
 * parents are real directories), and not more of them than the link's depth.
 */
function linkStaysInside(path: string, target: string): boolean {
  if (target === '' || posix.isAbsolute(target)) return false
  const parts = partsOf(target)
  const ups = parts.findIndex((part) => part !== '..')
  const leading = ups === -1 ? parts.length : ups
  return leading < path.split('/').length && !parts.slice(leading).includes('..')
}

const partsOf = (path: string): string[] => path.split('/').filter((part) => part !== '' && part !== '.')

/** The parts of an absolute path below one of the roots; undefined: it is below none. */
const partsBelow = (roots: readonly string[], path: string): string[] | undefined => {
  for (const one of [path.replaceAll(/\/(?:\.?\/)+/g, '/'), posix.normalize(path)])
    for (const root of roots)
      if (one === root || one.startsWith(`${root}/`)) return partsOf(one.slice(root.length))
  return undefined
}

/** What is at a path of a work directory, undefined for nothing; `ahead`: the parts asked for next. */
export type LooksAt<E extends Listed> = (path: string, ahead: readonly string[]) => E | undefined

/**
 * Follows a path of a work directory. `roots`: the absolute paths by which the directory is or was
 * known, without a slash at the end.
 */
export const leadOf = (path: string, roots: readonly string[], at: LooksAt<Listed>): Lead => {
  let parts = partsOf(path)
  const place: string[] = []
  const links: string[] = []
  let last: { path: string; target: string } | undefined
  let isRound = false
  while (parts.length > 0) {
    const part = parts.shift() as string
    if (part === '..') {
      if (place.pop() !== undefined) continue
      // The way out may lead in again.
      const back = roots
        .map((root) => partsBelow([root], posix.join(posix.dirname(root), ...parts)))
        .find((below) => below !== undefined)
      if (back === undefined) return { leads: 'outside', last }
      parts = back
      isRound = true
      continue
    }
    place.push(part)
    const here = place.join('/')
    const found = at(here, parts)
    if (found?.kind === 'link' && found.target !== undefined) {
      last = { path: here, target: found.target }
      links.push(here)
      if (links.length > mostLinks) return { leads: 'in a circle', last }
      if (!posix.isAbsolute(found.target)) {
        place.pop()
        parts = [...partsOf(found.target), ...parts]
        continue
      }
      const below = partsBelow(roots, found.target)
      if (below === undefined) return { leads: 'outside', last }
      place.length = 0
      parts = [...below, ...parts]
    } else if (found === undefined || (parts.length > 0 && found.kind !== 'directory'))
      return { leads: 'nowhere', last }
  }
  return { leads: 'inside', path: place.join('/'), links, isRound }
}

const relativeTo = (path: string, real: string): string =>
  posix.relative(`/${posix.dirname(path)}`, `/${real}`) || '.'

/**
 * The target that a link at `path` gets in a copy of its directory; undefined: it is left out. One
 * that dangles or leads in a circle without leaving the directory stays as it is.
 */
export const targetInCopy = (
  path: string,
  target: string,
  roots: readonly string[],
  lead: Lead,
): string | undefined => {
  if (lead.leads === 'outside') return undefined
  // A link on a way round is not in the copy.
  const isRound = lead.leads === 'inside' && lead.isRound
  if (!isRound && linkStaysInside(path, target)) return target
  if (lead.leads === 'inside') return relativeTo(path, lead.path)
  const below = posix.isAbsolute(target) ? partsBelow(roots, target) : undefined
  return below === undefined || below.includes('..') ? undefined : relativeTo(path, below.join('/'))
}

/** Why a copy of the directory has not got this path: `it is a link to X, outside of …`. */
export const whyLeft = (path: string, lead: Lead): string => {
  if (lead.leads === 'inside' || lead.last === undefined) return 'it is not there'
  const { path: link, target } = lead.last
  const words = {
    outside: 'outside of its work directory',
    nowhere: 'where nothing is',
    'in a circle': 'which leads in a circle',
  }[lead.leads]
  const way = link === path ? 'it is a link' : `it leads by the link ${namedPath(link)}`
  return `${way} to ${namedPath(target)}, ${words}`
}

/** What to do about a path that is a link to elsewhere. */
const linkRemedy = 'put a copy of the file in its place, or name other paths'

/** @throws DriverError `user` about a path that was asked for by name and does not lead inside */
export const notDelivered = (label: string, path: string, lead: Lead): DriverError =>
  new DriverError(
    'user',
    lead.leads === 'inside' || lead.last === undefined
      ? `${label} did not leave ${namedPath(path)}; declare it among its expected outputs, and leave it readable`
      : `${label} leaves ${namedPath(path)}, which is no file of its own: ${whyLeft(path, lead)}; ${linkRemedy}`,
  )

/** The expected outputs that do not lead to a path inside, as results of an ended task. */
export const missingOf = (
  expected: readonly string[],
  lead: (path: string) => Lead,
): Pick<Collected, 'missingOutputs' | 'strayOutputs'> => {
  const missingOutputs: string[] = []
  const strayOutputs: Left[] = []
  for (const path of expected) {
    const found = lead(path)
    if (found.leads === 'inside' && found.path !== '') continue
    missingOutputs.push(path)
    if (found.leads !== 'inside' && found.last !== undefined)
      strayOutputs.push({ path, why: whyLeft(path, found) })
  }
  return { missingOutputs, ...(strayOutputs.length === 0 ? {} : { strayOutputs }) }
}

/** Without `.` and a last slash; '' is the folder itself. */
const plainStagePath = (path: string): string => posix.normalize(path).replace(/\/$|^\.$/, '')

/** The paths of a stage in plain form. @throws DriverError `refused` for one that leads out */
export const askedPaths = ({ label, paths = [] }: Pick<Stage, 'label' | 'paths'>): string[] =>
  paths.map((path) => {
    if (isInside(path)) return plainStagePath(path)
    throw new DriverError('refused', `path ${namedPath(path)} of ${label} is not inside its work directory`)
  })

/** The absolute paths by which the directory of a stage is or was known. */
export const stageRoots = ({ from, madeAt }: Pick<Stage, 'from' | 'madeAt'>): string[] =>
  [from, madeAt].flatMap((root) => (root === undefined ? [] : [root.replace(/\/+$/, '')]))

/** The folders above a path, the outermost first. */
export const foldersAbove = (path: string): string[] => {
  const folders: string[] = []
  for (let slash = path.indexOf('/'); slash > 0; slash = path.indexOf('/', slash + 1))
    folders.push(path.slice(0, slash))
  return folders
}

/**
 * Whether an expected output of the producer or a data dependency of the consumer names a path, or a
 * folder above it; of a stage without such names all are named.
 */
export const namesOf = ({ named }: Stage): ((path: string) => boolean) => {
  if (named === undefined) return () => true
  const names = new Set(named.map(plainStagePath))
  return (path) => names.has('') || names.has(path) || foldersAbove(path).some((folder) => names.has(folder))
}

/** Two predecessors leave a path that one of them names. */
export const conflict = (path: string, one: string, other: string): DriverError =>
  new DriverError(
    'user',
    `${one} and ${other} both leave ${namedPath(path)}, with different content; write to different paths`,
  )

/** Why an entry of an earlier predecessor is not brought. */
export const replaced = (one: string, other: string): string =>
  `that of ${one} differs from that of ${other}, which was`

/**
 * Removes the entries below a path that another predecessor's entry takes.
 * @param before the entry that is at the path
 * @throws DriverError `user` where a predecessor names one of them
 */
export const makeRoom = <E extends { named: (path: string) => boolean }>(
  entries: Map<string, E>,
  { path, before, next }: { path: string; before: { isFolder: boolean }; next: E },
  labels: readonly [string, string],
): void => {
  const below = before.isFolder ? [...entries.keys()].filter((one) => one.startsWith(`${path}/`)) : []
  if ([path, ...below].some((one) => next.named(one) || entries.get(one)?.named(one) === true))
    throw conflict(path, ...labels)
  for (const one of below) entries.delete(one)
}

/** Where a walk looks for the entries of a work directory. */
export interface StageLooks<E extends Listed> {
  at: LooksAt<E>
  /** All entries below a folder, parents before children. */
  below: (folder: string) => Iterable<readonly [path: string, entry: E]>
}

/** What a stage brings of its directory: all of it, or its paths with all that they lead to. */
export interface StageWalk<E extends Listed> {
  /**
   * Each once, parents before children, with a link's target in the copy; or why it is left out.
   * Throws DriverError `user` for a path that is not there or leads out.
   */
  found: Generator<{ path: string; entry: E } | Left>
  /** What was asked for, and what it leads to, as far as `found` came; undefined: all. */
  tops: () => string[] | undefined
}

/** The entries that a stage brings; the folder itself is among them where `below` has it. */
export const walkStage = <E extends Listed>(
  { label, paths }: Pick<Stage, 'label' | 'paths'>,
  roots: readonly string[],
  { at, below }: StageLooks<E>,
): StageWalk<E> => {
  const asked = paths === undefined ? [''] : askedPaths({ label, paths })
  const isWhole = asked.includes('')
  const tops = new Set<string>()
  /** Links on the way: each is brought, and not all that it leads to. */
  const ways = new Set<string>()
  const seen = new Set<string>()

  const follow = (lead: Lead): void => {
    if (isWhole || lead.leads !== 'inside') return
    for (const link of lead.links) ways.add(link)
    if (lead.path !== '') tops.add(lead.path)
  }
  function* one(path: string, entry: E | undefined, isFollowed: boolean): StageWalk<E>['found'] {
    if (entry === undefined || seen.has(path)) return
    seen.add(path)
    if (entry.kind !== 'link' || entry.target === undefined) return void (yield { path, entry })
    const lead = leadOf(path, roots, at)
    const target = targetInCopy(path, entry.target, roots, lead)
    if (target === undefined) return void (yield { path, why: whyLeft(path, lead) })
    yield { path, entry: { ...entry, target } }
    if (isFollowed) follow(lead)
  }
  function* withFolders(path: string, isFollowed: boolean): StageWalk<E>['found'] {
    for (const each of [...foldersAbove(path), path]) yield* one(each, at(each, []), isFollowed)
  }
  function* everything(): StageWalk<E>['found'] {
    for (const path of isWhole ? [] : asked) {
      const lead = leadOf(path, roots, at)
      if (lead.leads !== 'inside') throw notDelivered(label, path, lead)
      follow(lead)
    }
    const whole = new Set<string>()
    // Tops and ways grow while links are followed.
    for (const top of isWhole ? [''] : tops) {
      if (foldersAbove(top).some((folder) => whole.has(folder))) continue
      if (top !== '') yield* withFolders(top, true)
      if (top !== '' && at(top, [])?.kind !== 'directory') continue
      whole.add(top)
      for (const [path, entry] of below(top)) yield* one(path, entry, true)
    }
    for (const link of ways) yield* withFolders(link, false)
  }
  return { found: everything(), tops: () => (isWhole ? undefined : [...tops, ...ways]) }
}

/** What a stage brings of a listed directory. */
export interface StageSelection<E extends Listed> {
  /** By path; links have the targets that they get. The folder itself ('') is among them if listed. */
  entries: Map<string, E>
  /** What was asked for, and what it leads to; undefined: all. */
  tops: string[] | undefined
  /** Links that do not lead inside. */
  left: Left[]
}

/** The entries of a listing by the folder that they are in. */
const byFolder = (listing: Iterable<string>): Map<string, string[]> => {
  const folders = new Map<string, string[]>()
  for (const path of listing) {
    const folder = path.slice(0, Math.max(0, path.lastIndexOf('/')))
    const inIt = folders.get(folder)
    if (inIt === undefined) folders.set(folder, [path])
    else inIt.push(path)
  }
  return folders
}

/** Collects the paths that a traversal needs, so that the caller can list them. */
export interface Unknown {
  at: (path: string, ahead: readonly string[]) => void
  below: (folder: string) => void
}

/** Looks up paths in a listing; calls `unknown` with each path before its look-up. */
const looksInto = <E extends Listed>(listing: ReadonlyMap<string, E>, unknown?: Unknown): StageLooks<E> => {
  let folders: Map<string, string[]> | undefined
  function* below(folder: string): Iterable<readonly [string, E]> {
    if (folder === '') return yield* listing
    folders ??= byFolder(listing.keys())
    const open = (folders.get(folder) ?? []).toReversed()
    for (let path = open.pop(); path !== undefined; path = open.pop()) {
      const entry = listing.get(path)
      if (entry !== undefined) yield [path, entry]
      append(open, (folders.get(path) ?? []).toReversed())
    }
  }
  return {
    at: (path, ahead) => {
      unknown?.at(path, ahead)
      return listing.get(path)
    },
    below: (folder) => {
      unknown?.below(folder)
      return below(folder)
    },
  }
}

/**
 * What a stage brings of the listing of its directory; `unknown`: of a listing of some paths.
 *
 * @throws DriverError `user` for a path that is not there or leads out
 */
export const selected = <E extends Listed>(
  listing: ReadonlyMap<string, E>,
  stage: Pick<Stage, 'from' | 'madeAt' | 'label' | 'paths'>,
  unknown?: Unknown,
): StageSelection<E> => {
  const entries = new Map<string, E>()
  const left: Left[] = []
  const root = listing.get('')
  if (root !== undefined) entries.set('', root)
  const { found, tops } = walkStage(stage, stageRoots(stage), looksInto(listing, unknown))
  for (const one of found)
    if ('why' in one) left.push(one)
    else entries.set(one.path, one.entry)
  return { entries, tops: tops(), left }
}
