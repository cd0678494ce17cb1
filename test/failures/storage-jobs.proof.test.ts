import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { execFileSync } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { mkdirSync, readFileSync, readdirSync, truncateSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { openDatabase } from '../../src/db/pool.ts'
import { sql } from '../../src/db/sql.ts'
import { startRelay, type Relay } from '../../sites/relay.ts'
import { startS3, type S3Site } from '../../sites/s3.ts'
import { sites } from '../../sites/requirements.ts'
import { startSsh, type SshHost } from '../../sites/ssh.ts'
import { needs } from '../support/needs.ts'
import { connectionTo, makeVaultKeyFile } from '../support/reach.ts'
import {
  bucketStorage,
  environmentOf,
  localStorage,
  loginStorage,
  plant,
  sha256,
  treeOf,
} from '../storages/world.ts'
import { dataFolder, removeFolder, until } from './programs.ts'
import { openPrograms, type Programs } from './rounds.ts'

/** Jobs of storages under the sudden death of the daemon with its worker, PostgreSQL and Temporal. */

const dataDir = dataFolder()
const root = join(dataDir, 'storages')
let programs: Programs
let site: S3Site
let bucket: string
let relay: Relay
beforeAll(async () => {
  for (const name of ['a', 'b']) mkdirSync(join(root, name), { recursive: true })
  site = await startS3()
  bucket = site.bucket('bucket')
  relay = await startRelay(site.endpoint)
  programs = openPrograms(dataDir, {
    environment: {
      SERVICE_LOCAL_STORAGE_ROOT: root,
      SERVICE_ALLOW_LOOPBACK_CONNECTIONS: 'true',
      SERVICE_VAULT_KEY_FILE: makeVaultKeyFile(),
    },
  })
  await programs.startDaemon()
  const { credentialRef } = await programs.post('/cloud-credentials/', {
    id: 'site',
    provider: 'aws',
    credential: site.accessKey,
  })
  await programs.post(
    '/environments/',
    environmentOf('lab', [
      localStorage('a', join(root, 'a')),
      localStorage('b', join(root, 'b')),
      bucketStorage('bucket', site, 's3://bucket', credentialRef),
      bucketStorage('relayed', relay, 's3://bucket', credentialRef),
    ]),
  )
}, 600_000)
afterAll(async () => {
  await programs?.stop()
  await relay?.close()
  await site?.stop()
  removeFolder(dataDir)
}, 60_000)

const ended = (id: string) =>
  until(`the end of ${id}`, 120, async () => {
    const found = await programs.get(`/storage-downloads/${id}/`)
    return ['completed', 'ready', 'failed', 'cancelled'].includes(found.status) ? found : undefined
  })
/** Kills the daemon when a job has come so far. */
const killAt = async (id: string, bytes: number, seconds = 60): Promise<void> => {
  await until(`${bytes} bytes of ${id}`, seconds, async () => {
    const { status, live } = await programs.get(`/storage-downloads/${id}/`)
    if (status === 'completed') throw new Error(`${id} has ended before it was killed`)
    return (live?.bytes ?? 0) >= bytes
  })
  await programs.killDaemon()
  await programs.startDaemon()
}
const eventsOf = async (id: string): Promise<string[]> =>
  (await programs.get(`/storage-downloads/${id}/events/?pageSize=100`)).items
    .map(({ eventType }: { eventType: string }) => eventType.replace('storage.download.', ''))
    .filter((type: string) => type !== 'workflow-restarted')

test.each([
  ['a folder', 'b', () => join(root, 'b')],
  ['a bucket', 'bucket', () => bucket],
])(
  'a copy of a tree to %s that is killed half-way, twice, ends whole, with nothing beside it',
  async (_what, to, folder) => {
    const files = Object.fromEntries(
      Array.from({ length: 60 }, (_, k) => [
        `tree-${to}/part-${k % 4}/file-${k}`,
        randomBytes(k % 10 === 0 ? 1_500_000 : 40_000),
      ]),
    )
    plant(join(root, 'a'), { ...files, [`tree-${to}/large`]: randomBytes(10_000_000) })
    const id = `copy-${to}`
    await programs.post('/storages/a/copies/', {
      id,
      path: `tree-${to}`,
      destinationStorageId: to,
      bytesPerSecond: 3_000_000,
    })
    await killAt(id, 3_000_000)
    await killAt(id, 9_000_000)
    expect(await ended(id)).toMatchObject({
      status: 'completed',
      transferredBytes: Object.values(files).reduce((sum, { length }) => sum + length, 10_000_000),
    })
    expect(treeOf(join(folder(), `tree-${to}`))).toEqual(treeOf(join(root, 'a', `tree-${to}`)))
    expect(
      (readdirSync(join(root, 'b'), { recursive: true }) as string[]).filter((path) =>
        path.includes('.orrery-'),
      ),
    ).toEqual([])
    expect(await eventsOf(id)).toEqual(['started', 'completed'])
  },
  240_000,
)

test('a large file goes on at the part: little is sent again, counted at the store', async () => {
  const size = 600_000_000
  const content = randomBytes(size / 10)
  plant(join(root, 'a'), { huge: Buffer.concat(Array.from({ length: 10 }, () => content)) })
  await programs.post('/storages/a/copies/', {
    ...{ id: 'huge', path: 'huge', destinationStorageId: 'relayed', bytesPerSecond: 120_000_000 },
  })
  await killAt('huge', size / 2)
  expect(await ended('huge')).toMatchObject({ status: 'completed', transferredBytes: size })
  expect(sha256(readFileSync(join(bucket, 'huge')))).toBe(sha256(readFileSync(join(root, 'a', 'huge'))))
  // Up to three parts of 8 MiB were under way.
  expect(relay.sent()).toBeGreaterThan(size)
  expect(relay.sent()).toBeLessThan(size + 4 * 8 * 2 ** 20)
}, 240_000)

test('a cancel whose destination does not answer removes the parts when it answers again', async () => {
  plant(join(root, 'a'), { silent: randomBytes(80_000_000) })
  await programs.post('/storages/a/copies/', {
    ...{ id: 'silent', path: 'silent', destinationStorageId: 'relayed', bytesPerSecond: 4_000_000 },
  })
  const partsOf = (): string[] =>
    (readdirSync(bucket, { recursive: true }) as string[]).filter((path) =>
      path.includes('.sgwtmp/multipart/'),
    )
  await until('a part at the store', 60, () => partsOf().length > 2)
  relay.refuse(() => ({ status: 503 }))
  relay.cut()
  await programs.post('/storage-downloads/silent/cancel/')
  expect(await ended('silent')).toMatchObject({ status: 'cancelled' })
  expect(partsOf().length).toBeGreaterThan(2)
  relay.refuse(undefined)
  await until('the parts to be gone', 120, () => partsOf().length === 0)
}, 300_000)

test('a copy that is cancelled after a sudden death leaves nothing unfinished', async () => {
  plant(join(root, 'a'), { slow: randomBytes(20_000_000) })
  await programs.post('/storages/a/copies/', {
    id: 'stopped',
    path: 'slow',
    destinationStorageId: 'b',
    bytesPerSecond: 1_000_000,
  })
  await killAt('stopped', 2_000_000)
  await programs.post('/storage-downloads/stopped/cancel/')
  expect(await ended('stopped')).toMatchObject({ status: 'cancelled' })
  expect(
    (readdirSync(join(root, 'b')) as string[]).filter(
      (name) => name.includes('slow') || name.includes('.orrery-'),
    ),
  ).toEqual([])
}, 240_000)

test('an archive that is killed half-way is written once, and holds everything', async () => {
  plant(
    join(root, 'a', 'packed'),
    Object.fromEntries(Array.from({ length: 12 }, (_, k) => [`f${k}`, randomBytes(12_000_000)])),
  )
  await programs.post('/storages/a/archives/', { id: 'archive', path: 'packed' })
  await until('the packing', 60, () =>
    readdirSync(join(root, 'a')).some((name) => name.startsWith('.orrery-')),
  )
  await programs.killDaemon()
  await programs.startDaemon()
  // As if an attempt had died after its claim, before it could remove what this one has left.
  await using db = openDatabase(programs.databaseUrl(), { max: 1 })
  await db.run(
    sql`update storage_download_entries set attempt = attempt + 1 where download_id = 'archive' and position >= 0`,
  )
  expect(await ended('archive')).toMatchObject({ status: 'ready', path: 'packed.tar.gz' })
  const unpacked = join(root, 'unpacked')
  mkdirSync(unpacked)
  execFileSync('tar', ['-xzf', join(root, 'a', 'packed.tar.gz'), '-C', unpacked])
  expect(treeOf(join(unpacked, 'packed'))).toEqual(treeOf(join(root, 'a', 'packed')))
  expect(readdirSync(join(root, 'a')).filter((name) => name.startsWith('.orrery-'))).toEqual([])
}, 240_000)

test('an index run that is killed twice ends whole: every entry once, with its digest, and nothing left over', async () => {
  const files = Object.fromEntries(
    Array.from({ length: 1_500 }, (_, k) => [`${k % 40}/${k % 7}/f${k}`, `content ${k}`]),
  )
  plant(join(root, 'indexed'), files)
  // Holes: they take no room and a while to read.
  for (let k = 0; k < 40; k += 1) {
    plant(join(root, 'indexed'), { [`big/${k}`]: '' })
    truncateSync(join(root, 'indexed', 'big', String(k)), 100_000_000 + k)
  }
  await programs.post(
    '/environments/',
    environmentOf('indexing', [localStorage('indexed', join(root, 'indexed'))]),
  )
  await programs.post('/storages/indexed/index-runs/', { id: 'index', checksums: true })
  const run = async () => (await programs.get('/storages/indexed/index-runs/'))[0]
  for (const phase of ['indexing', 'hashing']) {
    await until(`the ${phase}`, 60, async () => {
      const { live, indexedEntries } = await run()
      return phase === 'indexing' ? indexedEntries > 0 : live?.phase === 'hashing'
    })
    await programs.killDaemon()
    await programs.startDaemon()
  }
  const end = await until('the end of the index run', 120, async () => {
    const found = await run()
    return found.status === 'running' ? undefined : found
  })
  const count = 1_500 + 40 + 40 * 7 + 40 + 1
  expect(end).toMatchObject({ status: 'completed', indexedEntries: count, addedEntries: count })
  const found: Record<string, string> = {}
  for (let cursor = ''; ;) {
    const page = await programs.get(`/storages/indexed/index/?limit=500&type=file&glob=f*${cursor}`)
    for (const { path, checksum } of page.entries) found[path] = checksum
    if (page.nextCursor === undefined) break
    cursor = `&cursor=${page.nextCursor}`
  }
  expect(found).toEqual(
    Object.fromEntries(Object.entries(files).map(([path, text]) => [path, `sha256:${sha256(text)}`])),
  )
  expect((await programs.get('/storages/indexed/index/?limit=1')).totals.entries).toBe(count)
}, 240_000)

test.each(['postgres', 'temporal'] as const)(
  'a copy, an archive and an index run during which %s is killed end whole, once',
  async (server) => {
    const folder = join(root, `away-${server}`)
    const files = Object.fromEntries(
      Array.from({ length: 20 }, (_, k) => [`tree/d${k % 3}/f${k}`, randomBytes(2_000_000)]),
    )
    plant(folder, files)
    // Holes: they take no room and a while to read.
    for (let k = 0; k < 20; k += 1) {
      plant(folder, { [`big/${k}`]: '' })
      truncateSync(join(folder, 'big', String(k)), 100_000_000 + k)
    }
    const storage = `away-${server}`
    await programs.post('/environments/', environmentOf(storage, [localStorage(storage, folder)]))
    /** Kills the server, and waits until the daemon has another one. */
    const strike = async (): Promise<void> => {
      const { [server]: killed } = await programs.pids()
      process.kill(killed!, 'SIGKILL')
      await until(`another ${server}`, 120, async () => (await programs.pids())[server] !== killed)
    }
    /** Without the database the daemon answers 503. */
    const found = async (path: string): Promise<any> => {
      const { status, body } = await programs.call('GET', path)
      return status === 200 ? body : undefined
    }
    const over = (path: string) =>
      until(`the end of ${path}`, 240, async () => {
        const run = [await found(path)].flat()[0]
        return ['completed', 'ready', 'failed'].includes(run?.status) ? run : undefined
      })
    const [copy, archive] = [`copy-${storage}`, `archive-${storage}`]
    const body = { path: 'tree', destinationStorageId: 'b', destinationPath: copy }
    await programs.post(`/storages/${storage}/copies/`, { id: copy, ...body, bytesPerSecond: 4_000_000 })
    await until('half of the copy', 120, async () => {
      const run = await found(`/storage-downloads/${copy}/`)
      return (run?.live?.bytes ?? 0) >= 10_000_000
    })
    await strike()
    expect(await over(`/storage-downloads/${copy}/`)).toMatchObject({
      ...{ status: 'completed', transferredBytes: 40_000_000, verification: 'sha256' },
    })
    expect(treeOf(join(root, 'b', copy))).toEqual(treeOf(join(folder, 'tree')))

    await programs.post(`/storages/${storage}/archives/`, { id: archive, path: 'tree' })
    await until('the packing', 120, () => readdirSync(folder).some((name) => name.startsWith('.orrery-')))
    await strike()
    expect(await over(`/storage-downloads/${archive}/`)).toMatchObject({ status: 'ready' })
    const unpacked = join(root, `unpacked-${server}`)
    mkdirSync(unpacked)
    execFileSync('tar', ['-xzf', join(folder, 'tree.tar.gz'), '-C', unpacked])
    expect(treeOf(join(unpacked, 'tree'))).toEqual(treeOf(join(folder, 'tree')))

    const runs = `/storages/${storage}/index-runs/`
    await programs.post(runs, { id: `index-${storage}`, checksums: true })
    await until('the hashing', 120, async () => (await found(runs))?.[0]?.live?.phase === 'hashing')
    await strike()
    // The archive, tree with 3 directories and 20 files, big with 20 files.
    expect(await over(runs)).toMatchObject({ status: 'completed', indexedEntries: 46, addedEntries: 46 })
    for (const [path, content] of Object.entries(files)) {
      const { entries } = await programs.get(`/storages/${storage}/index/?path=${path}`)
      expect(entries).toMatchObject([{ path, checksum: `sha256:${sha256(content)}` }])
    }
    for (const each of [folder, join(root, 'b')])
      expect(
        (readdirSync(each, { recursive: true }) as string[]).filter((path) => path.includes('.orrery-')),
      ).toEqual([])
    for (const id of [copy, archive]) expect(await eventsOf(id)).toEqual(['started', 'completed'])
  },
  600_000,
)

needs(...sites.ssh).test(
  'a copy from one SSH host straight to another that is killed twice goes on at the kept byte',
  async () => {
    await using ssh = await startSsh({ hosts: 2 })
    const [one, two] = ssh.hosts as [SshHost, SshHost]
    await programs.post('/ssh-keys/import/', { id: 'key', privateKey: ssh.key.privateKey })
    await programs.post(
      '/environments/',
      environmentOf('logins', [loginStorage('one'), loginStorage('two')], {
        connections: [
          connectionTo('one', one, 'key', { forwardAgent: true, directTo: ['two'] }),
          connectionTo('two', two, 'key', { knownHosts: two.knownHosts() }),
        ],
      }),
    )
    const size = 128 * 2 ** 20
    writeFileSync(join(one.folder, 'srv', 'large'), randomBytes(size))
    // The bytes go on while the daemon starts again, which takes 12 s beside other work.
    await one.limit('20mbit')
    const before = await two.received()
    await programs.post('/storages/one/copies/', {
      id: 'straight',
      path: 'large',
      destinationStorageId: 'two',
    })
    await killAt('straight', size / 4, 180)
    await killAt('straight', size / 2, 180)
    await one.limit()
    expect(await ended('straight')).toMatchObject({
      status: 'completed',
      transferredBytes: size,
      route: { strategy: 'source-push' },
    })
    // SSH's own bytes, and those that were on their way twice.
    const bytes = (await two.received()) - before
    expect(bytes).toBeGreaterThan(size)
    // From its beginning on it would be three quarters of the file more.
    expect(bytes).toBeLessThan(size * 1.05 + 2 * 16 * 2 ** 20)
    const arrived = readdirSync(join(two.folder, 'srv'))
    expect(arrived).toEqual(['large'])
    const contents = [one, two].map(({ folder }) => sha256(readFileSync(join(folder, 'srv', 'large'))))
    expect(contents[0]).toBe(contents[1])
    for (const host of [one, two])
      await until('the end of the programs', 60, async () => {
        const { stdout } = await host.run('pgrep -x "ssh|dd" || :')
        return stdout === ''
      })
  },
  400_000,
)
