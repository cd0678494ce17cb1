import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { execFileSync } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import {
  appendFileSync,
  mkdirSync,
  readFileSync,
  readdirSync,
  rmSync,
  symlinkSync,
  utimesSync,
  writeFileSync,
} from 'node:fs'
import { join } from 'node:path'
import { sql } from '../../src/db/sql.ts'
import { until } from '../failures/programs.ts'
import type { TestService } from '../support/service.ts'
import { proved } from '../support/share.ts'
import { localStorage, openLab, plant, sha256, storageRoot, treeOf } from './world.ts'

/** Archives of directories, unpacked with GNU tar. */

const root = storageRoot()
let lab: Awaited<ReturnType<typeof openLab>>
let service: TestService
beforeAll(async () => {
  for (const name of ['a', 'fixed/inner']) mkdirSync(join(root, name), { recursive: true })
  lab = await openLab(root, [
    localStorage('a', join(root, 'a')),
    localStorage('fixed', join(root, 'fixed'), { readOnly: true }),
    localStorage('rooted', join(root, 'a'), {
      configuration: { browseRoots: [{ path: '/' }, { path: 'held', readOnly: true }] },
    }),
    localStorage('narrow', join(root, 'a'), { configuration: { browseRoots: [{ path: 'plain' }] } }),
  ])
  ;({ service } = lab)
}, 600_000)
afterAll(async () => {
  await lab?.close()
  rmSync(root, { recursive: true, force: true })
})

const archive = (storage: string, path: string, more: object = {}) =>
  service.call('POST', `/storages/${storage}/archives/`, { path, ...more })
const archived = async (storage: string, path: string, more: object = {}) => {
  const answer = await archive(storage, path, more)
  expect([answer.status, answer.text]).toEqual([202, expect.any(String)])
  return until(`the end of ${answer.body.id}`, 60, async () => {
    const found = await service.get(`/storage-downloads/${answer.body.id}/`)
    return ['ready', 'failed', 'cancelled'].includes(found.status) ? found : undefined
  })
}
const content = async (id: string): Promise<Buffer> =>
  Buffer.from(await (await fetch(`${service.baseUrl}/storage-downloads/${id}/content/`)).arrayBuffer())
const unpacked = (bytes: Buffer, name: string): string => {
  const folder = join(root, `unpacked-${name}`)
  mkdirSync(folder)
  execFileSync('tar', ['-xzf', '-', '-C', folder], { input: bytes })
  return folder
}

test('an archive holds the files in order, without links, and the same files give the same bytes', async () => {
  const files = {
    'b/2': randomBytes(70_000),
    'a.txt': 'a',
    'a/1': 'one',
    [`${'long'.repeat(40)}/${'name'.repeat(50)}`]: 'long',
    'ünï"\n': 'x',
    empty: '',
    large: randomBytes(9_000_000),
  }
  for (const name of ['first', 'second']) {
    const folder = join(root, 'a', name, 'tree')
    plant(folder, files)
    mkdirSync(join(folder, 'hollow'))
    symlinkSync('/etc/passwd', join(folder, 'link'))
    execFileSync('mkfifo', [join(folder, 'fifo')])
    execFileSync('find', [folder, '-exec', 'touch', '-h', '-d', '2020-02-02T02:02:02Z', '{}', '+'])
  }
  const first = await archived('a', 'first/tree', { id: 'one' })
  expect(first).toMatchObject({
    status: 'ready',
    strategy: 'archive',
    path: 'first/tree.tar.gz',
    skippedEntries: 2,
    entries: 12,
  })
  const bytes = await content('one')
  expect(bytes.length).toBe(first.sizeBytes)
  await archived('a', 'second/tree', { id: 'two' })
  expect(sha256(await content('two'))).toBe(sha256(bytes))
  const names = execFileSync('tar', ['-tzf', '-', '--quoting-style=literal'], { input: bytes })
    .toString()
    .split('\n')
  expect(names.slice(0, 4)).toEqual(['tree/', 'tree/a/', 'tree/a.txt', 'tree/a/1'])
  expect(
    execFileSync('tar', ['-tvzf', '-', '--numeric-owner'], { input: bytes }).toString().split('\n')[0],
  ).toMatch(/^drwxr-xr-x 0\/0 /)
  const want = treeOf(join(root, 'a', 'first', 'tree'))
  delete want['link']
  delete want['fifo']
  expect(treeOf(join(unpacked(bytes, 'one'), 'tree'))).toEqual(want)
})

