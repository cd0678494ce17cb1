import { afterAll, beforeAll, beforeEach, describe, expect, test } from '@jest/globals'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { connect, type Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { WebSocket, type ClientOptions } from 'ws'
import { PeerGone, usualPeerPace } from '../../src/http/peer.ts'
import { until } from '../failures/programs.ts'
import { megabyte } from './flow-routes.ts'
import { raw, openStars, statusOf, type Stars } from './stars.ts'

/** WebSockets beside the routes. */

const token = 'correct-horse-battery-staple'
let service: Stars
let closed: Stars
beforeAll(async () => {
  service = await openStars({ allowedOrigins: ['https://desk.example'] })
  closed = await openStars({ apiToken: token })
})
afterAll(async () => {
  await service.close()
  await closed.close()
})
beforeEach(() => {
  service.flows.peers.length = 0
  service.flows.read.bytes = 0
  service.flows.gate = undefined
  service.audits.length = 0
  service.answers.length = 0
  service.logged.length = 0
})

const talk = async (
  id: string,
  options: ClientOptions = {},
  at = service,
  search = '',
): Promise<WebSocket> => {
  const ws = new WebSocket(`ws://127.0.0.1:${at.port}/api/talks/${id}/stream/${search}`, options)
  ws.on('error', () => undefined)
  await once(ws, 'open')
  return ws
}
const next = async (ws: WebSocket): Promise<[data: Buffer, isBinary: boolean]> =>
  (await once(ws, 'message')) as [Buffer, boolean]
const ended = async (ws: WebSocket): Promise<[code: number, reason: string]> => {
  const [code, reason] = (await once(ws, 'close')) as [number, Buffer]
  return [code, reason.toString()]
}

const handshake = [
  'Connection: Upgrade',
  'Upgrade: websocket',
  'Sec-WebSocket-Version: 13',
  `Sec-WebSocket-Key: ${randomBytes(16).toString('base64')}`,
]
/** The request of a handshake with `lines`, whose `Host` stands for the usual one. */
const ask = (path: string, lines: string[] = [], method = 'GET', shake = handshake): string =>
  [
    `${method} ${path} HTTP/1.1`,
    ...(lines.some((line) => line.startsWith('Host')) ? [] : ['Host: localhost']),
    ...shake,
    ...lines,
    '',
    '',
  ].join('\r\n')
const path = '/api/talks/a/stream/'

describe('a WebSocket', () => {
  test('carries texts and bytes in order, both ways', async () => {
    const ws = await talk('a', {}, service, '?loud=yes')
    for (const [sent, back, isBinary] of [
      ['hello é😀', 'HELLO É😀', false],
      [Buffer.from([0, 255, 1]), Buffer.from([0, 255, 1]), true],
      ['', '', false],
    ] as const) {
      ws.send(sent)
      const [data, binary] = await next(ws)
      expect([data.equals(Buffer.from(back)), binary]).toEqual([true, isBinary])
    }
    const many = Array.from({ length: 2_000 }, (_, i) => `message ${i}`)
    const got: string[] = []
    ws.on('message', (data) => got.push((data as Buffer).toString()))
    for (const one of many) ws.send(one)
    await until('all messages', 120, () => got.length === many.length)
    expect(got).toEqual(many.map((one) => one.toUpperCase()))
    ws.close(1000)
    expect((await ended(ws))[0]).toBe(1000)
  })

  test('is answered with 101, the headers of every answer and an audit record', async () => {
    const answer = await raw(
      service.port,
      ask(path, ['X-Request-Id: find-me', 'Origin: https://desk.example']),
    )
    expect(statusOf(answer)).toBe(101)
    for (const line of [
      'Upgrade: websocket',
      'AKOFLOW-SERVER: 9.9.9',
      'X-Request-Id: find-me',
      'Access-Control-Allow-Origin: https://desk.example',
    ])
      expect(answer).toContain(`\r\n${line}\r\n`)
    expect(answer).not.toMatch(/Sec-WebSocket-(Extensions|Protocol)/)
    expect(service.audits).toMatchObject([
      {
        eventType: 'talk.opened',
        outcome: 'succeeded',
        actorId: 'loopback',
        metadata: { method: 'GET', path: '/talks/{talkId}/stream/', status: 101, requestId: 'find-me' },
      },
    ])
    expect(service.answers).toMatchObject([
      { method: 'GET', template: '/talks/{talkId}/stream/', status: 101, body: undefined },
    ])
    expect(service.logged).toContainEqual({
      level: 'debug',
      text: 'request',
      fields: expect.objectContaining({ status: 101 }),
    })
  })

  test('is in the API document', () => {
    const { get, head } = service.app.openapi().paths['/talks/{talkId}/stream/'] as Record<string, any>
    expect(Object.keys(get.responses)).toEqual([
      '101',
      '400',
      '401',
      '403',
      '404',
      '423',
      '426',
      '431',
      '500',
      '503',
    ])
    expect(get.parameters.map((one: { name: string }) => one.name)).toEqual(['talkId', 'loud'])
    expect(Object.keys(head.responses)).not.toContain('101')
  })
})

describe('before the upgrade', () => {
  /**
   * In the order in which requests are judged: every later fault is there as well, and the first
   * one answers.
   */
  const faults: [what: string, status: number, broken: { path?: string; lines?: string[] }][] = [
    ['a foreign Host', 403, { lines: ['Host: evil.example'] }],
    ['a foreign Origin', 403, { lines: ['Origin: https://evil.example'] }],
    ['no token', 401, {}],
  ]
  test.each(faults)('%s is %i, whatever else is wrong', async (_what, status, { lines = [] }) => {
    for (const at of [path, '/api/talks/nobody/stream/', '/api/nowhere/', `${path}?what=1`]) {
      const answer = await raw(closed.port, ask(at, lines), { until: /}$/ })
      expect([at, statusOf(answer)]).toEqual([at, status])
      expect(answer).toMatch(/"code":"(forbidden|unauthenticated)","details":\[\]}$/)
    }
    expect(closed.flows.peers).toEqual([])
  })

  test('the token opens it', async () => {
    const ws = await talk('a', { headers: { authorization: `Bearer ${token}` } }, closed)
    ws.send('x')
    expect((await next(ws))[0].toString()).toBe('x')
    ws.terminate()
    expect(closed.audits.at(-1)).toMatchObject({ actorId: 'api-token', metadata: { status: 101 } })
  })

  test('opens by a ticket among its subprotocols instead of the token, with what the ticket allows', async () => {
    const open = (id: string, protocols: string[], search = '') =>
      new WebSocket(`ws://127.0.0.1:${closed.port}/api/talks/${id}/stream/${search}`, protocols)
    const statusWith = async (...given: Parameters<typeof open>): Promise<number> => {
      const ws = open(...given).on('error', () => undefined)
      const [, response] = (await once(ws, 'unexpected-response')) as [unknown, { statusCode: number }]
      return response.statusCode
    }
    const ws = open('a', ['talk', 'orrery.ticket.for-a'])
    await once(ws, 'open')
    expect(ws.protocol).toBe('talk')
    expect(closed.audits.at(-1)).toMatchObject({ actorId: 'page' })
    ws.terminate()
    expect(await statusWith('b', ['talk', 'orrery.ticket.for-a'])).toBe(401)
    expect(await statusWith('a', ['talk'])).toBe(401)
    expect(await statusWith('a', ['talk', 'orrery.ticket.for-a'], '?loud=yes')).toBe(403)
  })

  test('an unknown path is 404, a bad value 400, and what the route refuses is what it says', async () => {
    for (const [at, status, code] of [
      ['/api/talks/a/stream', 404, 'missing'],
      ['/nowhere', 404, 'missing'],
      [`${path}?what=1`, 400, 'invalid'],
      ['/api/talks/%zz/stream/', 400, 'invalid'],
      ['/api/talks/nobody/stream/', 404, 'missing'],
    ] as const) {
      const answer = await raw(service.port, ask(at), { until: /}$/ })
      expect([at, statusOf(answer)]).toEqual([at, status])
      expect(answer).toContain(`"code":"${code}"`)
    }
    expect(service.flows.peers).toEqual([])
    // Of those only the last was for a route that it knows, and behind its form.
    expect(service.audits.map(({ outcome, metadata }) => [outcome, metadata.status, metadata.code])).toEqual([
      ['failed', 404, 'missing'],
    ])
  })

  test('a read-only snapshot refuses with 423, since a client may change something through it', async () => {
    service.activated.value = true
    try {
      expect(statusOf(await raw(service.port, ask(path)))).toBe(423)
    } finally {
      service.activated.value = false
    }
  })

  test('a request that asks for none, or in a way that is none, is told so', async () => {
    const plain = await service.request(path)
    expect([plain.status, plain.body['code'], plain.headers.get('upgrade')]).toEqual([
      426,
      'upgrade_required',
      'websocket',
    ])
    expect((await service.request(path, { method: 'HEAD' })).status).toBe(426)
    // What the route misses is missing for every client.
    expect((await service.request('/api/talks/nobody/stream/')).status).toBe(404)
    expect((await service.request(path, { method: 'POST' })).status).toBe(405)
    const shake = (change: (line: string) => string[]): string =>
      ask(path, [], 'GET', handshake.flatMap(change))
    for (const [what, text, status] of [
      ['another version', shake((line) => [line.replace('Version: 13', 'Version: 8')]), 426],
      ['no version', shake((line) => (line.includes('Version') ? [] : [line])), 426],
      ['no key', shake((line) => (line.includes('Key') ? [] : [line])), 400],
      ['two keys', shake((line) => (line.includes('Key') ? [line, line] : [line])), 400],
      ['a short key', shake((line) => [line.replace(/Key: .*/, 'Key: abc')]), 400],
      ['another protocol', shake((line) => [line.replace('Upgrade: websocket', 'Upgrade: h2c')]), 426],
      ['by POST', ask(path, ['Content-Length: 0'], 'POST'), 405],
    ] as const)
      expect([what, statusOf(await raw(service.port, text))]).toEqual([what, status])
    expect(service.flows.peers).toEqual([])
  })

  test('other routes answer as if they had not been asked for one', async () => {
    expect(statusOf(await raw(service.port, ask('/api/stars/')))).toBe(200)
    expect(
      statusOf(
        await raw(service.port, ask('/', [], 'GET', ['Connection: Upgrade, HTTP2-Settings', 'Upgrade: h2c'])),
      ),
    ).toBe(200)
  })
})

