import { posix } from 'node:path'
import { bytesOfPath, namedPath } from '../../outside-path.ts'
import { fieldsOf } from '../../shell/fields.ts'
import { DriverError, type Left, type Stage } from '../runtime/contract/driver.ts'
import { askedPaths, foldersAbove, selected, type Unknown } from '../runtime/contract/links.ts'

/** The files below a directory at a site. Paths (`outside-path.ts`) are relative to it. */
export type Tree = Map<string, TreeEntry>

export interface TreeEntry {
  kind: 'file' | 'directory' | 'link'
  /** Permission bits, without set-id bits. */
  mode: number
  sizeBytes: number
  /** Last change, whole seconds since epoch: the precision of tar. */
  modified: number
  /** Target of a symbolic link; else empty. */
  target: string
  /** A link that has another target at the source: it is made at the target, not packed. */
  isNew?: true
}

/** The producer has to pack larger trees: the list alone would be 100 MB. */
export const mostEntries = 1_000_000

/** Longest path that a call of Linux takes, in bytes, as our scripts say it: `./PATH`. */
const longestPath = 4_093

const kinds: Record<string, TreeEntry['kind'] | undefined> = { f: 'file', d: 'directory', l: 'link' }

/**
 * Parses the output of `listScript`: `type mode size seconds` NUL path NUL link NUL. Sockets, pipes
 * and devices are not data; what the account may not read, or is too deep to be opened, stays there.
 */
export const parseTree = (output: Buffer, label: string): Tree => {
  const tree: Tree = new Map()
  const fields = fieldsOf(output)
  if (fields.length > mostEntries * 3 + 1) throw tooMany(label)
  for (let at = 0; at + 2 < fields.length; at += 3) {
    const [type = '', mode = '', size = '', seconds = ''] = (fields[at] as string).split(' ')
    const kind = kinds[type]
    const path = (fields[at + 1] as string).replace(/^\.\/?/, '')
    if (kind === undefined || path === '' || isTooDeep(path)) continue
    tree.set(path, {
      kind,
      mode: Number.parseInt(mode, 8) & 0o777,
      sizeBytes: kind === 'file' ? Number(size) : 0,
      modified: Math.floor(Number(seconds)),
      target: kind === 'link' ? (fields[at + 2] as string) : '',
    })
  }
  return tree
}

const tooMany = (label: string): DriverError =>
  new DriverError(
    'refused',
    `${label} leaves more than ${mostEntries.toLocaleString('en')} files; pack them into archives`,
  )

const isTooDeep = (path: string): boolean =>
  path.length > longestPath / 4 && bytesOfPath(path).length > longestPath

/** Paths to list: with all that is in them, and alone. */
export interface PathsToList {
  asked: readonly string[]
  parents: readonly string[]
}

/** What a transfer brings of a directory. */
export interface Brought {
  tree: Tree
  /** Links that lead away. */
  left: Left[]
}

type ListedStage = Pick<Stage, 'from' | 'madeAt' | 'label' | 'paths'>

/** What a transfer brings of the listing of a directory; a link with another target is to be made. */
const broughtOf = (listing: Tree, stage: ListedStage, unknown: Unknown): Brought => {
  const { entries, left } = selected(listing, stage, unknown)
  for (const [path, entry] of entries)
    if (entry.target !== listing.get(path)?.target) entries.set(path, { ...entry, isNew: true })
  return { tree: entries, left }
}

/** Lists of paths of one directory; more are one list of all. */
const mostLists = 20
/** Paths of one list; more are a list of all. */
const mostPaths = 10_000

/**
 * What a transfer brings of a directory, of which `list` lists some paths, or all. Links are followed
 * list by list, so that a directory of any size is listed only where they lead.
 *
 * @throws DriverError `user` for a path that is not there or leads out, `refused` for too many files
 */
export const broughtBy = async (
  list: (paths: PathsToList | undefined) => Promise<Tree>,
  stage: ListedStage,
): Promise<Brought> => {
  const listing: Tree = new Map()
  const whole = new Set<string>()
  const alone = new Set<string>()
  const isWhole = (path: string): boolean =>
    whole.has('') || whole.has(path) || foldersAbove(path).some((folder) => whole.has(folder))
  const asked = stage.paths === undefined ? [''] : askedPaths(stage)
  let wanted = { asked: new Set(asked), parents: new Set(asked.flatMap(foldersAbove)) }
  for (let lists = 1; ; lists++) {
    const isAll =
      wanted.asked.has('') ||
      lists > mostLists ||
      (lists > 1 && wanted.asked.size + wanted.parents.size > mostPaths)
    const { asked, parents } = wanted
    for (const path of isAll ? [''] : asked) whole.add(path)
    for (const path of parents) alone.add(path)
    for (const [path, entry] of await list(
      isAll ? undefined : { asked: [...asked], parents: [...parents] },
    )) {
      const folder = posix.dirname(path)
      // What is listed through a link has another path.
      if (folder === '.' || listing.get(folder)?.kind === 'directory') listing.set(path, entry)
    }
    if (listing.size > mostEntries) throw tooMany(stage.label)
    wanted = { asked: new Set(), parents: new Set() }
    const unknown: Unknown = {
      at: (path, ahead) => {
        if (isWhole(path) || alone.has(path)) return
        const up = ahead.indexOf('..')
        const way = posix.join(path, ...(up === -1 ? ahead : ahead.slice(0, up)))
        for (const folder of foldersAbove(way)) if (!alone.has(folder)) wanted.parents.add(folder)
        // Alone: a link on the way may lead out of the directory, to a tree of any size.
        wanted.parents.add(way)
      },
      below: (folder) => {
        if (!isWhole(folder)) wanted.asked.add(folder)
      },
    }
    const isKnown = (): boolean => wanted.asked.size + wanted.parents.size === 0
    try {
      const brought = broughtOf(listing, stage, unknown)
      if (isKnown()) return brought
    } catch (error) {
      // A path that is not listed yet looks as if it were not there.
      if (isKnown()) throw error
    }
  }
}

/** The first difference in names, kinds, sizes and links, as text; undefined: none. */
export const differenceBetween = (one: Tree, other: Tree): string | undefined => {
  for (const [path, entry] of one) {
    const twin = other.get(path)
    if (twin === undefined) return `${namedPath(path)} is not there`
    if (twin.kind !== entry.kind) return `${namedPath(path)} is a ${twin.kind} there`
    if (twin.sizeBytes !== entry.sizeBytes)
      return `${namedPath(path)} has ${String(twin.sizeBytes)} of ${String(entry.sizeBytes)} bytes there`
    if (twin.target !== entry.target) return `${namedPath(path)} is a link to ${namedPath(twin.target)} there`
  }
  for (const path of other.keys()) if (!one.has(path)) return `${namedPath(path)} is there only`
  return undefined
}

export const contentBytes = (tree: Tree): number => {
  let sum = 0
  for (const { sizeBytes } of tree.values()) sum += sizeBytes
  return sum
}

/** Regular files and links. */
export const fileCount = (tree: Tree): number => {
  let count = 0
  for (const { kind } of tree.values()) if (kind !== 'directory') count++
  return count
}