test('names that are not UTF-8 keep their bytes', async () => {
  const latin = (text: string): Buffer => Buffer.from(text, 'latin1')
  const folder = join(root, 'a', 'odd')
  plant(folder, { plain: 'p' })
  mkdirSync(latin(join(folder, 'caf\xe9')))
  const [long, early] = ['\xff'.repeat(200), 'caf\xe9/\xc3\xa9t\xe9'] as const
  for (const name of ['\xff', long, early]) writeFileSync(latin(join(folder, name)), latin(name))
  utimesSync(latin(join(folder, early)), new Date(), new Date(-86_400_000))
  expect(await archived('a', 'odd', { id: 'odd' })).toMatchObject({ status: 'ready', entries: 6 })
  const input = await content('odd')
  const listed = (more: string): string =>
    execFileSync('tar', [more, '-', '--quoting-style=literal'], {
      input,
      env: { ...process.env, TZ: 'UTC' },
    }).toString('latin1')
  expect(listed('-tzf').split('\n').toSorted()).toEqual(
    ['', 'odd/', 'odd/caf\xe9/', `odd/${early}`, 'odd/plain', 'odd/\xff', `odd/${long}`].toSorted(),
  )
  expect(listed('-tvzf')).toContain(` 1969-12-31 00:00 odd/${early}\n`)
  const out = unpacked(input, 'odd')
  for (const name of ['\xff', long, early])
    expect(readFileSync(latin(join(out, 'odd', name)))).toEqual(latin(name))
})

test('times before 1970 and after January 2038 stay what they are', async () => {
  plant(join(root, 'a', 'times'), { old: 'o', new: 'n', 'dir/f': 'f', large: randomBytes(9_000_000) })
  const times = { old: -86_400, new: 4_102_444_800, dir: -86_400, large: 4_102_444_800 }
  for (const [name, time] of Object.entries(times))
    utimesSync(join(root, 'a', 'times', name), new Date(), new Date(time * 1_000))
  await archived('a', 'times', { id: 'times' })
  const input = await content('times')
  const listed = execFileSync('tar', ['-tvzf', '-', '--utc'], { input }).toString()
  expect(listed).toMatch(/ 1969-12-31 00:00 times\/old\n/)
  expect(listed).toMatch(/ 2100-01-01 00:00 times\/new\n/)
  expect(listed).toMatch(/ 1969-12-31 00:00 times\/dir\/\n/)
  expect(listed).toMatch(/ 2100-01-01 00:00 times\/large\n/)
})

proved('of a bucket, too; one that is there is a conflict, left where it is equal, or replaced', async () => {
  for (const [path, text] of [
    ['d/1', 'one'],
    ['d/e/2', 'two'],
  ] as const)
    await fetch(`${service.baseUrl}/storages/bucket/entries/?path=${path}`, {
      method: 'PUT',
      body: text,
      headers: { 'content-type': 'text/plain' },
    })
  expect(await archived('bucket', 'd', { id: 'of-bucket' })).toMatchObject({
    status: 'ready',
    path: 'd.tar.gz',
  })
  for (const verb of ['cancel', 'retry']) {
    const late = await service.call('POST', `/storage-downloads/of-bucket/${verb}/`)
    expect([late.status, late.body.state, late.body.error]).toEqual([
      409,
      'ready',
      expect.stringContaining('ready'),
    ])
  }
  expect(Object.keys(treeOf(unpacked(await content('of-bucket'), 'bucket')))).toEqual([
    'd/',
    'd/1',
    'd/e/',
    'd/e/2',
  ])
  expect(await archived('bucket', 'd')).toMatchObject({
    status: 'failed',
    error: expect.stringContaining('d.tar.gz'),
  })
  expect(await archived('bucket', 'd', { onConflict: 'skip-equal' })).toMatchObject({ status: 'ready' })
  await fetch(`${service.baseUrl}/storages/bucket/entries/?path=d/3`, {
    method: 'PUT',
    body: '3',
    headers: { 'content-type': 'text/plain' },
  })
  expect(await archived('bucket', 'd', { onConflict: 'skip-equal' })).toMatchObject({ status: 'failed' })
  expect(await archived('bucket', 'd', { onConflict: 'overwrite' })).toMatchObject({
    status: 'ready',
    entries: 5,
  })
})

