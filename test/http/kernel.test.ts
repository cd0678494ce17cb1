import { afterAll, beforeAll, beforeEach, describe, expect, test } from '@jest/globals'
import express from 'express'
import fc from '../support/fast-check.ts'
import { once } from 'node:events'
import { createServer } from 'node:http'
import { connect, type AddressInfo } from 'node:net'
import { z } from 'zod'
import { createApp } from '../../src/http/app.ts'
import { auditRecord } from '../../src/http/audit.ts'
import { usualStallMs } from '../../src/http/followed-stream.ts'
import { route } from '../../src/http/route.ts'
import { until } from '../failures/programs.ts'
import { json, raw, openStars, statusOf, type Stars } from './stars.ts'

let service: Stars
beforeAll(async () => {
  service = await openStars()
})
afterAll(() => service.close())
beforeEach(() => {
  service.stars.clear()
  service.audits.length = 0
  service.logged.length = 0
  service.created.count = 0
})

const star = (id: string, more: object = {}) => ({
  id,
  name: 'Sol',
  kind: 'dwarf' as const,
  planets: 8,
  moons: [],
  ...more,
})

describe('routing', () => {
  test('answers ok at the root, with our two headers and a request id on everything', async () => {
    for (const path of ['/', '/api/stars/', '/nowhere', '/docs/', '/docs/swagger-ui.css']) {
      const answer = await service.request(path)
      expect([answer.headers.get('akoflow-server'), answer.headers.get('orrery-version')]).toEqual([
        '9.9.9',
        '9.9.9',
      ])
      expect(answer.headers.get('x-request-id')).toMatch(/^[0-9a-f-]{36}$/)
      expect(answer.headers.get('x-powered-by')).toBeNull()
    }
    const root = await service.request('/')
    expect([root.text, root.headers.get('content-type')]).toEqual(['ok', 'text/plain; charset=utf-8'])
  })

  test('takes a request id that is one and replaces one that is not', async () => {
    expect(
      (await service.request('/', { headers: { 'x-request-id': 'desk-1.2:3' } })).headers.get('x-request-id'),
    ).toBe('desk-1.2:3')
    for (const id of ['a b', 'x'.repeat(129), '<script>', '"'])
      expect(
        (await service.request('/', { headers: { 'x-request-id': id } })).headers.get('x-request-id'),
      ).toMatch(/^[0-9a-f-]{36}$/)
  })

  test('is exact about slashes and case; unknown paths are 404 in the form of every error', async () => {
    for (const path of [
      '/api/stars',
      '/api/stars//',
      '/api//stars/',
      '/api/Stars/',
      '/stars/',
      '/api',
      '/api/',
      '/docs',
      '/docs/x',
      '/openapi.body/',
      '/api/stars/a/b/',
      '/docs/../openapi.body%00',
    ]) {
      const answer = await service.request(path)
      expect([path, answer.status]).toEqual([path, 404])
      expect(answer.body).toEqual({
        error: expect.stringMatching(/^Not Found/),
        code: 'missing',
        details: [],
      })
    }
    expect((await service.request('/api/stars')).body['error']).toMatch(/end with a slash/)
  })

  test('names the methods that a path has', async () => {
    const cases: [string, string, string][] = [
      ['PATCH', '/api/stars/', 'GET, HEAD, POST, OPTIONS'],
      ['DELETE', '/api/stars/', 'GET, HEAD, POST, OPTIONS'],
      ['POST', '/api/stars/x/', 'GET, HEAD, PUT, DELETE, OPTIONS'],
      ['PUT', '/', 'GET, HEAD, OPTIONS'],
      ['PROPFIND', '/api/fail/', 'POST, OPTIONS'],
    ]
    for (const [method, path, allow] of cases) {
      const answer = await service.request(path, { method })
      expect([method, path, answer.status, answer.headers.get('allow'), answer.body['code']]).toEqual([
        method,
        path,
        405,
        allow,
        'method_not_allowed',
      ])
    }
    const options = await service.request('/api/stars/', { method: 'OPTIONS' })
    expect([options.status, options.headers.get('allow')]).toEqual([200, 'GET, HEAD, POST, OPTIONS'])
    expect((await service.request('/api/nowhere/', { method: 'OPTIONS' })).status).toBe(404)
  })

  test('prefers a fixed segment where it has the method, and reads the record of that name elsewhere', async () => {
    service.stars.set('import', star('import'))
    expect((await service.request('/api/stars/import/')).body).toMatchObject({ id: 'import' })
    expect((await service.request('/api/stars/import/', json(star('n')))).status).toBe(202)
  })

  test('answers HEAD like GET without a body', async () => {
    service.stars.set('a', star('a'))
    const [head, get] = [
      await service.request('/api/stars/a/', { method: 'HEAD' }),
      await service.request('/api/stars/a/'),
    ]
    expect([head.status, head.text, head.headers.get('content-length'), head.headers.get('etag')]).toEqual([
      200,
      '',
      String(get.text.length),
      get.headers.get('etag'),
    ])
    expect((await service.request('/api/ticks/', { method: 'HEAD' })).status).toBe(200)
    expect((await service.request('/api/stars/b/', { method: 'HEAD' })).status).toBe(404)
  })

  test('refuses two routes for one pair', () => {
    const same = route('getA', 'GET /a/', { summary: '', tag: 'a', handle: () => undefined })
    const none = (): void => undefined
    expect(() =>
      createApp({
        config: {
          apiPrefix: '',
          apiToken: undefined,
          allowedHosts: [],
          allowedOrigins: [],
          listenHost: '',
          bodyLimitBytes: 1,
        },
        routes: [same, same],
        log: { debug: none, info: none, warn: none, error: none },
        version: '1',
        activated: () => false,
      }),
    ).toThrow(/GET \/a\/ is declared twice/)
  })
})

