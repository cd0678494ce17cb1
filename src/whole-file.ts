import { randomBytes } from 'node:crypto'
import { renameSync, writeFileSync } from 'node:fs'
import { link, rm, writeFile } from 'node:fs/promises'

/**
 * Writes a file so that a reader always gets the old or the new content, never a part, also after a
 * crash.
 */
export const writeWhole = (path: string, content: string, mode: number): void => {
  const temporary = `${path}.${process.pid}.new`
  writeFileSync(temporary, content, { mode, flush: true })
  renameSync(temporary, path)
}

/**
 * Writes a synced file beside `path` that only its owner may read. @returns the path of that file
 */
export const writeBeside = async (path: string, content: string): Promise<string> => {
  const beside = `${path}.${randomBytes(6).toString('hex')}.new`
  await writeFile(beside, content, { flag: 'wx', mode: 0o600, flush: true })
  return beside
}

/**
 * Creates a file that only its owner may read. Of several programs that start at once one creates
 * it, and all use it.
 */
export const createOnce = async (path: string, content: string): Promise<void> => {
  const beside = await writeBeside(path, content)
  try {
    await link(beside, path)
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error
  } finally {
    await rm(beside, { force: true })
  }
}
