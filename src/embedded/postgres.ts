import { spawn } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import {
  chownSync,
  existsSync,
  mkdirSync,
  readFileSync,
  realpathSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { join } from 'node:path'
import { poll } from '../pacing/poll.ts'
import { StartError } from '../config.ts'
import type { Log } from '../observability/log.ts'
import { leash, type Leashed } from './leash.ts'
import { logTail, rotate } from './server-log.ts'
import { choosePorts } from './ports.ts'
import { findPostgresPrograms, firstClosedFolder, postgresAccount } from './postgres-programs.ts'
import type { PostgresUser, PostgresPrograms } from './postgres-programs.ts'
import { endProcesses, processesGiven, processesWorkingIn, startTicks } from './processes.ts'
import type { KnownProcess } from './processes.ts'
import { supervise } from './supervise.ts'
import { writeWhole } from '../whole-file.ts'

export interface PostgresOptions {
  /**
   * Must exist and let the user postgres through when this process is root. The database is in
   * `postgresql` below it.
   */
  dataDir: string
  cacheDir: string
  log: Log
  /** Off only where data may be lost in a power cut, as in tests. */
  fsync: boolean
  /** Called when the server runs again after it ended by itself. */
  onRestart?: () => void
  /** Further settings of the server. */
  settings?: Readonly<Record<string, string>>
}

export interface EmbeddedPostgres {
  /**
   * With the password. The role owns its database, may create databases and roles, and is no
   * superuser.
   */
  readonly databaseUrl: string
  readonly port: number
  process(): KnownProcess | undefined
  /** Fast shutdown: sessions are ended, and all data is on disk. */
  stop(): Promise<void>
  kill(): void
}

const role = 'orrery'
const readyWithinMs = 180_000

/** Files of the embedded database in a data folder. */
export const postgresFiles = (dataDir: string) => ({
  data: join(dataDir, 'postgresql'),
  password: join(dataDir, 'postgresql.password'),
  log: join(dataDir, 'logs', 'postgresql.log'),
  ports: join(dataDir, 'postgresql.ports.json'),
})

/**
 * Starts the embedded PostgreSQL of a data folder, which the first start creates, and keeps it
 * running on the same port. The caller holds the folder: a server that still runs in it belongs to
 * a dead daemon and is ended. After a crash the server recovers by itself.
 * @throws Error with the reason, the remedy and the end of the server's log
 */
export const openPostgres = async (options: PostgresOptions): Promise<EmbeddedPostgres> => {
  const { dataDir, log } = options
  const files = postgresFiles(dataDir)
  const account = postgresAccount(log)
  const closed = account === undefined ? undefined : firstClosedFolder(dataDir)
  if (closed !== undefined)
    throw new StartError(
      `the user postgres cannot enter ${closed}: set SERVICE_DATA_DIR to a folder that every user ` +
        'may enter, or open it with chmod o+x',
    )
  mkdirSync(join(dataDir, 'logs'), { recursive: true, mode: 0o700 })
  const programs = await findPostgresPrograms(options.cacheDir, account)
  if (!existsSync(join(files.data, 'PG_VERSION'))) await initialise(options, programs, account)
  const major = readFileSync(join(files.data, 'PG_VERSION'), 'utf8').trim()
  if (major !== programs.major)
    throw new StartError(
      `the database in ${files.data} was made by PostgreSQL ${major}, this is ${programs.major}: ` +
        'see "Upgrade" in docs/operations.md',
    )
  const password = readFileSync(files.password, 'utf8').trim()
  const { postgres: port } = await choosePorts(files.ports, ['postgres'])
  const server = await supervise(
    'PostgreSQL',
    (stopping) => start(options, programs, account, port, stopping),
    log,
    options.onRestart ?? (() => undefined),
  )
  return {
    databaseUrl: databaseUrl(port, password),
    port,
    process: () => server.process(),
    stop: () => server.stop(),
    kill: () => {
      server.kill()
    },
  }
}

export const databaseUrl = (port: number, password: string): string =>
  `postgres://${role}:${password}@127.0.0.1:${port}/${role}`

/**
 * The whole environment of PostgreSQL; messages in English, so that its log is the same everywhere.
 */
const environment = { PATH: '/usr/bin:/bin', LC_ALL: 'C', TZ: 'UTC' }

/**
 * Creates the database beside its place and moves it there when it is complete, so that a start cut
 * short leaves no partial database.
 */
const initialise = async (
  options: PostgresOptions,
  programs: PostgresPrograms,
  account: PostgresUser,
): Promise<void> => {
  const files = postgresFiles(options.dataDir)
  const made = `${files.data}.new`
  const handOver = `${made}.password`
  // A start that was killed here leaves both, and initdb may still be writing them.
  await endProcesses(() => processesGiven('initdb', `--pgdata=${made}`), 'SIGKILL', 5)
  for (const path of [made, handOver]) {
    rmSync(path, { recursive: true, force: true, maxRetries: 20, retryDelay: 100 })
    mkdirSync(path, { mode: 0o700 })
  }
  const password = randomBytes(24).toString('base64url')
  const passwordFile = join(handOver, 'password')
  writeFileSync(passwordFile, password, { mode: 0o600 })
  if (account !== undefined)
    for (const path of [made, handOver, passwordFile]) chownSync(path, account.uid, account.gid)
  try {
    const cluster = ['--username=postgres', '--auth=scram-sha-256', `--pwfile=${passwordFile}`]
    // The builtin provider sorts by code point on every machine; libc's order would change with the
    // system and break the indexes.
    const text = ['--encoding=UTF8', '--locale=C', '--locale-provider=builtin', '--builtin-locale=C.UTF-8']
    await run(
      programs.initdb,
      [`--pgdata=${made}`, ...cluster, ...text, '--no-instructions', ...(options.fsync ? [] : ['--no-sync'])],
      '',
      account,
    )
    const statements = [
      `create role ${role} login createdb createrole password '${password}'`,
      `create database ${role} owner ${role}`,
    ]
    await run(
      programs.postgres,
      [
        '--single',
        '-D',
        made,
        '-c',
        'exit_on_error=on',
        ...(options.fsync ? [] : ['-c', 'fsync=off']),
        'postgres',
      ],
      statements.map((line) => `${line}\n`).join(''),
      account,
    )
  } finally {
    rmSync(handOver, { recursive: true, force: true })
  }
  writeWhole(files.password, `${password}\n`, 0o600)
  renameSync(made, files.data)
}

const start = async (
  options: PostgresOptions,
  programs: PostgresPrograms,
  account: PostgresUser,
  port: number,
  stopping: AbortSignal,
): Promise<Leashed> => {
  const files = postgresFiles(options.dataDir)
  const folder = realpathSync(files.data)
  await endProcesses(() => processesWorkingIn('postgres', folder), 'SIGINT', 20)
  forgetReusedPid(files.data)
  rotate(files.log)
  const settings = {
    listen_addresses: '127.0.0.1',
    unix_socket_directories: '',
    port: String(port),
    timezone: 'UTC',
    log_timezone: 'UTC',
    max_connections: '200',
    password_encryption: 'scram-sha-256',
    ...(options.fsync ? {} : { fsync: 'off', full_page_writes: 'off' }),
    ...options.settings,
  }
  const server = await leash({
    command: [
      programs.postgres,
      '-D',
      files.data,
      ...Object.entries(settings).flatMap(([name, value]) => ['-c', `${name}=${value}`]),
    ],
    environment,
    directory: '/',
    logFile: files.log,
    account,
    softSignal: 'INT',
    patienceSeconds: 20,
  })
  const ended = server.ended.then((code) => ({ code }))
  const seen = await poll(
    async () =>
      (await Promise.race([ended, Promise.resolve(undefined)])) ??
      (saysReady(files.data, server.process.pid) ? ('ready' as const) : undefined),
    { everyMs: 10, deadlineMs: readyWithinMs, signal: stopping },
  )
  if (seen === 'ready') return server
  if (seen !== undefined)
    throw new Error(
      `PostgreSQL ended at its start with code ${seen.code}; the end of ${files.log}:\n${logTail(files.log)}`,
    )
  await server.release()
  throw new Error(
    stopping.aborted
      ? 'PostgreSQL was stopped at its start'
      : `PostgreSQL was not ready within ${readyWithinMs / 1000} s; the end of ` +
          `${files.log}:\n${logTail(files.log)}`,
  )
}

/** The server writes its state to the eighth line of its pid file, as pg_ctl reads it. */
const saysReady = (data: string, pid: number): boolean => {
  const lines = readIfPresent(join(data, 'postmaster.pid'))?.split('\n')
  return lines !== undefined && Number(lines[0]) === pid && lines[7]?.trim() === 'ready'
}

/**
 * PostgreSQL replaces a pid file whose process is gone, but refuses when another process has the id
 * (usual after a reboot or in a container). No server works in the folder at this point, so such a
 * file is a leftover.
 */
const forgetReusedPid = (data: string): void => {
  const path = join(data, 'postmaster.pid')
  const content = readIfPresent(path)
  const pid = Number.parseInt(content ?? '', 10)
  if (content !== undefined && (Number.isNaN(pid) || startTicks(pid) !== undefined)) rmSync(path)
}

const readIfPresent = (path: string): string | undefined => {
  try {
    return readFileSync(path, 'utf8')
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined
    throw error
  }
}

const run = (program: string, args: readonly string[], input: string, account: PostgresUser): Promise<void> =>
  new Promise((resolve, reject) => {
    const child = spawn(program, args, {
      cwd: '/',
      env: environment,
      stdio: ['pipe', 'pipe', 'pipe'],
      ...account,
    })
    let output = ''
    for (const stream of [child.stdout, child.stderr])
      stream.on('data', (chunk: Buffer) => (output += chunk.toString()))
    child.once('error', reject)
    child.once('close', (code) => {
      if (code === 0) resolve()
      else
        reject(
          new Error(
            `${program} failed with code ${String(code)}:\n${output.trim().split('\n').slice(-20).join('\n')}`,
          ),
        )
    })
    child.stdin.on('error', () => {
      // It ended before it read everything; its exit code gives the reason.
    })
    child.stdin.end(input)
  })