describe('path and query values', () => {
  test('come back decoded for any id', async () => {
    const id = fc
      .string({ unit: 'grapheme', minLength: 1, maxLength: 60 })
      .filter((text) => !/\p{Cc}|\p{Cs}/u.test(text) && text !== '.' && text !== '..')
    await fc.assert(
      fc.asyncProperty(id, async (text) => {
        const answer = await service.request(`/api/echo/${encodeURIComponent(text)}/`)
        expect(answer.body).toEqual({ id: text })
      }),
      {
        numRuns: 150,
        seed: 5,
        examples: [
          ['a/b'],
          ['../../etc/passwd'],
          ['ünï/çødé😀'],
          ['%2F'],
          ['a?b#c'],
          ['import'],
          ['__proto__'],
          [' '],
        ],
      },
    )
  })

  test('of 1,024 characters are read, of 1,025 or 2,000, with control characters or broken escapes are 400', async () => {
    expect((await service.request(`/api/echo/${'x'.repeat(1_024)}/`)).status).toBe(200)
    expect((await service.request(`/api/echo/${encodeURIComponent('😀'.repeat(1_024))}/`)).status).toBe(200)
    for (const id of [
      'x'.repeat(1_025),
      'x'.repeat(2_000),
      '%00',
      'a%0Ab',
      '%7F',
      '%C2%85',
      '%',
      '%zz',
      '%ff',
      '%ED%A0%80',
      '%C0%AF',
    ]) {
      const answer = await service.request(`/api/echo/${id}/`)
      expect([id.slice(0, 20), answer.status, answer.body['code']]).toEqual([id.slice(0, 20), 400, 'invalid'])
    }
    expect((await service.request('/api/echo//')).status).toBe(404)
  })

  test('a last name without a slash takes the rest of the path', async () => {
    expect((await service.request('/api/echo/a/files/b/c%20d/e.png')).body).toEqual({
      id: 'a',
      file: 'b/c d/e.png',
    })
    // A name of a file may hold what no id may.
    expect((await service.request('/api/echo/a/files/b%0A%09%7F%0D/%C2%85')).body).toEqual({
      id: 'a',
      file: 'b\n\t\x7f\r/\x85',
    })
    for (const file of ['a%00b', 'x'.repeat(4_097)])
      expect((await service.request(`/api/echo/a/files/${file}`)).status).toBe(400)
    expect((await service.request('/api/echo/a/files/')).status).toBe(404)
  })

  test('of the query are checked, all at once', async () => {
    for (const [search, wrong] of [
      ['kind=huge&page=x&colour=1', ['colour', 'kind', 'page']],
      ['kind=dwarf&kind=giant', ['kind']],
      ['__proto__=1', []],
      ['page=1e3', ['page']],
      ['%ff=1', []],
      ['kind=a%00', []],
    ] as const) {
      const answer = await service.request(`/api/stars/?${search}`)
      expect([search, answer.status]).toEqual([search, 400])
      expect((answer.body['details'] as { path: string }[]).map((detail) => detail.path).toSorted()).toEqual(
        wrong,
      )
    }
    expect((await service.request('/api/echo/a/?x=1')).body).toMatchObject({
      code: 'invalid',
      details: [{ path: 'x' }],
    })
    expect((await service.request('/api/stars/?kind=dwarf&&')).status).toBe(200)
    await service.request('/api/stars/', json(star('a')))
    for (const search of ['kind=', 'kind=+&page=', 'kind&pageSize=%20'])
      expect([search, (await service.request(`/api/stars/?${search}`)).text]).toEqual([
        search,
        expect.stringContaining('"a"'),
      ])
    expect((await service.request('/api/stars/?colour=')).status).toBe(400)
  })

  test('of any shape never give a 5xx', async () => {
    const segment = fc.oneof(
      fc.string({ unit: 'binary', maxLength: 12 }),
      fc.constantFrom('api', 'stars', 'echo', '..', '%2e%2e', '%', 'files', ''),
    )
    await fc.assert(
      fc.asyncProperty(
        fc.array(segment, { maxLength: 6 }),
        fc.constantFrom('GET', 'POST', 'PUT', 'DELETE', 'OPTIONS', 'PATCH'),
        fc.string({ unit: 'binary', maxLength: 12 }),
        async (segments, method, search) => {
          const path = `/${segments.join('/')}?${search}`
            .replace(/[\s\p{Cc}]/gu, '')
            .replace(
              /[^\x21-\x7e]/g,
              (character) => `%${character.charCodeAt(0).toString(16).padStart(2, '0').slice(0, 2)}`,
            )
          expect(
            statusOf(
              await raw(
                service.port,
                `${method} ${path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n`,
              ),
            ),
          ).toBeLessThan(500)
        },
      ),
      { numRuns: 200, seed: 13 },
    )
  })
})

