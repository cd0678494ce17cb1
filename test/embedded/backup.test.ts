import { execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import {
  chmodSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { basename, join } from 'node:path'
import { expect, test } from '@jest/globals'
import pg from 'pg'
import type { Config } from '../../src/config.ts'
import { backUp, restore } from '../../src/embedded/backup.ts'
import { openEmbedded } from '../../src/embedded/embedded.ts'
import { tryHold } from '../../src/embedded/hold.ts'
import { openPostgres, postgresFiles } from '../../src/embedded/postgres.ts'
import { openLog } from '../../src/observability/log.ts'
import { compiledOnce } from '../support/run-folder.ts'
import { proved } from '../support/share.ts'
import { cacheDir, temporaryFolder, until } from './folder.ts'

const log = openLog('silent')

const withDatabase = async <T>(
  dataDir: string,
  work: (client: pg.Client) => Promise<T>,
  end: 'stop' | 'kill' = 'stop',
): Promise<T> => {
  const server = await openPostgres({ dataDir, cacheDir, log, fsync: true })
  const client = new pg.Client({ connectionString: server.databaseUrl })
  client.on('error', () => {
    // The server is killed under this connection on purpose.
  })
  await client.connect()
  const result = await work(client)
  if (end === 'stop') {
    await client.end()
    await server.stop()
  } else server.kill()
  return result
}
const fingerprint = (client: pg.Client): Promise<unknown> =>
  client
    .query("select count(*)::int as n, md5(string_agg(body, ',' order by id)) as sum from sample")
    .then(({ rows }) => rows[0])

test('backup, loss of everything, restore: the same rows, also when the server had been killed before the backup', async () => {
  using folder = temporaryFolder()
  using elsewhere = temporaryFolder()
  const archive = join(elsewhere.path, 'backup.tar.gz')
  const before = await withDatabase(
    folder.path,
    async (client) => {
      await client.query(
        'create table sample as select n as id, md5(n::text) as body from generate_series(1, 20000) as n',
      )
      return fingerprint(client)
    },
    'kill',
  )
  const password = readFileSync(postgresFiles(folder.path).password, 'utf8')
  await backUp({ dataDir: folder.path, cacheDir, log }, archive)
  expect(statSync(archive).mode & 0o777).toBe(0o600)
  await expect(backUp({ dataDir: folder.path, cacheDir, log }, archive)).rejects.toThrow(/exists/)

  rmSync(postgresFiles(folder.path).data, { recursive: true })
  rmSync(postgresFiles(folder.path).password)
  expect(await restore({ dataDir: folder.path, cacheDir, log }, archive)).toBeUndefined()
  expect(readFileSync(postgresFiles(folder.path).password, 'utf8')).toBe(password)
  expect(await withDatabase(folder.path, fingerprint)).toEqual(before)

  await withDatabase(folder.path, (client) => client.query('delete from sample'))
  const aside = await restore({ dataDir: folder.path, cacheDir, log }, archive)
  expect(existsSync(join(String(aside), 'postgresql', 'PG_VERSION'))).toBe(true)
  expect(await withDatabase(folder.path, fingerprint)).toEqual(before)
})

proved(
  'neither touches a folder that a daemon holds, and a restore refuses what is no whole backup before it changes anything',
  async () => {
    using folder = temporaryFolder()
    using elsewhere = temporaryFolder()
    await expect(backUp({ dataDir: folder.path, cacheDir, log }, join(elsewhere.path, 'x'))).rejects.toThrow(
      /no embedded database/,
    )
    const before = await withDatabase(folder.path, async (client) => {
      await client.query("create table sample as select 1 as id, 'a' as body")
      return fingerprint(client)
    })
    const archive = join(elsewhere.path, 'good')
    const held = await tryHold(folder.path, 'daemon')
    await expect(backUp({ dataDir: folder.path, cacheDir, log }, archive)).rejects.toThrow(/stop it first/)
    await held?.release()
    await backUp({ dataDir: folder.path, cacheDir, log }, archive)
    const cut = join(elsewhere.path, 'cut')
    const whole = readFileSync(archive)
    writeFileSync(cut, whole.subarray(0, whole.length / 2))
    await expect(restore({ dataDir: folder.path, cacheDir, log }, cut)).rejects.toThrow(/not a whole backup/)
    await expect(
      restore({ dataDir: folder.path, cacheDir, log }, join(elsewhere.path, 'absent')),
    ).rejects.toThrow(/does not exist/)
    const older = join(elsewhere.path, 'older')
    const unpacked = join(elsewhere.path, 'unpacked')
    mkdirSync(unpacked)
    execFileSync('tar', ['-xzf', archive, '-C', unpacked])
    const manifest = join(unpacked, 'orrery-backup.json')
    writeFileSync(
      manifest,
      readFileSync(manifest, 'utf8').replace(/"postgresMajor":"\d+"/, '"postgresMajor":"9"'),
    )
    execFileSync('tar', ['-czf', older, '-C', unpacked, ...readdirSync(unpacked)])
    await expect(restore({ dataDir: folder.path, cacheDir, log }, older)).rejects.toThrow(
      /made by PostgreSQL 9, this is \d+: restore it with a checkout of its version/,
    )
    expect(readdirSync(folder.path).filter((name) => name.includes('restore'))).toEqual([])
    expect(await withDatabase(folder.path, fingerprint)).toEqual(before)
  },
)

proved(
  'what a killed backup and a killed restore leave goes with the next one, and with a start',
  async () => {
    using folder = temporaryFolder()
    using elsewhere = temporaryFolder()
    const options = { dataDir: folder.path, cacheDir, log }
    const archive = join(elsewhere.path, 'backup.tar.gz')
    const tools = join(elsewhere.path, 'tools')
    const started = join(tools, 'started')
    mkdirSync(tools)
    writeFileSync(join(tools, 'tar'), `#!/bin/sh\necho > ${started}; exec sleep 86400\n`, { mode: 0o755 })
    /** Kills the program while its `tar` works, with all that it has started. */
    const killed = async (verb: 'backup' | 'restore'): Promise<void> => {
      rmSync(started, { force: true })
      const program = spawn(
        process.execPath,
        [join(import.meta.dirname, '../../src/programs/backup.ts'), verb, archive],
        {
          env: {
            ...{ PATH: `${tools}:${String(process.env['PATH'])}`, HOME: elsewhere.path, ...compiledOnce() },
            ...{ SERVICE_DATA_DIR: folder.path, SERVICE_CACHE_DIR: cacheDir },
          },
          stdio: ['ignore', 'inherit', 'inherit'],
          detached: true,
        },
      )
      const ended = once(program, 'close')
      await until(() => existsSync(started), `tar of the ${verb}`, 120_000)
      process.kill(-Number(program.pid), 'SIGKILL')
      await ended
    }
    await withDatabase(folder.path, (client) => client.query('create table sample as select 1 as id'))
    const names = (): string[] => readdirSync(folder.path).sort()
    const usual = names()

    await killed('backup')
    await backUp(options, archive)
    expect([names(), readdirSync(elsewhere.path).sort()]).toEqual([usual, ['backup.tar.gz', 'tools']])
    await killed('restore')
    expect(names()).not.toEqual(usual)
    const temporalAddress = { host: '127.0.0.1', port: 1 }
    const embedded = await openEmbedded({ dataDir: folder.path, cacheDir, temporalAddress } as Config, {
      ...{ log, onProgress: () => undefined, onRestart: () => undefined },
    })
    await embedded[Symbol.asyncDispose]()
    expect(names()).toEqual(usual)
    await killed('restore')
    const aside = await restore(options, archive)
    expect(names()).toEqual([basename(String(aside)), ...usual].sort())
  },
  600_000,
)

test('a folder of a killed backup or restore of an earlier version goes with the next one, and no other folder', async () => {
  using folder = temporaryFolder()
  using elsewhere = temporaryFolder()
  const archive = join(elsewhere.path, 'none')
  writeFileSync(archive, 'no archive')
  const make = (name: string, mode: number, ...content: string[]): string => {
    mkdirSync(join(folder.path, name))
    chmodSync(join(folder.path, name), mode)
    for (const one of content) mkdirSync(join(folder.path, name, one))
    return name
  }
  const manifest = 'orrery-backup.json'
  make('backup-a1B2c3', 0o700, manifest)
  make(
    'restore-a1B2c3',
    0o700,
    manifest,
    'postgresql',
    'postgresql.password',
    'temporal',
    'audit-witness.json',
  )
  const kept = [
    make('backup-240131', 0o700, 'postgresql', 'temporal'),
    make('backup-240201', 0o700, manifest, 'postgresql'),
    make('restore-240131', 0o700, 'postgresql'),
    make('restore-240201', 0o755, manifest, 'postgresql'),
    make('restore-240202', 0o700, manifest, 'postgresql', 'notes'),
    make('restore-of-monday', 0o700, manifest),
  ]
  await expect(restore({ dataDir: folder.path, cacheDir, log }, archive)).rejects.toThrow(
    /not a whole backup/,
  )
  expect(readdirSync(folder.path).filter((name) => /^(backup|restore)-/.test(name))).toEqual(kept.sort())
})

proved(
  'a restore that was cut off keeps the service from its start, and is completed by the next one',
  async () => {
    using folder = temporaryFolder()
    using elsewhere = temporaryFolder()
    const options = { dataDir: folder.path, cacheDir, log }
    const archive = join(elsewhere.path, 'backup.tar.gz')
    const temporal = join(folder.path, 'temporal')
    mkdirSync(temporal)
    const backedUp = await withDatabase(folder.path, async (client) => {
      await client.query("create table sample as select 1 as id, 'backed up' as body")
      return fingerprint(client)
    })
    await backUp(options, archive)
    const later = await withDatabase(folder.path, async (client) => {
      await client.query("update sample set body = 'later'")
      return fingerprint(client)
    })
    // A link to nothing cannot be replaced by a folder: the exchange ends in its midst.
    rmSync(temporal, { recursive: true })
    symlinkSync('nothing', temporal)
    await expect(restore(options, archive)).rejects.toThrow(/ENOTDIR/)
    const [aside] = readdirSync(folder.path).filter((name) => name.startsWith('before-restore-'))
    const start = openEmbedded({ dataDir: folder.path, cacheDir } as Config, {
      ...{ log, onProgress: () => undefined, onRestart: () => undefined },
    })
    await expect(start).rejects.toThrow(
      new RegExp(`run it again .* before are in .*/${aside ?? '-'}: to keep them`),
    )
    await expect(backUp(options, join(elsewhere.path, 'half'))).rejects.toThrow(/was cut off/)
    rmSync(temporal)
    expect(await restore(options, archive)).toBe(join(folder.path, aside ?? ''))
    expect(await withDatabase(folder.path, fingerprint)).toEqual(backedUp)
    expect(existsSync(temporal)).toBe(true)
    chmodSync(join(folder.path, aside ?? ''), 0o711)
    expect(await withDatabase(join(folder.path, aside ?? ''), fingerprint)).toEqual(later)
  },
)
