import { afterAll, beforeAll, describe, expect, test } from '@jest/globals'
import fc from '../support/fast-check.ts'
import { globSync, readFileSync } from 'node:fs'
import { networkInterfaces } from 'node:os'
import { join } from 'node:path'
import { createAccess, isLoopback } from '../../src/http/access.ts'
import { json, raw, openStars, statusOf, type Stars } from './stars.ts'

const token = 'correct-horse-battery-staple'
let open: Stars
let closed: Stars
beforeAll(async () => {
  open = await openStars({
    allowedHosts: ['api.example', 'other.example:8443'],
    allowedOrigins: ['https://desk.example', 'http://127.0.0.1:5173'],
  })
  closed = await openStars({ apiToken: token, allowedOrigins: ['https://desk.example'] })
})
afterAll(async () => {
  await open.close()
  await closed.close()
})

const get = (headers: string, path = '/api/stars/'): string => `GET ${path} HTTP/1.1\r\n${headers}\r\n`

describe('Host', () => {
  const port = (): number => open.port
  const hostile = [
    '',
    ' ',
    'evil.example',
    'evil.example:8080',
    'localhost.evil.example',
    '127.0.0.1.nip.io',
    '127.0.0.1.evil.example',
    'evil.localhost.example',
    'xlocalhost',
    'localhostx',
    'localhost.',
    '127.0.0.1.',
    '127.1',
    '127.0.1',
    '2130706433',
    '0x7f.0.0.1',
    '0x7f000001',
    '017700000001',
    '0177.0.0.1',
    '127.0.0.01',
    '127.000.000.001',
    '127.0.0.2',
    '0.0.0.0',
    '0',
    '[::]',
    '[::1',
    '::1',
    '[::1]x',
    '[::ffff:127.0.0.1]',
    '[0:0:0:0:0:0:0:1]',
    'localhost:',
    'localhost:0',
    'localhost:99999',
    'localhost:080',
    'localhost:80:80',
    'localhost:abc',
    'localhost:-1',
    'user@localhost',
    'localhost@evil.example',
    'localhost/evil',
    'localhost#evil',
    'localhost?evil',
    'localhost,evil.example',
    'localhost evil.example',
    'evil.example, localhost',
    '*',
    'LOCALHOST.EVIL.EXAMPLE',
    'ｌｏｃａｌｈｏｓｔ',
    'loc\talhost',
    'other.example',
    'other.example:80',
    'sub.api.example',
    'api.example.evil',
    '[fe80::1%lo]',
    'http://localhost',
    '192.168.1.1',
    '10.0.0.1:8080',
  ]
  test(`refuses ${hostile.length} foreign and malformed forms before routing, on every kind of route`, async () => {
    expect(hostile.length).toBeGreaterThanOrEqual(40)
    const passed: string[] = []
    for (const host of hostile) {
      for (const path of ['/api/stars/', '/api/ticks/', '/nowhere', '/docs/']) {
        const status = statusOf(
          await raw(port(), Buffer.from(get(`Host: ${host}\r\nConnection: close\r\n`, path))),
        )
        if (status !== 403 && status !== 400) passed.push(`${JSON.stringify(host)} ${path} ${status}`)
      }
    }
    expect(passed).toEqual([])
  })

  test('is needed, once', async () => {
    expect(statusOf(await raw(port(), get('')))).toBe(403)
    expect(statusOf(await raw(port(), get('Host: localhost\r\nHost: evil.example\r\n')))).toBe(403)
    expect(statusOf(await raw(port(), get('Host: evil.example\r\nHost: localhost\r\n')))).toBe(403)
  })

  test.each([
    'localhost',
    'LocalHost',
    'localhost:1',
    '127.0.0.1',
    '[::1]',
    '[::1]:8080',
    'api.example',
    'api.example:9',
    'API.example',
    'other.example:8443',
  ])('%s is ours', async (host) => {
    expect(statusOf(await raw(port(), get(`Host: ${host}\r\n`)))).toBe(200)
  })

  test('an absolute or odd request target is no way around', async () => {
    for (const target of ['http://evil.example/api/stars/', '*', 'api/stars/', '//evil.example/api/stars/']) {
      expect([400, 404]).toContain(statusOf(await raw(port(), get('Host: localhost\r\n', target))))
    }
  })

  test('a listed host that cannot be one stops the start', () => {
    expect(() =>
      createAccess({ allowedHosts: ['https://api.example/'], allowedOrigins: [], listenHost: '127.0.0.1' }),
    ).toThrow(/allowed host "https:\/\/api.example\/"/)
  })
})