describe('an open WebSocket', () => {
  test('that gets a message beyond the limit ends with 1009, in one frame or in many', async () => {
    const one = await talk('a')
    one.send('x'.repeat(65_536))
    expect((await next(one))[0]).toHaveLength(65_536)
    one.send('x'.repeat(65_537))
    expect((await ended(one))[0]).toBe(1009)
    const two = await talk('a')
    for (let i = 0; i < 3; i++) two.send('x'.repeat(30_000), { fin: i === 2 })
    expect((await ended(two))[0]).toBe(1009)
    const three = await talk('a')
    for (let i = 0; i < 2_000; i++) three.send('x', { fin: i === 1_999 })
    expect((await ended(three))[0]).toBe(1008)
    expect(service.logged.filter((line) => line.level === 'error')).toEqual([])
  })

  test('that breaks the protocol is ended', async () => {
    const socket: Socket = connect(service.port, '127.0.0.1')
    socket.on('error', () => undefined)
    socket.write(ask(path))
    await once(socket, 'data')
    // A frame without a mask, which only a server may send.
    socket.write(Buffer.from([0x81, 0x01, 0x78]))
    await once(socket, 'close')
    expect(service.logged.filter((line) => line.level === 'error')).toEqual([])
  })

  test('ends with its route: 1000, 1008 with a refusal, 1013 with one that passes, 1011 with a fault whose cause is only logged', async () => {
    expect(await ended(await talk('short'))).toEqual([1000, ''])
    const [code, reason] = await ended(await talk('refused'))
    expect([code, reason]).toEqual([1008, 'x'.repeat(123)])
    expect(await ended(await talk('later'))).toEqual([1013, 'connect again'])
    const [fault, text] = await ended(await talk('fault'))
    expect([fault, text]).toEqual([1011, 'the service failed; the cause is in its log'])
    expect(service.logged.filter((line) => line.level === 'error')).toMatchObject([
      { fields: { err: expect.any(Error) } },
    ])
  })

  test('tells its route when the client leaves', async () => {
    const ws = await talk('held')
    const [peer] = service.flows.peers
    expect(peer?.signal.aborted).toBe(false)
    ws.terminate()
    await until('the end of the peer', 120, () => peer?.signal.aborted === true)
    await expect(peer?.send('too late')).rejects.toThrow(PeerGone)
  })

  test('holds its client back while the route takes nothing', async () => {
    let open = (): void => undefined
    service.flows.gate = new Promise((resolve) => (open = resolve))
    const ws = await talk('a')
    const size = 48 * megabyte
    for (let sent = 0; sent < size; sent += 65_536) ws.send(Buffer.alloc(65_536))
    await sleep(500)
    expect(ws.bufferedAmount).toBeGreaterThan(size / 2)
    let back = 0
    ws.on('message', (data) => (back += (data as Buffer).length))
    service.flows.gate = undefined
    open()
    await until('all bytes', 120, () => back === size)
    ws.terminate()
  })

  test('ends with 1001 when the service stops', async () => {
    const other = await openStars()
    const polite = await talk('a', {}, other)
    const deaf = await talk('held', {}, other)
    deaf.pause()
    const farewell = ended(polite)
    await other.close()
    expect(await farewell).toEqual([1001, 'the service stops'])
    deaf.terminate()
  })
})