describe('errors', () => {
  test('carry a refusal with its details and extra members', async () => {
    await service.request('/api/stars/', json(star('a')))
    const answer = await service.request('/api/stars/', json(star('a')))
    expect([answer.status, answer.body]).toEqual([
      409,
      { error: 'star "a" exists', code: 'conflict', details: [], state: 'shining' },
    ])
    expect((await service.request('/api/unique/')).body).toEqual({
      error: 'star id is taken',
      code: 'unacceptable',
      details: [],
    })
    const away = await service.request('/api/away/')
    expect([away.status, away.headers.get('retry-after'), away.headers.get('cache-control')]).toEqual([
      503,
      '3',
      'no-store',
    ])
  })

  test('of our own making say nothing of their cause, which is logged once with the request id', async () => {
    const answer = await service.request('/api/fail/', {
      method: 'POST',
      headers: { 'x-request-id': 'find-me' },
    })
    expect([answer.status, answer.body['code'], answer.body['requestId']]).toEqual([
      500,
      'internal',
      'find-me',
    ])
    expect(answer.text).not.toMatch(/secrets|ECONN|db\.internal|at /)
    const logged = service.logged.filter((line) => line.level === 'error')
    expect(logged).toHaveLength(1)
    expect(logged[0]?.fields).toMatchObject({ requestId: 'find-me', err: expect.any(Error) })
    expect((await service.request('/api/wrong/')).status).toBe(500)
  })

  test('become problem details for clients that name that type', async () => {
    const get = (accept: string) => service.request('/api/stars/x/', { headers: { accept } })
    for (const accept of [
      'application/problem+json, application/json',
      'application/json, application/problem+json',
      'application/json;q=0.4, application/problem+json;q=0.5',
    ]) {
      const answer = await get(accept)
      expect([accept, answer.headers.get('content-type')]).toEqual([accept, 'application/problem+json'])
      expect(answer.body).toEqual({
        type: 'urn:orrery:error:missing',
        title: 'Not Found',
        status: 404,
        detail: 'star "x" does not exist',
        instance: '/api/stars/x/',
        error: 'star "x" does not exist',
        code: 'missing',
        details: [],
      })
    }
    for (const accept of [
      'application/json',
      '*/*',
      'application/json, application/problem+json;q=0.5',
      'application/problem+json;q=0, */*',
    ]) {
      expect([accept, (await get(accept)).headers.get('content-type')]).toEqual([accept, 'application/json'])
    }
  })

  test('are 406 only where the route has a choice, and nothing of it is accepted', async () => {
    const refused = [
      'text/html',
      'application/yaml',
      'application/json;q=0',
      'image/*',
      'application/json;q=0, text/html',
      'application/json;q=x',
    ]
    const accepted = [
      '*/*',
      'application/*',
      'text/html, application/json;q=0.1',
      'application/json; charset=utf-8',
      '',
    ]
    for (const accept of refused) {
      const answer = await service.request('/api/text/', { headers: { accept } })
      expect([accept, answer.status, answer.body['code']]).toEqual([accept, 406, 'not_acceptable'])
    }
    for (const accept of accepted)
      expect([accept, (await service.request('/api/text/', { headers: { accept } })).status]).toEqual([
        accept,
        200,
      ])
    for (const accept of [...refused, ...accepted])
      for (const [path, type] of [
        ['/api/stars/', 'application/json'],
        ['/api/twice/', 'application/json'],
        ['/api/drawings/', 'image/svg+xml'],
      ] as const) {
        const answer = await service.request(path, { headers: { accept } })
        expect([accept, path, answer.status, answer.headers.get('content-type')]).toEqual([
          accept,
          path,
          200,
          type,
        ])
      }
    expect((await service.request('/api/text/', { headers: { accept: 'application/json' } })).body).toEqual({
      text: 'é',
    })
    expect((await service.request('/api/text/', { headers: { accept: 'text/plain' } })).text).toBe('é')
    expect((await service.request('/api/text/', { headers: { accept: 'image/png' } })).status).toBe(406)
  })

  test('are 406 before a POST has any effect: nothing is stored, and its key is not taken', async () => {
    const create = (accept: string, body: unknown = star('unseen')) =>
      service.request('/api/star-names/', {
        ...json(body),
        headers: { accept, 'content-type': 'application/json', 'idempotency-key': 'unseen' },
      })
    for (const body of [star('unseen'), { id: 3 }])
      expect([body, (await create('image/png', body)).status]).toEqual([body, 406])
    expect([service.created.count, service.stars.size]).toEqual([0, 0])
    expect(service.audits.map(({ outcome }) => outcome)).toEqual(['failed', 'failed'])
    const made = await create('text/plain')
    expect([made.status, made.text, made.headers.get('idempotency-replayed')]).toEqual([
      201,
      star('unseen').name,
      null,
    ])
    expect(service.created.count).toBe(1)
  })

  test('are never 406 for a client that names only their own type; the 406 names what there is', async () => {
    const accept = 'application/problem+json'
    const found = await service.request('/api/stars/', {
      ...json(star('p')),
      headers: { accept, 'content-type': 'application/json' },
    })
    expect([found.status, found.headers.get('content-type')]).toEqual([201, 'application/json'])
    expect((await service.request('/api/text/', { headers: { accept } })).status).toBe(200)
    const lost = await service.request('/api/stars/x/', { headers: { accept } })
    expect([lost.status, lost.headers.get('content-type'), lost.body['title']]).toEqual([
      404,
      accept,
      'Not Found',
    ])
    const other = await service.request('/api/text/', { headers: { accept: `${accept}, image/png` } })
    expect([other.status, other.body['detail']]).toEqual([
      406,
      'this route answers text/plain, application/json; the Accept header excludes that',
    ])
  })

  test('of the protocol itself have the same form', async () => {
    for (const bytes of [
      'nonsense\r\n\r\n',
      'GET / HTTP/1.1\r\nbroken header\r\n\r\n',
      'GET / HTTP/9.9\r\n\r\n',
      'POST /api/stars/ HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\nx',
      'POST /api/stars/ HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n',
    ]) {
      const answer = await raw(service.port, bytes)
      expect([bytes.slice(0, 30), statusOf(answer)]).toEqual([bytes.slice(0, 30), 400])
      expect(answer).toContain('"code":"invalid","details":[]')
    }
    const long = await raw(
      service.port,
      `GET / HTTP/1.1\r\nHost: localhost\r\nX-Long: ${'x'.repeat(20_000)}\r\n\r\n`,
    )
    expect(statusOf(long)).toBe(431)
  })
})

