import { around, type StorageMethod } from './around.ts'
import { StorageError, type Entry, type EntryPage, type StorageDriver } from './contract.ts'
import { isBelow, quotedPath, type ByteName, type StoragePath } from './paths.ts'

/** A visible part of a storage. */
export interface Root {
  path: StoragePath
  readOnly: boolean
}

const refusal = (path: StoragePath): StorageError =>
  new StorageError(
    'outside',
    `${quotedPath(path)} lies outside every root of the storage; see its roots, or approve another one`,
  )

/** The next names on the way from a folder above the roots to them. */
const towards = (path: StoragePath, roots: readonly Root[]): ByteName[] =>
  [
    ...new Set(
      roots
        .filter((root) => root.path.length > path.length && isBelow(root.path, path))
        .map((root) => root.path[path.length]!),
    ),
  ].sort()

const wayEntry = (name: ByteName): Entry => ({ name, type: 'directory', readable: true, writable: false })

/** What a call does with its paths. */
const effects: Readonly<Record<StorageMethod, 'sees' | 'changes' | 'none'>> = {
  ...{ list: 'sees', stat: 'sees', read: 'sees', readMany: 'sees', digest: 'sees', fileAtSite: 'sees' },
  ...{ presign: 'sees', write: 'changes', writeMany: 'changes', writeFrom: 'changes', copyWithin: 'changes' },
  ...{ openUpload: 'changes', received: 'changes', discard: 'changes', delete: 'changes' },
  ...{ makeDirectory: 'changes', makeLink: 'changes', setAttributes: 'changes', space: 'none' },
}

/** The paths of a call's arguments. */
const pathsOf = (method: StorageMethod, [first, second]: readonly unknown[]): StoragePath[] => {
  const path = first as StoragePath
  if (method === 'readMany') return (second as ByteName[]).map((name) => [...path, name])
  if (method === 'writeMany') return (second as { name: ByteName }[]).map(({ name }) => [...path, name])
  return [path]
}

/**
 * The same storage with only the files below the roots visible. Above the roots it lists only the
 * way to them. Files below a read-only root, or in a read-only storage, cannot be changed:
 * `readOnly`.
 */
export const withJail = (
  driver: StorageDriver,
  { roots, readOnly }: { roots: readonly Root[]; readOnly: boolean },
): StorageDriver => {
  const rootOf = (path: StoragePath): Root | undefined => roots.find((root) => isBelow(path, root.path))
  const inside = (path: StoragePath): void => {
    if (rootOf(path) === undefined) throw refusal(path)
  }
  const changing = (path: StoragePath): void => {
    inside(path)
    if (readOnly) throw new StorageError('readOnly', 'the storage is read-only; choose another one')
    const root = roots.find((each) => each.readOnly && isBelow(path, each.path))
    if (root !== undefined)
      throw new StorageError('readOnly', `the root ${quotedPath(root.path)} is read-only; choose another one`)
    if (roots.some((each) => isBelow(each.path, path)))
      throw new StorageError(
        'notFile',
        `${quotedPath(path)} is a root of the storage, or leads to one; name an entry below it`,
      )
  }
  const shown = (entry: Entry, path: StoragePath): Entry => {
    const fixed = readOnly || roots.some((root) => root.readOnly && isBelow(path, root.path))
    return fixed ? { ...entry, writable: false } : entry
  }
  const above = (path: StoragePath): ByteName[] => (rootOf(path) === undefined ? towards(path, roots) : [])

  const guarded = around(driver, async (method, args, work) => {
    if (effects[method] !== 'none')
      for (const path of pathsOf(method, args)) (effects[method] === 'sees' ? inside : changing)(path)
    return work()
  })
  return {
    ...guarded,
    async list(path, options): Promise<EntryPage> {
      const way = above(path)
      if (way.length > 0) {
        const rest = way.filter((name) => options.after === undefined || name > options.after)
        const entries = rest.slice(0, options.limit).map(wayEntry)
        return { entries, ...(rest.length > options.limit ? { next: entries.at(-1)?.name } : {}) }
      }
      const { entries, ...more } = await guarded.list(path, options)
      return { entries: entries.map((entry) => shown(entry, [...path, entry.name])), ...more }
    },
    async stat(path, options) {
      if (above(path).length > 0) return wayEntry(path.at(-1) ?? ('' as ByteName))
      return shown(await guarded.stat(path, options), path)
    },
    async write(path, source, options) {
      try {
        changing(path)
      } catch (error) {
        source.destroy()
        throw error
      }
      return driver.write(path, source, options)
    },
    async makeDirectory(path, options) {
      // A root and the way to it count as there.
      if (!readOnly && roots.some((root) => isBelow(root.path, path))) return
      await guarded.makeDirectory(path, options)
    },
  }
}
