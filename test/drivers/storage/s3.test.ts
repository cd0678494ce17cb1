import { HeadObjectCommand, PutObjectCommand, S3Client } from '@aws-sdk/client-s3'
import { expect, test } from '@jest/globals'
import { createHash } from 'node:crypto'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { Readable } from 'node:stream'
import { buffer } from 'node:stream/consumers'
import { addressJudge } from '../../../src/clients/denied-networks.ts'
import { openGcs } from '../../../src/clients/gcs.ts'
import { openHttp } from '../../../src/clients/http.ts'
import type { AwsKey } from '../../../src/clients/aws-key.ts'
import { openS3, S3Error, type S3Bucket } from '../../../src/clients/s3.ts'
import { openS3Storage } from '../../../src/drivers/storage/s3.ts'
import { sendFile, type Sending } from '../../../src/domains/storages/send.ts'
import { StorageError, type StorageDriver } from '../../../src/drivers/storage/contract.ts'
import { startRelay } from '../../../sites/relay.ts'
import { startS3, type S3Site } from '../../../sites/s3.ts'
import { at, bytesFrom, contentOf, faultOf, storageConformance, storageKinds } from './conformance.ts'

const http = openHttp({ addressAllowed: addressJudge({ allowLoopback: true }) })

const openBucket = (
  site: Pick<S3Site, 'endpoint'>,
  bucket: string,
  credential: AwsKey | undefined,
): StorageDriver => {
  const place = { endpoint: site.endpoint, bucket, region: 'us-east-1', pathStyle: true }
  return openS3Storage(openS3({ http, place, credential }), {
    prefix: [],
    signed: credential !== undefined,
  })
}

storageConformance('a bucket', storageKinds.bucket, async () => {
  const site = await startS3()
  site.bucket('whole')
  const again = (): StorageDriver => openBucket(site, 'whole', site.accessKey)
  return { driver: again(), again, stop: site.stop }
})

test('what the store refuses says why, and what helps', async () => {
  await using site = await startS3()
  const folder = site.bucket('closed')
  site.bucket('open')
  await site.publish('open')
  const own = openBucket(site, 'closed', site.accessKey)
  await own.write(at('file'), bytesFrom('content'))
  const messageOf = async (work: Promise<unknown>): Promise<string> =>
    String(await work.catch((error: unknown) => error))

  expect(await messageOf(openBucket(site, 'closed', undefined).read(at('file')))).toMatch(
    /configuration\.signed/,
  )
  expect(await faultOf(openBucket(site, 'closed', site.stranger).read(at('file')))).toBe('denied')
  const wrong = { ...site.accessKey, secretAccessKey: 'wrong' }
  const refused = await messageOf(openBucket(site, 'closed', wrong).read(at('file')))
  expect(refused).toContain('SignatureDoesNotMatch')
  expect(refused).not.toContain(site.accessKey.accessKeyId)
  expect(await faultOf(openBucket(site, 'closed', wrong).list([], { limit: 1 }))).toBe('credential')
  expect(await messageOf(openBucket(site, 'nobucket', site.accessKey).list([], { limit: 1 }))).toMatch(
    /NoSuchBucket.*correct the endpoint/,
  )

  await openBucket(site, 'open', site.accessKey).write(at('file'), bytesFrom('for all'))
  const everybody = openBucket(site, 'open', undefined)
  expect((await contentOf(everybody, at('file'))).toString()).toBe('for all')
  expect(await faultOf(everybody.write(at('mine'), bytesFrom('x')))).toBe('denied')

  await site.kill()
  expect(await faultOf(own.stat(at('file')))).toBe('away')
  expect(await faultOf(own.write(at('new'), bytesFrom('x')))).toBe('away')
  await site.start()
  expect((await contentOf(own, at('file'))).toString()).toBe('content')
  expect(readFileSync(`${folder}/file`, 'utf8')).toBe('content')
})

test.each(['ConditionalRequestConflict', 'OperationAborted'])(
  'a store that is at work on the same key is busy: %s',
  async (code) => {
    await using site = await startS3()
    site.bucket('busy')
    await using relay = await startRelay(site.endpoint)
    const driver = openBucket(relay, 'busy', site.accessKey)
    const body = `<?xml version="1.0"?><Error><Code>${code}</Code><Message>Try again.</Message></Error>`
    relay.refuse(({ method }) => (method === 'PUT' ? { status: 409, body } : undefined))
    expect(await faultOf(driver.write(at('file'), bytesFrom('content'), { sizeBytes: 7 }))).toBe('busy')
    relay.refuse(undefined)
    expect(await faultOf(driver.write(at('file'), bytesFrom('content'), { sizeBytes: 7 }))).toBe('none')
  },
)