describe('versions of a record', () => {
  test('are named by ETag: 304 for the one that the client has, 412 for another one', async () => {
    service.stars.set('a', star('a'))
    const read = (headers: Record<string, string>) => service.request('/api/stars/a/', { headers })
    const etag = (await read({})).headers.get('etag') ?? ''
    expect(etag).toMatch(/^"[\w-]+"$/)
    for (const known of [etag, `W/${etag}`, `"other", ${etag}`, '*']) {
      const answer = await read({ 'if-none-match': known })
      expect([known, answer.status, answer.text, answer.headers.get('etag')]).toEqual([known, 304, '', etag])
    }
    expect((await read({ 'if-none-match': '"other"' })).status).toBe(200)
    expect((await read({ 'if-match': '"other"' })).body['code']).toBe('precondition_failed')
    expect((await read({ 'if-match': etag })).status).toBe(200)
    service.stars.set('a', star('a', { planets: 9 }))
    expect((await read({ 'if-none-match': etag })).status).toBe(200)
  })

  test('guard changes: of 16 that name one version a single one wins', async () => {
    service.stars.set('a', star('a'))
    const etag = (await service.request('/api/stars/a/')).headers.get('etag') ?? ''
    const put = (planets: number, match: string) =>
      service.request('/api/stars/a/', {
        ...json(star('a', { planets })),
        method: 'PUT',
        headers: { 'if-match': match, 'content-type': 'application/json' },
      })
    const answers = await Promise.all(Array.from({ length: 16 }, (_, i) => put(20 + i, etag)))
    expect(answers.map((answer) => answer.status).toSorted()).toEqual([200, ...Array<number>(15).fill(412)])
    expect(
      (await service.request('/api/stars/a/', { method: 'DELETE', headers: { 'if-match': etag } })).status,
    ).toBe(412)
    expect(
      (await service.request('/api/stars/a/', { method: 'DELETE', headers: { 'if-match': '*' } })).status,
    ).toBe(204)
    expect(
      (await service.request('/api/stars/a/', { method: 'DELETE', headers: { 'if-match': '*' } })).status,
    ).toBe(404)
  })

  test('guard what If-None-Match names; If-Match names no version of what a PUT would make', async () => {
    const change = async (method: string, path: string, headers: Record<string, string>) =>
      (
        await service.request(path, {
          ...(method === 'PUT' ? json(star('b', { planets: 3 })) : {}),
          method,
          headers: { ...headers, 'content-type': 'application/json' },
        })
      ).status
    const [replaced, made] = ['/api/stars/b/', '/api/made-stars/b/']
    for (const header of ['if-match', 'if-none-match'])
      expect([header, await change('PUT', replaced, { [header]: '*' })]).toEqual([header, 404])
    expect(await change('PUT', made, { 'if-match': '*' })).toBe(412)
    expect(await change('PUT', made, { 'if-match': '"other"' })).toBe(412)
    expect(service.stars.has('b')).toBe(false)
    const both = await Promise.all(
      Array.from({ length: 8 }, () => change('PUT', made, { 'if-none-match': '*' })),
    )
    expect(both.toSorted()).toEqual([200, ...Array<number>(7).fill(412)])
    const etag = (await service.request(made)).headers.get('etag') ?? ''
    for (const known of ['*', etag, `W/${etag}`, `"other", ${etag}`])
      for (const [method, path] of [
        ['PUT', made],
        ['PUT', replaced],
        ['DELETE', replaced],
      ] as const)
        expect([known, method, await change(method, path, { 'if-none-match': known })]).toEqual([
          known,
          method,
          412,
        ])
    expect(service.stars.get('b')).toMatchObject({ planets: 3 })
    expect(await change('PUT', made, { 'if-none-match': '"other"', 'if-match': '*' })).toBe(200)
    expect(await change('DELETE', replaced, { 'if-none-match': '"other"' })).toBe(204)
  })
})

