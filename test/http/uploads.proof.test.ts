import { afterAll, beforeAll, beforeEach, describe, expect, test } from '@jest/globals'
import { execFile, spawn } from 'node:child_process'
import { createHash, randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { connect, type Socket } from 'node:net'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { promisify } from 'node:util'
import { usualBodyPace } from '../../src/http/pace.ts'
import { Refusal } from '../../src/refusal.ts'
import { blobLimit, megabyte } from './flow-routes.ts'
import { json, raw, openStars, statusOf, type Stars } from './stars.ts'

/** Bodies that a route takes as they come. */

const token = 'correct-horse-battery-staple'
let service: Stars
let closed: Stars
beforeAll(async () => {
  service = await openStars()
  closed = await openStars({ apiToken: token })
})
afterAll(async () => {
  await service.close()
  await closed.close()
})
beforeEach(() => {
  service.flows.blobs.clear()
  service.flows.failed.length = 0
  service.flows.read.bytes = 0
  service.flows.gate = undefined
  service.audits.length = 0
  service.logged.length = 0
})

const sha = (algorithm: string, bytes: Buffer): string => createHash(algorithm).update(bytes).digest('base64')
const sha256 = (bytes: Buffer): string => createHash('sha256').update(bytes).digest('hex')
const content = randomBytes(3 * megabyte + 17)

const put = (id: string, body: Buffer | ReadableStream, headers: Record<string, string> = {}, at = service) =>
  at.request(`/api/blobs/${id}/`, {
    method: 'PUT',
    headers: { 'content-type': 'application/octet-stream', ...headers },
    body,
    duplex: 'half',
  } as RequestInit)

const inChunks = (bytes: Buffer): ReadableStream =>
  new ReadableStream({
    start(controller) {
      for (let at = 0; at < bytes.length; at += 100_000) controller.enqueue(bytes.subarray(at, at + 100_000))
      controller.close()
    },
  })

/** Headers of a request whose body is still to be sent. */
const head = (id: string, lines: string[], request = `PUT /api/blobs/${id}/`): string =>
  [`${request} HTTP/1.1`, 'Host: localhost', ...lines, '', ''].join('\r\n')

/**
 * A client in a process of its own: its arguments are a port and how many bytes it sends in chunks.
 */
const sender = `
  import { request } from 'node:http'
  import { Readable } from 'node:stream'
  import { pipeline } from 'node:stream/promises'
  const [port, size] = process.argv.slice(1).map(Number)
  const piece = Buffer.alloc(65536)
  const bytes = Readable.from((function* () { for (let sent = 0; sent < size; sent += piece.length) yield piece })())
  const call = request({ port, method: 'PUT', path: '/blobs/zero/' }, (answer) => answer.pipe(process.stdout))
  await pipeline(bytes, call)
`

/** Until a condition holds. */
const until = async (holds: () => boolean, ms = 5_000): Promise<void> => {
  for (const end = Date.now() + ms; !holds() && Date.now() < end;) await sleep(10)
  expect(holds()).toBe(true)
}

describe('a streamed body', () => {
  test('is taken whole, announced or in chunks, of any size and media type that the route names', async () => {
    for (const [id, bytes] of [
      ['large', content],
      ['small', Buffer.from('x')],
      ['empty', Buffer.alloc(0)],
    ] as const) {
      const wanted = { sizeBytes: bytes.length, sha256: sha256(bytes) }
      expect((await put(id, bytes)).body).toEqual(wanted)
      expect((await put(id, inChunks(bytes), { 'content-type': 'image/png; q="a b"' })).body).toEqual(wanted)
      expect(service.flows.blobs.get(id)).toEqual(wanted)
    }
    // Without a media type it is a stream of bytes.
    const bare = await raw(service.port, `${head('bare', ['Content-Length: 3'])}abc`, { until: /sizeBytes/ })
    expect([statusOf(bare), bare]).toEqual([200, expect.stringContaining('"sizeBytes":3')])
  })

  test('stands beside documents of the same route: the media type decides', async () => {
    const post = (type: string, body: string) =>
      service.request('/api/contexts/', {
        method: 'POST',
        headers: { 'content-type': type },
        body: Buffer.from(body),
      })
    expect((await service.request('/api/contexts/', json({ sizeBytes: 7 }))).body).toEqual({
      sizeBytes: 7,
      type: 'document',
    })
    expect((await post('application/yaml', 'sizeBytes: 8')).body).toEqual({ sizeBytes: 8, type: 'document' })
    expect((await post('Application/GZIP', '12345')).body).toEqual({ sizeBytes: 5, type: 'Application/GZIP' })
    const form = 'multipart/form-data; boundary=xyz'
    expect((await post(form, '--xyz--')).body).toEqual({ sizeBytes: 7, type: form })
    expect((await service.request('/api/contexts/', json({ sizeBytes: 'x' }))).status).toBe(400)
    const other = await post('text/plain', 'x')
    expect([other.status, other.body['error']]).toEqual([
      415,
      'Content-Type must be application/json or application/yaml or application/gzip or multipart/form-data',
    ])
    const packed = await put('packed', content, { 'content-encoding': 'gzip' })
    expect([packed.status, packed.headers.get('accept-encoding')]).toEqual([415, 'identity'])
    expect(service.flows.failed).toEqual([])
  })

  test('is in the API document with its media types, its digest and its refusals', () => {
    const { put: keep } = service.app.openapi().paths['/blobs/{blobId}/'] as Record<string, any>
    const { post: send } = service.app.openapi().paths['/contexts/'] as Record<string, any>
    expect(keep.requestBody).toEqual({
      required: false,
      content: { '*/*': { schema: { type: 'string', format: 'binary' } } },
    })
    expect(Object.keys(send.requestBody.content)).toEqual([
      'application/json',
      'application/yaml',
      'application/gzip',
      'multipart/form-data',
    ])
    expect(Object.keys(keep.responses)).toEqual(
      expect.arrayContaining(['403', '408', '409', '413', '415', '423']),
    )
    expect(keep.parameters.map((one: { name: string }) => one.name)).toEqual(['blobId', 'Content-Digest'])
  })
})

describe('before the first byte', () => {
  /**
   * Each is refused while its body is only announced; with `Expect` the client is never asked for
   * it.
   */
  const cases: { what: string; status: number; lines?: string[]; request?: string; strange?: true }[] = [
    { what: 'of a stranger', status: 401, strange: true },
    { what: 'by a name that is not ours', status: 403, lines: ['Host: evil.example'] },
    { what: 'of another origin', status: 403, lines: ['Origin: https://evil.example'] },
    { what: 'to no path', status: 404, request: 'PUT /api/blobs/x' },
    { what: 'by another method', status: 405, request: 'PATCH /api/blobs/x/' },
    { what: 'that the route does not admit', status: 403, request: 'PUT /api/blobs/strange/' },
    { what: 'that the handler refuses', status: 409, request: 'PUT /api/blobs/taken/' },
    {
      what: 'of a media type that is not read',
      status: 415,
      lines: ['Content-Type: text/plain'],
      request: 'POST /api/contexts/',
    },
    { what: 'that is packed', status: 415, lines: ['Content-Encoding: br'] },
    { what: 'with a digest that is none', status: 400, lines: ['Content-Digest: sha-256=abc'] },
  ]
  test.each(cases)(
    'a request $what is $status',
    async ({ status, lines = [], request = 'PUT /api/blobs/x/', strange }) => {
      const hosted = lines.some((line) => line.startsWith('Host')) ? lines : ['Host: localhost', ...lines]
      for (const expecting of [[], ['Expect: 100-continue']]) {
        const text = [`${request} HTTP/1.1`, ...hosted, 'Content-Length: 1000', ...expecting, '', ''].join(
          '\r\n',
        )
        const answer = await raw((strange === true ? closed : service).port, text)
        expect([expecting, statusOf(answer)]).toEqual([expecting, status])
        expect(answer).toContain('"code":')
      }
      expect(service.flows.read.bytes).toBe(0)
    },
  )

  test('a body that announces more than the limit is 413, and one at the limit is asked for', async () => {
    for (const expecting of [[], ['Expect: 100-continue']])
      expect(
        statusOf(await raw(service.port, head('x', [`Content-Length: ${blobLimit + 1}`, ...expecting]))),
      ).toBe(413)
    const asked = await raw(service.port, head('x', [`Content-Length: ${blobLimit}`, 'Expect: 100-continue']))
    expect(asked).toMatch(/^HTTP\/1\.1 100 Continue\r\n\r\n$/)
  })

  test('a read-only snapshot refuses with 423', async () => {
    service.activated.value = true
    try {
      expect(
        statusOf(await raw(service.port, head('x', ['Content-Length: 1000', 'Expect: 100-continue']))),
      ).toBe(423)
    } finally {
      service.activated.value = false
    }
    expect(service.flows.read.bytes).toBe(0)
  })

  test('the handler decides without the body; the connection goes on where the body comes after all', async () => {
    const socket = connect(service.port, '127.0.0.1')
    let text = ''
    socket.on('data', (bytes) => (text += bytes.toString()))
    socket.write(head('known', ['Content-Length: 100000']))
    await until(() => text.includes('"sizeBytes":0'))
    socket.write(Buffer.alloc(100_000))
    socket.write(head('known', ['Content-Length: 0']))
    await until(() => text.split('"sizeBytes":0').length === 3)
    socket.destroy()
  })

  test('leaves an audit record of each refusal behind admission', async () => {
    await raw(service.port, head('strange', ['Content-Length: 10']))
    await raw(service.port, head('taken', ['Content-Length: 10']))
    expect(service.audits.map(({ outcome, metadata }) => [outcome, metadata.status])).toEqual([
      ['failed', 409],
    ])
  })
})

describe('a body that breaks its bounds', () => {
  test('in chunks beyond the limit is 413; nothing of it is kept', async () => {
    const answer = await service.request('/api/contexts/', {
      method: 'POST',
      headers: { 'content-type': 'application/gzip' },
      body: inChunks(content),
      duplex: 'half',
    } as RequestInit)
    expect([answer.status, answer.body['code']]).toEqual([413, 'too_large'])
    expect(service.flows.failed).toEqual([expect.any(Refusal)])
    expect(service.flows.blobs.size).toBe(0)
    expect(service.audits.map(({ outcome, metadata }) => [outcome, metadata.status])).toEqual([
      ['failed', 413],
    ])
  })

  test('whose client leaves fails for its handler and is no fault of the service', async () => {
    const socket = connect(service.port, '127.0.0.1')
    socket.write(head('left', ['Content-Length: 1000']))
    socket.write('some')
    await until(() => service.flows.read.bytes === 4)
    socket.destroy()
    await until(() => service.flows.failed.length === 1)
    expect(service.flows.blobs.size).toBe(0)
    expect(service.logged.filter((line) => line.level === 'error')).toEqual([])
  })

  test('and that a refusal leaves unread holds its connection for as long as a whole body may take', async () => {
    const brief = await openStars({ bodyPace: { ...usualBodyPace, wholeMs: 300 } })
    const socket = connect(brief.port, '127.0.0.1')
    socket.on('error', () => undefined)
    try {
      const began = Date.now()
      socket.write(head('taken', ['Content-Length: 1000000']))
      socket.resume()
      await once(socket, 'close')
      expect(Date.now() - began).toBeGreaterThan(250)
    } finally {
      socket.destroy()
      await brief.close()
    }
  })
})

describe('the pace of a body', () => {
  const pace = { wholeMs: 400, slowMs: 600, leastBytesPerSecond: 65_536 }
  let paced: Stars
  beforeAll(async () => {
    paced = await openStars({ bodyPace: pace })
  })
  afterAll(() => paced.close())

  /**
   * Sends `bytes` every 20 ms for `ms`, or until the other side ends it; answers what came back.
   */
  const trickle = async (id: string, bytes: number, ms: number): Promise<string> => {
    const socket = connect(paced.port, '127.0.0.1')
    let text = ''
    let open = true
    socket.on('data', (chunk) => (text += chunk.toString()))
    socket.on('error', () => undefined)
    socket.on('close', () => (open = false))
    socket.write(head(id, ['Transfer-Encoding: chunked']))
    const chunk = `${bytes.toString(16)}\r\n${'x'.repeat(bytes)}\r\n`
    for (const end = Date.now() + ms; open && text === '' && Date.now() < end;) {
      if (bytes > 0) socket.write(chunk)
      await sleep(20)
    }
    if (open && text === '') socket.write('0\r\n\r\n')
    await until(() => text !== '' || !open)
    socket.destroy()
    return text
  }

  test('below 64 KiB a second for the time of a slow body ends it with 408', async () => {
    for (const bytes of [0, 1, 600]) {
      const began = Date.now()
      const answer = await trickle(`slow-${bytes}`, bytes, 5_000)
      expect([bytes, statusOf(answer)]).toEqual([bytes, 408])
      expect(answer).toContain('Connection: close')
      expect(Date.now() - began).toBeGreaterThan(pace.slowMs - 50)
    }
    expect(paced.flows.failed).toHaveLength(3)
    expect(paced.flows.blobs.size).toBe(0)
  })

  test('above it may take longer than a whole body', async () => {
    const answer = await trickle('steady', 8_000, 4 * pace.slowMs)
    expect(statusOf(answer)).toBe(200)
    expect(paced.flows.blobs.get('steady')?.sizeBytes).toBeGreaterThan(200_000)
  })

  test('is no fault of a client whose bytes the handler does not take', async () => {
    let open = (): void => undefined
    paced.flows.gate = new Promise((resolve) => (open = resolve))
    setTimeout(() => open(), 3 * pace.slowMs)
    const answer = await put('waiting', content, {}, paced)
    expect([answer.status, answer.body['sizeBytes']]).toEqual([200, content.length])
  })
})

describe('memory', () => {
  test('a handler that does not read holds its client back', async () => {
    let open = (): void => undefined
    service.flows.gate = new Promise((resolve) => (open = resolve))
    const socket: Socket = connect(service.port, '127.0.0.1')
    const size = 48 * megabyte
    socket.write(head('held', [`Content-Length: ${size}`]))
    const piece = Buffer.alloc(megabyte)
    for (let sent = 0; sent < size; sent += megabyte) socket.write(piece)
    await until(() => service.flows.read.bytes > 0)
    await sleep(500)
    expect(service.flows.read.bytes).toBeLessThan(megabyte)
    // What the kernels of both ends buffer is some megabytes; the rest is still with the client.
    expect(socket.writableLength).toBeGreaterThan(size / 2)
    open()
    service.flows.gate = undefined
    await until(() => service.flows.blobs.get('held')?.sizeBytes === size, 20_000)
    socket.destroy()
  })

  test('1 GiB passes in at most 32 MiB more', async () => {
    const program = spawn(process.execPath, [join(import.meta.dirname, 'upload-program.ts')], {
      stdio: ['ignore', 'pipe', 'inherit'],
    })
    try {
      const [line] = (await once(program.stdout, 'data')) as [Buffer]
      const port = Number(line)
      const send = async (size: number): Promise<{ sizeBytes: number; mostBytes: number }> => {
        const { stdout } = await promisify(execFile)(process.execPath, [
          '--input-type=module',
          '--eval',
          sender,
          String(port),
          String(size),
        ])
        return JSON.parse(stdout)
      }
      // V8 lets some 32 MiB of buffers gather before it collects them for the first time, whatever
      // they were for.
      const small = await send(256 * megabyte)
      // When V8 collects depends on the load of the machine: of nine uploads after the first one grew
      // by 23 MiB, the others by 2 to 9. A body that is held takes 768 MiB more each time.
      let moreBytes = Infinity
      for (let round = 0; round < 3 && moreBytes > 32 * megabyte; round++) {
        const { sizeBytes, mostBytes } = await send(1024 * megabyte)
        expect(sizeBytes).toBe(1024 * megabyte)
        moreBytes = Math.min(moreBytes, mostBytes - small.mostBytes)
      }
      expect(moreBytes).toBeLessThanOrEqual(32 * megabyte)
    } finally {
      program.kill('SIGKILL')
    }
  }, 120_000)
})

describe('Content-Digest', () => {
  const right = [
    `sha-256=:${sha('sha256', content)}:`,
    `sha-512=:${sha('sha512', content)}:`,
    `md5=:${sha('md5', content)}:, sha-512=:${sha('sha512', content)}:;note=1 , sha-256=:${sha('sha256', content)}:`,
    `unixsum=:AAA=:`,
  ]
  test('that is right lets the body pass, of either algorithm and beside unknown ones', async () => {
    for (const digest of right)
      expect([digest, (await put('right', content, { 'content-digest': digest })).status]).toEqual([
        digest,
        200,
      ])
  })

  test('that is wrong is 400, and the handler never sees the end of the stream', async () => {
    const other = sha('sha256', Buffer.from('other'))
    for (const digest of [`sha-256=:${other}:`, `sha-512=:${sha('sha512', content)}:, sha-256=:${other}:`]) {
      const answer = await put('wrong', content, { 'content-digest': digest })
      expect([answer.status, answer.body['details']]).toEqual([
        400,
        [{ path: 'Content-Digest', message: `sha-256 of the body is ${sha('sha256', content)}` }],
      ])
    }
    expect(service.flows.failed).toHaveLength(2)
    expect(service.flows.blobs.size).toBe(0)
  })

  test('that is none is 400', async () => {
    for (const digest of [
      'sha-256',
      'sha-256=abc',
      'sha-256=:ab!:',
      `sha-256=:${sha('sha1', content)}:`,
      'SHA-256=::',
      ',',
      'sha-256=:AA==:',
    ])
      expect([digest, (await put('none', content, { 'content-digest': digest })).status]).toEqual([
        digest,
        400,
      ])
  })

  test('may follow the body, where the request announces that', async () => {
    const body = 'some bytes'
    const send = (trailer: string, announced = 'Content-Digest'): Promise<string> =>
      raw(
        service.port,
        `${head('behind', ['Transfer-Encoding: chunked', `Trailer: ${announced}`])}a\r\n${body}\r\n0\r\n${trailer}\r\n`,
        {
          until: /\r\n\r\n[\s\S]*}$/,
        },
      )
    expect(statusOf(await send(`Content-Digest: sha-256=:${sha('sha256', Buffer.from(body))}:\r\n`))).toBe(
      200,
    )
    expect(
      statusOf(
        await send(`Content-Digest: sha-512=:${sha('sha512', Buffer.from(body))}:\r\n`, 'x, content-digest'),
      ),
    ).toBe(200)
    expect(statusOf(await send(`Content-Digest: sha-256=:${sha('sha256', Buffer.from('x'))}:\r\n`))).toBe(400)
    expect(statusOf(await send(''))).toBe(400)
  })

  test('is compared for documents, too', async () => {
    const body = Buffer.from(JSON.stringify({ id: 'digested', name: 'Sol' }))
    const post = (digest: string) =>
      service.request('/api/stars/', {
        method: 'POST',
        headers: { 'content-type': 'application/json', 'content-digest': digest },
        body,
      })
    expect((await post(`sha-256=:${sha('sha256', Buffer.from('{}'))}:`)).status).toBe(400)
    expect(service.stars.has('digested')).toBe(false)
    expect((await post(`sha-256=:${sha('sha256', body)}:`)).status).toBe(201)
  })
})

