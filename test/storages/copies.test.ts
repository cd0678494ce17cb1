import { afterAll, beforeAll, describe, expect, test } from '@jest/globals'
import { Client, Connection, WorkflowNotFoundError } from '@temporalio/client'
import { MockActivityEnvironment } from '@temporalio/testing'
import { randomBytes } from 'node:crypto'
import { execFileSync } from 'node:child_process'
import {
  appendFileSync,
  chmodSync,
  existsSync,
  lstatSync,
  lutimesSync,
  mkdirSync,
  readdirSync,
  readlinkSync,
  rmSync,
  symlinkSync,
  utimesSync,
  writeFileSync,
} from 'node:fs'
import { hostname } from 'node:os'
import { join } from 'node:path'
import { storageDownloadActivities } from '../../activities/storage-download.ts'
import { sql, type Db } from '../../src/db/sql.ts'
import { acceptJob, addEntries, claimEntries } from '../../src/domains/storages/job-store.ts'
import { nameOf, textOf, type StoragePath } from '../../src/drivers/storage/paths.ts'
import { downloadKind } from '../../src/domains/storages/job-kind.ts'
import { readOperation } from '../../src/operations/records.ts'
import { temporalIdOf } from '../../src/operations/temporal-id.ts'
import { removeTree } from '../../src/drivers/runtime/local/remove-tree.ts'
import { until } from '../failures/programs.ts'
import { waitsAtHosts } from '../support/histories.ts'
import { temporalAddress, type TestService } from '../support/service.ts'
import { proved } from '../support/share.ts'
import { environmentOf, localStorage, openLab, plant, storageRoot, treeOf } from './world.ts'

/** Copies between folders of this machine and a real S3 server, over HTTP. */

const root = storageRoot()
let lab: Awaited<ReturnType<typeof openLab>>
let bucket: string
let service: TestService
beforeAll(async () => {
  for (const name of ['a', 'b', 'fixed']) mkdirSync(join(root, name))
  lab = await openLab(
    root,
    [
      localStorage('a', join(root, 'a')),
      localStorage('b', join(root, 'b')),
      localStorage('all', root),
      localStorage('fixed', join(root, 'fixed'), { readOnly: true }),
      localStorage('rooted', join(root, 'b'), {
        configuration: { browseRoots: [{ path: '/' }, { path: 'kept', readOnly: true }] },
      }),
    ],
    's3://bucket/in',
  )
  ;({ service, bucket } = lab)
}, 600_000)
afterAll(async () => {
  await lab?.close()
  // A copy has left a closed folder there.
  await removeTree(root)
})

const copy = (from: string, path: string, to: string, more: object = {}) =>
  service.call('POST', `/storages/${from}/copies/`, { path, destinationStorageId: to, ...more })
const ended = (id: string) =>
  until(`the end of ${id}`, 60, async () => {
    const found = await service.get(`/storage-downloads/${id}/`)
    return ['completed', 'failed', 'cancelled'].includes(found.status) ? found : undefined
  })
/** The record of a copy at its end. */
const copied = async (from: string, path: string, to: string, more: object = {}) => {
  const answer = await copy(from, path, to, more)
  expect([answer.status, answer.text]).toEqual([202, expect.any(String)])
  return ended(answer.body.id)
}
const leftovers = (folder: string): string[] =>
  (readdirSync(folder, { recursive: true }) as string[]).filter((path) => path.includes('.orrery-'))

