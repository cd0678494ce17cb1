import { bytesOfPath, namedPath } from '../../outside-path.ts'
import { fieldsOf } from '../../shell/fields.ts'
import { DriverError, type Left, type Stage } from '../runtime/contract/driver.ts'
import { askedPaths, foldersAbove, selected } from '../runtime/contract/links.ts'

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
  if (fields.length > mostEntries * 3 + 1)
    throw new DriverError(
      'refused',
      `${label} leaves more than ${mostEntries.toLocaleString('en')} files; pack them into archives`,
    )
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

const isTooDeep = (path: string): boolean =>
  path.length > longestPath / 4 && bytesOfPath(path).length > longestPath

/** The paths that are asked for, with the folders above them. */
export const pathsAsked = (
  paths: readonly string[],
  label: string,
): { asked: string[]; parents: string[] } => {
  const asked = askedPaths({ label, paths })
  return { asked, parents: [...new Set(asked.flatMap(foldersAbove))] }
}

/** What a transfer brings of a directory. */
export interface Brought {
  tree: Tree
  /** Links that lead away. */
  left: Left[]
}

/** What a transfer brings of the listing of a directory; a link with another target is to be made. */
export const broughtOf = (
  listing: Tree,
  stage: Pick<Stage, 'from' | 'madeAt' | 'label' | 'paths'>,
): Brought => {
  const { entries, left } = selected(listing, stage)
  for (const [path, entry] of entries)
    if (entry.target !== listing.get(path)?.target) entries.set(path, { ...entry, isNew: true })
  return { tree: entries, left }
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
