import { append } from '../../lists.ts'
import type { Entry, StorageDriver } from '../../drivers/storage/contract.ts'
import type { ByteName, StoragePath } from '../../drivers/storage/paths.ts'

/** Entries in one answer to a list request. */
const pageSize = 1_000

/** One page of a directory below the start of a walk. */
export interface TreePage {
  folder: StoragePath
  depth: number
  entries: Entry[]
  isFirst: boolean
  isLast: boolean
}

/** Whether a path of this service can hold the name. Object stores allow other names, like `..`. */
export const isReachable = (name: ByteName): boolean =>
  name !== '' && name !== '.' && name !== '..' && !/[/\0]/.test(name)

/**
 * Everything below a directory, each directory before its entries, in pages. Links are not
 * followed. Directories below `maxDepth` levels are not entered.
 */
export async function* pagesBelow(
  driver: StorageDriver,
  path: StoragePath,
  { maxDepth = Infinity, signal }: { maxDepth?: number; signal: AbortSignal },
): AsyncGenerator<TreePage> {
  const folders: StoragePath[] = [[]]
  for (let folder = folders.pop(); folder !== undefined; folder = folders.pop()) {
    const depth = folder.length
    const inner: StoragePath[] = []
    let after: string | undefined
    let isFirst = true
    do {
      signal.throwIfAborted()
      const { entries, next } = await driver.list([...path, ...folder], {
        ...{ limit: pageSize, after, brief: true, signal },
      })
      yield { folder, depth, entries, isFirst, isLast: next === undefined }
      if (depth + 1 < maxDepth)
        for (const { type, name } of entries)
          if (type === 'directory' && isReachable(name)) inner.push([...folder, name])
      isFirst = false
      after = next
    } while (after !== undefined)
    append(folders, inner.reverse())
  }
}