test('a tree goes to a store and back with equal digests, links and FIFOs left out and counted, and is merged', async () => {
  const folder = join(root, 'a', 'tree')
  const large = randomBytes(20 * 1024 * 1024)
  plant(folder, {
    'one.csv': '1',
    'deep/er/two': randomBytes(70_000),
    'deep/large': large,
    empty: '',
    'sp ce %2F ünï': 'x',
  })
  mkdirSync(join(folder, 'hollow'))
  const want = treeOf(folder)
  symlinkSync('/etc/passwd', join(folder, 'link'))
  execFileSync('mkfifo', [join(folder, 'fifo')])
  const accepted = await copy('a', 'tree', 'bucket', { id: 'up' })
  expect(accepted.body).toMatchObject({
    id: 'up',
    storageId: 'a',
    path: 'tree',
    strategy: 'copy:bucket',
    destinationPath: 'tree',
  })
  expect(accepted.headers.get('location')).toContain('/storage-downloads/up/')
  const up = await ended('up')
  const bytes = 1 + 70_000 + large.length + 1
  expect(up).toMatchObject({
    status: 'completed',
    sizeBytes: bytes,
    transferredBytes: bytes,
    skippedEntries: 2,
  })
  expect(up.live).toBeUndefined()
  plant(join(root, 'b', 'back'), { 'deep/other': 'stays' })
  expect(await copied('bucket', 'tree', 'b', { destinationPath: 'back' })).toMatchObject({
    status: 'completed',
  })
  const { 'deep/other': other, ...got } = treeOf(join(root, 'b', 'back'))
  expect(other).toBeDefined()
  expect(got).toEqual(want)
  expect(leftovers(join(root, 'b'))).toEqual([])
  const events = (await service.get('/storage-downloads/up/events/')).items.map(
    ({ eventType }: { eventType: string }) => eventType,
  )
  expect(events).toEqual(['storage.download.started', 'storage.download.completed'])
  expect((await service.get('/storages/a/downloads/')).map(({ id }: { id: string }) => id)).toContain('up')
  expect((await service.call('GET', '/storage-downloads/up/content/')).status).toBe(409)
})

test('a copy between folders keeps times, modes and the links that lead to its own entries', async () => {
  const folder = join(root, 'a', 'kept')
  plant(folder, { 'bin/run': 'run', 'deep/er/data': 'data' })
  mkdirSync(join(root, 'b', 'kept-there', 'deep'), { recursive: true })
  chmodSync(join(root, 'b', 'kept-there', 'deep'), 0o711)
  symlinkSync('../deep/er/data', join(folder, 'bin', 'inner'))
  symlinkSync('deep/er', join(folder, 'folder'))
  symlinkSync('nowhere', join(folder, 'dangling'))
  for (const outer of ['/etc/passwd', '../outside', 'deep/../../outside', 'folder/../../../outside'])
    symlinkSync(outer, join(folder, `outer-${outer.length}`))
  chmodSync(join(folder, 'bin', 'run'), 0o4750)
  const time = new Date('2019-05-06T07:08:09.500Z')
  for (const path of ['bin/run', 'deep/er/data', 'deep/er', 'bin']) utimesSync(join(folder, path), time, time)
  lutimesSync(join(folder, 'bin', 'inner'), time, time)
  chmodSync(join(folder, 'bin'), 0o550)
  const end = await copied('a', 'kept', 'b', { destinationPath: 'kept-there' })
  expect(end).toMatchObject({ status: 'completed', skippedEntries: 4 })
  const there = join(root, 'b', 'kept-there')
  const factsOf = (path: string) => {
    const { mode, mtimeMs } = lstatSync(join(there, path))
    return [mode & 0o7777, Math.floor(mtimeMs)]
  }
  expect(factsOf('bin/run')).toEqual([0o750, time.getTime()])
  expect(factsOf('bin')).toEqual([0o550, time.getTime()])
  expect(factsOf('deep/er')).toEqual([0o755, time.getTime()])
  // A directory that was there stays as it is.
  expect(factsOf('deep')[0]).toBe(0o711)
  expect(factsOf('bin/inner')[1]).toBe(time.getTime())
  expect(['bin/inner', 'folder', 'dangling'].map((path) => readlinkSync(join(there, path)))).toEqual([
    '../deep/er/data',
    'deep/er',
    'nowhere',
  ])
  expect(readdirSync(there).toSorted()).toEqual(['bin', 'dangling', 'deep', 'folder'])
})

/** Whether a workflow removes what the first attempt of a copy has left, after its end. */
const isTidiedLater = async (id: string): Promise<boolean> => {
  const connection = await Connection.connect({ address: temporalAddress() })
  const { workflow } = new Client({ connection, namespace: service.namespace })
  try {
    await workflow.getHandle(temporalIdOf({ name: 'storage-tidy' }, id, 1)).describe()
    return true
  } catch (error) {
    if (error instanceof WorkflowNotFoundError) return false
    throw error
  } finally {
    await connection.close()
  }
}