describe('peer', () => {
  test('is loopback for 127.0.0.0/8 and ::1, also mapped into IPv6, and for nothing else', () => {
    for (const address of ['127.0.0.1', '127.255.255.254', '::1', '::ffff:127.0.0.1', '::FFFF:127.9.9.9'])
      expect([address, isLoopback(address)]).toEqual([address, true])
    for (const address of [
      undefined,
      '',
      '10.0.0.1',
      '128.0.0.1',
      '::',
      '::2',
      '::ffff:10.0.0.1',
      '1127.0.0.1',
      '127.0.0.1.example',
      'localhost',
      'fe80::1',
      '::ffff:127.0.0.1.2',
      '0.0.0.0',
    ]) {
      expect([address, isLoopback(address)]).toEqual([address, false])
    }
    fc.assert(
      fc.property(
        fc.ipV4(),
        (address) =>
          isLoopback(`::ffff:${address}`) === address.startsWith('127.') &&
          isLoopback(address) === address.startsWith('127.'),
      ),
      { seed: 3 },
    )
  })

  const outside = Object.values(networkInterfaces())
    .flat()
    .find((one) => one !== undefined && !one.internal && one.family === 'IPv4')?.address
  test('from another address is 403 without a token, whatever it claims to be forwarded for, and served with one', async () => {
    // A machine without a network has no such peer; then only the addresses above are what there is
    // to refuse.
    if (outside === undefined) return expect(isLoopback('192.0.2.1')).toBe(false)
    const [bare, secured] = [
      await openStars({ host: '0.0.0.0' }),
      await openStars({ host: '0.0.0.0', apiToken: token }),
    ]
    try {
      for (const claim of [
        '',
        'X-Forwarded-For: 127.0.0.1\r\n',
        'Forwarded: for=127.0.0.1\r\n',
        'X-Real-IP: ::1\r\n',
      ]) {
        for (const host of ['localhost', outside]) {
          const answer = await raw(bare.port, get(`Host: ${host}\r\n${claim}`, '/api/instance/'), {
            host: outside,
          })
          expect(statusOf(answer)).toBe(403)
          expect(answer).toContain('"error":"API is restricted to loopback"')
        }
      }
      expect(
        statusOf(
          await raw(
            secured.port,
            get(`Host: ${outside}:${secured.port}\r\nAuthorization: Bearer ${token}\r\n`),
            { host: outside },
          ),
        ),
      ).toBe(200)
      expect(
        statusOf(
          await raw(secured.port, get(`Host: rebound.example\r\nAuthorization: Bearer ${token}\r\n`), {
            host: outside,
          }),
        ),
      ).toBe(403)
    } finally {
      await bare.close()
      await secured.close()
    }
  })
})