describe('a read-only snapshot', () => {
  test('locks every change but those that are allowed, and no read', async () => {
    service.stars.set('a', star('a'))
    service.activated.value = true
    try {
      for (const [method, path] of [
        ['POST', '/api/stars/'],
        ['PUT', '/api/stars/a/'],
        ['DELETE', '/api/stars/a/'],
      ] as const) {
        const answer = await service.request(path, { ...json(star('b')), method })
        expect([answer.status, answer.body]).toEqual([
          423,
          { error: 'the selected instance is a read-only snapshot', code: 'locked', details: [] },
        ])
      }
      expect((await service.request('/api/stars/a/')).status).toBe(200)
      const ignited = await service.request('/api/stars/a/ignite/', { method: 'POST' })
      expect([ignited.status, ignited.headers.get('retry-after')]).toEqual([202, '1'])
    } finally {
      service.activated.value = false
    }
    expect([...service.stars.keys()]).toEqual(['a'])
  })
})

describe('the audit trail', () => {
  test('has one record for each change, done or refused, and none for reads', async () => {
    await service.request('/api/stars/', json(star('a')))
    await service.request('/api/stars/', json(star('a')))
    await service.request('/api/stars/', json({ id: 1 }))
    await service.request('/api/stars/a/')
    await service.request('/api/stars/a/', { method: 'DELETE', headers: { 'x-request-id': 'r-1' } })
    expect(
      service.audits.map(({ eventType, outcome, resourceId, metadata }) => [
        eventType,
        outcome,
        resourceId,
        metadata.status,
        metadata.code,
      ]),
    ).toEqual([
      ['star.created', 'succeeded', 'a', 201, undefined],
      ['star.created', 'failed', 'a', 409, 'conflict'],
      ['star.created', 'failed', undefined, 400, 'invalid'],
      ['stars.delete', 'succeeded', undefined, 204, undefined],
    ])
    expect(service.audits[0]).toMatchObject({
      summary: 'star a created',
      actorId: 'loopback',
      actorType: 'local',
    })
    expect(service.audits[3]?.metadata).toEqual({
      method: 'DELETE',
      path: '/stars/{starId}/',
      status: 204,
      requestId: 'r-1',
    })
  })
})