test('names of bytes that are no text, of quotes and of newlines arrive as they are', async () => {
  const folder = join(root, 'a', 'hostile')
  mkdirSync(folder)
  for (const name of [
    Buffer.from([0x66, 0xff, 0xfe]),
    Buffer.from('a\nb'),
    Buffer.from('q\'"$(x)'),
    Buffer.from('-rf'),
    Buffer.from('n'.repeat(255)),
  ])
    writeFileSync(Buffer.concat([Buffer.from(`${folder}/`), name]), name)
  expect(await copied('a', 'hostile', 'b')).toMatchObject({ status: 'completed' })
  expect(treeOf(join(root, 'b', 'hostile'))).toEqual(treeOf(folder))
  const refused = await copied('a', 'hostile', 'bucket')
  expect(refused).toMatchObject({ status: 'failed', error: expect.stringContaining('UTF-8') })
  // Nothing can be there under such a name.
  expect(await isTidiedLater(refused.id)).toBe(false)
})

test('a copy into a directory that is a link at the destination leaves nothing to tidy up', async () => {
  plant(join(root, 'a', 'linked'), { 'inner/file': 'file' })
  mkdirSync(join(root, 'b', 'linked'))
  mkdirSync(join(root, 'elsewhere'))
  symlinkSync(join(root, 'elsewhere'), join(root, 'b', 'linked', 'inner'))
  const refused = await copied('a', 'linked', 'b')
  expect(refused).toMatchObject({ status: 'failed', error: expect.stringContaining('link') })
  expect(await isTidiedLater(refused.id)).toBe(false)
})

test('an empty directory goes to the root of a bucket, and a name of bytes to a folder', async () => {
  mkdirSync(join(root, 'a', 'empty'))
  expect(await copied('a', 'empty', 'bucket', { destinationPath: '' })).toMatchObject({ status: 'completed' })
  plant(join(root, 'a'), { plain: 'plain' })
  const bytes = Buffer.from([0x66, 0xff, 0x2f, 0xfe])
  const end = await copied('a', 'plain', 'b', { destinationPathBytes: bytes.toString('base64') })
  expect(end).toMatchObject({ status: 'completed', destinationPathBytes: bytes.toString('base64') })
  expect(Object.keys(treeOf(join(root, 'b')))).toContain(bytes.toString('latin1'))
  const both = { destinationPath: 'x', destinationPathBytes: bytes.toString('base64') }
  const refused = await copy('a', 'plain', 'b', both)
  expect([refused.status, refused.body.details?.[0]?.path]).toEqual([422, 'destinationPathBytes'])
})

test('the URL of a download is stored nowhere; a repeated request gets a fresh one', async () => {
  plant(join(bucket, 'in'), { 'to-fetch.txt': 'fetched' })
  const ask = () =>
    service.call(
      'POST',
      '/storages/bucket/downloads/',
      { path: 'to-fetch.txt' },
      { 'idempotency-key': 'one-download' },
    )
  const first = await ask()
  expect([first.status, first.body.url]).toEqual([201, expect.stringContaining('X-Amz-Signature')])
  const again = await ask()
  expect(again.headers.get('idempotency-replayed')).toBe('true')
  expect({ ...again.body, url: '' }).toEqual({ ...first.body, url: '' })
  expect(await (await fetch(again.body.url)).text()).toBe('fetched')
  const kept = await service.db.prepared<{ body: string }>('kept', 'select body from idempotency_keys', [])
  expect(kept.map(({ body }) => body).join()).toContain(first.body.id)
  expect(kept.map(({ body }) => body).join()).not.toContain('X-Amz')
  // A further URL opens the file to a further holder.
  const issued = await service.get('/audit-events/?eventType=storage.download.created')
  expect(
    issued.filter(({ summary }: { summary: string }) => summary === 'download of storage bucket prepared'),
  ).toHaveLength(2)
})

