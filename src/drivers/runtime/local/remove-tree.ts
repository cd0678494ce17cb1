import { execFile } from 'node:child_process'
import { chmodSync, lstatSync, readdirSync } from 'node:fs'
import { rm } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { promisify } from 'node:util'
import { pathOfBytes, systemPath } from '../../../outside-path.ts'
import { isErrno } from '../contract/errno.ts'

/**
 * Removes a file, or a folder with everything below it, whatever modes, names and depths a task left;
 * what is not there is gone. Links are removed, not followed.
 */
export async function removeTree(path: string): Promise<void> {
  try {
    await rm(path, { recursive: true, force: true })
  } catch (error) {
    if (!isErrno(error, 'EACCES', 'EPERM', 'ENAMETOOLONG', 'ENOTEMPTY')) throw error
    openFolders(path)
    // It goes down folder by folder: no path is too long for it.
    await promisify(execFile)('rm', ['-rf', '--', path])
  }
}

/** Lets this account empty the folders and the one above, as far as their paths can be named. */
const openFolders = (top: string): void => {
  const folders = [top]
  const above = lstatSync(dirname(top), { throwIfNoEntry: false })
  if (above?.isDirectory() === true && (above.mode & 0o700) !== 0o700)
    chmodSync(dirname(top), above.mode | 0o700)
  for (let folder = folders.pop(); folder !== undefined; folder = folders.pop()) {
    try {
      const at = systemPath(folder)
      const stat = lstatSync(at, { throwIfNoEntry: false })
      if (stat?.isDirectory() !== true) continue
      if ((stat.mode & 0o700) !== 0o700) chmodSync(at, stat.mode | 0o700)
      for (const entry of readdirSync(at, { withFileTypes: true, encoding: 'buffer' }))
        if (entry.isDirectory()) folders.push(join(folder, pathOfBytes(entry.name)))
    } catch {
      // What stays closed, `rm` reports.
    }
  }
}
