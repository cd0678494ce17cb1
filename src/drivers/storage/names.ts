import type { ByteName, StoragePath } from './byte-name.ts'

/** The sorted names of a directory, and what its server says of it while none comes or goes. */
export interface ReadNames {
  stamp: string
  names: readonly ByteName[]
}

/** Smaller directories are read again for each page. */
const leastKept = 1_000
const mostBytes = 32 * 1024 * 1024
const keptMs = 60_000
/** A name takes so much beside its bytes. */
const nameBytes = 32

/**
 * The names of directories that were read lately: further pages of a large one need not read it
 * again. The oldest go above 32 MiB, and each after a minute. The caller compares the stamp.
 */
export const openNames = () => {
  const kept = new Map<string, ReadNames & { bytes: number; until: number }>()
  let bytes = 0
  const forget = (key: string): void => {
    bytes -= kept.get(key)?.bytes ?? 0
    kept.delete(key)
  }
  const keyOf = (path: StoragePath): string => path.join('/')

  return {
    find(path: StoragePath): ReadNames | undefined {
      const found = kept.get(keyOf(path))
      if (found !== undefined && found.until > performance.now()) return found
      forget(keyOf(path))
      return undefined
    },
    keep(path: StoragePath, { stamp, names }: ReadNames): void {
      const key = keyOf(path)
      forget(key)
      if (names.length < leastKept) return
      const own = names.reduce((sum, name) => sum + name.length + nameBytes, 0)
      if (own > mostBytes) return
      kept.set(key, { stamp, names, bytes: own, until: performance.now() + keptMs })
      bytes += own
      for (const [oldest, { until }] of kept)
        if (bytes > mostBytes || until <= performance.now()) forget(oldest)
        else break
    },
  }
}

/** The sorted names behind `after`, and the last of them where there are more. */
export const pageBehind = (
  names: readonly ByteName[],
  { after, limit }: { after?: string | undefined; limit: number },
): { page: readonly ByteName[]; more: { next?: ByteName } } => {
  let [low, high] = [0, after === undefined ? 0 : names.length]
  while (low < high) {
    const middle = (low + high) >> 1
    if ((names[middle] ?? '') <= (after ?? '')) low = middle + 1
    else high = middle
  }
  const page = names.slice(low, low + limit)
  const next = low + limit < names.length ? page.at(-1) : undefined
  return { page, more: next === undefined ? {} : { next } }
}

/** Two changes within one tick of a file system's clock look alike. */
export const isSettled = (modifiedSeconds: number, nowSeconds: number): boolean =>
  nowSeconds - modifiedSeconds > 2
