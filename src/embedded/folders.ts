import {
  accessSync,
  constants,
  existsSync,
  lstatSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
} from 'node:fs'
import { join } from 'node:path'
import { z } from 'zod'
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

const witnessName = 'audit-witness.json'
/** The file with a link of the audit chain, which goes with the database of the folder. */
export const witnessFile = (dataDir: string): string => join(dataDir, witnessName)

/** The folder in which a backup or a restore works, one at a time. */
export const unfinishedFolder = (dataDir: string): string => join(dataDir, 'unfinished')

/** The file of an archive, and of the folder of its backup or restore, that says what it is. */
export const manifestName = 'orrery-backup.json'
/** What an archive has beside its manifest, as it stands in the data folder. */
export const archivedNames = ['postgresql', 'postgresql.password', 'temporal', witnessName]

/**
 * Whether a folder is one in which a backup or a restore of an earlier version was killed: it has
 * the name and mode that such a program gives it, the manifest, and nothing that the program does
 * not write. A copy that a person makes has no manifest.
 */
const isEarlierUnfinished = (dataDir: string, name: string): boolean => {
  const [, verb] = /^(backup|restore)-[A-Za-z0-9]{6}$/.exec(name) ?? []
  const path = join(dataDir, name)
  if (verb === undefined || (lstatSync(path).mode & 0o170777) !== 0o040700) return false
  const names = readdirSync(path)
  const written = verb === 'backup' ? [manifestName] : [manifestName, ...archivedNames]
  return names.includes(manifestName) && names.every((one) => written.includes(one))
}

/** Removes what a backup or a restore that was killed left; the caller holds the data folder. */
export const removeUnfinished = (dataDir: string): void => {
  const earlier = readdirSync(dataDir).filter((name) => isEarlierUnfinished(dataDir, name))
  for (const path of [unfinishedFolder(dataDir), ...earlier.map((name) => join(dataDir, name))])
    rmSync(path, { recursive: true, force: true })
}

/** The file that a folder has while a restore exchanges its databases. */
export const restoringFile = (dataDir: string): string => join(dataDir, 'restoring.json')

const Restoring = z.object({
  /** The folder, in the data folder, of the databases before the restore. */
  aside: z.string(),
  /** What goes there. */
  names: z.array(z.string()),
})

/** The restore that a folder is in, or was cut off in. */
export const readRestoring = (dataDir: string): z.output<typeof Restoring> | undefined => {
  const file = restoringFile(dataDir)
  return existsSync(file) ? Restoring.parse(JSON.parse(readFileSync(file, 'utf8'))) : undefined
}

/** @throws StartError with the remedy for a folder whose restore was cut off: its databases are no whole */
export const refuseHalfRestored = (dataDir: string): void => {
  const restoring = readRestoring(dataDir)
  if (restoring === undefined) return
  const before =
    restoring.names.length === 0
      ? ''
      : `. The databases that were there before are in ${join(dataDir, restoring.aside)}: to keep them ` +
        `instead, move them back and remove ${restoringFile(dataDir)}`
  throw new StartError(
    `a restore of SERVICE_DATA_DIR=${dataDir} was cut off: run it again (npm run restore -- FILE)${before}`,
  )
}
