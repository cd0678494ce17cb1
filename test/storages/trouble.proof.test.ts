import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { execFileSync } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import {
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  truncateSync,
  writeFileSync,
} from 'node:fs'
import { join } from 'node:path'
import { startRelay, type Relay } from '../../sites/relay.ts'
import { startS3, type S3Site } from '../../sites/s3.ts'
import { until } from '../failures/programs.ts'
import { needs } from '../support/needs.ts'
import { makeVaultKeyFile } from '../support/reach.ts'
import { openService, type TestService } from '../support/service.ts'
import { bucketStorage, environmentOf, localStorage, plant, sha256, storageRoot } from './world.ts'

/** Stores that refuse, credentials that end, disks that are full, files that change under a job. */

const root = storageRoot()
let site: S3Site
let relay: Relay
let bucket: string
let service: TestService
beforeAll(async () => {
  for (const name of ['a', 'b', 'small', 'indexed']) mkdirSync(join(root, name))
  site = await startS3()
  relay = await startRelay(site.endpoint)
  bucket = site.bucket('bucket')
  service = await openService({
    environment: {
      SERVICE_LOCAL_STORAGE_ROOT: root,
      SERVICE_ALLOW_LOOPBACK_CONNECTIONS: 'true',
      SERVICE_VAULT_KEY_FILE: makeVaultKeyFile(),
    },
  })
  const { credentialRef } = await service.post('/cloud-credentials/', {
    ...{ id: 'site', provider: 'aws', credential: site.accessKey },
  })
  const policy = { browseRoots: [{ path: '/' }], indexPolicy: { maxEntries: 100_000, maxDepth: 9 } }
  await service.post(
    '/environments/',
    environmentOf('lab', [
      localStorage('a', join(root, 'a')),
      localStorage('b', join(root, 'b')),
      localStorage('small', join(root, 'small')),
      localStorage('indexed', join(root, 'indexed'), { configuration: policy }),
      bucketStorage('bucket', relay, 's3://bucket', credentialRef),
    ]),
  )
}, 600_000)
afterAll(async () => {
  await service?.[Symbol.asyncDispose]()
  await relay?.close()
  await site?.stop()
  rmSync(root, { recursive: true, force: true })
})

const begin = async (from: string, path: string, to: string, more: object = {}): Promise<string> =>
  (await service.post(`/storages/${from}/copies/`, { path, destinationStorageId: to, ...more })).id
const ended = (id: string) =>
  until(`the end of ${id}`, 90, async () => {
    const found = await service.get(`/storage-downloads/${id}/`)
    return ['completed', 'ready', 'failed', 'cancelled'].includes(found.status) ? found : undefined
  })
const underWay = (id: string) =>
  until(`bytes of ${id}`, 60, async () => {
    const found = await service.get(`/storage-downloads/${id}/`)
    return (found.live?.bytes ?? 0) > 0
  })
const leftovers = (): string[] =>
  (readdirSync(root, { recursive: true }) as string[]).filter((path) => path.includes('.orrery-'))

test.each([429, 503])(
  'a store that answers %s for a while delays a copy, and fails none',
  async (status) => {
    const name = `busy-${status}`
    writeFileSync(join(root, 'a', name), randomBytes(12_000_000))
    let refused = 0
    relay.refuse(({ method }) => {
      if (method === 'GET' || refused >= 4) return undefined
      refused += 1
      return { status, retryAfter: 1 }
    })
    const end = await ended(await begin('a', name, 'bucket'))
    relay.refuse(undefined)
    expect(refused).toBe(4)
    expect(end).toMatchObject({ status: 'completed' })
    expect(sha256(readFileSync(join(bucket, name)))).toBe(sha256(readFileSync(join(root, 'a', name))))
  },
  120_000,
)

test('a credential that ends during a copy fails it in the words of the store; a retry sends what is missing', async () => {
  writeFileSync(join(root, 'a', 'expires'), randomBytes(60_000_000))
  const id = await begin('a', 'expires', 'bucket', { bytesPerSecond: 12_000_000 })
  await underWay(id)
  const before = relay.sent()
  relay.refuse(() => ({
    status: 400,
    body: '<?xml version="1.0"?><Error><Code>ExpiredToken</Code><Message>The token has expired.</Message></Error>',
  }))
  const end = await ended(id)
  expect(end).toMatchObject({ status: 'failed', error: expect.stringContaining('ExpiredToken') })
  expect(end.error).not.toContain(site.accessKey.accessKeyId)
  relay.refuse(undefined)
  await service.post(`/storage-downloads/${id}/retry/`)
  expect(await ended(id)).toMatchObject({ status: 'completed' })
  expect(before).toBeGreaterThan(0)
  expect(sha256(readFileSync(join(bucket, 'expires')))).toBe(sha256(readFileSync(join(root, 'a', 'expires'))))
}, 180_000)