test('an archive whose record the database loses for a moment is recorded whole', async () => {
  plant(join(root, 'a', 'lost'), { f: Buffer.alloc(1_000_000) })
  // The first of the transactions that record the size of the archive does not reach the database.
  await service.db.run(sql`create sequence tries_to_record`)
  await service.db.run(sql`create function lose_record() returns trigger language plpgsql as
    'begin if nextval(''tries_to_record'') = 1 then raise sqlstate ''57P01''; end if; return new; end'`)
  await service.db
    .run(sql`create trigger lose_record before update of size_bytes on storage_downloads for each row
    when (old.listed_at is not null and new.size_bytes is distinct from old.size_bytes)
    execute function lose_record()`)
  const end = await archived('a', 'lost', { id: 'lost' })
  await service.db.run(sql`drop trigger lose_record on storage_downloads`)
  const { length } = await content('lost')
  expect(end).toMatchObject({ status: 'ready', entries: 2, sizeBytes: length, transferredBytes: length })
  expect(await service.db.run(sql`select from storage_download_entries where download_id = 'lost'`)).toBe(0)
})

test('a cancel leaves nothing', async () => {
  plant(
    join(root, 'a', 'big'),
    Object.fromEntries(Array.from({ length: 12 }, (_, k) => [`f${k}`, randomBytes(12_000_000)])),
  )
  await archive('a', 'big', { id: 'stopped' })
  await until('the packing', 30, () =>
    readdirSync(join(root, 'a')).some((name) => name.startsWith('.orrery-')),
  )
  expect((await service.call('GET', '/storage-downloads/stopped/content/')).status).toBe(409)
  await service.call('POST', '/storage-downloads/stopped/cancel/')
  const end = await until('its end', 30, async () => {
    const found = await service.get('/storage-downloads/stopped/')
    return found.status === 'streaming' ? undefined : found
  })
  expect(end).toMatchObject({ status: 'cancelled', path: 'big' })
  expect(
    readdirSync(join(root, 'a')).filter((name) => name.startsWith('.orrery-') || name === 'big.tar.gz'),
  ).toEqual([])
})

test('an archive of a file that is written to while it is packed fails by name, and leaves nothing', async () => {
  plant(join(root, 'a', 'moving'), { growing: randomBytes(40_000_000) })
  const writing = setInterval(() => appendFileSync(join(root, 'a', 'moving', 'growing'), 'more'), 20)
  try {
    expect(await archived('a', 'moving')).toMatchObject({
      ...{ status: 'failed', error: expect.stringContaining('"moving/growing" was written to') },
    })
  } finally {
    clearInterval(writing)
  }
  expect(
    readdirSync(join(root, 'a')).filter((name) => name.startsWith('.orrery-') || name === 'moving.tar.gz'),
  ).toEqual([])
})

test('what cannot be packed is refused, or fails by name', async () => {
  plant(join(root, 'a', 'plain'), { f: 'f' })
  plant(join(root, 'a', 'held', 'inner'), { f: 'f' })
  symlinkSync('plain', join(root, 'a', 'way'))
  for (const [storage, path, status] of [
    ['nothing', 'plain', 404],
    ['a', 'missing', 422],
    ['a', 'plain/f', 422],
    ['a', 'way', 422],
    ['a', '/', 422],
    ['a', '../a', 422],
    ['fixed', 'inner', 422],
    ['narrow', 'plain', 422],
    ['rooted', 'held/inner', 422],
  ] as const)
    expect([storage, path, (await archive(storage, path)).status]).toEqual([storage, path, status])
})