test('a large upload that is cut leaves neither an object nor parts', async () => {
  await using site = await startS3()
  const folder = site.bucket('large')
  const driver = openBucket(site, 'large', site.accessKey)
  const cut = Readable.from(
    (async function* () {
      for (let i = 0; i < 30; i++) yield Buffer.alloc(1024 * 1024, i)
      await new Promise((resolve) => setTimeout(resolve, 300))
      throw new Error('cut')
    })(),
    { objectMode: false },
  )
  await expect(driver.write(at('big'), cut)).rejects.toThrow('cut')
  expect(existsSync(`${folder}/big`)).toBe(false)
  const left = (
    readdirSync(folder, { recursive: true, withFileTypes: true }) as { isFile: () => boolean; name: string }[]
  ).filter((each) => each.isFile())
  expect(left).toEqual([])
})

test('a write whose source gives nothing ends where it is cancelled', async () => {
  await using site = await startS3()
  site.bucket('silent')
  const driver = openBucket(site, 'silent', site.accessKey)
  for (const sizeBytes of [undefined, 5, 20_000_000]) {
    const cancelled = new AbortController()
    const silent = new Readable({ read: () => cancelled.abort(new Error('not wanted')) })
    const writing = driver.write(at('file'), silent, { sizeBytes, signal: cancelled.signal })
    await expect(writing).rejects.toThrow('not wanted')
    expect(silent.destroyed).toBe(true)
  }
  expect((await driver.list([], { limit: 10 })).entries).toEqual([])
})

const s3Of = (site: Pick<S3Site, 'endpoint'>, bucket: string, credential?: AwsKey): S3Bucket =>
  openS3({
    http,
    place: { endpoint: site.endpoint, bucket, region: 'us-east-1', pathStyle: true },
    credential,
  })

test('a copy within the store replaces nothing that was written meanwhile, and leaves no parts', async () => {
  await using site = await startS3()
  site.bucket('copies')
  const [driver, bucket] = [openBucket(site, 'copies', site.accessKey), s3Of(site, 'copies', site.accessKey)]
  await driver.write(at('from'), bytesFrom('from'))
  await driver.write(at('to'), bytesFrom('meanwhile'))
  await expect(bucket.copy('from', 'to', { onlyNew: true })).rejects.toMatchObject({ status: 412 })
  expect((await contentOf(driver, at('to'))).toString()).toBe('meanwhile')
  expect(await bucket.parts?.unfinished('to')).toEqual([])
  await bucket.copy('from', 'new', { onlyNew: true })
  await bucket.copy('from', 'to', { onlyNew: false })
  for (const name of ['new', 'to']) expect((await contentOf(driver, at(name))).toString()).toBe('from')
  await driver.write(at('nothing'), bytesFrom(''))
  await driver.copyWithin!(at('copied'), at('nothing'))
  expect((await contentOf(driver, at('copied'))).length).toBe(0)
})

test('a copy within the store keeps what the object says of its content', async () => {
  await using site = await startS3()
  site.bucket('facts')
  const driver = openBucket(site, 'facts', site.accessKey)
  const client = new S3Client({
    ...{ endpoint: site.endpoint, region: 'us-east-1', forcePathStyle: true, credentials: site.accessKey },
  })
  const facts = {
    ...{ ContentType: 'application/fits', ContentEncoding: 'gzip', ContentDisposition: 'attachment' },
    ...{ ContentLanguage: 'de', CacheControl: 'no-store', Metadata: { instrument: 'wide field' } },
  }
  const Expires = new Date('2031-01-02T03:04:05Z')
  for (const Body of ['content', ''])
    for (const [name, overwrite] of [
      ['new', false],
      ['over', true],
    ] as const) {
      await client.send(
        new PutObjectCommand({ Bucket: 'facts', Key: 'from', Body: Buffer.from(Body), Expires, ...facts }),
      )
      await driver.copyWithin!(at(`copied-${name}`), at('from'), { overwrite })
      const Key = `copied-${name}`
      const head = await client.send(new HeadObjectCommand({ Bucket: 'facts', Key }))
      expect(head).toMatchObject({ ContentLength: Body.length, ...facts })
      expect(new Date(head.ExpiresString ?? '')).toEqual(Expires)
      await driver.delete(at(Key))
    }
  client.destroy()
})