test('an audit record keeps the first characters of a long name', () => {
  const named = route('postNamed', 'POST /named/', {
    ...{ summary: '', tag: 'named', body: z.looseObject({}) },
    audit: { eventType: 'named', summary: ({ body }) => `${(body as { name: string }).name} created` },
    handle: () => undefined,
  })
  const call = { params: {}, body: { name: 'x'.repeat(100_000) }, requestId: 'r' }
  const actor = { id: 'ada', type: 'local' } as const
  const { summary } = auditRecord(named, { ...call, actor }, { status: 422, code: 'unacceptable' })
  expect([summary.length, summary.slice(0, 12)]).toEqual([4_097, 'refused: xxx'])
})

describe('Idempotency-Key', () => {
  const create = (key: string, body: object, path = '/api/stars/') =>
    service.request(path, {
      ...json(body),
      headers: { 'idempotency-key': key, 'content-type': 'application/json' },
    })

  test('gives the first answer again for the same body, 422 for another', async () => {
    const first = await create('k1', star('a'))
    const again = await create('k1', star('a'))
    expect([
      again.status,
      again.text,
      again.headers.get('location'),
      again.headers.get('idempotency-replayed'),
    ]).toEqual([201, first.text, '/api/stars/a/', 'true'])
    expect(first.headers.get('idempotency-replayed')).toBeNull()
    expect((await create('k1', star('b'))).body).toMatchObject({ code: 'unacceptable' })
    expect(service.created.count).toBe(1)
    expect(service.audits.filter((record) => record.outcome === 'succeeded')).toHaveLength(1)
  })

  test('is per path, and a refusal does not use it up', async () => {
    expect((await create('k2', star('a'))).status).toBe(201)
    expect((await create('k2', star('a'), '/api/stars/import/')).status).toBe(202)
    expect((await create('k3', star('a'))).status).toBe(409)
    service.stars.clear()
    expect((await create('k3', star('a'))).status).toBe(201)
  })

  test('lets one of 64 equal concurrent creates through', async () => {
    const answers = await Promise.all(Array.from({ length: 64 }, () => create('k64', star('one'))))
    expect(service.created.count).toBe(1)
    expect(service.stars.size).toBe(1)
    for (const answer of answers) {
      expect([201, 409]).toContain(answer.status)
      if (answer.status === 409) expect(answer.headers.get('retry-after')).toBe('1')
    }
    expect(
      answers.filter(
        (answer) => answer.status === 201 && answer.headers.get('idempotency-replayed') === null,
      ),
    ).toHaveLength(1)
    expect((await create('k64', star('one'))).headers.get('idempotency-replayed')).toBe('true')
  })

  test('without one, 64 equal concurrent creates still give one record', async () => {
    const answers = await Promise.all(
      Array.from({ length: 64 }, () => service.request('/api/stars/', json(star('plain')))),
    )
    expect(answers.map((answer) => answer.status).filter((status) => status === 201)).toHaveLength(1)
  })

  test('that is no key is 400', async () => {
    for (const key of ['', ' ', 'a b', 'x'.repeat(256)])
      expect([key.length, (await create(key, star('a'))).status]).toEqual([key.length, 400])
    expect(service.stars.size).toBe(0)
  })
})

