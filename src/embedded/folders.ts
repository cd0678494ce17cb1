import { accessSync, constants, mkdirSync } from 'node:fs'
import { join } from 'node:path'
import { StartError } from '../config.ts'

const notAllowed = 'this account may not write there: make it the owner, or give a folder of its own'
/** Why a folder cannot be created or written, by the system's code. */
const reasons: Readonly<Record<string, string>> = {
  EACCES: notAllowed,
  EPERM: notAllowed,
  EROFS: 'the file system is read-only: give a folder on another one',
  ENOTDIR: 'a part of the path is a file: give a folder',
  EEXIST: 'it is a file: give a folder',
  ENOSPC: 'the file system is full: make room, or give a folder on another one',
}

/**
 * Creates a folder that a variable names where it is missing. @throws StartError with variable,
 * folder, reason and remedy where it is not writable
 */
export const makeFolder = (
  variable: 'SERVICE_DATA_DIR' | 'SERVICE_CACHE_DIR' | 'SERVICE_READY_FILE',
  path: string,
  mode: number,
): void => {
  try {
    mkdirSync(path, { recursive: true, mode })
    accessSync(path, constants.W_OK | constants.X_OK)
  } catch (error) {
    const { code = '', message } = error as NodeJS.ErrnoException
    throw new StartError(
      `${variable}: the folder ${path} cannot be used: ${reasons[code] ?? `${message}: give another folder`} (${code})`,
      {
        cause: error,
      },
    )
  }
}

/**
 * Creates the data folder: as root every user may pass through it, since PostgreSQL runs as another
 * user; its content is closed.
 */
export const makeDataFolder = (dataDir: string): void => {
  makeFolder('SERVICE_DATA_DIR', dataDir, process.getuid?.() === 0 ? 0o711 : 0o700)
}

/** The file with a link of the audit chain, which goes with the database of the folder. */
export const witnessFile = (dataDir: string): string => join(dataDir, 'audit-witness.json')
