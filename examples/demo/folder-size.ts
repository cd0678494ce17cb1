import { lstat, readdir } from 'node:fs/promises'
import path from 'node:path'

/**
 * Bytes of disk that a folder takes, 0 where it does not exist. Unreadable files, and those that
 * appear or vanish meanwhile, do not count.
 */
export const folderSize = async (folder: string): Promise<number> => {
  const sizes = (await readdir(folder, { withFileTypes: true }).catch(() => [])).map(async (entry) => {
    const file = path.join(folder, entry.name)
    if (entry.isDirectory()) return folderSize(file)
    const found = await lstat(file).catch(() => undefined)
    return (found?.blocks ?? 0) * 512
  })
  return (await Promise.all(sizes)).reduce((sum, size) => sum + size, 0)
}