describe('streams', () => {
  test('start at once, are not buffered, and end when the client leaves', async () => {
    service.aborted.length = 0
    const controller = new AbortController()
    const answer = await fetch(`${service.url}/api/ticks/`, {
      signal: controller.signal,
      headers: { accept: 'text/event-stream' },
    })
    expect([
      answer.status,
      answer.headers.get('content-type'),
      answer.headers.get('etag'),
      answer.headers.get('content-length'),
    ]).toEqual([200, 'text/event-stream', null, null])
    const reader = answer.body?.getReader()
    const first = await reader?.read()
    expect(Buffer.from(first?.value ?? []).toString()).toContain('data: 1')
    await reader?.read()
    controller.abort()
    await until('both ends', 120, () => service.aborted.length >= 2)
    expect(service.aborted.toSorted()).toEqual(['stream', 'ticks'])
    expect(service.logged.filter((line) => line.level === 'error')).toEqual([])
  })

  test('of other bytes than their answer announces end its connection, and no byte more is sent', async () => {
    const own = await openStars()
    const received = (announced: number, bytes: number): Promise<string> =>
      new Promise((resolve) => {
        const { port } = new URL(own.url)
        const socket = connect(Number(port), '127.0.0.1')
        let all = ''
        socket.on('data', (piece) => {
          all += piece.toString('latin1')
          // An answer that is whole leaves its connection open.
          if (all.endsWith('\r\n\r\nxxx')) socket.end()
        })
        socket.once('error', () => undefined)
        socket.once('close', () => resolve(all.slice(all.indexOf('\r\n\r\n') + 4)))
        socket.write(
          `GET /api/pieces/?announced=${announced}&bytes=${bytes} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n`,
        )
      })
    try {
      expect(await received(3, 3)).toBe('xxx')
      expect(own.logged.filter((line) => line.level === 'error')).toEqual([])
      for (const [announced, bytes] of [
        [2, 4],
        [4, 2],
      ] as const)
        expect(['', 'x', 'xx']).toContain(await received(announced, bytes))
      expect(own.logged.filter((line) => line.level === 'error')).toHaveLength(2)
    } finally {
      await own.close()
    }
  })

  test('end where their reader stops to read, not where their source is silent', async () => {
    expect(usualStallMs).toBe(60_000)
    const paced = await openStars({ stallMs: 200 })
    try {
      const patient = await fetch(`${paced.url}/api/sky/?silentMs=1000`)
      const reader = patient.body?.getReader()
      expect((await reader?.read())?.value?.length).toBeGreaterThan(0)
      expect(paced.aborted).toEqual([])
      // The reader takes what has come by then, and nothing more.
      await until('the end', 120, () => paced.aborted.length > 0)
      expect(paced.aborted).toEqual(['sky'])
      expect(paced.logged.filter((line) => line.level === 'error')).toEqual([])
      await reader?.cancel().catch(() => undefined)
    } finally {
      await paced.close()
    }
  })
})

