import { afterAll, beforeAll, describe, expect, test } from '@jest/globals'
import { execFileSync } from 'node:child_process'
import { mkdirSync, renameSync, rmSync, symlinkSync, truncateSync, utimesSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { sites } from '../../sites/requirements.ts'
import { startSsh, type SshSite } from '../../sites/ssh.ts'
import { until } from '../failures/programs.ts'
import { needs } from '../support/needs.ts'
import { connectionTo } from '../support/reach.ts'
import type { TestService } from '../support/service.ts'
import { environmentOf, localStorage, openLab, plant, sha256, storageRoot } from './world.ts'

/** Index runs and the index, over HTTP, of a folder here, a folder at an SSH host and a bucket. */

const root = storageRoot()
let lab: Awaited<ReturnType<typeof openLab>>
let service: TestService
let bucket: string
beforeAll(async () => {
  for (const name of ['here', 'small', 'roots', 'late', 'slow', 'flat']) mkdirSync(join(root, name))
  const configured = (id: string, indexPolicy: object) =>
    localStorage(id, join(root, id), { configuration: { browseRoots: [{ path: '/' }], indexPolicy } })
  lab = await openLab(root, [
    localStorage('here', join(root, 'here')),
    configured('small', { enabled: true, maxEntries: 7 }),
    configured('roots', { enabled: true, roots: ['a', 'b/c'], maxDepth: 2, exclude: ['*.tmp', 'a/out'] }),
    configured('late', { enabled: false }),
    configured('slow', { enabled: true }),
    configured('flat', { enabled: true, maxDepth: 0 }),
  ])
  ;({ service, bucket } = lab)
}, 600_000)
afterAll(async () => {
  await lab?.close()
  rmSync(root, { recursive: true, force: true })
})

const plantOne = (file: string): string => {
  writeFileSync(file, '')
  return file
}
const ended = (storage: string, id: string) =>
  until(`the end of ${id}`, 60, async () => {
    const runs: any[] = await service.get(`/storages/${storage}/index-runs/`)
    const run = runs.find((each) => each.id === id)
    return run !== undefined && run.status !== 'running' ? run : undefined
  })
/** The record of an index run at its end. */
const indexed = async (storage: string, body: object = {}) => {
  const answer = await service.call('POST', `/storages/${storage}/index-runs/`, body)
  expect([answer.status, answer.text]).toEqual([202, expect.any(String)])
  return ended(storage, answer.body.id)
}
const find = async (storage: string, query = '') => {
  const answer = await service.call('GET', `/storages/${storage}/index/${query === '' ? '' : `?${query}`}`)
  expect([answer.status, answer.text]).toEqual([200, expect.any(String)])
  return answer.body
}
const paths = async (storage: string, query = ''): Promise<string[]> =>
  (await find(storage, query)).entries.map(({ path }: { path: string }) => path)

test.each([
  ['here', () => join(root, 'here'), ['deep', 'deep/er', 'empty']],
  ['bucket', () => bucket, ['deep', 'deep/er']],
])(
  '%s: what is added, changed in place and removed, also by trees, is found, and nothing else is written',
  async (storage, folder, folders) => {
    const files = {
      'a.csv': 'one,two',
      'deep/b.fits': 'x'.repeat(70),
      'deep/er/c.txt': 'c',
      'deep-': 'beside',
      'deep/er.d': 'd',
    }
    plant(folder(), files)
    if (storage === 'here') mkdirSync(join(folder(), 'empty'))
    const first = await indexed(storage, { id: `${storage}-1` })
    const count = 5 + folders.length
    expect(first).toMatchObject({
      ...{ status: 'completed', indexedEntries: count, addedEntries: count, changedEntries: 0 },
      ...{ removedEntries: 0, truncated: false, indexedBytes: 85, checksums: false },
    })
    expect(await paths(storage)).toEqual(
      [...Object.keys(files), ...folders].toSorted((a, b) => {
        const [x, y] = [a, b].map((path) => path.split('/'))
        const [u, v] = [x!.slice(0, -1).join('\0'), y!.slice(0, -1).join('\0')]
        return u < v ? -1 : u > v ? 1 : x!.at(-1)! < y!.at(-1)! ? -1 : 1
      }),
    )
    const again = await indexed(storage)
    expect(again).toMatchObject({
      indexedEntries: count,
      addedEntries: 0,
      changedEntries: 0,
      removedEntries: 0,
    })

    writeFileSync(join(folder(), 'a.csv'), 'two,one')
    const past = new Date(Date.now() - 100_000)
    utimesSync(join(folder(), 'a.csv'), past, past)
    rmSync(join(folder(), 'deep', 'er'), { recursive: true })
    plant(folder(), { 'new/er/file.csv': 'n' })
    const third = await indexed(storage)
    const { addedEntries, changedEntries, removedEntries } = third
    expect({ addedEntries, changedEntries, removedEntries }).toEqual({
      ...{ addedEntries: 3, changedEntries: 1, removedEntries: 2 },
    })
    expect(await paths(storage, 'glob=*.csv')).toEqual(['a.csv', 'new/er/file.csv'])
    const environment = await service.get('/environments/lab/')
    expect(environment.storages.find(({ id }: { id: string }) => id === storage).indexStatus).toMatchObject({
      ...{ status: 'completed', indexedEntries: third.indexedEntries, lastIndexedAt: third.finishedAt },
    })
  },
  120_000,
)

const overSsh = needs(...sites.ssh)
overSsh.describe('a folder at an SSH host', () => {
  let ssh: SshSite
  beforeAll(async () => {
    ssh = await startSsh({ hosts: 1 })
    await service.post('/ssh-keys/import/', { id: 'ssh', privateKey: ssh.key.privateKey })
  }, 600_000)
  afterAll(() => ssh?.stop())

  overSsh.test(
    'is indexed, what has changed is found, and digests are those of its files',
    async () => {
      const [host] = ssh.hosts as [SshSite['hosts'][0]]
      const storage = {
        ...{ id: 'host', name: 'host', type: 'ssh-filesystem', endpoint: `${host.home}/data` },
        configuration: { connectionId: 'login', browseRoots: [{ path: '/' }] },
      }
      await service.post(
        '/environments/',
        environmentOf('far', [storage], { connections: [connectionTo('login', host, 'ssh')] }),
      )
      await host.run(
        'mkdir -p ~/data/d/e && cd ~/data && printf one > 1 && printf two > d/2 && printf 3 > d/e/3',
        'account',
      )
      expect(await indexed('host', { checksums: true })).toMatchObject({
        ...{ status: 'completed', indexedEntries: 5, addedEntries: 5, indexedBytes: 7 },
      })
      expect(await paths('host', `checksum=${sha256('two')}`)).toEqual(['d/2'])
      await host.run('cd ~/data && rm -r d/e && printf oen > 1 && touch -d 2020-01-01 1', 'account')
      expect(await indexed('host')).toMatchObject({ addedEntries: 0, changedEntries: 1, removedEntries: 2 })
      expect((await find('host')).entries).toMatchObject([
        { path: '1', sizeBytes: 3, modifiedAt: '2020-01-01T00:00:00.000Z' },
        { path: 'd', type: 'directory' },
        { path: 'd/2', checksum: `sha256:${sha256('two')}` },
      ])
    },
    120_000,
  )
})

describe('searching', () => {
  const names = Array.from({ length: 30 }, (_, k) => `f${String(k).padStart(2, '0')}`)
  beforeAll(async () => {
    plant(join(root, 'here', 'many'), Object.fromEntries(names.map((name) => [name, name.repeat(10)])))
    plant(join(root, 'here', 'many'), { 'sub/in/x.csv': 'equal', 'sub/y.json': 'equal', '100%_[a]*': '' })
    symlinkSync('/etc/passwd', join(root, 'here', 'many', 'link'))
    execFileSync('mkfifo', [join(root, 'here', 'many', 'fifo')])
    writeFileSync(Buffer.from(`${join(root, 'here', 'many')}/\xff\x01`, 'latin1'), 'bytes')
    const old = new Date('2020-02-02T02:02:02Z')
    utimesSync(join(root, 'here', 'many', 'f00'), old, old)
    expect((await indexed('here', { checksums: true })).status).toBe('completed')
  }, 120_000)

  test('by glob, type, size, time, media type and checksum, alone and together', async () => {
    const at = 'path=many'
    expect(await paths('here', `${at}&glob=f0[0-2]`)).toEqual(['many/f00', 'many/f01', 'many/f02'])
    expect(await paths('here', `${at}&glob=${encodeURIComponent('many/**/*.csv')}`)).toEqual([
      'many/sub/in/x.csv',
    ])
    expect(await paths('here', `${at}&glob=${encodeURIComponent('many/*/?.json')}`)).toEqual([
      'many/sub/y.json',
    ])
    expect(await paths('here', `${at}&glob=${encodeURIComponent('100%_\\[a\\]\\*')}`)).toEqual([
      'many/100%_[a]*',
    ])
    expect(await paths('here', `${at}&type=directory`)).toEqual(['many/sub', 'many/sub/in'])
    expect(await paths('here', `${at}&type=symlink`)).toEqual(['many/link'])
    expect(await paths('here', `${at}&minSizeBytes=5&maxSizeBytes=5`)).toEqual(
      expect.arrayContaining(['many/sub/y.json', 'many/sub/in/x.csv']),
    )
    expect(await paths('here', `${at}&modifiedBefore=2020-02-02T02:02:03Z`)).toEqual(['many/f00'])
    expect(await paths('here', `${at}&modifiedAfter=2020-02-02T02:02:03Z&glob=f0[01]`)).toEqual(['many/f01'])
    expect(await paths('here', `${at}&mediaType=text/csv`)).toEqual(['many/sub/in/x.csv'])
    expect(await paths('here', `${at}&checksum=sha256:${sha256('equal')}`)).toEqual([
      'many/sub/y.json',
      'many/sub/in/x.csv',
    ])
    expect(await paths('here', `${at}&checksum=${sha256('equal')}&glob=*.csv`)).toEqual(['many/sub/in/x.csv'])
    const [odd] = (await find('here', `${at}&checksum=${sha256('bytes')}`)).entries
    expect(Buffer.from(odd.pathBytes, 'base64').toString('latin1')).toBe('many/\xff\x01')
    const [csv] = (await find('here', `${at}&glob=x.csv`)).entries
    expect(csv).toEqual({
      ...{ path: 'many/sub/in/x.csv', name: 'x.csv', type: 'file', sizeBytes: 5, mediaType: 'text/csv' },
      checksum: `sha256:${sha256('equal')}`,
      modifiedAt: (await service.get('/storages/here/stat/?path=many/sub/in/x.csv')).modifiedAt,
    })
  })

  test('page by page, each entry once, with the totals of what lies below the path', async () => {
    for (const filter of ['', '&type=file', '&glob=f*']) {
      const all: string[] = []
      let totals
      for (let cursor = ''; ;) {
        const page = await find('here', `path=many&limit=4${filter}${cursor && `&cursor=${cursor}`}`)
        expect(page.entries.length).toBeLessThanOrEqual(4)
        all.push(...page.entries.map(({ path, pathBytes }: any) => pathBytes ?? path))
        totals = page.totals
        if (page.nextCursor === undefined) break
        cursor = page.nextCursor
      }
      expect(new Set(all).size).toBe(all.length)
      expect([filter, all.length]).toEqual([filter, { '': 37, '&type=file': 34, '&glob=f*': 30 }[filter]])
      expect(totals).toEqual({ entries: 37, bytes: 30 * 30 + 15 })
    }
    expect(await find('here', 'path=many/sub/y.json')).toMatchObject({
      entries: [{ path: 'many/sub/y.json' }],
      totals: { entries: 1, bytes: 5 },
    })
  })

  test('what is asked wrongly is refused by name', async () => {
    const of = async (query: string) => (await service.call('GET', `/storages/here/index/?${query}`)).status
    const { nextCursor } = await find('here', 'path=many&limit=4')
    expect([
      await of('path=nothing'),
      await of('path=many/../x'),
      await of(`path=many&glob=f*&cursor=${nextCursor}`),
      await of('cursor=abc'),
      await of('minSizeBytes=-1'),
      await of('modifiedAfter=yesterday'),
      await of('checksum=abc'),
      await of('type=special'),
      await of('unknown=1'),
    ]).toEqual([404, 422, 400, 400, 400, 400, 400, 400, 400])
    expect((await service.call('GET', '/storages/none/index/')).status).toBe(404)
    expect((await service.call('POST', '/storages/none/index-runs/', {})).status).toBe(404)
    expect((await service.call('POST', '/storages/here/index-runs/none/cancel/')).status).toBe(404)
    const slow = `${'*a'.repeat(40)}b`
    const began = Date.now()
    expect(await paths('here', `glob=${encodeURIComponent(slow)}`)).toEqual([])
    expect(Date.now() - began).toBeLessThan(5_000)
  })
})

test('the policy cuts off by entries and depth, leaves out what it excludes, and keeps to its roots', async () => {
  plant(join(root, 'small'), Object.fromEntries(Array.from({ length: 20 }, (_, k) => [`d/${k}`, 'x'])))
  expect(await indexed('small')).toMatchObject({
    ...{ status: 'completed', indexedEntries: 7, truncated: true, truncatedBy: 'entries' },
  })
  expect((await find('small')).totals).toEqual({ entries: 7, bytes: 6 })
  plant(join(root, 'small'), { 'a-first/1': 'x', 'a-first/2': 'x' })
  expect(await indexed('small')).toMatchObject({ indexedEntries: 7, truncatedBy: 'entries' })
  expect((await find('small')).totals.entries).toBe(7)
  expect(await paths('small', 'path=a-first')).toEqual(['a-first/1', 'a-first/2'])

  plant(join(root, 'roots'), {
    'a/1': '1',
    'a/x.tmp': 'x',
    'a/out/2': '2',
    'a/deep/3': '3',
    'a/deep/er/4': '4',
    'b/beside': 'b',
    'b/c/5': '5',
  })
  expect(await indexed('roots')).toMatchObject({ truncated: true, truncatedBy: 'depth' })
  expect(await paths('roots')).toEqual(['a/1', 'a/deep', 'a/deep/3', 'a/deep/er', 'b/c/5'])
  await service.call('PUT', '/storages/roots/roots/', {
    browseRoots: [{ path: '/' }],
    indexPolicy: { enabled: true, roots: ['b'], include: ['5'] },
  })
  expect(await indexed('roots')).toMatchObject({ truncated: false, indexedEntries: 2, removedEntries: 4 })
  expect(await paths('roots')).toEqual(['b/c', 'b/c/5'])

  plant(join(root, 'flat'), { file: 'x' })
  expect(await indexed('flat')).toMatchObject({
    ...{ status: 'completed', indexedEntries: 0, truncated: true, truncatedBy: 'depth' },
  })
  const refused = await service.call('POST', '/storages/late/index-runs/', {})
  expect([refused.status, refused.body.error]).toEqual([422, expect.stringMatching(/indexPolicy/)])
}, 120_000)

test('one run at a time; a cancel leaves the index as it was, and ids are taken once', async () => {
  plant(join(root, 'slow'), { kept: 'kept' })
  await indexed('slow', { id: 'before' })
  // Holes: they take no room and a while to read.
  for (let k = 0; k < 60; k += 1) truncateSync(plantOne(join(root, 'slow', `big${k}`)), 300_000_000)
  const answer = await service.call('POST', '/storages/slow/index-runs/', { id: 'open', checksums: true })
  expect(answer.body).toMatchObject({ id: 'open', status: 'running' })
  const second = await service.call('POST', '/storages/slow/index-runs/', { id: 'second' })
  expect([second.status, second.body]).toMatchObject([409, { state: 'running', indexRunId: 'open' }])
  await until('the hashing', 60, async () => {
    const [run] = await service.get('/storages/slow/index-runs/')
    return run.live?.phase === 'hashing' && run.live.bytes > 0 && run.live.bytesPerSecond > 0
  })
  const [{ live }] = await service.get('/storages/slow/index-runs/')
  // The one that was indexed before has no digest either.
  const totals = { totalEntries: 61, totalBytes: 60 * 300_000_000 + 4 }
  expect(live).toMatchObject({ ...totals, estimatedSeconds: expect.any(Number) })
  const replaced = await service.call('DELETE', '/environments/lab/')
  expect([replaced.status, replaced.text]).toEqual([422, expect.stringMatching(/open storage index run/)])
  expect((await service.call('POST', '/storages/slow/index-runs/open/cancel/')).status).toBe(202)
  expect(await ended('slow', 'open')).toMatchObject({ status: 'cancelled' })
  expect(await paths('slow')).toEqual(['kept'])
  for (const table of ['storage_index_folders', 'storage_index_pages', 'storage_index_changes'])
    expect([
      table,
      await service.db.prepared(`rows of ${table}`, `select count(*)::int as rows from ${table}`, []),
    ]).toEqual([table, [{ rows: 0 }]])
  const taken = await service.call('POST', '/storages/slow/index-runs/', { id: 'before' })
  expect([taken.status, taken.text]).toEqual([422, expect.stringMatching(/is taken/)])
  expect((await service.call('POST', '/storages/slow/index-runs/before/cancel/')).status).toBe(409)
  expect((await service.get('/storages/slow/index-runs/')).map(({ id }: { id: string }) => id)).toEqual([
    'open',
    'before',
  ])
  const events = await service.get('/events/?after=0&topic=storage-index')
  expect(
    events.items
      .filter(({ operationId }: any) => operationId === 'open')
      .map(({ event }: any) => event.eventType),
  ).toEqual(['storage.index.started', 'storage.index.cancelled'])
}, 120_000)

test('a file that takes the place of a directory, and the reverse, and a root that is away', async () => {
  plant(join(root, 'late'), { 'x/inner': '1', y: '2' })
  const approve = (path: string) =>
    service.call('PUT', '/storages/late/roots/', {
      browseRoots: [{ path }],
      indexPolicy: { enabled: true },
    })
  await approve('/')
  await indexed('late')
  expect(await paths('late')).toEqual(['x', 'y', 'x/inner'])
  renameSync(join(root, 'late', 'x'), join(root, 'late', 'swap'))
  renameSync(join(root, 'late', 'y'), join(root, 'late', 'x'))
  renameSync(join(root, 'late', 'swap'), join(root, 'late', 'y'))
  await indexed('late')
  expect(await paths('late')).toEqual(['x', 'y', 'y/inner'])
  await approve('gone')
  const failed = await indexed('late')
  expect(failed).toMatchObject({ status: 'failed', error: expect.stringMatching(/root "gone" is not there/) })
  expect(await paths('late')).toEqual([])
  await approve('/')
  expect(await paths('late')).toEqual(['x', 'y', 'y/inner'])
}, 120_000)
