import { closeSync, existsSync, fstatSync, openSync, readSync, renameSync, statSync } from 'node:fs'

const largestLogBytes = 16 * 1024 * 1024
const tailBytes = 4096

/**
 * Moves a grown log to `.1`, so that the logs of a server take at most twice the limit. Called
 * before the server is started.
 */
export const rotate = (file: string): void => {
  if (existsSync(file) && statSync(file).size > largestLogBytes) renameSync(file, `${file}.1`)
}

/** The last lines of a log, for error texts. */
export const logTail = (file: string): string => {
  if (!existsSync(file)) return '(no log)'
  const opened = openSync(file, 'r')
  try {
    const { size } = fstatSync(opened)
    const buffer = Buffer.alloc(Math.min(size, tailBytes))
    readSync(opened, buffer, 0, buffer.length, size - buffer.length)
    return buffer.toString().trim().split('\n').slice(-15).join('\n')
  } finally {
    closeSync(opened)
  }
}
