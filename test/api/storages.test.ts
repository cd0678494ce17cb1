import { afterAll, beforeAll, describe, expect, test } from '@jest/globals'
import { z } from 'zod'
import { openReader } from '../../src/db/reader.ts'
import { sql } from '../../src/db/sql.ts'
import { createHash, randomBytes } from 'node:crypto'
import {
  appendFileSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  realpathSync,
  renameSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { createServer, request } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { Readable } from 'node:stream'
import { text } from 'node:stream/consumers'
import { setTimeout as sleep } from 'node:timers/promises'
import { addressJudge } from '../../src/clients/denied-networks.ts'
import { openHttp } from '../../src/clients/http.ts'
import { artifactRoutes } from '../../src/domains/artifacts/routes.ts'
import { isRun } from '../../src/domains/execution-runs/identity.ts'
import { openArtifactStore } from '../../src/drivers/build/store.ts'
import { recordAudit } from '../../src/domains/audit-events/store.ts'
import { credentialRoutes } from '../../src/domains/credentials/routes.ts'
import { promotedData } from '../../src/domains/execution-runs/promoted-data.ts'
import { provenanceRoutes } from '../../src/domains/provenance/routes.ts'
import { contentReply } from '../../src/domains/storages/content.ts'
import { openStorages } from '../../src/domains/storages/open.ts'
import { storageRoutes } from '../../src/domains/storages/routes.ts'
import { addDownload } from '../../src/domains/storages/store.ts'
import { entryView } from '../../src/domains/storages/view.ts'
import type { Entry, StorageDriver } from '../../src/drivers/storage/contract.ts'
import { openFilesystem } from '../../src/drivers/storage/filesystem/driver.ts'
import { nameOf, parseNames } from '../../src/drivers/storage/paths.ts'
import { Refusal } from '../../src/refusal.ts'
import { openLocalShell } from '../../src/shell/local-shell.ts'
import { ensureKeyFile, openVaultKeys } from '../../src/vault/keys.ts'
import { openVault } from '../../src/vault/vault.ts'
import { startS3, type S3Site } from '../../sites/s3.ts'
import { inventoryRoutes } from '../support/inventory-routes.ts'
import { openRoutes, type OpenedRoutes } from '../support/open-routes.ts'
import { runFolder } from '../support/run-folder.ts'

const sha256 = (bytes: Buffer | string): string => createHash('sha256').update(bytes).digest('hex')

const Row = z.object({ id: z.string(), checksum: z.string(), sizeBytes: z.number() })

let folder: string
let root: string
let site: S3Site
let app: OpenedRoutes
/** Connections of clusters that were asked for. */
const clusters: string[] = []
beforeAll(async () => {
  folder = realpathSync(mkdtempSync(join(runFolder(), 'orrery-storages-')))
  root = join(folder, 'root')
  mkdirSync(join(root, 'data'), { recursive: true })
  mkdirSync(join(folder, 'elsewhere'))
  writeFileSync(join(folder, 'elsewhere', 'secret'), 'nobody may read this')
  await ensureKeyFile(join(folder, 'vault.key'))
  const keys = await openVaultKeys(join(folder, 'vault.key'))
  site = await startS3()
  site.bucket('bucket')
  app = await openRoutes((db, atClose, databaseUrl) => {
    const vault = openVault({
      db,
      keys,
      outside: { variables: undefined as never, folders: [] },
      audit: (event) => recordAudit(db, event),
    })
    const http = openHttp({ addressAllowed: addressJudge({ allowLoopback: true }) })
    const shell = openLocalShell()
    const storages = openStorages({
      db,
      http,
      secrets: vault,
      shellOf: () => shell,
      filesOf: () => {
        throw new Error('no SFTP here')
      },
      clusterOf: (connectionId) => {
        clusters.push(connectionId)
        throw new Refusal('unavailable', 'no cluster here')
      },
      helperImage: 'debian:12-slim',
      localStorageRoot: root,
      partBytes: () => Promise.resolve(8 * 2 ** 20),
      onCall: () => undefined,
    })
    atClose.defer(async () => {
      await storages.close()
      await shell.close()
      http.close()
    })
    return [
      ...inventoryRoutes()(db, atClose),
      ...credentialRoutes({ db, vault }),
      ...storageRoutes({ db, storages, promoted: promotedData }),
      ...artifactRoutes({
        ...{ db, hostId: 'here', buildContextLimitBytes: 1, addressAllowed: () => true as const },
        artifactStore: openArtifactStore('/nowhere'),
        ...{ uses: { artifact: [] }, isRun },
      }),
      ...provenanceRoutes({ db, reader: atClose.use(openReader({ databaseUrl, readerUrl: undefined })) }),
    ]
  })
  const credential = { id: 'site', provider: 'aws', credential: site.accessKey }
  const { credentialRef } = await app.post('/cloud-credentials/', credential)
  const bucket = {
    endpointUrl: site.endpoint,
    region: 'us-east-1',
    pathStyle: true,
    browseRoots: [{ path: '/' }],
  }
  await app.post('/environments/', {
    environment: { id: 'lab', name: 'lab' },
    version: { id: 'lab-v1', version: 1, status: 'published' },
    connections: [
      {
        id: 'login',
        name: 'login',
        type: 'ssh',
        endpoint: 'host.example.org',
        username: 'u',
        credentialRef: '',
      },
    ],
    storages: [
      {
        id: 'here',
        name: 'here',
        type: 'local',
        endpoint: join(root, 'data'),
        configuration: { browseRoots: [{ path: join(root, 'data') }] },
      },
      {
        id: 'fixed',
        name: 'fixed',
        type: 'local',
        readOnly: true,
        endpoint: join(root, 'data'),
        configuration: { browseRoots: [{ path: '/' }] },
      },
      {
        id: 'rootless',
        name: 'rootless',
        type: 'local',
        endpoint: join(root, 'data'),
        browseRoots: [{ path: '/' }],
      },
      {
        id: 'outside',
        name: 'outside',
        type: 'local',
        endpoint: join(folder, 'elsewhere'),
        configuration: { browseRoots: [{ path: '/' }] },
      },
      {
        id: 'host',
        name: 'host',
        type: 'ssh-filesystem',
        endpoint: join(root, 'data'),
        configuration: { connectionId: 'login', browseRoots: [{ path: '/' }] },
      },
      {
        id: 'bucket',
        name: 'bucket',
        type: 's3',
        endpoint: 's3://bucket/in',
        credentialReference: credentialRef,
        configuration: { ...bucket, signed: true },
      },
      {
        id: 'unsigned',
        name: 'unsigned',
        type: 's3',
        endpoint: 's3://bucket',
        credentialReference: credentialRef,
        configuration: bucket,
      },
      {
        id: 'cloud',
        name: 'cloud',
        type: 'pvc',
        endpoint: 'pvc://namespace/claim',
        configuration: { browseRoots: [{ path: '/' }] },
      },
    ],
  })
}, 600_000)
afterAll(async () => {
  await app.close()
  await site.stop()
  rmSync(folder, { recursive: true, force: true })
})

const at = (storage: string, path: string, more = ''): string =>
  `/storages/${storage}/entries/?path=${encodeURIComponent(path)}${more}`
const healthOf = async (storage: string) =>
  (await app.call('GET', '/environments/lab/')).body.storages.find((one: any) => one.id === storage)?.health
/** The part of the environment's tag that `If-Match` compares. */
const authoredTag = async () => {
  const { headers } = await app.call('GET', '/environments/lab/')
  return headers.get('etag')?.replace(/^"([^.]+)\..*$/, '$1')
}
const put = (
  storage: string,
  path: string,
  bytes: Buffer | string,
  headers: Record<string, string> = {},
  more = '',
) =>
  app.request(`/api${at(storage, path, more)}`, {
    method: 'PUT',
    body: bytes as never,
    headers: { 'content-type': 'application/octet-stream', ...headers },
  })
const digestOf = (bytes: Buffer | string): string =>
  `sha-256=:${createHash('sha256').update(bytes).digest('base64')}:`
const names = (body: { entries: { name: string }[] }): string[] => body.entries.map(({ name }) => name)

describe.each(['here', 'host', 'bucket'])('the storage %s', (storage) => {
  test('a file is uploaded, listed, looked at, hashed, downloaded and deleted', async () => {
    const content = randomBytes(2_000_000)
    const up = await put(storage, `${storage}-file.csv`, content, { 'content-digest': digestOf(content) })
    expect([up.status, up.body]).toEqual([
      201,
      expect.objectContaining({
        path: `${storage}-file.csv`,
        receivedBytes: content.length,
        complete: true,
        checksum: `sha256:${sha256(content)}`,
      }),
    ])
    const listed = await app.call('GET', `/storages/${storage}/entries/`)
    expect([listed.status, names(listed.body)]).toEqual([
      200,
      expect.arrayContaining([`${storage}-file.csv`]),
    ])
    for (const route of ['stat', 'entry']) {
      const stat = await app.call('GET', `/storages/${storage}/${route}/?path=/${storage}-file.csv`)
      expect(stat.body).toMatchObject({
        storageId: storage,
        type: 'file',
        sizeBytes: content.length,
        mediaType: 'text/csv',
        readable: true,
        writable: true,
      })
    }
    expect(
      (await app.call('POST', `/storages/${storage}/checksum/`, { path: `${storage}-file.csv` })).body,
    ).toEqual({
      checksum: `sha256:${sha256(content)}`,
    })

    const run = await app.call('POST', `/storages/${storage}/downloads/`, {
      path: `${storage}-file.csv`,
      id: `d-${storage}`,
    })
    expect([run.status, run.body]).toEqual([
      201,
      expect.objectContaining({
        id: `d-${storage}`,
        status: 'ready',
        strategy: 'stream',
        sizeBytes: content.length,
      }),
    ])
    if (storage === 'bucket')
      expect(Buffer.from(await (await fetch(run.body.url)).arrayBuffer()).equals(content)).toBe(true)
    const fetched = await fetch(`${app.baseUrl}/storage-downloads/d-${storage}/content/`)
    expect(fetched.headers.get('content-disposition')).toBe(
      `attachment; filename="${storage}-file.csv"; filename*=UTF-8''${storage}-file.csv`,
    )
    expect(fetched.headers.get('etag')).toMatch(/^"/)
    expect(Buffer.from(await fetched.arrayBuffer()).equals(content)).toBe(true)

    const ranged = async (range: string, headers = {}) => {
      const answer = await fetch(`${app.baseUrl}/storage-downloads/d-${storage}/content/`, {
        headers: { range, ...headers },
      })
      return {
        status: answer.status,
        range: answer.headers.get('content-range'),
        bytes: Buffer.from(await answer.arrayBuffer()),
      }
    }
    expect(await ranged('bytes=5-9')).toEqual({
      status: 206,
      range: `bytes 5-9/2000000`,
      bytes: content.subarray(5, 10),
    })
    expect(await ranged('bytes=-3')).toEqual({
      status: 206,
      range: `bytes 1999997-1999999/2000000`,
      bytes: content.subarray(-3),
    })
    expect((await ranged('bytes=1999999-')).bytes).toEqual(content.subarray(-1))
    expect(await ranged('bytes=2000000-')).toMatchObject({ status: 416, range: 'bytes */2000000' })
    expect((await ranged('bytes=9-5')).status).toBe(200)
    expect((await ranged('bytes=0-1,5-6')).status).toBe(200)
    expect((await ranged('bytes=5-9', { 'if-range': '"another"' })).status).toBe(200)
    expect((await ranged('bytes=5-9', { 'if-range': fetched.headers.get('etag') })).status).toBe(206)
    const head = await fetch(`${app.baseUrl}/storage-downloads/d-${storage}/content/`, { method: 'HEAD' })
    expect([head.status, head.headers.get('content-length')]).toEqual([200, '2000000'])
    expect((await app.call('GET', `/storages/${storage}/downloads/`)).body).toMatchObject([
      { id: `d-${storage}` },
    ])
    expect(JSON.stringify((await app.call('GET', `/storages/${storage}/downloads/`)).body)).not.toContain(
      'url',
    )
    expect(
      (
        await app.call('POST', `/storages/${storage}/downloads/`, {
          path: `${storage}-file.csv`,
          id: `d-${storage}`,
        })
      ).status,
    ).toBe(422)

    expect((await app.call('DELETE', at(storage, `${storage}-file.csv`))).status).toBe(204)
    expect((await app.call('DELETE', at(storage, `${storage}-file.csv`))).status).toBe(404)
    expect((await app.call('GET', `/storage-downloads/d-${storage}/content/`)).status).toBe(404)
  })

  test('an upload makes the folders above it, within the roots and through no link', async () => {
    const deep = await put(storage, `${storage}-new/deep/er/file`, 'content')
    expect([deep.status, deep.body.path]).toEqual([201, `${storage}-new/deep/er/file`])
    expect((await put(storage, `${storage}-new/deep/other`, 'content')).status).toBe(201)
    const listed = await app.call('GET', `/storages/${storage}/entries/?path=${storage}-new/deep`)
    expect(names(listed.body).toSorted()).toEqual(['er', 'other'])
    if (storage === 'bucket') return
    const through = await put(storage, `${storage}-new/deep/other/below/file`, 'content')
    expect([through.status, through.body.error]).toEqual([422, expect.stringContaining('other')])
    const upwards = await put(storage, `../${storage}-outside/file`, 'content')
    expect(upwards.status).toBe(422)
  })

  test('an upload that is not what it says, or whose name is taken, leaves nothing', async () => {
    const wrong = await put(storage, 'wrong', 'content', { 'content-digest': digestOf('other') })
    expect(wrong.status).toBe(400)
    expect((await app.call('GET', `/storages/${storage}/stat/?path=wrong`)).status).toBe(404)
    expect((await put(storage, `${storage}-taken`, 'first')).status).toBe(201)
    expect((await put(storage, `${storage}-taken`, 'second')).status).toBe(422)
    expect((await put(storage, `${storage}-taken`, 'third', {}, '&overwrite=true')).status).toBe(201)
    const onlyNew = { 'if-none-match': '*' }
    for (const more of ['', '&overwrite=true'])
      expect((await put(storage, `${storage}-taken`, 'fourth', onlyNew, more)).status).toBe(412)
    expect((await put(storage, `${storage}-fresh`, 'first', onlyNew, '&overwrite=true')).status).toBe(201)
    expect(
      (await app.call('POST', `/storages/${storage}/checksum/`, { path: `${storage}-taken` })).body.checksum,
    ).toBe(`sha256:${sha256('third')}`)
  })

  test('under If-Match an entry is changed only where it is the version named, whatever is beside it', async () => {
    const path = `${storage}-matched`
    const tagOf = async (): Promise<string> => {
      const { body } = await app.call('GET', `/storages/${storage}/stat/?path=${path}`)
      return body.etag
    }
    const given = (tag: string, content: string) =>
      put(storage, path, content, { 'if-match': tag }, '&overwrite=true')
    const remove = (tag: string) => app.call('DELETE', at(storage, path), undefined, { 'if-match': tag })
    const content = async (): Promise<unknown> =>
      (await app.call('POST', `/storages/${storage}/checksum/`, { path })).body.checksum
    for (const tag of ['*', '"none"']) expect((await given(tag, 'early')).status).toBe(412)
    expect((await put(storage, path, 'first')).status).toBe(201)
    const first = await tagOf()
    expect((await put(storage, `${path}-beside`, 'x')).status).toBe(201)
    expect((await given(`"other", ${first}`, 'second')).status).toBe(201)
    expect((await given('*', 'third')).status).toBe(201)
    const listing = await app.call('GET', `/storages/${storage}/entries/`)
    for (const tag of [first, listing.headers.get('etag') ?? ''])
      expect([(await given(tag, 'late')).status, (await remove(tag)).status]).toEqual([412, 412])
    expect(await content()).toBe(`sha256:${sha256('third')}`)
    const present = { 'if-none-match': await tagOf() }
    expect((await put(storage, path, 'fourth', present, '&overwrite=true')).status).toBe(412)
    expect((await remove(await tagOf())).status).toBe(204)
    for (const tag of ['*', first]) expect((await remove(tag)).status).toBe(412)
  })

  test('its health is asked of it, and paths that lead away are refused', async () => {
    const { body: probe } = await app.call('POST', `/storages/${storage}/health/`)
    expect(probe).toMatchObject({ status: 'healthy' })
    expect(await healthOf(storage)).toMatchObject({ status: 'healthy', probe })
    const authored = await authoredTag()
    await app.call('POST', `/storages/${storage}/health/`)
    // Nobody has edited the environment.
    expect(await authoredTag()).toBe(authored)
    for (const path of ['..', '../x', 'a/../..', '/../etc/passwd'])
      for (const answer of [
        await app.call('GET', at(storage, path)),
        await app.call('GET', `/storages/${storage}/stat/?path=${encodeURIComponent(path)}`),
        await app.call('DELETE', at(storage, path)),
        await app.call('POST', `/storages/${storage}/checksum/`, { path }),
        await app.call('POST', `/storages/${storage}/downloads/`, { path }),
        await put(storage, path, 'x'),
      ])
        expect([path, answer.status]).toEqual([path, 422])
    const { path: top } = (await app.call('GET', `/storages/${storage}/entries/`)).body
    for (const route of ['stat', 'entry'])
      for (const query of ['', '?path=', `?path=${top}`, '?path=%2F', '?path=.', '?pathBytes=']) {
        const answer = await app.call('GET', `/storages/${storage}/${route}/${query}`)
        expect([route, query, answer.status, answer.body]).toMatchObject([
          ...[route, query, 200],
          { storageId: storage, path: '', type: 'directory' },
        ])
      }
    for (const query of ['', '?path='])
      expect((await app.call('DELETE', `/storages/${storage}/entries/${query}`)).status).toBe(400)
    expect((await app.call('DELETE', at(storage, '/'))).status).toBe(422)
    expect((await app.call('GET', `/storages/${storage}/stat/?path=nothing`)).status).toBe(404)
    expect((await app.call('POST', `/storages/${storage}/checksum/`, { path: 'nothing' })).status).toBe(422)
    expect((await app.call('POST', `/storages/${storage}/checksum/`, {})).status).toBe(422)
    expect((await app.call('GET', `/storages/${storage}/stat/?path=${'x'.repeat(4_097)}`)).status).toBe(422)
    expect(
      (
        await app.call(
          'GET',
          `/storages/${storage}/stat/?path=${encodeURIComponent(`${'x'.repeat(200)}/`.repeat(20))}`,
        )
      ).status,
    ).toBeGreaterThanOrEqual(404)
    expect((await app.call('GET', `/storages/${storage}/stat/?path=a%00b`)).status).toBe(400)
  })
})

describe('uploads in parts', () => {
  const part = (
    storage: string,
    path: string,
    content: Buffer,
    from: number,
    to: number,
    total: number | '*' = content.length,
  ) =>
    put(storage, path, content.subarray(from, to), {
      'content-range': `bytes ${from}-${to - 1}/${total}`,
      'content-digest': digestOf(content.subarray(from, to)),
    })

  test.each(['here', 'host'])(
    'go on where the kept bytes end, after a cut at any place: %s',
    async (storage) => {
      const content = randomBytes(3_000_000)
      const path = `${storage}-parts`
      expect((await part(storage, path, content, 0, 1_000_000)).body).toMatchObject({
        receivedBytes: 1_000_000,
        complete: false,
      })
      const wrong = await part(storage, path, content, 500_000, 1_500_000)
      expect([wrong.status, wrong.body.receivedBytes]).toEqual([409, 1_000_000])
      // The client goes away at 99 % of its part.
      await new Promise<void>((resolve) => {
        const cut = request(`${app.baseUrl}${at(storage, path)}`, {
          method: 'PUT',
          headers: {
            'content-type': 'application/octet-stream',
            'content-range': 'bytes 1000000-1999999/3000000',
            'content-length': 1_000_000,
          },
        })
        cut.on('error', () => resolve())
        cut.write(content.subarray(1_000_000, 1_990_000), () => void sleep(300).then(() => cut.destroy()))
      })
      let receivedBytes = 0
      for (let tries = 0; tries < 50 && receivedBytes <= 1_000_000; tries++) {
        await sleep(100)
        const asked = await put(storage, path, '', { 'content-range': 'bytes */3000000' })
        expect(asked.status).toBe(202)
        ;({ receivedBytes } = asked.body)
      }
      expect(receivedBytes).toBeGreaterThan(1_000_000)
      const lied = await put(storage, path, content.subarray(0, 10), {
        'content-range': `bytes ${receivedBytes}-${receivedBytes + 9}/3000000`,
        'content-digest': digestOf('other'),
      })
      expect(lied.status).toBe(400)
      expect((await app.call('GET', `/storages/${storage}/stat/?path=${path}`)).status).toBe(404)
      const end = await part(storage, path, content, receivedBytes, 3_000_000)
      expect([end.status, end.body]).toEqual([
        201,
        expect.objectContaining({ complete: true, checksum: `sha256:${sha256(content)}` }),
      ])
      expect(readFileSync(join(root, 'data', path)).equals(content)).toBe(true)
      expect(readdirSync(join(root, 'data')).filter((name) => name.startsWith('.orrery-'))).toEqual([])
    },
  )

  test.each(['here', 'host'])(
    'get their name by a repeat of the last part, where the service ended before it: %s',
    async (storage) => {
      const content = randomBytes(100_000)
      const path = `${storage}-nameless`
      await part(storage, path, content, 0, 60_000)
      const [kept = ''] = readdirSync(join(root, 'data')).filter((name) => name.startsWith('.orrery-'))
      appendFileSync(join(root, 'data', kept), content.subarray(60_000))
      const asked = await put(storage, path, '', { 'content-range': 'bytes */100000' })
      expect(asked.body.receivedBytes).toBe(100_000)
      const end = await part(storage, path, content, 60_000, 100_000)
      expect([end.status, end.body]).toEqual([
        201,
        expect.objectContaining({ complete: true, checksum: `sha256:${sha256(content)}` }),
      ])
      expect(readFileSync(join(root, 'data', path)).equals(content)).toBe(true)
    },
  )

  test.each(['here', 'host'])(
    'give the same answer to a last part that comes again, and refuse another one: %s',
    async (storage) => {
      const content = randomBytes(100_000)
      const path = `${storage}-again`
      await part(storage, path, content, 0, 60_000)
      const first = await part(storage, path, content, 60_000, 100_000)
      const again = await part(storage, path, content, 60_000, 100_000)
      expect([again.status, again.body]).toEqual([201, first.body])
      const other = await part(storage, path, randomBytes(100_000), 60_000, 100_000)
      expect([other.status, other.body.error]).toEqual([422, expect.stringContaining('is there already')])
      expect(readFileSync(join(root, 'data', path)).equals(content)).toBe(true)
    },
  )

  /** One part of a file, whose bytes the test sends by itself. */
  const open = (
    storage: string,
    path: string,
    [from, to, total]: readonly [number, number, number],
    headers: Record<string, string> = {},
  ) => {
    const sent = request(`${app.baseUrl}${at(storage, path)}`, {
      method: 'PUT',
      headers: {
        ...{ 'content-type': 'application/octet-stream', ...headers },
        'content-range': `bytes ${from}-${to - 1}/${total}`,
      },
    })
    // A refusal may end the connection before it is read.
    const status = new Promise<number | undefined>((resolve) => {
      sent.on('response', (answer) => resolve(answer.resume().statusCode))
      sent.on('error', () => resolve(undefined))
    })
    return { sent, status }
  }
  const kept = async (storage: string, path: string, total: number): Promise<number> =>
    (await put(storage, path, '', { 'content-range': `bytes */${total}` })).body.receivedBytes
  /** Sends the rest of a file. A connection that is ended may have written more meanwhile. */
  const rest = async (storage: string, path: string, content: Buffer) => {
    for (;;) {
      const from = await kept(storage, path, content.length)
      const end = await part(storage, path, content, from, content.length)
      if (end.status !== 409) return end
    }
  }

  test.each(['here', 'host'])(
    'lose no byte where a connection goes on behind which another one has sent the rest: %s',
    async (storage) => {
      const content = randomBytes(3_000_000)
      const path = `${storage}-overtaken`
      await part(storage, path, content, 0, 60_000)
      const slow = open(storage, path, [60_000, 3_000_000, 3_000_000])
      slow.sent.write(content.subarray(60_000, 2_000_000))
      while ((await kept(storage, path, 3_000_000)) <= 60_000);
      const end = await rest(storage, path, content)
      expect([end.status, end.body.checksum]).toEqual([201, `sha256:${sha256(content)}`])
      slow.sent.end(content.subarray(2_000_000))
      expect([undefined, 409]).toContain(await slow.status)
      expect(readFileSync(join(root, 'data', path)).equals(content)).toBe(true)
    },
  )

  test.each(['here', 'host'])(
    'leave no hole where a part fails while another one is written behind it: %s',
    async (storage) => {
      const content = randomBytes(3_000_000)
      const path = `${storage}-holed`
      await part(storage, path, content, 0, 60_000)
      // Its digest is that of other bytes, which is known at its end alone.
      const wrong = open(storage, path, [60_000, 2_000_000, 3_000_000], {
        'content-digest': digestOf('other'),
      })
      wrong.sent.write(content.subarray(60_000, 1_800_000))
      while ((await kept(storage, path, 3_000_000)) <= 60_000);
      const begun = async () => {
        for (;;) {
          const from = await kept(storage, path, 3_000_000)
          const sending = open(storage, path, [from, 3_000_000, 3_000_000])
          sending.sent.write(content.subarray(from, 2_900_000))
          let refused = false
          void sending.status.then(() => (refused = true))
          while (!refused && (await kept(storage, path, 3_000_000)) < 2_000_000);
          // The first one has written more meanwhile.
          if (!refused) return sending
        }
      }
      const behind = await begun()
      wrong.sent.end(content.subarray(1_800_000, 2_000_000))
      expect(await wrong.status).not.toBe(202)
      behind.sent.end(content.subarray(2_900_000))
      expect(await behind.status).toBe(201)
      expect(readFileSync(join(root, 'data', path)).equals(content)).toBe(true)
    },
  )

  test.each(['here', 'host'])('end the one before them where they begin anew: %s', async (storage) => {
    const [earlier, content] = [randomBytes(3_000_000), randomBytes(3_000_000)]
    const path = `${storage}-anew`
    const first = open(storage, path, [0, 2_500_000, 3_000_000])
    first.sent.write(earlier.subarray(0, 2_000_000))
    while ((await kept(storage, path, 3_000_000)) === 0);
    expect((await part(storage, path, content, 0, 1_000)).status).toBe(202)
    first.sent.end(earlier.subarray(2_000_000, 2_500_000))
    expect([undefined, 409]).toContain(await first.status)
    expect((await part(storage, path, content, 1_000, 3_000_000)).status).toBe(201)
    expect(readFileSync(join(root, 'data', path)).equals(content)).toBe(true)
  })

  test.each(['here', 'host'])(
    'stay apart from those of a file of the same name in another folder: %s',
    async (storage) => {
      const content = randomBytes(3_000_000)
      const [path, beside] = [`${storage}-a/same`, `${storage}-b/same`]
      const slow = open(storage, path, [0, 2_500_000, 3_000_000])
      slow.sent.write(content.subarray(0, 2_000_000))
      while ((await kept(storage, path, 3_000_000)) === 0);
      await part(storage, beside, content, 0, 10)
      const wrong = { 'content-range': 'bytes 10-19/3000000', 'content-digest': digestOf('other') }
      expect((await put(storage, beside, content.subarray(10, 20), wrong)).status).toBe(400)
      slow.sent.end(content.subarray(2_000_000, 2_500_000))
      expect(await slow.status).toBe(202)
      expect((await part(storage, path, content, 2_500_000, 3_000_000)).status).toBe(201)
      expect(readFileSync(join(root, 'data', path)).equals(content)).toBe(true)
    },
  )

  test('are asked for before their folder is there', async () => {
    expect(await kept('here', 'not-yet/made', 3_000_000)).toBe(0)
  })

  test('are refused in a storage that is only read, also where the file is there', async () => {
    expect((await put('here', 'read', 'bytes')).status).toBe(201)
    const whole = { 'content-range': 'bytes 0-4/5' }
    expect((await put('here', 'read', 'bytes', whole)).status).toBe(201)
    expect((await put('fixed', 'read', 'bytes', whole)).status).toBe(422)
  })

  test.each(['here', 'host'])(
    'end no other one where they are early, stale or refused themselves: %s',
    async (storage) => {
      const content = randomBytes(3_000_000)
      const path = `${storage}-stale`
      await part(storage, path, content, 0, 60_000)
      const slow = open(storage, path, [60_000, 3_000_000, 3_000_000])
      slow.sent.write(content.subarray(60_000, 2_000_000))
      while ((await kept(storage, path, 3_000_000)) <= 60_000);
      for (const from of [30_000, 2_500_000])
        expect((await part(storage, path, content, from, 3_000_000)).status).toBe(409)
      const short = await put(storage, path, '', { 'content-range': 'bytes 0-9/3000000' })
      expect(short.status).toBe(422)
      slow.sent.end(content.subarray(2_000_000))
      expect(await slow.status).toBe(201)
      expect(readFileSync(join(root, 'data', path)).equals(content)).toBe(true)
    },
  )

  test.each(['here', 'host'])(
    'end a connection whose last part comes again on another one: %s',
    async (storage) => {
      const content = randomBytes(3 * 2 ** 20)
      const path = `${storage}-during`
      await part(storage, path, content, 0, 2 ** 20)
      const first = open(storage, path, [2 ** 20, content.length, content.length])
      first.sent.write(content.subarray(2 ** 20))
      while ((await kept(storage, path, content.length)) < content.length);
      const again = await part(storage, path, content, 2 ** 20, content.length)
      expect([again.status, again.body.checksum]).toEqual([201, `sha256:${sha256(content)}`])
      first.sent.end()
      expect([undefined, 409]).toContain(await first.status)
      const once = await part(storage, path, content, 2 ** 20, content.length)
      expect([once.status, once.body]).toEqual([201, again.body])
      expect(readFileSync(join(root, 'data', path)).equals(content)).toBe(true)
    },
  )

  test.each(['here', 'host'])(
    'a file in a single part that comes again gets the same answer: %s',
    async (storage) => {
      const content = randomBytes(1_000)
      const path = `${storage}-single`
      const first = await part(storage, path, content, 0, 1_000)
      const again = await part(storage, path, content, 0, 1_000)
      expect([again.status, again.body]).toEqual([201, first.body])
      const other = await part(storage, path, randomBytes(1_000), 0, 1_000)
      expect([other.status, other.body.error]).toEqual([422, expect.stringContaining('is there already')])
    },
  )

  test('what no part can be is refused, and a bucket takes files whole', async () => {
    for (const range of ['bytes 0-1', 'bytes 5-4/10', 'bytes 0-9/5', 'bytes */*', 'items 0-1/2'])
      expect([range, (await put('here', 'p', 'xx', { 'content-range': range })).status]).toEqual([range, 400])
    expect((await put('here', 'p', 'xxx', { 'content-range': 'bytes 0-1/2' })).status).toBe(422)
    expect((await put('bucket', 'p', 'xx', { 'content-range': 'bytes 0-1/9' })).status).toBe(422)
    expect((await put('bucket', 'p', 'xx', { 'content-range': 'bytes 0-1/2' })).status).toBe(201)
  })
})

describe('the way to a storage', () => {
  const cluster = (id: string) => ({
    ...{ id, name: id, type: 'kubernetes', endpoint: 'https://cluster.example.org', username: '' },
    credentialRef: '',
  })
  const login = {
    ...{ id: 'bound-login', name: 'bound-login', type: 'ssh', endpoint: 'host.example.org', username: 'u' },
    credentialRef: '',
  }
  const runtime = (id: string, driver: string, configuration: object) => ({
    ...{ id, name: id, mode: 'execution', driver, configuration },
  })
  const bound = (id: string, type: string, endpoint: string, runtimeBindings: object[]) => ({
    ...{ id, name: id, type, endpoint, runtimeBindings },
    configuration: { browseRoots: [{ path: '/' }] },
  })
  const environment = (id: string, more: object) =>
    app.post('/environments/', {
      environment: { id, name: id },
      version: { id: `${id}-v1`, version: 1, status: 'published' },
      ...more,
    })
  const errorOf = async (storage: string): Promise<string> =>
    (await app.call('GET', `/storages/${storage}/entries/`)).body.error

  test('of a claim is the only connection of its type in the environment, as for runs', async () => {
    const claim = (id: string) =>
      bound(id, 'pvc', 'pvc://akoflow/data', [{ runtimeId: `${id}-pods`, default: true }])
    await environment('one-cluster', {
      connections: [cluster('only-cluster'), { ...login, id: 'other-login', name: 'other-login' }],
      runtimes: [runtime('claim-pods', 'kubernetes', {})],
      storages: [claim('claim')],
    })
    // The test has no cluster: what it is asked for is the connection.
    await app.call('GET', '/storages/claim/entries/')
    expect(clusters).toEqual(['only-cluster'])
    await environment('two-clusters', {
      connections: [cluster('first-cluster'), cluster('second-cluster')],
      runtimes: [runtime('unclear-pods', 'kubernetes', {})],
      storages: [claim('unclear')],
    })
    expect(await errorOf('unclear')).toMatch(
      /2 connections of type kubernetes.*"first-cluster", "second-cluster"/,
    )
  })

  test('of a claim is not asked for by a read of its download, which has no URL', async () => {
    const before = clusters.length
    const path = parseNames(nameOf('/a'))
    await addDownload(app.db, { id: 'of-claim', storageId: 'claim', path, sizeBytes: 1 })
    const { status, body } = await app.call('GET', '/storage-downloads/of-claim/')
    expect([status, body.status, clusters.length]).toEqual([200, 'ready', before])
  })

  test('of a mounted folder is a runtime with a login, no cluster; paths count from it', async () => {
    mkdirSync(join(root, 'data', 'mounted', 'inner'), { recursive: true })
    const folder = join(root, 'data', 'mounted')
    const byLogin = (id: string, path: string) => ({
      ...bound(id, 'lustre', '/not/here', [
        { runtimeId: 'mount-pods' },
        { runtimeId: 'mount-login', hostPath: folder },
      ]),
      configuration: { browseRoots: [{ path }], indexPolicy: { roots: [path] } },
    })
    await environment('mounts', {
      connections: [cluster('mount-cluster'), login],
      runtimes: [
        runtime('mount-pods', 'kubernetes', { connectionId: 'mount-cluster' }),
        runtime('mount-login', 'ssh', { connectionId: 'bound-login' }),
      ],
      storages: [
        bound('by-pods', 'nfs', folder, [{ runtimeId: 'mount-pods' }]),
        byLogin('by-login', folder),
        byLogin('by-endpoint', '/not/here'),
      ],
    })
    for (const [storage, path] of [
      ['by-pods', folder],
      ['by-login', folder],
      ['by-login', '/not/here'],
      ['by-endpoint', folder],
      ['by-endpoint', '/not/here'],
    ] as const) {
      const listed = await app.call('GET', at(storage, path))
      expect([storage, listed.status, names(listed.body)]).toEqual([storage, 200, ['inner']])
    }
  })
})

describe('what may be looked into', () => {
  test('storages of an environment carry what the service says of them', async () => {
    const { body } = await app.call('GET', '/environments/lab/storages/')
    const [environment] = [(await app.call('GET', '/environments/lab/')).body]
    expect(body).toEqual(environment.storages)
    expect(body.map((one: { id: string }) => one.id)).toEqual([
      'here',
      'fixed',
      'rootless',
      'outside',
      'host',
      'bucket',
      'unsigned',
      'cloud',
    ])
    expect(body[1].capabilities).toMatchObject({ read: true, write: false, upload: false })
    expect(body[2]).toMatchObject({ browseRoots: [], capabilities: { browse: false } })
    expect(body[7].health.status).toBe('healthy')
    expect((await app.call('GET', '/environments/none/storages/')).status).toBe(404)
  })

  test('statuses: unknown 404, no driver and no approved directory 503, no root, outside and read-only 422', async () => {
    for (const path of ['roots', 'entries', 'stat/?path=x&', 'downloads']) {
      const answer = await app.call('GET', `/storages/none/${path.includes('?') ? path : `${path}/`}`)
      expect([path, answer.status]).toEqual([path, 404])
    }
    expect((await app.call('GET', '/storages/cloud/entries/')).body.error).toMatch(/names no connection/)
    expect((await app.call('GET', '/storages/rootless/entries/')).body.error).toMatch(
      /no approved root.*PUT \/storages\/rootless\/roots\//,
    )
    expect((await app.call('GET', '/storages/outside/entries/')).body.error).toMatch(
      /SERVICE_LOCAL_STORAGE_ROOT/,
    )
    expect((await app.call('GET', '/storages/unsigned/entries/')).body.error).toMatch(/configuration\.signed/)
    expect((await put('fixed', 'new', 'x')).status).toBe(422)
    expect((await app.call('DELETE', at('fixed', 'here-taken'))).status).toBe(422)
    expect((await app.call('GET', '/storage-downloads/none/')).status).toBe(404)
    expect((await app.call('GET', '/storages/here/entries/?cursor=abc')).status).toBe(400)
  })

  test('roots are approved and taken back, also of a storage in use', async () => {
    mkdirSync(join(root, 'data', 'in', 'deep'), { recursive: true })
    writeFileSync(join(root, 'data', 'in', 'deep', 'file'), 'x')
    writeFileSync(join(root, 'data', 'in', 'beside'), 'x')
    expect(
      (await app.call('PUT', '/storages/rootless/roots/', { browseRoots: [{ path: '../x' }] })).status,
    ).toBe(422)
    const roots = [{ path: 'in/deep', label: 'Deep' }]
    expect((await app.call('PUT', '/storages/rootless/roots/', { browseRoots: roots })).body).toEqual(roots)
    expect((await app.call('GET', '/storages/rootless/roots/')).body).toEqual(roots)
    expect(names((await app.call('GET', '/storages/rootless/entries/')).body)).toEqual(['in'])
    expect(names((await app.call('GET', at('rootless', 'in'))).body)).toEqual(['deep'])
    expect(names((await app.call('GET', at('rootless', join(root, 'data', 'in', 'deep')))).body)).toEqual([
      'file',
    ])
    expect((await app.call('GET', '/storages/rootless/stat/?path=in/beside')).status).toBe(422)
    await app.call('PUT', '/storages/rootless/roots/', { browseRoots: [] })
    expect((await app.call('GET', '/storages/rootless/entries/')).status).toBe(422)
  })

  test('pages hold each entry once, in the order of names; a cursor of another list is refused', async () => {
    mkdirSync(join(root, 'data', 'many'))
    for (let i = 0; i < 250; i++) writeFileSync(join(root, 'data', 'many', `f-${i}`), '')
    const all: string[] = []
    let cursor = ''
    do {
      const { body } = await app.call(
        'GET',
        at('here', 'many', `&limit=100${cursor === '' ? '' : `&cursor=${cursor}`}`),
      )
      all.push(...names(body))
      cursor = body.nextCursor ?? ''
      if (cursor !== '') expect((await app.call('GET', at('here', '', `&cursor=${cursor}`))).status).toBe(400)
    } while (cursor !== '')
    expect(all).toEqual(Array.from({ length: 250 }, (_, i) => `f-${i}`).sort())
    expect((await app.call('GET', at('here', 'many', '&limit=501'))).body.entries).toHaveLength(100)
  })

  test('a range is of the version that is sent, also where the file is replaced or grows meanwhile', async () => {
    const path = join(root, 'data', 'replaced')
    const name = nameOf('replaced')
    const driver = openFilesystem({ base: join(root, 'data') })
    let meanwhile: string[] = []
    const replacing: StorageDriver = {
      ...driver,
      stat: async (...given) => {
        const entry = await driver.stat(...given)
        const next = meanwhile.shift()
        if (next !== undefined) {
          writeFileSync(`${path}.new`, next)
          renameSync(`${path}.new`, path)
        }
        return entry
      },
    }
    const { signal } = new AbortController()
    const ask = async (next: string[], more: Record<string, string> = {}) => {
      writeFileSync(path, 'first version')
      meanwhile = next
      const asked = { headers: { range: 'bytes=2-7', ...more }, signal }
      const { status, headers, stream } = await contentReply(replacing, [name], asked)
      return [status, headers['content-length'], headers['content-range'], await text(stream as Readable)]
    }
    const shorter = [206, '4', 'bytes 2-5/6', 'cond']
    expect(await ask(['second'])).toEqual(shorter)
    expect(await ask(['first version, and more'])).toEqual([206, '6', 'bytes 2-7/23', 'rst ve'])
    writeFileSync(path, 'first version')
    const { etag = '' } = await driver.stat([name], { signal })
    expect(await ask(['first version, and more'], { 'if-range': etag })).toEqual([
      ...[200, '23', undefined, 'first version, and more'],
    ])
    await expect(ask(['second', 's'])).rejects.toMatchObject({ code: 'unavailable' })
    await driver.close()
  })

  test('an entry whose time no answer can name is shown without it', async () => {
    const name = nameOf('f')
    const { signal } = new AbortController()
    for (const modifiedAt of [9e15, -9e15, Date.UTC(10_000, 0), Number.NaN]) {
      const entry: Entry = { name, type: 'file', sizeBytes: 1, modifiedAt, readable: true, writable: true }
      expect(entryView('here', [name], entry)).not.toHaveProperty('modifiedAt')
      const driver = {
        stat: () => Promise.resolve(entry),
        read: () => Promise.resolve({ entry, stream: Readable.from(['x']) }),
      } as unknown as StorageDriver
      const { headers } = await contentReply(driver, [name], { headers: {}, signal })
      expect(Object.keys(headers)).not.toContain('last-modified')
    }
    const entry: Entry = { name, type: 'file', modifiedAt: -86_400_000, readable: true, writable: true }
    expect(entryView('here', [name], entry).modifiedAt).toBe('1969-12-31T00:00:00.000Z')
  })

  test('links are shown and lead nowhere; names that are not UTF-8 travel as bytes; header tricks in names stay names', async () => {
    const data = join(root, 'data')
    symlinkSync(join(folder, 'elsewhere'), join(data, 'way-out'))
    symlinkSync(join(folder, 'elsewhere', 'secret'), join(data, 'leak'))
    expect((await app.call('GET', '/storages/here/stat/?path=leak')).body).toMatchObject({
      type: 'symlink',
      readable: false,
    })
    for (const path of ['way-out/secret', 'leak']) {
      expect((await app.call('POST', '/storages/here/downloads/', { path })).status).toBe(422)
      expect((await app.call('POST', '/storages/here/checksum/', { path })).status).toBe(422)
    }
    expect((await app.call('GET', at('here', 'way-out'))).status).toBe(422)
    writeFileSync(Buffer.concat([Buffer.from(`${data}/`), Buffer.from([0x66, 0xff])]), 'bytes')
    const entry = (await app.call('GET', at('here', '', '&limit=500'))).body.entries.find(
      (one: { pathBytes?: string }) => one.pathBytes !== undefined,
    )
    expect(entry).toMatchObject({ pathBytes: Buffer.from([0x66, 0xff]).toString('base64'), name: 'f\ufffd' })
    expect(
      (await app.call('POST', '/storages/here/checksum/', { pathBytes: entry.pathBytes })).body.checksum,
    ).toBe(`sha256:${sha256('bytes')}`)
    const name = 'a"; x=y\r\nSet-Cookie: b.txt'
    writeFileSync(join(data, name), 'tricky')
    const { id } = (await app.call('POST', '/storages/here/downloads/', { path: name })).body
    const answer = await fetch(`${app.baseUrl}/storage-downloads/${id}/content/`)
    expect([answer.status, answer.headers.get('set-cookie'), await answer.text()]).toEqual([
      200,
      null,
      'tricky',
    ])
    expect(answer.headers.get('content-disposition')).toContain(
      "filename*=UTF-8''a%22%3B%20x%3Dy%0D%0ASet-Cookie%3A%20b.txt",
    )
  })
})

test('a name of white space alone is a name', async () => {
  for (const path of [' ', '\t', '  \u00a0']) {
    expect((await put('here', path, `of ${JSON.stringify(path)}`)).status).toBe(201)
    const { status, body } = await app.call('GET', `/storages/here/stat/?path=${encodeURIComponent(path)}`)
    expect([status, body.path, body.type]).toEqual([200, path, 'file'])
    expect((await app.call('DELETE', at('here', path))).status).toBe(204)
    expect((await app.call('GET', `/storages/here/stat/?path=${encodeURIComponent(path)}`)).status).toBe(404)
  }
  expect((await app.call('GET', '/storages/here/stat/?path=')).body).toMatchObject({
    path: '',
    type: 'directory',
  })
  expect((await app.call('DELETE', '/storages/here/entries/?path=')).status).toBe(400)
})

test('a SIF image becomes an artifact once, and stands in the way of deleting its environment', async () => {
  const image = Buffer.concat([
    Buffer.from('#!/usr/bin/env run-singularity\n\0'),
    Buffer.from('SIF_MAGIC\x0001\x0002\0', 'latin1'),
    randomBytes(5_000),
  ])
  writeFileSync(join(root, 'data', 'tool.sif'), image)
  writeFileSync(join(root, 'data', 'fake.sif'), randomBytes(5_000))
  writeFileSync(join(root, 'data', 'tool.img'), image)
  const promote = (document: object) => app.call('POST', '/storages/here/promote-artifact/', document)
  expect((await promote({ path: 'fake.sif' })).body.error).toMatch(/no SIF image/)
  expect((await promote({ path: 'tool.img' })).status).toBe(422)
  expect((await promote({ path: 'missing.sif' })).status).toBe(422)
  const first = await promote({ path: 'tool.sif', id: 'tool', name: 'Tool' })
  expect([first.status, first.body]).toEqual([201, { id: 'artifact-version:tool:1:environment:lab' }])
  for (const same of [
    {},
    { id: 'tool' },
    { version: '1' },
    { id: 'tool', name: 'Tool', scope: 'environment' },
  ]) {
    const again = await promote({ path: 'tool.sif', ...same })
    expect([again.status, again.body]).toEqual([200, first.body])
  }
  const second = await promote({ path: 'tool.sif', id: 'tool', name: 'Tool', version: '2' })
  expect([second.status, second.body]).toEqual([201, { id: 'artifact-version:tool:2:environment:lab' }])
  const other = await promote({ path: 'tool.sif', id: 'tool-2' })
  expect([other.status, other.body]).toEqual([201, { id: 'artifact-version:tool-2:1:environment:lab' }])
  expect((await promote({ path: 'tool.sif', id: 'tool', name: 'Another' })).status).toBe(422)
  writeFileSync(join(root, 'data', 'tool.sif'), Buffer.concat([image, Buffer.from('x')]))
  expect((await promote({ path: 'tool.sif', id: 'tool' })).status).toBe(422)
  expect((await app.call('GET', '/artifacts/?selectable=true')).body).toEqual([
    expect.objectContaining({ id: 'tool', name: 'Tool', version: '1', formats: ['sif'] }),
    expect.objectContaining({ id: 'tool', name: 'Tool', version: '2', formats: ['sif'] }),
    expect.objectContaining({ id: 'tool-2', name: 'tool-2', version: '1', formats: ['sif'] }),
  ])
  const location = expect.objectContaining({
    scope: 'environment',
    scopeId: 'lab',
    endpointId: 'here',
    uri: 'storage://here/tool.sif',
    digest: `sha256:${sha256(image)}`,
    available: true,
  })
  expect((await app.call('GET', '/artifact-locations/')).body).toEqual([location, location, location])
  expect((await app.call('GET', '/storages/here/stat/?path=tool.sif')).body.promotedAs).toEqual(
    [other.body.id, first.body.id, second.body.id].sort().map((id) => ({ kind: 'artifact', id })),
  )
  expect((await app.call('DELETE', '/environments/lab/')).body.error).toMatch(/artifact location/)
  expect((await app.call('DELETE', at('here', 'tool.sif'))).status).toBe(204)
  expect((await app.call('GET', '/artifacts/?selectable=true')).body).toEqual([])
  // The same bytes at the same place are the same version, which can be selected again.
  writeFileSync(join(root, 'data', 'tool.sif'), image)
  const back = await promote({ path: 'tool.sif', id: 'tool-2' })
  expect([back.status, back.body]).toEqual([200, other.body])
  expect((await app.call('GET', '/artifacts/?selectable=true')).body).toMatchObject([{ id: 'tool-2' }])
})

test('files and directories become data, once for the same bytes, with the digest that the bytes have', async () => {
  const data = join(root, 'data', 'results')
  mkdirSync(join(data, 'b'), { recursive: true })
  for (const [path, content] of Object.entries({ 'a.csv': 'a', 'b/c': 'c', 'b.txt': 'b' }))
    writeFileSync(join(data, path), content)
  symlinkSync(join(folder, 'elsewhere'), join(data, 'link'))
  const promote = (document: object) => app.call('POST', '/storages/here/promote-data/', document)
  const file = await promote({ path: 'results/a.csv', id: 'd-file' })
  expect([file.status, file.body]).toEqual([201, { id: 'd-file' }])
  for (const same of [{}, { id: 'd-file' }]) {
    const again = await promote({ path: 'results/a.csv', ...same })
    expect([again.status, again.body]).toEqual([200, { id: 'd-file' }])
  }
  for (const wrong of [{ runId: 'none' }, { workflowVersionId: 'none' }, { activityId: 'none' }]) {
    const refused = await promote({ path: 'results/a.csv', ...wrong })
    expect([refused.status, refused.body.details]).toMatchObject([422, [{ path: Object.keys(wrong)[0] }]])
  }
  expect((await promote({ path: 'results/b.txt', id: 'd-file' })).status).toBe(422)
  expect(
    (await promote({ path: 'results/b.txt', runId: 'none', workflowVersionId: 'none' })).body.details,
  ).toHaveLength(2)
  expect((await promote({ path: 'results/b.txt', activityId: 'none' })).status).toBe(422)
  const both = await Promise.all([promote({ path: 'results' }), promote({ path: 'results' })])
  expect(both.map(({ status }) => status).sort()).toEqual([200, 201])
  expect(new Set(both.map(({ body }) => body.id)).size).toBe(1)
  const lines = ['a.csv a', 'b.txt b', 'b/c c']
    .map((line) => `${sha256(line.at(-1) ?? '')} ${line.slice(0, -2)}\n`)
    .join('')
  const rows = await app.db.many(
    Row,
    sql`select data_object_id as id, checksum, size_bytes from data_object_instances order by size_bytes`,
  )
  expect(rows).toEqual([
    { id: 'd-file', checksum: `sha256:${sha256('a')}`, sizeBytes: 1 },
    { id: both[0].body.id, checksum: `sha256:${sha256(lines)}`, sizeBytes: 3 },
  ])
  expect((await app.call('GET', '/storages/here/stat/?path=results')).body.promotedAs).toEqual([
    { kind: 'data', id: both[0].body.id },
  ])
  const mine = await promote({ path: 'results/a.csv', id: 'd-mine' })
  expect([mine.status, mine.body]).toEqual([201, { id: 'd-mine' }])
  expect((await app.call('GET', '/storages/here/stat/?path=results/a.csv')).body.promotedAs).toEqual(
    ['d-file', 'd-mine'].map((id) => ({ kind: 'data', id })),
  )
  expect(JSON.stringify((await app.call('DELETE', '/environments/lab/')).body.details)).toMatch(
    /data location/,
  )
  // Provenance shows data that no run has made.
  for (const [entity, id] of [
    ['data_objects', 'd-file'],
    ['data_instances', 'd-file-instance'],
  ] as const) {
    expect((await app.call('GET', `/provenance/entities/${entity}/`)).body.items).toHaveLength(3)
    expect((await app.call('GET', `/provenance/lineage/${entity}/${id}/`)).status).toBe(200)
  }
  expect(
    (await app.call('GET', '/provenance/lineage/data_instances/d-file-instance/closure/')).status,
  ).toBeLessThan(500)
})

test('what was promoted and is gone at its site no longer stands in the way of its environment', async () => {
  const folder = join(root, 'data', 'own')
  mkdirSync(join(folder, 'tree', 'deep'), { recursive: true })
  mkdirSync(join(folder, 'fixed'))
  const image = Buffer.from(`${'x'.repeat(31)}\0SIF_MAGIC\x0001\x0002\0`, 'latin1')
  for (const path of ['tree/deep/tool.sif', 'tree/a.csv', 'fixed/b.csv', 'stays.csv', 'tree-.csv'])
    writeFileSync(join(folder, path), image)
  const browseRoots = [{ path: '/' }, { path: 'fixed', readOnly: true }]
  await app.post('/environments/', {
    environment: { id: 'own', name: 'own' },
    version: { id: 'own-v1', version: 1, status: 'published' },
    storages: [{ id: 'own', name: 'own', type: 'local', endpoint: folder, configuration: { browseRoots } }],
  })
  for (const path of ['tree', 'tree/a.csv', 'fixed/b.csv', 'stays.csv', 'tree-.csv'])
    expect((await app.call('POST', '/storages/own/promote-data/', { path })).status).toBe(201)
  await app.post('/storages/own/promote-artifact/', { path: 'tree/deep/tool.sif', id: 'own-tool' })
  const promotedAs = async (path: string): Promise<number> =>
    (await app.call('GET', `/storages/own/stat/?path=${path}`)).body.promotedAs?.length ?? 0
  /** What stands in the way of the deletion, and of a document in the environment's place. */
  const usersOf = async (): Promise<string> => {
    const { environment, version, storages } = (await app.call('GET', '/environments/own/')).body
    const replacing = { environment, version, storages: [{ ...storages[0], id: 'other' }] }
    const answers = [
      await app.call('DELETE', '/environments/own/'),
      await app.call('PUT', '/environments/own/', replacing),
    ]
    const [users, same] = answers.map(({ status, body }) => [
      status,
      ...body.details.map(({ message }: { message: string }) => /it is used by ([^;]*)/.exec(message)?.[1]),
    ])
    expect(same).toEqual(users)
    return users!.join()
  }

  // What is still there stays promoted, whatever its deletion answers.
  for (const path of ['tree', 'fixed/b.csv', 'nothing'])
    expect((await app.call('DELETE', at('own', path))).status).toBeGreaterThanOrEqual(404)
  expect([await promotedAs('tree'), await promotedAs('fixed/b.csv')]).toEqual([1, 1])
  rmSync(join(folder, 'tree'), { recursive: true })
  rmSync(join(folder, 'fixed', 'b.csv'))
  expect(await usersOf()).toMatch(/artifact location/)
  expect((await app.call('DELETE', at('own', 'tree'))).status).toBe(404)
  expect((await app.call('DELETE', at('own', 'fixed/b.csv'))).status).toBe(422)
  expect([await promotedAs('stays.csv'), await promotedAs('tree-.csv')]).toEqual([1, 1])
  const left = await usersOf()
  expect(left).not.toMatch(/artifact location/)
  expect(left).toMatch(/data location .* \(and 1 more\)/)
  expect((await put('own', 'stays.csv', image, {}, '&overwrite=true')).status).toBe(201)
  expect(await promotedAs('stays.csv')).toBe(1)
  // The record names the digest of other bytes.
  expect((await put('own', 'stays.csv', 'other', {}, '&overwrite=true')).status).toBe(201)
  expect(await promotedAs('stays.csv')).toBe(0)
  expect((await app.call('DELETE', at('own', 'tree-.csv'))).status).toBe(204)
  expect((await app.call('DELETE', '/environments/own/')).status).toBe(204)
})

test('a login that may not list does not show that a folder is gone, and what was promoted below it stays', async () => {
  let lists = true
  /** A key that is free is denied, as by AWS. */
  let denies = false
  const store = createServer((asked, answer) => {
    const { method, headers, url = '' } = asked
    if (!lists && url.includes('list-type=')) {
      answer.writeHead(403, { 'content-type': 'application/xml' })
      answer.end('<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>')
      return
    }
    const passed = request(`${site.endpoint}${url}`, { method, headers }, (given) => {
      const { statusCode = 500 } = given
      answer.writeHead(denies && method === 'HEAD' && statusCode === 404 ? 403 : statusCode, given.headers)
      given.pipe(answer)
    })
    asked.pipe(passed)
  })
  await new Promise<void>((listens) => store.listen(0, '127.0.0.1', listens))
  try {
    const endpointUrl = `http://127.0.0.1:${String((store.address() as AddressInfo).port)}`
    const credential = { id: 'blind', provider: 'aws', credential: site.accessKey }
    const { credentialRef } = await app.post('/cloud-credentials/', credential)
    await app.post('/environments/', {
      environment: { id: 'blind', name: 'blind' },
      version: { id: 'blind-v1', version: 1, status: 'published' },
      storages: [
        {
          ...{ id: 'blind', name: 'blind', type: 's3', endpoint: 's3://bucket/blind' },
          credentialReference: credentialRef,
          configuration: {
            ...{ endpointUrl, region: 'us-east-1', pathStyle: true, signed: true },
            browseRoots: [{ path: '/' }],
          },
        },
      ],
    })
    const paths = ['tree/a.csv', 'tree/b', 'own/c.csv', 'own/d']
    for (const path of paths) expect((await put('blind', path, 'bytes')).status).toBe(201)
    for (const path of [...paths, 'tree', 'own'])
      expect((await app.call('POST', '/storages/blind/promote-data/', { path })).status).toBe(201)
    const stat = (path: string) => app.call('GET', `/storages/blind/stat/?path=${path}`)
    lists = false
    for (const answer of [await stat('tree'), await app.call('DELETE', at('blind', 'tree'))]) {
      expect(answer.status).toBe(422)
      expect(JSON.stringify(answer.body.details)).toMatch(/give it the right to list \(s3:ListBucket/)
    }
    for (const path of paths) expect((await stat(path)).body.promotedAs).toHaveLength(1)

    // A file that is gone is known to be gone, a directory is not.
    rmSync(join(site.bucket('bucket'), 'blind', 'own'), { recursive: true })
    for (const path of ['own/c.csv', 'own/d', 'own'])
      expect((await app.call('DELETE', at('blind', path))).status).toBe(422)
    expect(
      await app.db.many(
        z.object({ uri: z.string(), status: z.string() }),
        sql`select uri, status from data_locations where starts_with(uri, 'storage://blind/') order by uri`,
      ),
    ).toEqual(
      ['own', 'own/c.csv', 'own/d', 'tree', 'tree/a.csv', 'tree/b'].map((path) => ({
        uri: `storage://blind/${path}`,
        status: path.startsWith('own/') ? 'deleted' : 'available',
      })),
    )
    for (const path of ['tree/a.csv', 'tree/b'])
      expect((await app.call('DELETE', at('blind', path))).status).toBe(204)

    denies = true
    const onlyNew = { 'if-none-match': '*' }
    expect((await put('blind', 'new/e', 'bytes', onlyNew)).status).toBe(201)
    expect((await put('blind', 'new/e', 'other', onlyNew)).status).toBe(412)
    expect((await put('blind', 'new/f', 'bytes')).status).toBe(201)
    expect((await put('blind', 'new/g', 'bytes', { 'content-range': 'bytes 0-4/5' })).status).toBe(201)
    for (const path of ['e', 'f', 'g']) {
      expect((await app.call('DELETE', at('blind', `new/${path}`))).status).toBe(204)
      expect((await app.call('DELETE', at('blind', `new/${path}`))).status).toBe(422)
    }
    denies = false

    lists = true
    expect((await app.call('DELETE', '/environments/blind/')).status).toBe(422)
    for (const path of ['tree', 'own']) expect((await app.call('DELETE', at('blind', path))).status).toBe(404)
    expect((await app.call('DELETE', '/environments/blind/')).status).toBe(204)
  } finally {
    store.close()
    store.closeAllConnections()
  }
})

test('a search in all fields finds times as answers show them', async () => {
  const list = '/provenance/entities/audit_events/'
  const [event] = (await app.get(`${list}?pageSize=1`)).items
  const { id, occurred_at: time } = event
  expect(time).toMatch(/T.*Z$/)
  for (const part of [time, time.slice(0, 16)]) {
    const { items } = await app.get(`${list}?pageSize=200&q=${encodeURIComponent(part)}`)
    expect(items.map((one: { id: string }) => one.id)).toContain(id)
  }
})

test.each(['s3://bucket/../x', 'https://127.0.0.1/b%ZZ'])(
  'a storage whose endpoint is %s is refused where it is used',
  async (endpoint) => {
    const id = `odd-${String(endpoint.length)}`
    await app.post('/environments/', {
      environment: { id, name: id },
      version: { id: `${id}-v1`, version: 1 },
      storages: [
        { id, name: id, type: 's3', endpoint, shared: true, configuration: { browseRoots: [{ path: '/' }] } },
      ],
    })
    for (const path of ['entries/', 'stat/?path=x']) {
      const { status, body } = await app.call('GET', `/storages/${id}/${path}`)
      expect([status, body.details[0].path]).toEqual([422, 'storage.endpoint'])
    }
  },
)

test('a store that is away answers 503 with Retry-After, and its health says so', async () => {
  await site.kill()
  const answer = await app.call('GET', '/storages/bucket/entries/')
  expect([answer.status, Number(answer.headers.get('retry-after'))]).toEqual([503, 10])
  const { body: probe } = await app.call('POST', '/storages/bucket/health/')
  expect(probe).toMatchObject({ status: 'unavailable' })
  expect(await healthOf('bucket')).toEqual({ status: 'healthy', probe })
  await site.start()
  expect((await app.call('GET', '/storages/bucket/entries/')).status).toBe(200)
})
