import { spawn } from 'node:child_process'
import {
  chmodSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  readdirSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs'
import { createServer } from 'node:net'
import { networkInterfaces } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, test } from '@jest/globals'
import pg from 'pg'
import { openPostgres, postgresFiles } from '../../src/embedded/postgres.ts'
import type { EmbeddedPostgres } from '../../src/embedded/postgres.ts'
import { processesWorkingIn, startTicks } from '../../src/embedded/processes.ts'
import { openLog } from '../../src/observability/log.ts'
import { cacheDir, temporaryFolder, until } from './folder.ts'
import { runFolder } from '../support/run-folder.ts'

const log = openLog('silent')
const open = (dataDir: string, settings: Record<string, string> = {}): Promise<EmbeddedPostgres> =>
  openPostgres({ dataDir, cacheDir, log, fsync: false, settings })

const query = async (url: string, text: string): Promise<Record<string, unknown>[]> => {
  const client = new pg.Client({ connectionString: url })
  client.on('error', () => {
    // The server is killed under open connections here; the query's own rejection is what counts.
  })
  await client.connect()
  try {
    return (await client.query<Record<string, unknown>>(text)).rows
  } finally {
    await client.end()
  }
}

/** Process group, field 5 of /proc/PID/stat. */
const groupOf = (pid: number): string | undefined => {
  try {
    return readFileSync(`/proc/${pid}/stat`, 'latin1')
      .replace(/^.*\) /s, '')
      .split(' ')[2]
  } catch {
    return undefined
  }
}