test('a file that changes while the store copies it is copied once more', async () => {
  await using site = await startS3()
  site.bucket('changing')
  const driver = openBucket(site, 'changing', site.accessKey)
  const never = (): Promise<never> => Promise.reject(new Error('no byte goes through this process'))
  const send = async (
    to: string,
    changes: number,
    others: Pick<Sending, 'openUpload'> & { most?: number } = { openUpload: never },
  ): ReturnType<typeof sendFile> => {
    await driver.write(at('from'), bytesFrom('old'), { overwrite: true })
    let copies = 0
    const target: StorageDriver = {
      ...driver,
      copyWithin: async (...given) => {
        if (copies === others.most) throw new StorageError('denied', 'no more copies')
        await driver.copyWithin!(...given)
        copies += 1
        if (copies <= changes) await driver.write(at('from'), bytesFrom(`new ${copies}`), { overwrite: true })
      },
    }
    return sendFile(
      { source: driver, target, within: [] },
      {
        ...{ from: at('from'), to: at(to), onConflict: 'fail', isRepeated: false, sizeBytes: 3 },
        ...{ signal: new AbortController().signal, onBytes: () => undefined, onSent: () => undefined },
        ...{ onNoWay: never, openUpload: others.openUpload, discardUpload: never },
      },
    )
  }
  expect(await send('once', 1)).toBe('copied')
  expect((await contentOf(driver, at('once'))).toString()).toBe('new 1')
  await expect(send('twice', 2)).rejects.toMatchObject({ fault: 'changed' })
  // What is there would be a conflict of the next attempt.
  expect(await send('twice', 0)).toBe('copied')

  const openUpload = async () => ({
    continued: await driver.openUpload!(at('streamed'), { name: 'any', earlier: [], sizeBytes: 5 }),
  })
  expect(await send('streamed', 1, { openUpload, most: 1 })).toBe('sent')
  expect((await contentOf(driver, at('streamed'))).toString()).toBe('new 1')
})