test('what an ended copy has left is removed until it is retried, and no upload of the retry', async () => {
  const { db } = service
  const again = async (tx: Db): Promise<void> => {
    await tx.run(sql`update storage_downloads set generation = generation + 1 where id = 'tidied'`)
    await claimEntries(tx, 'tidied', 2)
  }
  const job = { id: 'tidied', strategy: 'copy:b', onConflict: 'fail' as const }
  await db.transaction(async (tx) => {
    const [path, destinationPath] = [[nameOf('from')], [nameOf('to')]]
    await acceptJob(tx, { ...job, storageId: 'a', path, destinationStorageId: 'b', destinationPath })
    const files = ['x', 'y'].map((name) => ({ path: [nameOf(name)], type: 'file' as const, sizeBytes: 1 }))
    await addEntries(tx, { id: 'tidied', listing: 0 }, 0, files)
    await claimEntries(tx, 'tidied', 2)
    await tx.run(sql`update storage_downloads set status = 'failed' where id = 'tidied'`)
  })
  /** What is removed of generation `ended`; the retry comes where the destination does `retriedAt`. */
  const removed = async (ended: number, retriedAt: 'open' | 'discard' | undefined): Promise<string[]> => {
    const discarded: string[] = []
    const discard = async (path: StoragePath): Promise<void> => {
      discarded.push(path.map(textOf).join('/'))
      if (retriedAt === 'discard') await again(db)
    }
    const open = async () => {
      if (retriedAt === 'open') await again(db)
      return { driver: { discard } }
    }
    const { tidyStorageDownload } = storageDownloadActivities({
      ...{ db, engine: { taskQueue: 'any' }, draining: new AbortController().signal },
      storages: { open: open as never },
    })
    await new MockActivityEnvironment().run(() => tidyStorageDownload('tidied', ended))
    return discarded
  }
  expect(await removed(1, undefined)).toEqual(['to/x', 'to/y'])
  expect(await removed(1, 'open')).toEqual([])
  expect(await removed(1, undefined)).toEqual([])
  expect(await removed(2, 'discard')).toEqual(['to/x'])
})

test('within one bucket the store copies, and no byte goes through the service', async () => {
  plant(join(root, 'a', 'within'), { one: randomBytes(3_000_000), 'deep/two': 'two' })
  expect(await copied('a', 'within', 'bucket')).toMatchObject({ status: 'completed', verification: 'sha256' })
  const end = await copied('bucket', 'within', 'bucket', { destinationPath: 'again' })
  expect(end).toMatchObject({
    status: 'completed',
    verification: 'store',
    sentBytes: 0,
    transferredBytes: 3_000_003,
  })
  expect(treeOf(join(bucket, 'in', 'again'))).toEqual(treeOf(join(root, 'a', 'within')))
  expect(await copied('bucket', 'within', 'bucket', { destinationPath: 'again' })).toMatchObject({
    ...{ status: 'failed', error: expect.stringContaining('again/') },
  })
})

test('a job with an end on this machine belongs to its host, one between buckets to any', async () => {
  plant(join(root, 'a'), { hosted: 'hosted' })
  const ids = ['to-bucket', 'in-bucket']
  await copied('a', 'hosted', 'bucket', { id: ids[0] })
  await copied('bucket', 'hosted', 'bucket', { id: ids[1], destinationPath: 'hosted-again' })
  for (const storage of ['a', 'bucket'])
    await service.post(`/storages/${storage}/index-runs/`, { id: `of-${storage}` })
  const rows = await service.db.prepared<{ id: string; host_id: string | null }>(
    'hosts',
    `select id, host_id from storage_downloads where id = any($1)
      union all select id, host_id from storage_index_runs where id like 'of-%' order by id`,
    [ids],
  )
  expect(Object.fromEntries(rows.map((row) => [row.id, row.host_id]))).toEqual({
    ...{ 'to-bucket': hostname(), 'in-bucket': null },
    ...{ 'of-a': hostname(), 'of-bucket': null },
  })
  await until('the end of both index runs', 60, async () => {
    const runs = [
      await service.get('/storages/a/index-runs/'),
      await service.get('/storages/bucket/index-runs/'),
    ]
    return runs.flat().every(({ status }: { status: string }) => status === 'completed')
  })
  const connection = await Connection.connect({ address: temporalAddress() })
  const server = { connection, namespace: service.namespace }
  // A host that is gone keeps no job waiting for ever.
  const wait = '3000s'
  expect(await waitsAtHosts(server, 'storage-download/to-bucket/1')).toEqual({
    ...{ listStorageDownload: wait, sendStorageDownload: wait },
  })
  expect(await waitsAtHosts(server, 'storage-index/of-a/1')).toEqual({
    ...{ walkStorageIndex: wait, hashStorageIndex: wait, recordStorageIndex: wait },
  })
  await connection.close()
})