describe('the embedded PostgreSQL', () => {
  const folder = temporaryFolder()
  afterAll(() => {
    folder[Symbol.dispose]()
  })

  test('is made with a password and a role that is no superuser, listens on loopback only and keeps port and data over a restart', async () => {
    const first = await open(folder.path)
    expect(statSync(postgresFiles(folder.path).password).mode & 0o777).toBe(0o600)
    expect(
      await query(
        first.databaseUrl,
        'select rolsuper, rolcreatedb, current_database() as name from pg_roles where rolname = current_user',
      ),
    ).toEqual([{ rolsuper: false, rolcreatedb: true, name: 'orrery' }])
    const wrong = new URL(first.databaseUrl)
    wrong.password = 'wrong'
    await expect(query(wrong.href, 'select 1')).rejects.toMatchObject({ code: '28P01' })
    expect(readFileSync(postgresFiles(folder.path).log, 'utf8')).not.toMatch(/Unix socket/)
    const outside = Object.values(networkInterfaces())
      .flat()
      .find((face) => face?.internal === false && face.family === 'IPv4')
    if (outside !== undefined)
      await expect(
        query(first.databaseUrl.replace('127.0.0.1', outside.address), 'select 1'),
      ).rejects.toMatchObject({
        code: 'ECONNREFUSED',
      })
    await query(first.databaseUrl, 'create table kept as select generate_series(1, 1000) as n')
    await first.stop()
    expect(first.process()).toBeUndefined()

    const second = await open(folder.path)
    expect(second.port).toBe(first.port)
    expect(await query(second.databaseUrl, 'select count(*)::int as n from kept')).toEqual([{ n: 1000 }])
    await second.stop()
  })

  test('killed, runs again on the same port with every committed row', async () => {
    const server = await open(folder.path)
    await query(server.databaseUrl, 'create table committed as select generate_series(1, 500) as n')
    const before = server.process()
    process.kill(before?.pid ?? -1, 'SIGKILL')
    const after = await until(
      () => (server.process()?.pid === before?.pid ? undefined : server.process()),
      'it runs again',
    )
    expect(after.pid).not.toBe(before?.pid)
    expect(await query(server.databaseUrl, 'select count(*)::int as n from committed')).toEqual([{ n: 500 }])
    await server.stop()
    expect(processesWorkingIn('postgres', postgresFiles(folder.path).data)).toEqual([])
  })

  test('starts on a folder whose old server still runs, busy, with its daemon and its leash killed', async () => {
    const file = join(folder.path, 'daemon.ts')
    const source = (name: string): string =>
      JSON.stringify(new URL(`../../src/${name}`, import.meta.url).href)
    writeFileSync(
      file,
      `import { openPostgres } from ${source('embedded/postgres.ts')}
       import { openLog } from ${source('observability/log.ts')}
       const server = await openPostgres({ dataDir: ${JSON.stringify(folder.path)},
          cacheDir: ${JSON.stringify(cacheDir)}, log: openLog('silent'), fsync: false })
       process.stdout.write(JSON.stringify({ url: server.databaseUrl, pid: server.process().pid }))`,
    )
    const daemon = spawn(process.execPath, [file], { stdio: ['ignore', 'pipe', 'inherit'] })
    const said = await new Promise<Buffer>((resolve) => daemon.stdout.once('data', resolve))
    const { url, pid } = JSON.parse(said.toString()) as { url: string; pid: number }
    const busy = query(url, 'select pg_sleep(600)').catch((error: unknown) => error)
    const sleepers = `select from pg_stat_activity where state = 'active' and query = 'select pg_sleep(600)'`
    await until(async () => (await query(url, sleepers)).length === 1, 'the server is busy')
    const group = readdirSync('/proc').filter(
      (name) => /^\d+$/.test(name) && groupOf(Number(name)) === groupOf(pid),
    )
    expect(group.length).toBeGreaterThanOrEqual(3)
    // Daemon and leash would each end the server at the other's death: the one stands still while
    // the other dies.
    daemon.kill('SIGSTOP')
    for (const member of group) if (Number(member) !== pid) process.kill(Number(member), 'SIGKILL')
    daemon.kill('SIGKILL')
    expect(startTicks(pid)).toBeDefined()

    const next = await open(folder.path)
    expect(next.process()?.pid).not.toBe(pid)
    expect(startTicks(pid)).toBeUndefined()
    // The words depend on what comes first: the server's end, the signal that its processes get
    // with it, or the closed socket.
    expect(String(await busy)).toMatch(/terminat|canceling statement|connection error/)
    expect(await query(next.databaseUrl, 'select 1 as one')).toEqual([{ one: 1 }])
    await next.stop()
  })

  test('starts on a folder whose pid file names a process that lives again as something else', async () => {
    const first = await open(folder.path)
    const pidFile = join(postgresFiles(folder.path).data, 'postmaster.pid')
    const content = readFileSync(pidFile, 'utf8')
    first.kill()
    await until(
      () => processesWorkingIn('postgres', postgresFiles(folder.path).data).length === 0,
      'it is gone',
    )
    writeFileSync(pidFile, content.replace(/^\d+/, String(process.pid)))
    const second = await open(folder.path)
    expect(await query(second.databaseUrl, 'select 1 as one')).toEqual([{ one: 1 }])
    await second.stop()
  })

  test('takes another port when somebody has its own', async () => {
    const first = await open(folder.path)
    await first.stop()
    const squatter = createServer()
    await new Promise<void>((resolve) => squatter.listen(first.port, '127.0.0.1', resolve))
    const second = await open(folder.path)
    expect(second.port).not.toBe(first.port)
    expect(await query(second.databaseUrl, 'select 1 as one')).toEqual([{ one: 1 }])
    await second.stop()
    await new Promise((resolve) => squatter.close(resolve))
  })

  test('says with the end of its log why it cannot start, and what made the folder', async () => {
    await expect(open(folder.path, { shared_buffers: 'much' })).rejects.toThrow(
      /ended at its start with code 1[\s\S]*shared_buffers/,
    )
    const version = join(postgresFiles(folder.path).data, 'PG_VERSION')
    const content = readFileSync(version, 'utf8')
    writeFileSync(version, '17\n')
    await expect(open(folder.path)).rejects.toThrow(/made by PostgreSQL 17, this is 18/)
    writeFileSync(version, content)
  })
})

test('a first start that was cut short leaves nothing that hinders the next', async () => {
  using folder = temporaryFolder()
  mkdirSync(join(folder.path, 'postgresql.new', 'base'), { recursive: true })
  mkdirSync(join(folder.path, 'postgresql.new.password'))
  const server = await open(folder.path)
  expect(await query(server.databaseUrl, 'select 1 as one')).toEqual([{ one: 1 }])
  await server.stop()
})

const asRoot = process.getuid?.() === 0
test('as root, a data folder that the user postgres cannot enter is refused with the remedy; as a user, it is its own', async () => {
  const closed = mkdtempSync(join(runFolder(), 'orrery-closed-'))
  chmodSync(closed, 0o700)
  try {
    if (asRoot)
      await expect(open(closed)).rejects.toThrow(
        `the user postgres cannot enter ${closed}: set SERVICE_DATA_DIR`,
      )
    else await (await open(closed)).stop()
  } finally {
    rmSync(closed, { recursive: true, force: true })
  }
})
