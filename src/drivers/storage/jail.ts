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

  const { fileAtSite, writeFrom } = driver
  return {
    capabilities: driver.capabilities,
    ...(fileAtSite && {
      fileAtSite: async (path) => {
        inside(path)
        return fileAtSite(path)
      },
    }),
    ...(writeFrom && {
      writeFrom: async (path, file, options) => {
        changing(path)
        return writeFrom(path, file, options)
      },
    }),
    async list(path, options): Promise<EntryPage> {
      const way = above(path)
      if (way.length > 0) {
        const rest = way.filter((name) => options.after === undefined || name > options.after)
        const entries = rest.slice(0, options.limit).map(wayEntry)
        return { entries, ...(rest.length > options.limit ? { next: entries.at(-1)?.name } : {}) }
      }
      inside(path)
      const { entries, ...more } = await driver.list(path, options)
      return { entries: entries.map((entry) => shown(entry, [...path, entry.name])), ...more }
    },
    async stat(path, options) {
      if (above(path).length > 0) return wayEntry(path.at(-1) ?? ('' as ByteName))
      inside(path)
      return shown(await driver.stat(path, options), path)
    },
    // Each returns a promise also where the path is refused.
    async read(path, options) {
      inside(path)
      return driver.read(path, options)
    },
    async digest(path, options) {
      inside(path)
      return driver.digest(path, options)
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
    async readMany(folder, names, options) {
      for (const name of names) inside([...folder, name])
      return driver.readMany(folder, names, options)
    },
    async writeMany(folder, files, options) {
      for (const { name } of files) changing([...folder, name])
      return driver.writeMany(folder, files, options)
    },
    async openUpload(path, options) {
      changing(path)
      return driver.openUpload(path, options)
    },
    async received(path, upload, options) {
      changing(path)
      return driver.received(path, upload, options)
    },
    async discard(path, upload, options) {
      changing(path)
      return driver.discard(path, upload, options)
    },
    async delete(path, options) {
      changing(path)
      return driver.delete(path, options)
    },
    async copyWithin(from, to, options) {
      changing(to)
      return driver.copyWithin(from, to, options)
    },
    async makeDirectory(path, options) {
      // A root and the way to it count as there.
      if (!readOnly && roots.some((root) => isBelow(root.path, path))) return
      changing(path)
      return driver.makeDirectory(path, options)
    },
    async makeLink(path, target, options) {
      changing(path)
      return driver.makeLink(path, target, options)
    },
    async setAttributes(path, attributes, options) {
      changing(path)
      return driver.setAttributes(path, attributes, options)
    },
    space: (options) => driver.space(options),
    async presign(path, seconds) {
      inside(path)
      return driver.presign(path, seconds)
    },
    close: () => driver.close(),
  }
}