needs('root').test(
  'a full disk fails a copy and an archive by name, and leaves nothing there',
  async () => {
    plant(join(root, 'a', 'large'), { one: randomBytes(6_000_000), two: randomBytes(6_000_000) })
    execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=8m', 'small', join(root, 'small')])
    try {
      const copied = await ended(await begin('a', 'large', 'small'))
      expect(copied).toMatchObject({ status: 'failed', error: expect.stringMatching(/does not fit.*space/) })
      rmSync(join(root, 'small', 'large'), { recursive: true })
      plant(join(root, 'small', 'packed'), { one: randomBytes(5_000_000) })
      const { id } = await service.post('/storages/small/archives/', { path: 'packed' })
      expect(await ended(id)).toMatchObject({
        ...{ status: 'failed', error: expect.stringMatching(/does not fit.*space/) },
      })
      expect(readdirSync(join(root, 'small'))).toEqual(['packed'])
      expect(leftovers()).toEqual([])
    } finally {
      execFileSync('umount', [join(root, 'small')])
    }
  },
  120_000,
)

test('a file that shrinks while it is read fails by name, and nothing of it arrives', async () => {
  const file = join(root, 'a', 'shrinking')
  writeFileSync(file, randomBytes(3_000_000))
  const id = await begin('a', 'shrinking', 'b', { bytesPerSecond: 1_000_000 })
  await underWay(id)
  const shrinking = setInterval(() => truncateSync(file, Math.floor(Math.random() * 1_000_000)), 100)
  try {
    const end = await ended(id)
    expect(end).toMatchObject({ status: 'failed', error: expect.stringContaining('"shrinking"') })
  } finally {
    clearInterval(shrinking)
  }
  expect(existsSync(join(root, 'b', 'shrinking'))).toBe(false)
  expect(leftovers()).toEqual([])
}, 120_000)

test('ten copies of one file at once all arrive', async () => {
  const content = randomBytes(5_000_000)
  writeFileSync(join(root, 'a', 'ten'), content)
  const ids = await Promise.all(
    Array.from({ length: 10 }, (_, k) =>
      begin('a', 'ten', k % 2 === 0 ? 'b' : 'bucket', { destinationPath: `ten-${k}` }),
    ),
  )
  for (const id of ids) expect(await ended(id)).toMatchObject({ status: 'completed' })
  for (let k = 0; k < 10; k += 1)
    expect(sha256(readFileSync(join(k % 2 === 0 ? join(root, 'b') : bucket, `ten-${k}`)))).toBe(
      sha256(content),
    )
}, 120_000)

test('a directory that is deleted while it is indexed leaves an index of what is there', async () => {
  const folder = join(root, 'indexed')
  plant(
    folder,
    Object.fromEntries(Array.from({ length: 3_000 }, (_, k) => [`${k % 10}/${k % 100}/file-${k}`, 'x'])),
  )
  const { id } = await service.post('/storages/indexed/index-runs/', {})
  for (let k = 0; k < 5; k += 1) rmSync(join(folder, String(k)), { recursive: true })
  const end = await until('the index run', 60, async () => {
    const found = (await service.get('/storages/indexed/index-runs/')).find(
      (run: { id: string }) => run.id === id,
    )
    return found.status === 'running' ? undefined : found
  })
  expect(end).toMatchObject({ status: 'completed' })
  await service.post('/storages/indexed/index-runs/', {})
  await until('the next one', 60, async () =>
    (await service.get('/storages/indexed/index-runs/')).every(
      (run: { status: string }) => run.status === 'completed',
    ),
  )
  const { totals } = await service.get('/storages/indexed/index/?limit=1')
  // Half of the files, and their 50 and 5 folders.
  expect(totals.entries).toBe(1_500 + 50 + 5)
}, 180_000)