describe('the pace of a WebSocket', () => {
  const pace = { pingMs: 300, stallMs: 600, mostWaitingBytes: megabyte }
  let paced: Stars
  beforeAll(async () => {
    paced = await openStars({ peerPace: pace })
  })
  afterAll(() => paced.close())
  beforeEach(() => void (paced.flows.peers.length = 0))

  test('is usually a ping in 30 s', () => {
    expect(usualPeerPace).toEqual({ pingMs: 30_000, stallMs: 30_000, mostWaitingBytes: 8 * megabyte })
  })

  test('is kept by a client that answers pings, and one that does not is cut', async () => {
    const ws = await talk('held', {}, paced)
    let pings = 0
    ws.on('ping', () => pings++)
    const dead = await talk('held', { autoPong: false }, paced)
    const [code] = await ended(dead)
    expect(code).toBe(1006)
    await until('four pings', 120, () => pings >= 4)
    expect(ws.readyState).toBe(WebSocket.OPEN)
    ws.terminate()
  })

  test('of a route that is busy with a message is no fault of its client', async () => {
    let open = (): void => undefined
    paced.flows.gate = new Promise((resolve) => (open = resolve))
    const ws = await talk('a', {}, paced)
    for (let i = 0; i < 5; i++) ws.send(`message ${i}`)
    await sleep(4 * pace.pingMs)
    paced.flows.gate = undefined
    open()
    const got: string[] = []
    ws.on('message', (data) => got.push((data as Buffer).toString()))
    await until('five messages', 120, () => got.length === 5)
    ws.terminate()
  })

  test('cuts a reader that takes nothing, while the route waits for it', async () => {
    const ws = await talk('held', {}, paced)
    ws.pause()
    const [peer] = paced.flows.peers
    const began = Date.now()
    // Beyond what the kernels of both ends take.
    const sends = async (): Promise<void> => {
      for (;;) await peer?.send(Buffer.alloc(256 * 1024))
    }
    await expect(sends()).rejects.toThrow(PeerGone)
    await until('the end of the peer', 120, () => peer?.signal.aborted === true)
    expect(Date.now() - began).toBeGreaterThan(pace.stallMs)
    ws.terminate()
  })

  test('bounds what waits for a reader, where the route does not', async () => {
    const ws = await talk('held', {}, paced)
    ws.pause()
    const [peer] = paced.flows.peers
    const outcomes: Promise<boolean>[] = []
    for (let i = 0; i < 200; i++)
      outcomes.push(
        peer?.send(Buffer.alloc(256 * 1024)).then(
          () => true,
          () => false,
        ) ?? Promise.resolve(true),
      )
    expect((await Promise.all(outcomes)).filter((went) => !went).length).toBeGreaterThan(100)
    await until('the end of the peer', 120, () => peer?.signal.aborted === true)
    ws.terminate()
  })
})
