import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from '@jest/globals'
import { execFileSync } from 'node:child_process'
import { createHash, randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { createServer, request as plainRequest, type IncomingMessage, type ServerResponse } from 'node:http'
import { createServer as createSecureServer } from 'node:https'
import { createServer as createSocketServer, type AddressInfo, type Server, type Socket } from 'node:net'
import { join } from 'node:path'
import { Readable } from 'node:stream'
import { setTimeout as sleep } from 'node:timers/promises'
import { inspect } from 'node:util'
import fc from '../support/fast-check.ts'
import { addressJudge } from '../../src/clients/denied-networks.ts'
import { openFunctions } from '../../src/clients/functions.ts'
import { HttpError } from '../../src/clients/http-error.ts'
import {
  openHttp,
  type Http,
  type HttpOptions,
  type HttpRequest,
  type Resolve,
} from '../../src/clients/http.ts'
import { openKubernetesCluster } from '../../src/clients/kubernetes-cluster.ts'
import { openSlurmrestd } from '../../src/clients/slurmrestd.ts'
import { openLog } from '../../src/observability/log.ts'
import { until } from '../failures/programs.ts'
import { runFolder } from '../support/run-folder.ts'

/** The client's own machine, and the machines of somebody else. */
const allowedAddress = '127.76.0.1'
const deniedAddress = '127.77.0.1'
const addressAllowed = addressJudge({ allowLoopback: true, denied: ['127.77.0.0/16', '::1'] })

type Handler = (request: IncomingMessage, response: ServerResponse) => void
const mebibyte = 1024 * 1024
const within = { deadlineMs: 20_000, limitBytes: mebibyte }

/**
 * A server at an address; all of them have the same port, so that only the address tells them
 * apart.
 */
interface Peer {
  /** Connections that were made to it. */
  connections: number
  /** Of those, the ones that are open. */
  open: Set<Socket>
  requests: IncomingMessage[]
  answer: Handler
  server: Server
}

let port: number
let allowed: Peer
let denied: Peer
let https: Http[]

const listen = async (address: string, at: number): Promise<Peer> => {
  const server = createServer((request, response) => {
    peer.requests.push(request)
    peer.answer(request, response)
  })
  server.on('checkContinue', (request: IncomingMessage, response: ServerResponse) =>
    server.emit('request', request, response),
  )
  const peer: Peer = {
    connections: 0,
    open: new Set(),
    requests: [],
    answer: (_, response) => response.end(),
    server,
  }
  server.on('connection', (socket) => {
    peer.connections++
    peer.open.add(socket)
    socket.once('close', () => peer.open.delete(socket))
  })
  await new Promise<void>((resolve, reject) => server.once('error', reject).listen(at, address, resolve))
  return peer
}

beforeEach(async () => {
  https = []
  for (let found = false; !found;) {
    allowed = await listen(allowedAddress, 0)
    port = (allowed.server.address() as AddressInfo).port
    // Another program may have the port at the other address.
    found = await listen(deniedAddress, port).then(
      (peer) => ((denied = peer), true),
      () => false,
    )
    if (!found) allowed.server.close()
  }
})
afterEach(async () => {
  for (const http of https) http.close()
  for (const { server, open } of [allowed, denied]) {
    for (const socket of open) socket.destroy()
    await new Promise((resolve) => server.close(resolve))
  }
})

/** Answers the lists in turn, the last of them for ever. */
const resolving = (...answers: string[][]): Resolve & { asked: number } => {
  const resolve = (name: string, _: unknown, callback: Parameters<Resolve>[2]): void => {
    const addresses = answers[Math.min(answers.length - 1, resolve.asked++)] ?? []
    process.nextTick(
      callback,
      null,
      addresses.map((address) => ({ address, family: address.includes(':') ? 6 : 4 })),
    )
  }
  resolve.asked = 0
  return resolve
}
const open = (options: Partial<HttpOptions> = {}): Http => {
  const http = openHttp({ addressAllowed, resolve: resolving([allowedAddress]), ...options })
  https.push(http)
  return http
}
const url = (path = '/'): string => `http://peer.test:${port}${path}`
const failureOf = (promise: Promise<unknown>): Promise<HttpError> =>
  promise.then(
    (value) => {
      throw new Error(`it was answered: ${inspect(value)}`)
    },
    (error: unknown) => {
      if (error instanceof HttpError) return error
      throw error
    },
  )
/** Its failure, whether it comes before the head of the answer or within the body. */
const failing = (http: Http, request: Partial<HttpRequest> = {}, path = '/'): Promise<HttpError> =>
  failureOf(http.request(url(path), { ...within, ...request }).then((answer) => answer.bytes()))

describe('addresses', () => {
  test('a second answer of DNS is never connected to, and nothing is sent to it', async () => {
    const resolve = resolving([allowedAddress], [deniedAddress])
    const http = open({ resolve })
    const answer = await http.request(url(), {
      ...within,
      fresh: true,
      headers: { authorization: 'Bearer secret-token' },
    })
    expect([answer.status, answer.address, resolve.asked]).toEqual([200, allowedAddress, 1])
    await answer.bytes()
    const second = await failing(http, { fresh: true, headers: { authorization: 'Bearer secret-token' } })
    expect(second).toMatchObject({
      fault: 'denied',
      sent: false,
      message: expect.stringContaining('127.77.0.0/16'),
    })
    expect([resolve.asked, allowed.requests.length, denied.connections]).toEqual([2, 1, 0])
  })

  test('of several addresses of a name only those that are allowed are tried', async () => {
    for (const addresses of [
      [deniedAddress, allowedAddress],
      ['::1', deniedAddress, allowedAddress, deniedAddress],
    ]) {
      const answer = await open({ resolve: resolving(addresses) }).request(url(), within)
      expect(answer.address).toBe(allowedAddress)
    }
    expect(await failing(open({ resolve: resolving(['::1', deniedAddress]) }))).toMatchObject({
      fault: 'denied',
    })
    expect(denied.connections).toBe(0)
  })

  test.each([
    ['an address', deniedAddress],
    ['an IPv6 address that stands for it', `[::ffff:${deniedAddress}]`],
    ['a number', String(0x7f4d0001)],
    ['its hexadecimal form', '0x7f.0x4d.0.1'],
    ['a metadata service by its address', '169.254.169.254'],
    ['a metadata service by its name', 'metadata.google.internal'],
  ])('%s in the place of a host is judged', async (_, host) => {
    expect(await failureOf(open().request(`http://${host}:${port}/`, within))).toMatchObject({
      fault: 'denied',
      stage: 'route',
    })
    expect(denied.connections).toBe(0)
  })

  test('a library with the agent, or with the lookup, connects to nothing else', async () => {
    const { agents, lookup } = open({ resolve: resolving([deniedAddress]) })
    const plain = (options: object): Promise<unknown> =>
      new Promise((resolve) =>
        plainRequest({ port, ...options })
          .on('error', resolve)
          .on('response', resolve)
          .end(),
      )
    for (const options of [
      { host: 'peer.test', agent: agents.kept['http:'] },
      { host: deniedAddress, agent: agents.kept['http:'] },
      { host: deniedAddress, agent: agents.fresh['http:'] },
      { host: 'peer.test', agent: agents.fresh['http:'], lookup: resolving([deniedAddress]) },
      { host: 'peer.test', lookup },
    ])
      expect(await plain(options)).toMatchObject({ fault: 'denied' })
    expect(denied.connections).toBe(0)
  })

  test('a name without an address, a refused connection, another protocol and a password in the URL are told apart', async () => {
    expect(await failing(open({ resolve: resolving([]) }))).toMatchObject({ fault: 'name', sent: false })
    const silent = await listen(allowedAddress, 0)
    const free = (silent.server.address() as AddressInfo).port
    await new Promise((resolve) => silent.server.close(resolve))
    expect(await failureOf(open().request(`http://peer.test:${free}/`, within))).toMatchObject({
      fault: 'lost',
      stage: 'route',
      sent: false,
    })
    expect(await failureOf(open().request('ftp://peer.test/', within))).toMatchObject({ fault: 'denied' })
    const named = await failureOf(open().request(`http://ada:pass-word@peer.test:${port}/`, within))
    expect(named).toMatchObject({ fault: 'denied', message: expect.not.stringContaining('pass-word') })
    expect(allowed.connections).toBe(0)
  })
})

describe('answers', () => {
  test.each([300, 301, 302, 303, 307, 308])(
    'a redirect (%i) is an error, and gets nothing',
    async (status) => {
      const location = `http://${deniedAddress}:${port}/?X-Amz-Signature=0123456789abcdef`
      allowed.answer = (_, response) => response.writeHead(status, { location }).end('elsewhere')
      const error = await failing(open(), { headers: { authorization: 'Bearer secret-token' } })
      expect(error).toMatchObject({ fault: 'redirect', status, location })
      let log = ''
      openLog('info', { write: (line: string) => void (log += line) }).error({ err: error }, 'shown')
      expect(log + inspect(error, { depth: 9, showHidden: true }) + JSON.stringify(error)).not.toContain(
        '0123456789abcdef',
      )
      expect([allowed.requests.length, denied.connections]).toEqual([1, 0])
    },
  )

  test('what only looks like a redirect or a large answer is none: 304, and HEAD', async () => {
    allowed.answer = (_, response) => response.writeHead(304, { etag: '"1"' }).end()
    expect((await open().request(url(), { ...within, headers: { 'if-none-match': '"1"' } })).status).toBe(304)
    allowed.answer = (_, response) => response.writeHead(200, { 'content-length': 2 ** 40 }).end()
    const head = await open().request(url(), { ...within, method: 'HEAD' })
    expect([head.headers['content-length'], (await head.bytes()).length]).toEqual([String(2 ** 40), 0])
  })

  test('a range is asked for and answered as a range', async () => {
    allowed.answer = ({ headers }, response) =>
      response.writeHead(206, { 'content-range': 'bytes 2-3/10' }).end(headers.range)
    const answer = await open().request(url(), { ...within, headers: { Range: 'bytes=2-3' } })
    expect([answer.status, answer.headers['content-range'], String(await answer.bytes())]).toEqual([
      206,
      'bytes 2-3/10',
      'bytes=2-3',
    ])
  })

  test('one that says that it is too large is refused before its body', async () => {
    allowed.answer = (_, response) => {
      response.writeHead(200, { 'content-length': mebibyte + 1 })
      response.flushHeaders()
    }
    expect(await failing(open())).toMatchObject({
      fault: 'large',
      message: expect.stringContaining(`${mebibyte} bytes`),
    })
    await until('the connection is closed', 120, () => allowed.open.size === 0)
  })

  test('one that does not say so is cut off where the limit is', async () => {
    let sent = 0
    allowed.answer = (_, response) => {
      const write = (): void => {
        while (!response.destroyed && response.write(Buffer.alloc(64 * 1024))) sent += 64 * 1024
      }
      response.on('drain', write)
      write()
    }
    expect(await failing(open())).toMatchObject({ fault: 'large', stage: 'body' })
    await until('the connection is closed', 120, () => allowed.open.size === 0)
    // What lies in buffers of both systems: a few MiB on loopback.
    expect(sent).toBeLessThan(32 * mebibyte)
    const answer = await open().request(url(), { ...within, limitBytes: Infinity })
    expect(await failureOf(answer.bytes(1_000))).toMatchObject({
      fault: 'large',
      message: expect.stringContaining('1000 bytes'),
    })
    await until('the connection is closed', 120, () => allowed.open.size === 0)
  })

  test('one that breaks off is an error, not a short answer', async () => {
    allowed.answer = ({ socket }, response) => {
      response.writeHead(200, { 'content-length': 100 })
      response.write('half')
      setTimeout(() => socket.destroy(), 50)
    }
    expect(await failing(open())).toMatchObject({ fault: 'lost', stage: 'body', sent: true })
    allowed.answer = ({ socket }) => socket.destroy()
    expect(await failing(open())).toMatchObject({ fault: 'lost', stage: 'answer', sent: true })
  })
})

describe('deadlines', () => {
  const drip: Handler = (_, response) => {
    response.writeHead(200)
    const timer = setInterval(() => response.write('.'), 20)
    response.on('close', () => clearInterval(timer))
  }

  test('an answer that does not come, and one that comes byte by byte, end at the deadline', async () => {
    allowed.answer = () => undefined
    expect(await failing(open(), { deadlineMs: 300 })).toMatchObject({
      fault: 'late',
      stage: 'answer',
      sent: true,
    })
    expect(await failing(open(), { headMs: 300 })).toMatchObject({
      fault: 'late',
      stage: 'answer',
      sent: true,
    })
    allowed.answer = drip
    expect(await failing(open(), { deadlineMs: 300, idleMs: 200 })).toMatchObject({
      fault: 'late',
      stage: 'body',
    })
    await until('the connections are closed', 120, () => allowed.open.size === 0)
  })

  test('a body that stands still ends after the silence; a reader that takes its time is no silence', async () => {
    allowed.answer = (_, response) => response.writeHead(200).write('first')
    expect(await failing(open(), { idleMs: 200 })).toMatchObject({
      fault: 'late',
      message: expect.stringContaining('did not send a byte'),
    })
    await until('the connection is closed', 120, () => allowed.open.size === 0)
    const size = 4 * mebibyte
    allowed.answer = (_, response) => response.end(Buffer.alloc(size))
    const readSlowly = async (): Promise<number> => {
      const answer = await open().request(url(), { ...within, limitBytes: size, idleMs: 200 })
      let read = 0
      for await (const chunk of answer.body as AsyncIterable<Buffer>) {
        if (read === 0) await sleep(600)
        read += chunk.length
      }
      return read
    }
    // On a busy machine the server itself may be silent for as long.
    await until(
      'a slow reader has the whole body',
      120,
      async () => (await readSlowly().catch(() => 0)) === size,
    )
  })

  test('a server that does not read the request ends it after the silence', async () => {
    allowed.answer = (request) => request.pause()
    const body = Readable.from(
      (async function* () {
        for (;;) yield await Promise.resolve(Buffer.alloc(256 * 1024))
      })(),
    )
    const error = await failing(open(), { method: 'PUT', body, idleMs: 300 })
    expect(error).toMatchObject({
      fault: 'late',
      stage: 'request',
      sent: false,
      message: expect.stringContaining('did not take a byte'),
    })
    expect(body.destroyed).toBe(true)
    // Who does not read does not see the end either.
    allowed.requests[0]?.resume()
    await until('the connection is closed', 120, () => allowed.open.size === 0)
  })

  test('a connection that is not answered, in TLS too, ends after its own time', async () => {
    const silent = createSocketServer()
    await new Promise<void>((resolve) => silent.listen(0, allowedAddress, resolve))
    const { port: at } = silent.address() as AddressInfo
    const sockets: Socket[] = []
    silent.on('connection', (socket) => sockets.push(socket))
    const error = await failureOf(open({ connectMs: 300 }).request(`https://peer.test:${at}/`, within))
    expect(error).toMatchObject({
      fault: 'late',
      stage: 'tls',
      sent: false,
      message: expect.stringContaining('within 0.3 s'),
    })
    for (const socket of sockets) socket.destroy()
    await new Promise((resolve) => silent.close(resolve))
  })

  test('a request that waits for a connection waits no longer than its deadline', async () => {
    const http = open({ connections: 1, connectMs: 100 })
    allowed.answer = () => undefined
    const first = failing(http, { deadlineMs: 1_000 })
    expect(await failing(http, { deadlineMs: 300 })).toMatchObject({
      fault: 'late',
      stage: 'route',
      sent: false,
    })
    expect(await first).toMatchObject({ fault: 'late', stage: 'answer' })
  })
})

describe('an aborted request closes its connection', () => {
  const aborting = async (
    request: Partial<HttpRequest>,
    when: (abort: () => void) => void,
  ): Promise<void> => {
    const controller = new AbortController()
    when(() => controller.abort())
    expect(await failing(open(), { ...request, signal: controller.signal })).toMatchObject({
      fault: 'aborted',
    })
    await until('the connection is closed', 120, () => allowed.open.size === 0)
  }

  test('before it began', () => aborting({}, (abort) => abort()))
  test('while it waits for its answer', () =>
    aborting({}, (abort) => {
      allowed.answer = () => abort()
    }))
  test('in the middle of the answer', () =>
    aborting({}, (abort) => {
      allowed.answer = (_, response) => {
        response.writeHead(200).write('first')
        setTimeout(abort, 50)
      }
    }))
  test('in the middle of its body, which is destroyed', async () => {
    const body = new Readable({ read: () => undefined })
    body.push('first')
    await aborting({ method: 'PUT', body }, (abort) => {
      allowed.answer = (request) => void request.once('data', abort)
    })
    expect(body.destroyed).toBe(true)
  })

  test('and so does a reader that stops', async () => {
    allowed.answer = (_, response) => response.writeHead(200).write('first')
    const answer = await open().request(url(), within)
    for await (const chunk of answer.body) if (String(chunk) === 'first') break
    await until('the connection is closed', 120, () => allowed.open.size === 0)
  })
})

describe('bodies of requests', () => {
  const echo: Handler = (request, response) => void request.pipe(response)
  const sized = (...sizes: number[]): Buffer[] => sizes.map((size) => randomBytes(size))

  test('streams and buffers of any shape arrive as they are, both ways', async () => {
    allowed.answer = echo
    const http = open()
    const sizes = fc.array(
      fc.oneof(fc.nat(100), fc.integer({ min: 60_000, max: 70_000 }), fc.constant(300_000)),
      { maxLength: 6 },
    )
    await fc.assert(
      fc.asyncProperty(sizes, fc.boolean(), fc.boolean(), async (lengths, whole, declared) => {
        const chunks = sized(...lengths)
        const all = Buffer.concat(chunks)
        const body = whole ? all : Readable.from(chunks, { objectMode: false })
        const headers = declared ? { 'content-length': String(all.length) } : {}
        const answer = await http.request(url(), {
          ...within,
          limitBytes: 4 * mebibyte,
          method: 'PUT',
          body,
          headers,
        })
        const digest = (bytes: Buffer): string => createHash('sha256').update(bytes).digest('hex')
        expect(digest(await answer.bytes())).toBe(digest(all))
      }),
      { numRuns: 40 },
    )
    // Every exchange left its connection as it was.
    expect(allowed.connections).toBe(1)
  })

  test('a body waits for 100-continue, goes after a second without it, and not at all after a refusal', async () => {
    const headers = { expect: '100-continue' }
    const bodyOf = (): Readable => Readable.from([Buffer.from('whole')])
    let bytes = 0
    allowed.answer = (request, response) => {
      request.on('data', (chunk: Buffer) => (bytes += chunk.length))
      setTimeout(() => {
        expect(bytes).toBe(0)
        response.writeContinue()
        request.on('end', () => response.end('taken'))
      })
    }
    for (const body of [bodyOf(), 'whole']) {
      bytes = 0
      expect(
        String(await (await open().request(url(), { ...within, method: 'PUT', body, headers })).bytes()),
      ).toBe('taken')
      expect(bytes).toBe(5)
    }
    allowed.answer = (request, response) => void request.resume().on('end', () => response.end('late'))
    expect(
      String(
        await (await open().request(url(), { ...within, method: 'PUT', body: bodyOf(), headers })).bytes(),
      ),
    ).toBe('late')
    bytes = 0
    allowed.answer = (request, response) => {
      request.on('data', (chunk: Buffer) => (bytes += chunk.length))
      response.writeHead(413).end('no')
    }
    const body = bodyOf()
    const refused = await open().request(url(), { ...within, method: 'PUT', body, headers })
    expect([refused.status, String(await refused.bytes()), bytes, body.destroyed]).toEqual([
      413,
      'no',
      0,
      true,
    ])
  })

  test('an early refusal is answered, and stops the body', async () => {
    allowed.answer = (_, response) => response.writeHead(403).end('not you')
    let given = 0
    const body = Readable.from(
      (async function* () {
        for (;;) {
          given++
          yield await sleep(1, Buffer.alloc(64 * 1024))
        }
      })(),
    )
    const answer = await open().request(url(), { ...within, method: 'PUT', body })
    expect([answer.status, String(await answer.bytes())]).toEqual([403, 'not you'])
    await until('the connection is closed', 120, () => allowed.open.size === 0)
    const then = given
    await sleep(100)
    expect([body.destroyed, given]).toEqual([true, then])
  })

  test('a source that fails, and one of another length than it said, end the request', async () => {
    allowed.answer = (request) => void request.resume()
    const lost = new Error('the disk is gone')
    const source = new Readable({ read: () => undefined })
    source.push('first')
    setTimeout(() => source.destroy(lost), 50)
    await expect(open().request(url(), { ...within, method: 'PUT', body: source })).rejects.toBe(lost)
    for (const length of ['3', '10'])
      await expect(
        open().request(url(), {
          ...within,
          method: 'PUT',
          body: Readable.from([Buffer.from('whole')]),
          headers: { 'content-length': length },
        }),
      ).rejects.toThrow(/content-length/)
    expect(allowed.requests.map(({ complete }) => complete)).not.toContain(true)
  })
})

describe('connections', () => {
  test('are kept and used again; a fresh one is not', async () => {
    const http = open()
    for (let turn = 0; turn < 3; turn++) await (await http.request(url(), within)).bytes()
    expect(allowed.connections).toBe(1)
    for (let turn = 0; turn < 2; turn++) await (await http.request(url(), { ...within, fresh: true })).bytes()
    expect(allowed.connections).toBe(3)
    http.close()
    await until('all are closed', 120, () => allowed.open.size === 0)
    expect(await failing(http)).toMatchObject({ fault: 'aborted', sent: false })
    expect(allowed.connections).toBe(3)
  })

  test('closing ends what is under way and what waits for a connection', async () => {
    const http = open({ connections: 1 })
    allowed.answer = () => undefined
    const failures = [failing(http), failing(http)]
    await until('the first is under way', 120, () => allowed.requests.length === 1)
    http.close()
    for (const failure of failures)
      expect(await failure).toMatchObject({ fault: expect.stringMatching(/^(lost|aborted)$/) })
    expect(allowed.connections).toBe(1)
  })

  test('a request on a kept connection that the other side closes may have been read', async () => {
    const http = open()
    await (await http.request(url(), within)).bytes()
    allowed.answer = ({ socket }) => socket.destroy()
    expect(await failing(http)).toMatchObject({ fault: 'lost', sent: true })
  })
})

describe('TLS', () => {
  let folder: string
  let server: Server
  let at: number
  let asked: number
  const pem = (name: string): string => readFileSync(join(folder, name), 'utf8')
  beforeAll(async () => {
    folder = mkdtempSync(join(runFolder(), 'http-tls-'))
    for (const [name, host] of [
      ['server', 'peer.test'],
      ['client', 'orrery'],
    ] as const) {
      const subject = ['-subj', `/CN=${host}`, '-addext', `subjectAltName=DNS:${host}`]
      const files = ['-keyout', join(folder, `${name}.key`), '-out', join(folder, name)]
      execFileSync(
        'openssl',
        ['req', '-x509', '-newkey', 'rsa:2048', '-nodes', '-days', '2', ...files, ...subject],
        { stdio: 'ignore' },
      )
    }
    const certificates = {
      key: pem('server.key'),
      cert: pem('server'),
    }
    server = createSecureServer(certificates, (_, response) => {
      asked++
      response.end('served')
    })
    await new Promise<void>((resolve) => server.listen(0, allowedAddress, resolve))
    at = (server.address() as AddressInfo).port
  })
  beforeEach(() => {
    asked = 0
  })
  afterAll(async () => {
    await new Promise((resolve) => server.close(resolve))
    rmSync(folder, { recursive: true })
  })
  const ask = async (http: Http, tls: HttpRequest['tls'], host = 'peer.test'): Promise<string> =>
    String(await (await http.request(`https://${host}:${at}/`, { ...within, tls })).bytes())

  test('the certificate is held against the name, by the authorities of this request and of no other', async () => {
    const http = open()
    const certificateAuthority = pem('server')
    expect(await ask(http, { certificateAuthority })).toBe('served')
    for (const failure of [
      ask(http, {}),
      ask(http, { certificateAuthority: pem('client') }),
      ask(http, { certificateAuthority }, 'other.test'),
      ask(http, { certificateAuthority }, allowedAddress),
    ])
      expect(await failureOf(failure)).toMatchObject({ fault: 'certificate', stage: 'tls', sent: false })
    expect(asked).toBe(1)
    expect(await ask(open({ tls: { certificateAuthority } }), undefined)).toBe('served')
  })
})

describe('credentials', () => {
  /** Says back all that it was sent, as a helpful proxy's page does. */
  const echoing =
    (status: number, wrap: (text: string) => string): Handler =>
    (request, response) => {
      const sent = Object.entries(request.headers)
        .map(([name, value]) => `${name}: ${String(value)}`)
        .join('\n')
      response
        .writeHead(status, { 'content-type': 'application/json' })
        .end(wrap(`${request.url ?? ''}\n${sent}`))
    }
  const shown = (error: unknown): string => {
    let log = ''
    openLog('trace', { write: (line: string) => void (log += line) }).error(
      { err: error },
      (error as Error).message,
    )
    return log + inspect(error, { depth: 9, showHidden: true })
  }
  const token = fc.stringMatching(/^[A-Za-z0-9+/._~-]{12,60}$/)
  const wraps: [name: string, wrap: (text: string) => string][] = [
    ['as it is', (text) => text],
    ['as a message', (text) => JSON.stringify({ message: text, errorMessage: text, reason: text })],
    ['as an error of Slurm', (text) => JSON.stringify({ errors: [{ error: text, description: text }] })],
    ['in the form of a URL', (text) => encodeURIComponent(text)],
  ]

  test.each(wraps)('are in no error when the server repeats them, %s', async (_, wrap) => {
    const http = open()
    const functions = openFunctions({ addressAllowed })
    const endpoint = `http://${allowedAddress}:${port}/`
    try {
      await fc.assert(
        fc.asyncProperty(
          token,
          fc.constantFrom(200, 400, 401, 403, 404, 429, 500, 503),
          async (secret, status) => {
            allowed.answer = echoing(status, wrap)
            const slurmrestd = openSlurmrestd(
              { http, url: endpoint, user: 'ada', token: () => Promise.resolve(secret) },
              10,
            )
            const call = {
              name: 'call',
              body: Buffer.from('{}'),
              deadlineSeconds: 10,
              answerLimitBytes: mebibyte,
            }
            const failures = [
              slurmrestd.submit({ name: 'x', array: '0', script: '', requeue: false, cores: 1, gpus: 0 }),
              functions.invoke(
                { shape: 'http', endpoint },
                { ...call, credential: { kind: 'bearer', token: secret } },
              ),
              functions.invoke(
                { shape: 'lambda', endpoint, function: 'f' },
                {
                  ...call,
                  credential: {
                    kind: 'aws',
                    accessKeyId: 'AKIAEXAMPLE',
                    secretAccessKey: 'x',
                    sessionToken: secret,
                  },
                },
              ),
              http
                .request(`${endpoint}?sig=${encodeURIComponent(secret)}`, {
                  ...within,
                  headers: { cookie: secret },
                })
                .then(async (answer) => {
                  throw new Error(answer.quotable(String(await answer.bytes())))
                }),
            ]
            const errors = await Promise.all(
              failures.map((failure) => failure.then(() => undefined).catch((error: unknown) => error)),
            )
            expect(errors.filter((error) => error !== undefined).length).toBeGreaterThanOrEqual(
              status < 300 ? 2 : 4,
            )
            for (const error of errors) if (error !== undefined) expect(shown(error)).not.toContain(secret)
          },
        ),
        { numRuns: 25 },
      )
    } finally {
      functions.close()
    }
  })

  test('are in no error about an answer that is none', async () => {
    const garbling = createSocketServer((socket) => {
      socket.once('data', (bytes: Buffer) =>
        socket.end(Buffer.concat([Buffer.from('HTTP/1.1 200 OK\r\nBad Header\r\n'), bytes])),
      )
    })
    await new Promise<void>((resolve) => garbling.listen(0, allowedAddress, resolve))
    const { port: at } = garbling.address() as AddressInfo
    const error = await failureOf(
      open().request(`http://peer.test:${at}/`, {
        ...within,
        headers: { authorization: 'Bearer secret-token' },
      }),
    )
    expect(error).toMatchObject({ fault: 'lost' })
    expect(shown(error)).not.toContain('secret-token')
    // As bytes, too.
    expect(shown(error)).not.toContain(Buffer.from('secret-token').toString('hex').match(/../g)?.join(' '))
    await new Promise((resolve) => garbling.close(resolve))
  })

  test('are in no error of Kubernetes when the server repeats them', async () => {
    const folder = mkdtempSync(join(runFolder(), 'http-echo-'))
    const files = ['-keyout', join(folder, 'key'), '-out', join(folder, 'certificate')]
    const subject = ['-subj', '/CN=x', '-addext', `subjectAltName=IP:${allowedAddress}`]
    execFileSync(
      'openssl',
      ['req', '-x509', '-newkey', 'rsa:2048', '-nodes', '-days', '2', ...files, ...subject],
      { stdio: 'ignore' },
    )
    const certificateAuthority = readFileSync(join(folder, 'certificate'), 'utf8')
    let answer: Handler = () => undefined
    const server = createSecureServer(
      { key: readFileSync(join(folder, 'key')), cert: certificateAuthority },
      (request, response) => answer(request, response),
    )
    await new Promise<void>((resolve) => server.listen(0, allowedAddress, resolve))
    const at = {
      host: allowedAddress,
      port: (server.address() as AddressInfo).port,
      certificateAuthority,
      addressAllowed,
    }
    const secret = `secret-${randomBytes(12).toString('hex')}`
    const cluster = openKubernetesCluster({ ...at, token: () => Promise.resolve(secret) })
    try {
      for (const status of [200, 302, 400, 401, 403, 409, 500])
        for (const [, wrap] of wraps) {
          answer = echoing(status, wrap)
          const failures = [
            cluster.probe(),
            cluster.request({ path: '/api', deadlineMs: 50 }),
            cluster.exec({ namespace: 'n', pod: 'p', container: 'c', command: ['true'], deadlineMs: 50 }),
          ]
          for (const result of await Promise.allSettled(failures))
            if (result.status === 'rejected') expect(shown(result.reason)).not.toContain(secret)
            else expect(status).toBe(200)
        }
    } finally {
      cluster.close()
      server.closeAllConnections()
      await once(server.close(), 'close')
      rmSync(folder, { recursive: true })
    }
  })
})