test('the index shows and counts only what is below the present roots', async () => {
  plant(join(root, 'fixed'), {
    'in/side': 'inner',
    'in/deep/er': 'deep',
    'in.side': 'beside',
    'out/er': 'outer',
  })
  const { id } = await service.post('/storages/fixed/index-runs/')
  await until('the index', 120, async () => {
    const runs = await service.get('/storages/fixed/index-runs/')
    return runs.find((run: { id: string }) => run.id === id).status === 'completed'
  })
  const index = (search = '') => service.call('GET', `/storages/fixed/index/${search}`)
  const paths = ({ body }: { body: { entries: { path: string }[] } }) =>
    body.entries.map(({ path }) => path).toSorted()
  const all = ['in', 'in.side', 'in/deep', 'in/deep/er', 'in/side', 'out', 'out/er']
  expect(paths(await index())).toEqual(all)
  const { nextCursor } = (await index('?limit=2')).body
  const approve = (...roots: string[]) =>
    service.ok('PUT', '/storages/fixed/roots/', { browseRoots: roots.map((path) => ({ path })) })
  await approve('in')
  const narrowed = await index()
  expect([paths(narrowed), narrowed.body.totals]).toEqual([
    ['in', 'in/deep', 'in/deep/er', 'in/side'],
    { entries: 4, bytes: 9 },
  ])
  expect((await index('?path=out')).status).toBe(404)
  expect((await index('?path=in.side')).status).toBe(404)
  expect((await index(`?limit=2&cursor=${nextCursor}`)).status).toBe(400)
  await approve('in/deep', 'out/er')
  expect(paths(await index())).toEqual(['in/deep', 'in/deep/er', 'out/er'])
  expect(paths(await index('?path=out'))).toEqual(['out/er'])
  await approve()
  expect((await index()).body).toMatchObject({ entries: [], totals: { entries: 0, bytes: 0 } })
  await approve('/')
  expect(paths(await index())).toEqual(all)
})

describe('where the destination has the name', () => {
  test('a copy fails by name, leaves one with the same bytes, or replaces it, as it was asked to', async () => {
    plant(join(root, 'a', 'c'), { same: 'same', other: 'new' })
    plant(join(root, 'b', 'c'), { same: 'same', other: 'old' })
    const failed = await copied('a', 'c/same', 'b')
    expect(failed).toMatchObject({ status: 'failed', error: expect.stringContaining('"c/same"') })
    expect(await copied('a', 'c/same', 'b', { onConflict: 'skip-equal' })).toMatchObject({
      status: 'completed',
    })
    expect(await copied('a', 'c', 'b', { onConflict: 'skip-equal' })).toMatchObject({
      status: 'failed',
      error: expect.stringContaining('"c/other"'),
    })
    expect(treeOf(join(root, 'b', 'c'))['other']).not.toEqual(treeOf(join(root, 'a', 'c'))['other'])
    expect(await copied('a', 'c', 'b', { onConflict: 'overwrite' })).toMatchObject({ status: 'completed' })
    expect(treeOf(join(root, 'b', 'c'))).toEqual(treeOf(join(root, 'a', 'c')))
    expect(leftovers(join(root, 'b'))).toEqual([])
  })

  test('what was promoted there stays so where it has the same bytes, and else no longer', async () => {
    plant(join(root, 'a', 'p'), { same: 'same', 'ö %/other': 'new', beside: 'new' })
    plant(join(root, 'b', 'p'), { same: 'same', 'ö %/other': 'old', beside: 'old', else: 'else' })
    const promotedAs = async (path: string): Promise<number> =>
      (await service.get(`/storages/b/stat/?path=${encodeURIComponent(path)}`)).promotedAs?.length ?? 0
    const paths = ['p/same', 'p/ö %/other', 'p/else']
    for (const path of paths) await service.post('/storages/b/promote-data/', { path })
    expect(await Promise.all(paths.map(promotedAs))).toEqual([1, 1, 1])
    expect(await copied('a', 'p', 'b', { onConflict: 'overwrite' })).toMatchObject({ status: 'completed' })
    expect(await Promise.all(paths.map(promotedAs))).toEqual([1, 0, 1])
    // An archive in the place of another one, too.
    const archive = async (id: string) => {
      await service.post('/storages/b/archives/', { id, path: 'p', onConflict: 'overwrite' })
      await until(`the end of ${id}`, 60, async () => {
        const { status } = await service.get(`/storage-downloads/${id}/`)
        return status === 'ready'
      })
    }
    await archive('packed')
    await service.post('/storages/b/promote-data/', { path: 'p.tar.gz' })
    await archive('packed-again')
    expect(await promotedAs('p.tar.gz')).toBe(1)
    writeFileSync(join(root, 'b', 'p', 'else'), 'other')
    await archive('packed-otherwise')
    expect(await promotedAs('p.tar.gz')).toBe(0)
  })

  test('a failed copy is retried when the conflict is gone', async () => {
    plant(join(root, 'a', 'r'), { x: '1', y: '2' })
    plant(join(root, 'b', 'r'), { y: 'in the way' })
    const failed = await copied('a', 'r', 'b', { id: 'again' })
    expect(failed.status).toBe('failed')
    rmSync(join(root, 'b', 'r', 'y'))
    expect((await service.call('POST', '/storage-downloads/again/retry/')).status).toBe(202)
    expect(await ended('again')).toMatchObject({ status: 'completed' })
    expect(treeOf(join(root, 'b', 'r'))).toEqual(treeOf(join(root, 'a', 'r')))
    const late = await service.call('POST', '/storage-downloads/again/retry/')
    expect([late.status, late.body.state]).toEqual([409, 'completed'])
    expect((await service.call('POST', '/storage-downloads/again/cancel/')).status).toBe(409)
  })
})