describe('an Idempotency-Key of a stream', () => {
  const gzip = Buffer.from('once upon a time')
  const digest = `sha-256=:${sha('sha256', gzip)}:`
  const post = (key: string, more: Record<string, string>, body: Buffer = gzip) =>
    service.request('/api/contexts/', {
      method: 'POST',
      headers: { 'content-type': 'application/gzip', 'idempotency-key': key, ...more },
      body,
    })

  test('goes by the digest: an equal request is answered again without its body', async () => {
    expect((await post('k-1', { 'content-digest': digest })).status).toBe(201)
    service.flows.read.bytes = 0
    const again = await raw(
      service.port,
      head(
        '',
        [
          'Content-Type: application/gzip',
          `Content-Length: ${gzip.length}`,
          'Idempotency-Key: k-1',
          `Content-Digest: md5=:AAAA:, ${digest}`,
          'Expect: 100-continue',
        ],
        'POST /api/contexts/',
      ),
    )
    expect([statusOf(again), again]).toEqual([201, expect.stringContaining('Idempotency-Replayed: true')])
    expect(service.flows.read.bytes).toBe(0)
    const other = Buffer.from('another time')
    expect((await post('k-1', { 'content-digest': `sha-256=:${sha('sha256', other)}:` }, other)).status).toBe(
      422,
    )
  })

  test('needs a digest, and is not used up by a body that is not the one', async () => {
    const bare = await post('k-2', {})
    expect([bare.status, bare.body['error']]).toEqual([400, expect.stringContaining('Content-Digest')])
    expect((await post('k-2', { 'content-digest': digest }, Buffer.from('broken'))).status).toBe(400)
    const whole = await post('k-2', { 'content-digest': digest })
    expect([whole.status, whole.headers.get('idempotency-replayed')]).toEqual([201, null])
  })
})