describe('the application', () => {
  test('mounted in another Express application answers alike', async () => {
    const outer = express()
    outer.use(service.app.express)
    const server = createServer(outer).listen(0, '127.0.0.1')
    await once(server, 'listening')
    try {
      const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
      service.stars.set('a', star('a'))
      for (const path of ['/', '/api/stars/a/', '/docs/', '/nowhere']) {
        const [direct, mounted] = [await service.request(path), await fetch(url + path)]
        expect([path, mounted.status, await mounted.text()]).toEqual([path, direct.status, direct.text])
      }
    } finally {
      server.closeAllConnections()
      server.close()
    }
  })

  test('shows its document on a page made of its own files', async () => {
    const page = await service.request('/docs/')
    expect([page.status, page.headers.get('content-type')]).toEqual([200, 'text/html; charset=utf-8'])
    expect(page.headers.get('content-security-policy')).toContain("script-src 'self'")
    const files = [...page.text.matchAll(/(?:src|href)="([^"]+)"/g)].map(([, file]) => file ?? '')
    expect(files.length).toBeGreaterThan(3)
    for (const file of files) {
      expect(file).not.toMatch(/^(https?:)?\/\//)
      expect([file, (await service.request(`/docs/${file}`)).status]).toEqual([file, 200])
    }
    expect((await service.request('/docs/page.js')).text).toContain('../openapi.json')
    expect((await service.request('/docs/', { method: 'POST' })).status).toBe(404)
  })

  test('leads a browser from what people type first to that page; everybody else gets what is there', async () => {
    const firefox = 'text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8'
    const ask = (path: string, accept?: string, method = 'GET') =>
      service.request(path, {
        method,
        redirect: 'manual',
        ...(accept === undefined ? {} : { headers: { accept } }),
      })
    for (const path of ['/', '/docs', '/api/'])
      for (const method of ['GET', 'HEAD']) {
        const led = await ask(path, firefox, method)
        expect([path, method, led.status, led.headers.get('location')]).toEqual([path, method, 302, '/docs/'])
      }
    expect((await service.request('/', { headers: { accept: firefox } })).text).toContain(
      '<title>Orrery API</title>',
    )
    for (const [accept, health] of [
      [undefined, 200],
      ['*/*', 200],
      ['text/plain', 200],
      ['application/json', 200],
      ['text/html;q=0', 200],
      ['application/json, text/html;q=0.5', 200],
    ] as const) {
      const statuses = await Promise.all(
        ['/', '/docs', '/api/'].map(async (path) => (await ask(path, accept)).status),
      )
      expect([accept, ...statuses]).toEqual([accept, health, 404, 404])
    }
    expect((await ask('/')).text).toBe('ok')
    for (const [path, method] of [
      ['/api/stars/', 'GET'],
      ['/nowhere', 'GET'],
      ['/', 'POST'],
    ] as const)
      expect((await ask(path, firefox, method)).status).not.toBe(302)
  })

  test('checks what a schema with no body, recursion and intersections accepts', async () => {
    interface Tree {
      name: string
      children?: Tree[] | undefined
    }
    const tree: z.ZodType<Tree> = z.strictObject({
      name: z.string(),
      get children() {
        return z.array(tree).optional()
      },
    })
    const other = route('postTree', 'POST /tree/', {
      summary: '',
      tag: 't',
      body: tree.optional(),
      response: z.unknown(),
      handle: ({ body }) => ({ got: body ?? null }),
    })
    const none = (): void => undefined
    const app = createApp({
      config: {
        apiPrefix: '',
        apiToken: undefined,
        allowedHosts: [],
        allowedOrigins: [],
        listenHost: '127.0.0.1',
        bodyLimitBytes: 1_000_000,
      },
      routes: [other],
      log: { debug: none, info: none, warn: none, error: none },
      version: '1',
      activated: () => false,
    })
    const server = createServer(app.listener).listen(0, '127.0.0.1')
    await once(server, 'listening')
    try {
      const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/tree/`
      const empty = new ReadableStream({ start: (controller) => controller.close() })
      for (const without of [
        {},
        { headers: { 'content-type': 'text/plain' } },
        { headers: { 'content-type': 'application/x-www-form-urlencoded', 'content-encoding': 'gzip' } },
        { headers: { 'content-type': 'text/plain' }, body: empty, duplex: 'half' },
      ])
        expect(await (await fetch(url, { method: 'POST', ...without } as RequestInit)).json()).toEqual({
          got: null,
        })
      const plain = { method: 'POST', headers: { 'content-type': 'text/plain' }, body: '{"name":"a"}' }
      expect((await fetch(url, plain)).status).toBe(415)
      const nested = await fetch(url, {
        method: 'POST',
        body: Buffer.from('{"NAME":"a","Children":[{"Name":"b","children":null}]}'),
      })
      expect(await nested.json()).toEqual({ got: { name: 'a', children: [{ name: 'b' }] } })
      const deep = `${'{"name":"a","children":['.repeat(60)}${']}'.repeat(60)}`
      expect((await fetch(url, { method: 'POST', body: Buffer.from(deep) })).status).toBe(400)
      expect(
        (await fetch(url, { method: 'POST', body: Buffer.from('['.repeat(1e5) + ']'.repeat(1e5)) })).status,
      ).toBe(400)
    } finally {
      server.closeAllConnections()
      server.close()
    }
  })
})