proved(
  'a copy whose id one of a deleted environment had completes, and what was left of that one is its own',
  async () => {
    const keys: string[] = []
    const storages = { open: () => Promise.reject(new Error('asks its storage')) }
    mkdirSync(join(root, 'twice'))
    writeFileSync(join(root, 'twice', 'file'), 'x')
    for (const destinationPath of ['first', 'second']) {
      await service.post(
        '/environments/',
        environmentOf('twice', [localStorage('twice', join(root, 'twice'))]),
      )
      const end = await copied('twice', 'file', 'twice', { id: 'twice', destinationPath })
      expect([end.id, end.status]).toEqual(['twice', 'completed'])
      keys.push((await readOperation(service.db, downloadKind, { id: 'twice' }))?.key ?? '')
      const { tidyStorageDownload } = storageDownloadActivities({ db: service.db, storages } as never)
      const tidied = new MockActivityEnvironment().run(() => tidyStorageDownload('twice', 1, keys[0]))
      await expect(tidied).rejects.toThrow(keys.length === 1 ? 'asks its storage' : 'does not exist')
      expect((await service.call('DELETE', '/environments/twice/')).status).toBe(204)
    }
  },
)

test('of two copies to one place, one writes it', async () => {
  writeFileSync(join(root, 'a', 'race'), randomBytes(3_000_000))
  const ends = await Promise.all([copied('a', 'race', 'b'), copied('a', 'race', 'b')])
  expect(ends.map(({ status }) => status).toSorted()).toEqual(['completed', 'failed'])
  expect(leftovers(join(root, 'b'))).toEqual([])
})

test('a file that is written to while it is sent fails by name, and nothing of it is at the destination', async () => {
  const file = join(root, 'a', 'growing')
  writeFileSync(file, randomBytes(400_000))
  const writing = setInterval(() => appendFileSync(file, 'more'), 50)
  try {
    const end = await copied('a', 'growing', 'b', { bytesPerSecond: 300_000 })
    expect(end).toMatchObject({ status: 'failed', error: expect.stringContaining('"growing"') })
  } finally {
    clearInterval(writing)
  }
  expect(existsSync(join(root, 'b', 'growing'))).toBe(false)
  expect(leftovers(join(root, 'b'))).toEqual([])
})

