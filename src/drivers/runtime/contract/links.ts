import { posix } from 'node:path'
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
  /** `path`: the real one, '' for the work directory itself; `links`: those on the way. */
  | { leads: 'inside'; path: string; links: readonly string[] }
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

/**
 * Follows a path of a work directory. `roots`: the absolute paths by which the directory is or was
 * known, without a slash at the end; `at`: what is at a path below it, undefined for nothing.
 */
export const leadOf = (
  path: string,
  roots: readonly string[],
  at: (path: string) => Listed | undefined,
): Lead => {
  let parts = partsOf(path)
  const place: string[] = []
  const links: string[] = []
  let last: { path: string; target: string } | undefined
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
      continue
    }
    place.push(part)
    const here = place.join('/')
    const found = at(here)
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
  return { leads: 'inside', path: place.join('/'), links }
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
  if (linkStaysInside(path, target)) return target
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

/** What a stage brings of a listed directory. */
export interface StageSelection<E extends Listed> {
  /** By path; links have the targets that they get. The folder itself ('') is among them if listed. */
  entries: Map<string, E>
  /** What was asked for, and what it leads to; undefined: all. */
  tops: string[] | undefined
  /** Links that do not lead inside. */
  left: Left[]
}

/**
 * What a stage brings of the whole listing of its directory: all of it, or its paths with all that
 * they lead to.
 *
 * @throws DriverError `user` for a path that is not there or leads out
 */
export const selected = <E extends Listed>(
  listing: ReadonlyMap<string, E>,
  stage: Pick<Stage, 'from' | 'madeAt' | 'label' | 'paths'>,
): StageSelection<E> => {
  const roots = stageRoots(stage)
  const at = (path: string): E | undefined => listing.get(path)
  const entries = new Map<string, E>()
  const left = new Map<string, Left>()
  const tops = new Set<string>()
  /** Links on the way: each is brought, and not all that it leads to. */
  const ways = new Set<string>()
  const add = (path: string, entry: E): void => {
    if (entries.has(path)) return
    if (entry.kind !== 'link' || entry.target === undefined) return void entries.set(path, entry)
    const lead = leadOf(path, roots, at)
    const target = targetInCopy(path, entry.target, roots, lead)
    if (target === undefined) return void left.set(path, { path, why: whyLeft(path, lead) })
    entries.set(path, { ...entry, target })
    follow(lead)
  }
  const follow = (lead: Lead): void => {
    if (lead.leads !== 'inside') return
    for (const link of lead.links) ways.add(link)
    if (lead.path !== '') tops.add(lead.path)
  }
  const addWay = (path: string): void => {
    const entry = at(path)
    if (entries.has(path) || entry?.target === undefined) return
    const target = targetInCopy(path, entry.target, roots, leadOf(path, roots, at))
    if (target !== undefined) entries.set(path, { ...entry, target })
  }
  const asked = stage.paths === undefined ? [''] : askedPaths(stage)
  if (asked.includes('')) {
    for (const [path, entry] of listing) add(path, entry)
    return { entries, tops: undefined, left: [...left.values()] }
  }
  for (const path of asked) {
    const lead = leadOf(path, roots, at)
    if (lead.leads !== 'inside') throw notDelivered(stage.label, path, lead)
    follow(lead)
  }
  const root = at('')
  if (root !== undefined) entries.set('', root)
  const whole = new Set<string>()
  // It grows while links are followed.
  for (const top of tops) {
    for (const path of [...foldersAbove(top), top]) {
      const entry = at(path)
      if (entry !== undefined) add(path, entry)
    }
    if (at(top)?.kind !== 'directory' || foldersAbove(top).some((folder) => whole.has(folder))) continue
    whole.add(top)
    for (const [path, entry] of listing) if (path.startsWith(`${top}/`)) add(path, entry)
  }
  for (const link of ways) {
    for (const folder of foldersAbove(link)) {
      const entry = at(folder)
      if (entry !== undefined) add(folder, entry)
    }
    addWay(link)
  }
  return { entries, tops: [...tops, ...ways], left: [...left.values()] }
}
