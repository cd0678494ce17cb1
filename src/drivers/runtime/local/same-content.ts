import { closeSync, openSync, readSync } from 'node:fs'
import { setImmediate } from 'node:timers/promises'
import { systemPath } from '../../../outside-path.ts'

const chunkBytes = 1024 * 1024

/** Compares in chunks and yields to other work after each. */
export async function sameContent(a: string, b: string): Promise<boolean> {
  const files: number[] = []
  const opened = (path: string): number => {
    const file = openSync(systemPath(path), 'r')
    files.push(file)
    return file
  }
  try {
    const one = opened(a)
    const other = opened(b)
    const left = Buffer.allocUnsafe(chunkBytes)
    const right = Buffer.allocUnsafe(chunkBytes)
    for (;;) {
      const count = readSync(one, left, 0, chunkBytes, null)
      if (count !== readSync(other, right, 0, chunkBytes, null)) return false
      if (count === 0) return true
      if (left.compare(right, 0, count, 0, count) !== 0) return false
      if (count === chunkBytes) await setImmediate()
    }
  } finally {
    for (const file of files) closeSync(file)
  }
}
