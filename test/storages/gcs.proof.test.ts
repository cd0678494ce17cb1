import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { randomBytes } from 'node:crypto'
import { mkdirSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { addressJudge } from '../../src/clients/denied-networks.ts'
import { openGcs } from '../../src/clients/gcs.ts'
import { openHttp } from '../../src/clients/http.ts'
import { startGcs, type GcsSite } from '../../sites/gcs.ts'
import { until } from '../failures/programs.ts'
import { makeVaultKeyFile } from '../support/reach.ts'
import { openService, type TestService } from '../support/service.ts'
import { environmentOf, localStorage, plant, sha256, storageRoot, treeOf } from './world.ts'

/** A bucket of Google's storage through the API, signed with a service account of the vault. */

const root = storageRoot()
let site: GcsSite
let service: TestService
beforeAll(async () => {
  for (const name of ['a', 'b']) mkdirSync(join(root, name))
  site = await startGcs()
  await site.bucket('bucket')
  service = await openService({
    environment: {
      SERVICE_LOCAL_STORAGE_ROOT: root,
      SERVICE_ALLOW_LOOPBACK_CONNECTIONS: 'true',
      SERVICE_VAULT_KEY_FILE: makeVaultKeyFile(),
    },
  })
  const references: string[] = []
  for (const [id, credential] of Object.entries({ account: site.account, stranger: site.stranger }))
    references.push(
      (await service.post('/cloud-credentials/', { id, provider: 'gcp', credential })).credentialRef,
    )
  const { credentialRef: key } = await service.post('/cloud-credentials/', {
    ...{ id: 'aws', provider: 'aws' },
    credential: { accessKeyId: 'AKIAEXAMPLE', secretAccessKey: 'secret' },
  })
  const bucket = (id: string, credentialReference: string, signed: boolean) => ({
    ...{ id, name: id, type: 'gcs', endpoint: 'gs://bucket/in', credentialReference },
    configuration: { endpointUrl: site.endpoint, signed, browseRoots: [{ path: '/' }] },
  })
  await service.post(
    '/environments/',
    environmentOf('lab', [
      localStorage('a', join(root, 'a')),
      localStorage('b', join(root, 'b')),
      bucket('bucket', references[0]!, true),
      bucket('stranger', references[1]!, true),
      bucket('wrong', key, true),
      bucket('unsigned', '', false),
    ]),
  )
}, 600_000)
afterAll(async () => {
  await service?.[Symbol.asyncDispose]()
  await site?.stop()
  rmSync(root, { recursive: true, force: true })
})

const ended = (id: string) =>
  until(`the end of ${id}`, 60, async () => {
    const found = await service.get(`/storage-downloads/${id}/`)
    return ['completed', 'failed', 'ready'].includes(found.status) ? found : undefined
  })

test('a tree goes there and back with equal digests, and is archived, indexed and downloaded', async () => {
  const files = { 'one.csv': '1', 'deep/large': randomBytes(20_000_000), empty: '', 'sp ce %2F ünï': 'x' }
  plant(join(root, 'a', 'tree'), files)
  const copy = (id: string, from: string, to: string) =>
    service.post(`/storages/${from}/copies/`, { id, path: 'tree', destinationStorageId: to })
  await copy('up', 'a', 'bucket')
  expect(await ended('up')).toMatchObject({ status: 'completed', transferredBytes: 20_000_002 })
  await copy('down', 'bucket', 'b')
  expect(await ended('down')).toMatchObject({ status: 'completed' })
  expect(treeOf(join(root, 'b', 'tree'))).toEqual(treeOf(join(root, 'a', 'tree')))
  await service.post('/storages/bucket/archives/', { id: 'archive', path: 'tree' })
  expect(await ended('archive')).toMatchObject({ status: 'ready', path: 'tree.tar.gz' })

  await service.post('/storages/bucket/index-runs/', { id: 'index', checksums: true })
  await until('the end of the index run', 60, async () => {
    const [run] = await service.get('/storages/bucket/index-runs/')
    return run.status === 'completed'
  })
  const checksum = sha256(files['deep/large'])
  expect((await service.get(`/storages/bucket/index/?checksum=${checksum}`)).entries).toMatchObject([
    { path: 'tree/deep/large', sizeBytes: 20_000_000 },
  ])

  const { url, id } = await service.post('/storages/bucket/downloads/', { path: 'tree/one.csv' })
  expect(await (await fetch(url)).text()).toBe('1')
  const content = await fetch(`${service.baseUrl}/storage-downloads/${id}/content/`)
  expect(await content.text()).toBe('1')
  expect(site.log()).not.toContain('PRIVATE')
}, 120_000)

test('keys that no path leads to are shown and left out; d beside d/x goes where no directories are', async () => {
  const { client_email: clientEmail, private_key: privateKey } = site.account
  const http = openHttp({ addressAllowed: addressJudge({ allowLoopback: true }) })
  const place = { endpoint: site.endpoint, bucket: 'bucket' }
  const keys = openGcs({ http, place, credential: { clientEmail, privateKey } })
  for (const key of ['/x', './y', '../z', 'd', 'd/x', 'plain'])
    await keys.put(`in/odd/${key}`, Buffer.from(key), { onlyNew: true })
  const { entries } = await service.get('/storages/bucket/entries/?path=odd')
  const shown = entries.map(({ name, type, readable }: any) => [name, type, readable].join(' '))
  expect(shown.toSorted()).toEqual(
    [
      ...[' directory false', '. directory false', '.. directory false'],
      ...['d directory true', 'd file true', 'plain file true'],
    ].toSorted(),
  )
  const copied = async (to: string, id: string) => {
    await service.post('/storages/bucket/copies/', {
      ...{ id, path: 'odd', destinationStorageId: to, destinationPath: id },
    })
    return ended(id)
  }
  expect(await copied('bucket', 'odd-there')).toMatchObject({ status: 'completed', skippedEntries: 3 })
  for (const [key, content] of [
    ['d', 'd'],
    ['d/x', 'd/x'],
    ['plain', 'plain'],
  ])
    expect((await service.post('/storages/bucket/checksum/', { path: `odd-there/${key}` })).checksum).toBe(
      `sha256:${sha256(content!)}`,
    )
  expect(await copied('a', 'odd-here')).toMatchObject({
    ...{ status: 'failed', error: expect.stringMatching(/"odd-here\/d"/) },
  })
  await service.post('/storages/bucket/index-runs/', { id: 'odd-index' })
  const run = await until('the end of the index run', 60, async () => {
    const runs = await service.get('/storages/bucket/index-runs/')
    return runs.find(({ id, status }: any) => id === 'odd-index' && status === 'completed')
  })
  expect(run.skippedEntries).toBe(3)
  const index = await service.get('/storages/bucket/index/?path=odd')
  expect(index.entries.map(({ path, type }: any) => `${path} ${type}`).toSorted()).toEqual(
    ['odd/d directory', 'odd/d file', 'odd/d/x file', 'odd/plain file'].toSorted(),
  )
  http.close()
}, 240_000)

test('an account without rights, a key of another provider and none are refused by name', async () => {
  const refusalOf = async (storage: string): Promise<unknown[]> => {
    const { status, body } = await service.call('GET', `/storages/${storage}/entries/`)
    return [status, JSON.stringify(body)]
  }
  expect(await refusalOf('stranger')).toEqual([
    422,
    expect.stringMatching(/does not have storage.objects access/),
  ])
  expect(await refusalOf('wrong')).toEqual([422, expect.stringMatching(/provider gcp/)])
  expect(await refusalOf('unsigned')).toEqual([422, expect.stringMatching(/configuration\.signed/)])
  expect((await service.get('/environments/lab/')).storages[2]).toMatchObject({
    health: { status: 'healthy' },
    capabilities: { presignedDownload: true },
  })
})

test('without an approved directory, local storages say that they cannot be used', async () => {
  await using other = await openService()
  await other.post('/environments/', environmentOf('bare', [localStorage('local', '/data')]))
  const [{ health }] = await other.get('/environments/bare/storages/')
  expect(health).toEqual({
    status: 'unavailable',
    message: expect.stringMatching(/SERVICE_LOCAL_STORAGE_ROOT/),
  })
  expect((await other.call('GET', '/storages/local/entries/')).status).toBe(503)
}, 60_000)