test.each(['b', 'bucket'])(
  'a cancel leaves no temporary file at %s, and the record says how far it was',
  async (to) => {
    writeFileSync(join(root, 'a', `slow-${to}`), randomBytes(12_000_000))
    const id = `cancelled-${to}`
    expect((await copy('a', `slow-${to}`, to, { id, bytesPerSecond: 1_000_000 })).status).toBe(202)
    const open = await until('some bytes', 60, async () => {
      const found = await service.get(`/storage-downloads/${id}/`)
      return found.live?.bytesPerSecond > 0 ? found : undefined
    })
    expect(open).toMatchObject({
      status: 'streaming',
      live: { phase: 'sending', totalEntries: 1, totalBytes: 12_000_000 },
    })
    const { bytes, bytesPerSecond, estimatedSeconds } = open.live
    expect(estimatedSeconds).toBe(Math.ceil((12_000_000 - bytes) / bytesPerSecond))
    const { environment, version, storages } = await service.get('/environments/lab/')
    for (const blocked of [
      await service.call('DELETE', '/environments/lab/'),
      await service.call('PUT', '/environments/lab/', { environment, version, storages: storages.slice(1) }),
    ])
      expect([blocked.status, blocked.text]).toEqual([422, expect.stringContaining('storage download')])
    expect((await service.call('POST', `/storage-downloads/${id}/cancel/`)).status).toBe(202)
    expect(await ended(id)).toMatchObject({ status: 'cancelled' })
    expect(existsSync(join(root, 'b', `slow-${to}`))).toBe(false)
    expect(leftovers(join(root, 'b'))).toEqual([])
    expect(
      (readdirSync(bucket, { recursive: true }) as string[]).filter((path) => path.includes('slow-')),
    ).toEqual([])
    expect((await service.call('POST', `/storage-downloads/${id}/cancel/`)).status).toBe(202)
  },
)

describe('is refused', () => {
  beforeAll(() => {
    plant(join(root, 'a', 'dir'), { f: 'f', 'inner/g': 'g' })
    symlinkSync('dir', join(root, 'a', 'way'))
  })
  test.each([
    ['a copy of a file onto itself', 'a', 'dir/f', 'a', {}, 'destinationPath'],
    [
      'a copy of a directory into itself',
      'a',
      'dir',
      'a',
      { destinationPath: 'dir/inner/again' },
      'destinationPath',
    ],
    [
      'the same through another storage',
      'a',
      'dir',
      'all',
      { destinationPath: 'a/dir/deeper' },
      'destinationPath',
    ],
    ['an unknown destination', 'a', 'dir', 'nothing', {}, 'destinationStorageId'],
    ['a read-only destination', 'a', 'dir', 'fixed', {}, 'destinationStorageId'],
    ['a read-only root', 'a', 'dir', 'rooted', { destinationPath: 'kept/new' }, 'destinationPath'],
    ['a missing source', 'a', 'nothing', 'b', {}, 'path'],
    ['a path upwards', 'a', '../b', 'b', {}, 'path'],
    ['a destination upwards', 'a', 'dir', 'b', { destinationPath: '../a/x' }, 'destinationPath'],
    ['a link', 'a', 'way', 'b', {}, 'path'],
    ['a path through a link', 'a', 'way/f', 'b', {}, 'path'],
    ['a rule that is none', 'a', 'dir', 'b', { onConflict: 'maybe' }, 'onConflict'],
    ['a rate of nothing', 'a', 'dir', 'b', { bytesPerSecond: 0 }, 'bytesPerSecond'],
  ])('%s', async (_what, from, path, to, more, field) => {
    const answer = await copy(from, path, to, more)
    expect([answer.status, answer.body.details?.[0]?.path]).toEqual([422, field])
  })

  test('an unknown storage, a path that is not given, an id that is taken', async () => {
    expect((await copy('nothing', 'x', 'b')).status).toBe(404)
    expect((await service.call('POST', '/storages/a/copies/', { destinationStorageId: 'b' })).status).toBe(
      422,
    )
    await copied('a', 'dir/f', 'b', { id: 'taken', onConflict: 'overwrite' })
    expect((await copy('a', 'dir/f', 'b', { id: 'taken' })).body.details[0].path).toBe('id')
  })
})