describe('token', () => {
  const wrong: [string, string][] = [
    ['none', ''],
    ['empty', 'Authorization: \r\n'],
    ['empty bearer', 'Authorization: Bearer \r\n'],
    ['another scheme', `Authorization: Basic ${token}\r\n`],
    ['no scheme', `Authorization: ${token}\r\n`],
    ['truncated', `Authorization: Bearer ${token.slice(0, -1)}\r\n`],
    ['longer', `Authorization: Bearer ${token}x\r\n`],
    ['other case', `Authorization: Bearer ${token.toUpperCase()}\r\n`],
    ['two spaces', `Authorization: Bearer  ${token}\r\n`],
    ['twice', `Authorization: Bearer ${token}\r\nAuthorization: Bearer ${token}\r\n`],
    ['a megabyte', `Authorization: Bearer ${'x'.repeat(1 << 20)}\r\n`],
    ['in the query', ''],
  ]
  const requests = [
    'GET /api/stars/',
    'POST /api/stars/',
    'DELETE /api/stars/x/',
    'GET /api/ticks/',
    'GET /nowhere/',
    'PATCH /api/stars/',
    'GET /',
    'GET /openapi.json',
    'HEAD /api/preflight/',
    'POST /api/instance/',
    'OPTIONS /api/stars/',
  ]
  test.each(wrong)('that is %s is 401 with the same body on every path', async (_what, header) => {
    for (const request of requests) {
      const answer = await raw(
        closed.port,
        `${request}?token=${token} HTTP/1.1\r\nHost: localhost\r\n${header}\r\n`,
      )
      expect([request, statusOf(answer)]).toEqual([request, 401])
      expect(answer).toMatch(/\r\nWWW-Authenticate: Bearer\r\n/)
      if (!request.startsWith('HEAD'))
        expect(answer.slice(answer.indexOf('\r\n\r\n') + 4)).toContain(
          '{"error":"authentication required","code":"unauthenticated","details":[]}',
        )
    }
  })

  test('opens everything; the two bootstrap reads and the page need none', async () => {
    const headers = { authorization: `Bearer ${token}` }
    for (const path of ['/', '/openapi.json', '/api/stars/'])
      expect([path, (await closed.request(path, { headers })).status]).toEqual([path, 200])
    for (const scheme of ['bearer', 'BEARER', 'bEaReR'])
      expect([
        scheme,
        (await closed.request('/api/stars/', { headers: { authorization: `${scheme} ${token}` } })).status,
      ]).toEqual([scheme, 200])
    expect((await closed.request('/', { headers })).text).toBe('ok')
    expect((await closed.request('/api/instance/')).status).toBe(200)
    expect((await closed.request('/api/instance/', { method: 'HEAD' })).status).toBe(200)
    expect((await closed.request('/api/preflight/')).status).toBe(200)
    expect((await closed.request('/docs/')).status).toBe(200)
  })

  test('marks the actor', async () => {
    const answer = await closed.request('/api/stars/', {
      ...json({ id: 't', name: 't' }),
      headers: { authorization: `Bearer ${token}`, 'content-type': 'application/json' },
    })
    expect(answer.status).toBe(201)
    expect(closed.audits.at(-1)).toMatchObject({ actorId: 'api-token', actorType: 'token' })
    expect(JSON.stringify(closed.audits)).not.toContain(token)
  })
})

/** The headers that a page cannot set, and those that it may read of every answer or never needs. */
const notForPages = new RegExp(
  [
    '^(host|origin|expect|accept-encoding|content-(length|encoding|type|security-policy)',
    '(sec|access-control)-.*|x-(content-type-options|frame-options|accel-buffering))$',
  ].join('|'),
)

/** The names of headers that the sources of the API read from a request, and that they send. */
const headersOfSource = (): { asked: string[]; sent: string[] } => {
  const src = join(import.meta.dirname, '../../src')
  const text = globSync('{http,domains,operations}/**/*.ts', { cwd: src })
    .map((file) => readFileSync(join(src, file), 'utf8'))
    .join('\n')
  const names = (...patterns: RegExp[]): string[] => {
    const found = patterns.flatMap((pattern) => [...text.matchAll(pattern)])
    return [...new Set(found.map(([, name = '']) => name.toLowerCase()))].filter(
      (name) => !notForPages.test(name),
    )
  }
  return {
    asked: names(/\bheaders\['([a-z-]+)'\]/g),
    sent: names(
      /'((?:x|orrery|accept|content|preference|idempotency|retry)-(?!digest)[a-z-]+)':/gi,
      /'((?:Orrery|AKOFLOW)-[A-Za-z]+)'/g,
    ),
  }
}

