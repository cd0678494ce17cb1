import { closeSync, fsyncSync, openSync, renameSync, writeSync } from 'node:fs'

/**
 * Writes a file so that a reader always gets the old or the new content, never a part, also after a
 * crash.
 */
export const writeWhole = (path: string, content: string, mode: number): void => {
  const temporary = `${path}.${process.pid}.new`
  const file = openSync(temporary, 'w', mode)
  try {
    writeSync(file, content)
    fsyncSync(file)
  } finally {
    closeSync(file)
  }
  renameSync(temporary, path)
}
