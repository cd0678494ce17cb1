import { execFile } from 'node:child_process'
import {
  closeSync,
  existsSync,
  fsyncSync,
  mkdirSync,
  openSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { basename, dirname, join } from 'node:path'
import { promisify } from 'node:util'
import { z } from 'zod'
import type { Log } from '../observability/log.ts'
import { reasonText } from '../outside-text.ts'
import { writeWhole } from '../whole-file.ts'
import {
  archivedNames,
  makeDataFolder,
  manifestName,
  readRestoring,
  refuseHalfRestored,
  removeUnfinished,
  restoringFile,
  unfinishedFolder,
  witnessFile,
} from './folders.ts'
import { tryHold } from './hold.ts'
import { openPostgres, postgresFiles } from './postgres.ts'
import { findPostgresPrograms, postgresAccount } from './postgres-programs.ts'
import { temporalFiles } from './temporal.ts'

const run = promisify(execFile)
const manifest = z.strictObject({
  format: z.literal(1),
  createdAt: z.iso.datetime(),
  postgresMajor: z.string(),
})

export interface BackupOptions {
  dataDir: string
  cacheDir: string
  log: Log
}

/** The content of an archive, by its path in the data folder. */
const kept = (dataDir: string): string[] =>
  [
    postgresFiles(dataDir).data,
    postgresFiles(dataDir).password,
    temporalFiles(dataDir).folder,
    witnessFile(dataDir),
  ]
    .filter((path) => existsSync(path))
    .map((path) => basename(path))

/**
 * Writes the embedded databases of a stopped service, its passwords included, to one gzipped
 * archive with mode 0600. PostgreSQL and Temporal are copied at the same moment, so that neither is
 * ahead of the other; for that the service must not run. A database after an unclean shutdown is
 * recovered first. Work directories of tasks are not included.
 * @throws Error when a daemon runs, there are no databases, or the file exists
 */
export const backUp = async ({ dataDir, cacheDir, log }: BackupOptions, file: string): Promise<void> => {
  if (!existsSync(postgresFiles(dataDir).data))
    throw new Error(`there is no embedded database in SERVICE_DATA_DIR=${dataDir}`)
  if (existsSync(file)) throw new Error(`${file} exists: name another file or remove it`)
  await whileStopped(dataDir, async (folder) => {
    refuseHalfRestored(dataDir)
    // A start and a stop make every page in the files and the log complete, whatever the last end
    // was.
    const postgres = await openPostgres({ dataDir, cacheDir, log, fsync: true })
    await postgres.stop()
    removeParts(file)
    const temporary = `${file}.${process.pid}.new`
    try {
      const about: z.output<typeof manifest> = {
        format: 1,
        createdAt: new Date().toISOString(),
        postgresMajor: majorOf(dataDir),
      }
      writeFileSync(join(folder, manifestName), `${JSON.stringify(about)}\n`)
      closeSync(openSync(temporary, 'wx', 0o600))
      await run('tar', [
        '--create',
        '--gzip',
        '--file',
        temporary,
        '--exclude=postgresql/postmaster.*',
        '-C',
        folder,
        manifestName,
        '-C',
        dataDir,
        ...kept(dataDir),
      ])
      sync(temporary)
      renameSync(temporary, file)
      sync(dirname(file))
    } finally {
      rmSync(temporary, { force: true })
    }
  })
}

/** Removes what backups into a file left of it that were killed. */
const removeParts = (file: string): void => {
  for (const name of readdirSync(dirname(file)))
    if (name.startsWith(`${basename(file)}.`) && /^\.\d+\.new$/.test(name.slice(basename(file).length)))
      rmSync(join(dirname(file), name))
}

/**
 * Puts the databases of an archive in place of those of a stopped service. The present databases
 * are moved to the folder `before-restore-<time>` in the data folder, whose path is returned
 * (undefined when there were none). After one that was cut off it goes on, with the same folder.
 * @throws Error when a daemon runs, or the file is no whole archive of this kind and of this major
 *   version of PostgreSQL; nothing is changed then
 */
export const restore = async (
  { dataDir, cacheDir, log }: BackupOptions,
  file: string,
): Promise<string | undefined> => {
  if (!existsSync(file)) throw new Error(`${file} does not exist: name a file that was written by a backup`)
  makeDataFolder(dataDir)
  return whileStopped(dataDir, async (folder) => {
    await run('tar', [
      '--extract',
      '--gzip',
      '--no-same-owner',
      '--preserve-permissions',
      '--file',
      file,
      '-C',
      folder,
    ]).catch((error: unknown) => {
      throw notUnpacked(file, folder, error)
    })
    const about = existsSync(join(folder, manifestName))
      ? manifest.safeParse(JSON.parse(readFileSync(join(folder, manifestName), 'utf8')))
      : undefined
    if (about?.success !== true || !existsSync(join(folder, 'postgresql', 'PG_VERSION')))
      throw new Error(`${file} is not a backup of this program`)
    rmSync(join(folder, manifestName))
    const account = postgresAccount(log)
    const { major } = await findPostgresPrograms(cacheDir, account)
    if (about.data.postgresMajor !== major)
      throw new Error(
        `${file} was made by PostgreSQL ${about.data.postgresMajor}, this is ${major}: restore it with a ` +
          'checkout of its version, then see "Upgrade" in docs/operations.md',
      )
    // User ids differ between machines: the database belongs to the account that runs it here.
    if (account !== undefined)
      await run('chown', ['-R', `${account.uid}:${account.gid}`, join(folder, 'postgresql')])
    const { names: present, aside } = exchange(dataDir, folder)
    try {
      const postgres = await openPostgres({ dataDir, cacheDir, log, fsync: true })
      await postgres.stop()
    } catch (error) {
      if (present.length === 0) throw error
      const { message } = error as Error
      throw new Error(`${message}; the databases that were there before are in ${aside}`, { cause: error })
    }
    return present.length > 0 ? aside : undefined
  })
}

/**
 * Moves the databases of a folder aside and those of an archive to their places. One that was cut
 * off is completed: what it has moved aside stays there, and what it has put in place is replaced.
 */
const exchange = (dataDir: string, unpacked: string): { aside: string; names: string[] } => {
  const restoring = readRestoring(dataDir) ?? {
    aside: `before-restore-${new Date().toISOString().replaceAll(':', '')}`,
    names: kept(dataDir),
  }
  const { names } = restoring
  const aside = join(dataDir, restoring.aside)
  // No start takes a folder with a part of its databases for a new one.
  writeWhole(restoringFile(dataDir), `${JSON.stringify(restoring)}\n`, 0o600)
  sync(dataDir)
  if (names.length > 0) mkdirSync(aside, { mode: 0o700, recursive: true })
  for (const name of kept(dataDir)) {
    const path = join(dataDir, name)
    if (names.includes(name) && !existsSync(join(aside, name))) renameSync(path, join(aside, name))
    else rmSync(path, { recursive: true })
  }
  for (const name of archivedNames)
    if (existsSync(join(unpacked, name))) renameSync(join(unpacked, name), join(dataDir, name))
  for (const path of names.length > 0 ? [aside, dataDir] : [dataDir]) sync(path)
  rmSync(restoringFile(dataDir))
  sync(dataDir)
  return { aside, names }
}

/** Why `tar` did not unpack an archive: by its first line, the archive or the folder. */
const notUnpacked = (file: string, folder: string, error: unknown): Error => {
  const why = reasonText(((error as { stderr?: string }).stderr ?? '').split('\n')[0] ?? '')
  return new Error(
    /No space left|Disk quota/.test(why)
      ? `${file} cannot be unpacked in ${folder}: ${why}; make room`
      : `${file} is not a whole backup archive${why === '' ? '' : `: ${why}`}`,
    { cause: error },
  )
}

/** Works in a stopped service's data folder, with a folder there that goes at the end. */
const whileStopped = async <T>(dataDir: string, work: (folder: string) => Promise<T>): Promise<T> => {
  const held = await tryHold(dataDir, 'daemon')
  if (held === undefined) throw new Error(`a daemon runs on SERVICE_DATA_DIR=${dataDir}: stop it first`)
  const folder = unfinishedFolder(dataDir)
  try {
    removeUnfinished(dataDir)
    mkdirSync(folder, { mode: 0o700 })
    return await work(folder)
  } finally {
    removeUnfinished(dataDir)
    await held.release()
  }
}

const majorOf = (dataDir: string): string =>
  readFileSync(join(postgresFiles(dataDir).data, 'PG_VERSION'), 'utf8').trim()

const sync = (path: string): void => {
  const opened = openSync(path, 'r')
  try {
    fsyncSync(opened)
  } finally {
    closeSync(opened)
  }
}