describe('browser origins', () => {
  const own = (): string => `http://127.0.0.1:${open.port}`
  const call = (origin: string, method = 'GET', more = '') =>
    raw(
      open.port,
      `${method} /api/stars/ HTTP/1.1\r\nHost: 127.0.0.1:${open.port}\r\nOrigin: ${origin}\r\n${more}\r\n`,
    )

  test('on the list get CORS headers, never a star, and preflights 200', async () => {
    const answer = await call('https://desk.example')
    expect(statusOf(answer)).toBe(200)
    expect(answer).toContain('\r\nAccess-Control-Allow-Origin: https://desk.example\r\n')
    expect(answer).toContain('\r\nVary: Origin\r\n')
    const preflight = await call('https://desk.example', 'OPTIONS', 'Access-Control-Request-Method: PUT\r\n')
    expect(statusOf(preflight)).toBe(200)
    expect(preflight).toContain('Access-Control-Allow-Methods: GET, POST, PUT, DELETE, OPTIONS\r\n')
    expect(preflight).toMatch(/Access-Control-Allow-Headers: Content-Type, Authorization/)
    // No header is asked for or sent that a page could not use.
    const named = (answer: string, header: string): string[] =>
      (new RegExp(`${header}: (.*)\\r\\n`).exec(answer)?.[1] ?? '').toLowerCase().split(', ')
    const allowed = named(preflight, 'Access-Control-Allow-Headers')
    const exposed = named(answer, 'Access-Control-Expose-Headers')
    const { asked, sent } = headersOfSource()
    expect(asked.filter((name) => !allowed.includes(name))).toEqual([])
    expect(sent.filter((name) => !exposed.includes(name))).toEqual([])
    expect([asked, sent]).toEqual([
      expect.arrayContaining(['prefer', 'if-range', 'content-range', 'last-event-id', 'idempotency-key']),
      expect.arrayContaining(['preference-applied', 'x-truncated', 'orrery-attempt', 'content-disposition']),
    ])
    expect(answer + preflight).not.toContain('*')
    const closedPreflight = await raw(
      closed.port,
      'OPTIONS /api/stars/ HTTP/1.1\r\nHost: localhost\r\nOrigin: https://desk.example\r\n\r\n',
    )
    expect(statusOf(closedPreflight)).toBe(200)
  })

  test('of the service itself pass without being listed', async () => {
    expect(statusOf(await call(own()))).toBe(200)
  })

  const tricks = [
    'null',
    '',
    'https://evil.example',
    'https://desk.example.evil',
    'https://evil-desk.example',
    'https://evildesk.example',
    'https://sub.desk.example',
    'http://desk.example',
    'https://desk.example:443',
    'https://desk.example:8443',
    'https://desk.example/',
    'https://DESK.example',
    'HTTPS://desk.example',
    'https://desk.example@evil.example',
    'https://desk.example, https://evil.example',
    'https://desk.example https://evil.example',
    'file://',
    'https://',
    '*',
    'http://127.0.0.1:5174',
    'http://127.0.0.1',
    'http://localhost:5173',
    'https://desk．example',
    'https://desk.example%00.evil',
  ]
  test(`refuses ${tricks.length} tricks for reads, writes and preflights`, async () => {
    const passed: string[] = []
    const before = open.created.count
    for (const origin of tricks) {
      for (const method of ['GET', 'POST', 'OPTIONS']) {
        const answer = await call(
          origin,
          method,
          method === 'POST' ? 'Content-Length: 22\r\n\r\n{"id":"c","name":"c"}\n' : '',
        )
        if (statusOf(answer) !== 403 || /access-control/i.test(answer))
          passed.push(`${method} ${origin} ${statusOf(answer)}`)
        else if (!answer.includes('"error":"origin is not allowed"')) passed.push(`${method} ${origin} text`)
      }
    }
    expect(passed).toEqual([])
    expect(open.created.count).toBe(before)
  })
})