test('content goes with its digest, and other bytes than the announced ones get no name', async () => {
  const seen: { md5: string | undefined; body: Buffer }[] = []
  const server = createServer((request, response) => {
    void buffer(request).then((body) => {
      const { search } = new URL(request.url ?? '', 'http://store')
      if (request.method === 'PUT') seen.push({ md5: request.headers['content-md5'] as string, body })
      const answer = (name: string) => `<${name}><UploadId>1</UploadId><ETag>"e"</ETag></${name}>`
      response.setHeader('etag', '"e"')
      if (request.method === 'POST')
        response.end(
          answer(
            search.includes('uploadId') ? 'CompleteMultipartUploadResult' : 'InitiateMultipartUploadResult',
          ),
        )
      else response.end()
    })
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as AddressInfo
  const bucket = s3Of({ endpoint: `http://127.0.0.1:${port}` }, 'any')
  const large = Buffer.alloc(9 * 2 ** 20, 5)
  await bucket.put('small', Buffer.from('small'), { onlyNew: true })
  await bucket.parts?.send('part', '1', 1, Buffer.from('part'))
  // A whole upload, one that goes on, and one with the usual parts.
  const unlooked = { isFree: true, withoutEntry: true }
  const [five, usual] = [() => Promise.resolve(5 * 2 ** 20), undefined].map((partBytes) =>
    openS3Storage(bucket, { prefix: [], signed: false, partBytes }),
  )
  const options = { name: 'any', earlier: [], sizeBytes: large.length }
  const continued = await five!.openUpload!(at('large'), options)
  await five!.write(at('large'), bytesFrom(large), unlooked)
  await five!.write(at('large'), bytesFrom(large), { ...unlooked, sizeBytes: large.length, continued })
  await usual!.write(at('large'), bytesFrom(large), unlooked)
  expect(seen.map(({ body }) => body.length).toSorted((a, b) => a - b)).toEqual([
    4,
    5,
    ...[1, 4, 4, 5, 5, 8].map((mebibytes) => mebibytes * 2 ** 20),
  ])
  for (const { md5, body } of seen) expect(md5).toBe(createHash('md5').update(body).digest('base64'))
  server.closeAllConnections()
  server.close()

  await using site = await startS3()
  site.bucket('announced')
  const driver = openBucket(site, 'announced', site.accessKey)
  for (const content of [Buffer.from('content'), large]) {
    const digest = (): string => createHash('sha256').update('other').digest('hex')
    expect(await faultOf(driver.write(at('file'), bytesFrom(content), { digest }))).toBe('changed')
    expect(await faultOf(driver.stat(at('file')))).toBe('missing')
  }
})

test("Google's storage: an object of other bytes than those sent goes again; parts are as large as asked", async () => {
  const md5 = (bytes: Buffer): string => createHash('md5').update(bytes).digest('base64')
  let stored = (bytes: Buffer): Buffer => bytes
  let session: Buffer[] = []
  const removed: (string | undefined)[] = []
  const announced: (string | undefined)[] = []
  const server = createServer((request, response) => {
    void buffer(request).then((body) => {
      const { searchParams } = new URL(request.url ?? '', 'http://store')
      const answer = (status: number, of: object): void =>
        void response.writeHead(status).end(JSON.stringify(of))
      const made = (bytes: Buffer): void => {
        announced.push(request.headers['x-goog-hash'] as string)
        answer(200, { name: 'any', generation: '7', size: '1', md5Hash: md5(stored(bytes)) })
      }
      if (request.method === 'DELETE') {
        removed.push(request.url)
        answer(request.url?.endsWith('/none') === true ? 404 : 204, {})
      } else if (searchParams.get('uploadType') === 'media') made(body)
      else if (request.method === 'POST') {
        session = []
        response.setHeader('location', '/session')
        answer(200, {})
      } else {
        session.push(body)
        if (request.headers['content-range']?.endsWith('/*') === true) answer(200, {})
        else made(Buffer.concat(session))
      }
    })
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as AddressInfo
  const place = { endpoint: `http://127.0.0.1:${port}`, bucket: 'any' }
  const large = Buffer.alloc(9 * 2 ** 20, 5)
  const write = (content: Buffer, partBytes?: number) => {
    const size = partBytes === undefined ? undefined : () => Promise.resolve(partBytes)
    const driver = openS3Storage(openGcs({ http, place, partBytes: size }), { prefix: [], signed: false })
    const options = { isFree: true, withoutEntry: true, sizeBytes: content.length }
    return faultOf(driver.write(at('d/file'), bytesFrom(content), options))
  }
  const sizes = (): number[] => session.map(({ length }) => length)
  expect(await write(Buffer.from('small'))).toBe('none')
  expect([await write(large), sizes()]).toEqual(['none', [8 * 2 ** 20, 2 ** 20]])
  expect([await write(large, 5 * 2 ** 20 + 99_999), sizes()]).toEqual(['none', [5 * 2 ** 20, 4 * 2 ** 20]])
  expect([await write(large, 1), sizes()]).toEqual(['none', Array.from({ length: 36 }, () => 256 * 1024)])
  expect(removed).toEqual([])
  expect(announced).toEqual([Buffer.from('small'), large, large, large].map((bytes) => `md5=${md5(bytes)}`))
  stored = (bytes) => bytes.subarray(1)
  for (const content of [Buffer.from('small'), large]) expect(await write(content)).toBe('away')
  const object = '/storage/v1/b/any/o/d%2Ffile?generation=7'
  expect(removed).toEqual([object, object])
  // What is not there need not be removed.
  expect(await openGcs({ http, place }).remove('none')).toBeUndefined()
  server.closeAllConnections()
  server.close()
})

test("a write to Google's storage that was cancelled before it begins fails, and nothing else", async () => {
  const place = { endpoint: 'http://127.0.0.1:9', bucket: 'any' }
  const driver = openS3Storage(openGcs({ http, place }), { prefix: [], signed: false })
  for (const sizeBytes of [undefined, 5, 20_000_000]) {
    const source = new Readable({ read: () => undefined })
    const signal = AbortSignal.abort(new Error('cancelled before'))
    const writing = driver.write(at('file'), source, { sizeBytes, signal, isFree: true })
    await expect(writing).rejects.toThrow('cancelled before')
    expect(source.destroyed).toBe(true)
  }
})

test('what an attempt has begun and not recorded goes with its discard; uploads of others stay', async () => {
  await using site = await startS3()
  site.bucket('begun')
  const [driver, bucket] = [openBucket(site, 'begun', site.accessKey), s3Of(site, 'begun', site.accessKey)]
  const begun = async (key: string): Promise<string> => (await bucket.parts?.begin(key)) ?? ''
  const [own, others] = [await begun('file'), await begun('file')]
  for (const upload of [own, others]) await bucket.parts?.send('file', upload, 1, Buffer.from('part'))
  for (const key of ['file', 'file.other']) await begun(key)
  await driver.discard(at('file'), 'the name of an attempt')
  expect((await bucket.parts?.unfinished('file'))?.toSorted()).toEqual([own, others].toSorted())
  await driver.discard(at('file'), own)
  expect(await bucket.parts?.unfinished('file')).toEqual([others])
  expect(await bucket.parts?.unfinished('file.other')).toHaveLength(1)
})

test('a credential that may not list the unfinished uploads of a bucket goes on with its own', async () => {
  await using site = await startS3()
  site.bucket('unlisted')
  const bucket = s3Of(site, 'unlisted', site.accessKey)
  const denied = new S3Error('AccessDenied', 'no', { status: 403 })
  const parts = { ...bucket.parts!, unfinished: () => Promise.reject(denied) }
  const driver = openS3Storage({ ...bucket, parts }, { prefix: [], signed: true })
  const [over, kept] = [await parts.begin('file'), await parts.begin('file')]
  await parts.abort('file', over)
  const content = Buffer.alloc(5 * 2 ** 20)
  await parts.send('file', kept, 1, content)
  const attempt = { name: 'an attempt', earlier: ['one before', over, kept], sizeBytes: 2 * content.length }
  const opened = await driver.openUpload!(at('file'), attempt)
  expect(opened).toEqual({ upload: kept, receivedBytes: content.length })
})

test('a bucket that is closed leaves the open streams of others alone', async () => {
  await using site = await startS3()
  for (const name of ['one', 'other']) site.bucket(name)
  const [one, other] = ['one', 'other'].map((name) => openBucket(site, name, site.accessKey))
  const content = Buffer.alloc(8 * 1024 * 1024, 7)
  await one!.write(at('file'), bytesFrom(content))
  await other!.list([], { limit: 1 })
  const { stream } = await one!.read(at('file'))
  await other!.close()
  expect((await buffer(stream)).equals(content)).toBe(true)
})

test('no address that is denied is connected to', async () => {
  await using site = await startS3()
  const judged = openHttp({ addressAllowed: addressJudge({ allowLoopback: false }) })
  const place = { endpoint: site.endpoint, bucket: 'any', region: 'us-east-1', pathStyle: true }
  for (const endpoint of [
    site.endpoint,
    site.endpoint.replace('127.0.0.1', 'localhost'),
    'http://169.254.169.254',
    'http://[::ffff:169.254.169.254]',
    'http://metadata.google.internal',
  ]) {
    const asked = { http: judged, place: { ...place, endpoint } }
    for (const bucket of [openS3(asked), openGcs(asked)]) {
      const driver = openS3Storage(bucket, { prefix: [], signed: false })
      const error: unknown = await driver.list([], { limit: 1 }).catch((each: unknown) => each)
      expect(error).toMatchObject({ fault: 'refused' })
      expect(String(error)).toMatch(/denie/)
    }
  }
  judged.close()
})

test('no redirect is followed, to another address or to another port', async () => {
  const asked: string[] = []
  const listen = async (answer: (url: string) => string | undefined) => {
    const server = createServer((request, response) => {
      const to = answer(request.url ?? '')
      request.resume()
      if (to === undefined) response.end()
      else response.writeHead(307, { location: to }).end()
    })
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
    return { server, endpoint: `http://127.0.0.1:${(server.address() as AddressInfo).port}` }
  }
  const target = await listen((url) => void asked.push(url))
  const store = await listen((url) => `${target.endpoint}${url}`)
  const place = { endpoint: store.endpoint, bucket: 'any', region: 'us-east-1', pathStyle: true }
  const credential = { accessKeyId: 'AKIAEXAMPLE', secretAccessKey: 'secret' }
  for (const bucket of [
    openS3({ http, place }),
    openS3({ http, place, credential }),
    openGcs({ http, place }),
  ]) {
    const driver = openS3Storage(bucket, { prefix: [], signed: false })
    const unlooked = { isFree: true, withoutEntry: true }
    for (const work of [
      () => driver.list([], { limit: 1 }),
      () => driver.stat(at('a')),
      () => driver.read(at('a')),
      () => driver.write(at('a'), bytesFrom('small'), { ...unlooked, sizeBytes: 5 }),
      () => driver.write(at('a'), bytesFrom(Buffer.alloc(9 * 2 ** 20)), unlooked),
      () => driver.delete(at('a')),
    ])
      expect(await faultOf(work())).toBe('refused')
  }
  expect(asked).toEqual([])
  for (const { server } of [target, store]) {
    server.closeAllConnections()
    server.close()
  }
})

/** A bucket with no object, whose requests fail unless they are given. */
const bucketOf = (given: Partial<S3Bucket>): S3Bucket => {
  const fail = (): Promise<never> => Promise.reject(new Error('this request was not expected'))
  return {
    ...{ get: fail, put: fail, copy: fail, remove: fail, presign: fail, page: fail },
    head: () => Promise.reject(new S3Error('NotFound', 'no object', { status: 404 })),
    ...given,
  }
}

test('a write that is cancelled while its name is looked up sends nothing', async () => {
  const cancel = new AbortController()
  const driver = openS3Storage(
    bucketOf({
      page: () => {
        cancel.abort(new Error('cancelled'))
        return Promise.reject(cancel.signal.reason as Error)
      },
    }),
    { prefix: [], signed: true },
  )
  await expect(driver.write(at('a'), bytesFrom('a'), { signal: cancel.signal })).rejects.toThrow('cancelled')
})

test('a name that the store cannot look up is not taken for a free one', async () => {
  const busy = new S3Error('SlowDown', 'slow down', { status: 503 })
  const there = { key: 'a', sizeBytes: 1, modifiedAt: 0, etag: 'a' }
  const head: S3Bucket['head'] = (key) => (key === 'a' ? Promise.resolve(there) : Promise.reject(busy))
  const driver = openS3Storage(bucketOf({ head }), { prefix: [], signed: true })
  expect(await faultOf(driver.copyWithin!(at('b'), at('a')))).toBe('busy')
  expect(await faultOf(driver.makeDirectory(at('b')))).toBe('busy')
})

test('a credential that may not list still finds out that a name is free', async () => {
  const denied = new S3Error('AccessDenied', 'no', { status: 403 })
  const driver = openS3Storage(bucketOf({ page: () => Promise.reject(denied) }), { prefix: [], signed: true })
  const fault = { fault: 'missing', unlisted: true, message: expect.stringContaining('s3:ListBucket') }
  await expect(driver.stat(at('a'))).rejects.toMatchObject(fault)
  // Nothing is sent for a file that is not there.
  await expect(driver.delete(at('a'))).rejects.toMatchObject(fault)
})

test('a store that denies free keys takes new files, deletes, and refuses what is taken itself', async () => {
  const denied = new S3Error('AccessDenied', 'no', { status: 403 })
  const objects = new Map([['taken', 'theirs']])
  const nothing = { objects: [], folders: [], next: undefined }
  let lists = false
  const driver = openS3Storage(
    bucketOf({
      head: () => Promise.reject(denied),
      page: () => (lists ? Promise.resolve(nothing) : Promise.reject(denied)),
      put: (key, body, { onlyNew }) => {
        if (onlyNew && objects.has(key))
          return Promise.reject(new S3Error('PreconditionFailed', 'no', { status: 412 }))
        objects.set(key, body.toString())
        return Promise.resolve()
      },
      remove: (key) => Promise.resolve(void objects.delete(key)),
    }),
    { prefix: [], signed: true },
  )
  const write = (path: string, overwrite?: boolean) =>
    driver.write(at(path), bytesFrom('mine'), { sizeBytes: 4, overwrite })
  const entry = { name: 'new', type: 'file', sizeBytes: 4, readable: false, writable: true }
  expect(await write('d/new')).toMatchObject({ receivedBytes: 4, entry })
  expect(await faultOf(write('taken'))).toBe('exists')
  expect(Object.fromEntries(objects)).toEqual({ 'd/new': 'mine', taken: 'theirs' })
  expect(await faultOf(write('taken', true))).toBe('none')
  // Whether a directory has the name is not known.
  await expect(driver.delete(at('d/new'))).rejects.toMatchObject({ fault: 'missing', unlisted: true })
  lists = true
  expect(await faultOf(driver.delete(at('taken')))).toBe('none')
  expect([...objects.keys()]).toEqual([])
})
