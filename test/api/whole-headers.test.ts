import { afterAll, beforeAll, describe, expect, test } from '@jest/globals'
import { request } from 'node:http'
import { makeVaultKeyFile } from '../support/reach.ts'
import { sql } from '../../src/db/sql.ts'
import { openService, type TestService } from '../support/service.ts'
import { examples, makeBaseWorld, worldVariables } from './whole-documents.ts'

const token = 'the-token_of+the.test'
const origin = 'https://desk.example'

let open: TestService
let guarded: TestService
beforeAll(async () => {
  open = await openService({
    environment: {
      SERVICE_CONSOLE_ENABLED: 'true',
      SERVICE_VAULT_KEY_FILE: makeVaultKeyFile(),
      ...worldVariables,
    },
  })
  guarded = await openService({
    environment: {
      SERVICE_VAULT_KEY_FILE: makeVaultKeyFile(),
      SERVICE_API_TOKEN: token,
      SERVICE_ALLOWED_ORIGINS: origin,
      SERVICE_ALLOWED_HOSTS: 'orrery.example',
    },
  })
  await makeBaseWorld(open)
})
afterAll(async () => {
  await open[Symbol.asyncDispose]()
  await guarded[Symbol.asyncDispose]()
})

/** Past fetch, which sets Host itself. */
const raw = (
  service: TestService,
  path: string,
  options: { method?: string; headers?: Record<string, string> } = {},
): Promise<{ status: number; headers: Record<string, unknown>; text: string }> =>
  new Promise((resolve, reject) => {
    const sent = request(
      `${service.rootUrl}${path}`,
      { method: options.method ?? 'GET', headers: options.headers ?? {} },
      (answer) => {
        const chunks: Buffer[] = []
        answer.on('data', (chunk: Buffer) => chunks.push(chunk))
        answer.on('end', () => {
          resolve({
            status: answer.statusCode ?? 0,
            headers: answer.headers,
            text: Buffer.concat(chunks).toString(),
          })
        })
      },
    )
    sent.on('error', reject)
    sent.end()
  })

describe('reads', () => {
  test('carry an entity tag; the version that the client holds is 304 without a body, and a change gives another tag', async () => {
    for (const path of [
      '/instance/',
      '/environments/base/',
      '/environments/',
      '/resources/base-1/',
      '/network-topologies/base-network/',
      '/execution-scopes/base-scope/',
      '/workflow-definitions/base-flow/',
      '/workflow-definitions/base-flow/export/',
      '/schedule-plans/base-plan/',
      '/planning-algorithms/',
      '/execution-runs/',
    ]) {
      const first = await open.call('GET', path)
      const tag = first.headers.get('etag') ?? ''
      expect([path, first.status, tag]).toEqual([path, 200, expect.stringMatching(/^(W\/)?"[^"]+"$/)])
      const again = await open.call('GET', path, undefined, { 'if-none-match': tag })
      expect([path, again.status, again.text, again.headers.get('etag')]).toEqual([path, 304, '', tag])
      expect((await open.call('GET', path, undefined, { 'if-none-match': '"other"' })).status).toBe(200)
      const head = await open.call('HEAD', path)
      expect([
        path,
        head.status,
        head.text,
        head.headers.get('etag'),
        head.headers.get('content-length'),
      ]).toEqual([path, 200, '', tag, first.headers.get('content-length')])
    }
    const before = (await open.call('GET', '/instance/')).headers.get('etag') ?? ''
    await open.ok('PUT', '/instance/', { id: 'default', name: 'renamed' })
    expect((await open.call('GET', '/instance/', undefined, { 'if-none-match': before })).status).toBe(200)
  })

  test('a change under If-Match of a version that is gone is 412 and changes nothing', async () => {
    const { headers, body } = await open.call('GET', '/environments/spare/')
    const { connectionChecks: _checks, ...document } = body
    const stale = headers.get('etag') ?? ''
    const renamed = { ...document, environment: { ...document.environment, name: 'renamed' } }
    expect((await open.call('PUT', '/environments/spare/', renamed, { 'if-match': stale })).status).toBe(200)
    const renewed = (await open.call('GET', '/environments/spare/')).headers.get('etag') ?? ''
    // As the monitor of connections does.
    await open.db.run(sql`update environments set status = 'unreachable' where id = 'spare'`)
    await open.ok('PUT', '/environment-connections/spare-link/', {
      ...{ id: 'spare-link', environmentId: 'spare', name: 'link', type: 'local' },
    })
    const linked = (await open.call('GET', '/environments/spare/')).headers.get('etag') ?? ''
    expect((await open.call('PUT', '/environments/spare/', renamed, { 'if-match': renewed })).status).toBe(
      412,
    )
    await open.call('POST', '/environment-connections/spare-link/health/')
    const checked = await open.call('GET', '/environments/spare/', undefined, { 'if-none-match': linked })
    // The monitor of the connection may have checked it too.
    expect([checked.status, checked.body.connectionChecks?.length > 0]).toEqual([200, true])
    const packed = linked.replace(/"$/, '-br"')
    for (const tag of [linked, packed])
      expect((await open.call('GET', '/environments/spare/', undefined, { 'if-match': tag })).status).toBe(
        200,
      )
    expect((await open.call('PUT', '/environments/spare/', renamed, { 'if-match': linked })).status).toBe(200)
    const refused = await open.call('PUT', '/environments/spare/', document, { 'if-match': stale })
    expect([refused.status, refused.body.code]).toEqual([412, 'precondition_failed'])
    expect((await open.call('DELETE', '/environments/spare/', undefined, { 'if-match': stale })).status).toBe(
      412,
    )
    expect((await open.get('/environments/spare/')).environment.name).toBe('renamed')
    // Members of users are theirs, whatever their names are.
    const probed = (path: string) => ({
      ...document,
      resources: document.resources.map((one: object) => ({
        ...one,
        metadata: { a: 1, apiToken: 'vault:x', probe: { path } },
      })),
    })
    const tags = []
    for (const path of ['/one', '/two']) {
      await open.ok('PUT', '/environments/spare/', probed(path))
      tags.push((await open.call('GET', '/environments/spare/')).headers.get('etag')?.split('.')[0])
    }
    expect(tags[1]).not.toBe(tags[0])
  })
})

describe('creates', () => {
  test('say where the record is; an accepted run also when to look again', async () => {
    for (const template of [
      '/environments/',
      '/resources/',
      '/network-topologies/',
      '/execution-scopes/',
      '/workflow-definitions/',
      '/schedule-plans/import/',
      '/planning-sessions/',
      '/execution-runs/',
    ]) {
      const example = examples.find((one) => one.template === template)!
      const answer = await open.call('POST', template, example.body(`héré/or there ${template.slice(1, 5)}`))
      expect([template, answer.status === 201 || answer.status === 202]).toEqual([template, true])
      const location = answer.headers.get('location') ?? ''
      expect([template, location.startsWith('/api/')]).toEqual([template, true])
      const read = await fetch(open.rootUrl + location)
      expect([template, read.status]).toEqual([template, 200])
      if (answer.status === 202) expect(Number(answer.headers.get('retry-after'))).toBeGreaterThanOrEqual(1)
    }
  })

  test('under an Idempotency-Key are done once: same body the same answer, another body 422, a refusal may be tried again', async () => {
    const body = examples.find(({ template }) => template === '/planning-sessions/')!.body('keyed')
    const key = { 'idempotency-key': 'first' }
    const refused = await open.call(
      'POST',
      '/planning-sessions/',
      { ...body, workflowVersionId: 'none' },
      key,
    )
    expect(refused.status).toBe(422)
    const first = await open.call('POST', '/planning-sessions/', body, key)
    expect([first.status, first.headers.get('idempotency-replayed')]).toEqual([202, null])
    const again = await open.call('POST', '/planning-sessions/', body, key)
    expect([
      again.status,
      again.headers.get('idempotency-replayed'),
      again.text,
      again.headers.get('location'),
    ]).toEqual([202, 'true', first.text, first.headers.get('location')])
    const other = await open.call('POST', '/planning-sessions/', { ...body, budget: 1 }, key)
    expect([other.status, other.body.error]).toEqual([422, expect.stringContaining('Idempotency-Key')])
    expect((await open.call('POST', '/planning-sessions/', body)).status).toBe(422)
    expect(
      (await open.get('/audit-events/?pageSize=1000')).filter(({ summary }: any) =>
        /^(refused: )?planning session keyed created$/.test(summary),
      ),
    ).toHaveLength(4)
  })
})

describe('lists', () => {
  test('arrays travel in pages that name their neighbours and the total', async () => {
    for (let i = 0; i < 7; i++)
      await open.post('/execution-scopes/', {
        id: `page-${String(i)}`,
        name: `page ${String(i)}`,
        environmentVersionIds: ['base-v1'],
      })
    const whole = await open.call('GET', '/execution-scopes/')
    const total = (whole.body as unknown[]).length
    expect([whole.headers.get('x-total-count'), whole.headers.get('link')]).toEqual([String(total), null])
    const collected: unknown[] = []
    let next: string | undefined = '/api/execution-scopes/?pageSize=3'
    let previous: string | undefined
    for (let page = 1; next !== undefined; page++) {
      const answer = await raw(open, next)
      expect([answer.status, answer.headers['x-total-count']]).toEqual([200, String(total)])
      const links: Record<string, string> = Object.fromEntries(
        [...((answer.headers['link'] ?? '') as string).matchAll(/<([^>]+)>; rel="(\w+)"/g)].map(
          ([, target = '', relation = '']) => [relation, target],
        ),
      )
      expect([page, links['prev']]).toEqual([
        page,
        page === 1 ? undefined : expect.stringContaining(`page=${String(page - 1)}`),
      ])
      collected.push(...(JSON.parse(answer.text) as unknown[]))
      previous = next
      next = links['next']
    }
    expect(previous).toContain(`page=${String(Math.ceil(total / 3))}`)
    expect(collected).toEqual(whole.body)
    for (const query of ['page=0', 'page=-5', 'pageSize=0', 'pageSize=1000000'])
      expect((await open.call('GET', `/execution-scopes/?${query}`)).body).toEqual(whole.body)
    expect((await open.call('GET', '/execution-scopes/?page=1000&pageSize=3')).body).toEqual([])
  })

  test('a bound out of range is the usual one, in every list', async () => {
    const { paths } = (await (await fetch(`${open.rootUrl}/openapi.json`)).json()) as Record<string, any>
    const bounded = Object.entries<any>(paths).flatMap(([path, { get }]) =>
      path.includes('{') || get === undefined
        ? []
        : get.parameters
            .filter((one: any) => ['limit', 'page', 'pageSize'].includes(one.name))
            .map((one: any) => `${path}?${one.name}=`),
    )
    expect(bounded).toEqual(
      expect.arrayContaining(['/console-commands/?limit=', '/events/?limit=', '/search/?limit=']),
    )
    for (const query of bounded)
      for (const bound of ['-1', '0', '%2B1', '9999999999999999'])
        expect([query, bound, (await open.call('GET', query + bound)).status]).toEqual([query, bound, 200])
  })

  test('the pages of runs say whether there is a next one', async () => {
    for (let i = 0; i < 5; i++)
      await open.post('/execution-runs/', {
        id: `run-${String(i)}`,
        schedulePlanId: 'base-plan',
        mode: 'simulation',
      })
    for (let i = 0; i < 5; i++) await open.finished(`run-${String(i)}`)
    const ids: string[] = []
    let hasNext = true
    for (let page = 1; hasNext; page++) {
      const answer = await open.get(`/execution-runs/?page=${String(page)}&pageSize=2`)
      expect(answer).toMatchObject({ page, pageSize: 2, total: expect.any(Number) })
      ids.push(...answer.items.map(({ run }: any) => run.id as string))
      hasNext = answer.hasNext as boolean
      expect(ids.length < answer.total).toBe(hasNext)
    }
    expect(new Set(ids).size).toBe(ids.length)
    expect(ids).toEqual((await open.get('/execution-runs/?pageSize=100')).items.map(({ run }: any) => run.id))
  })
})

describe('access', () => {
  const bearer = { authorization: `Bearer ${token}` }

  test('with a token every route needs it, but the two of the bootstrap, the page without data, and what functions call by a link', async () => {
    const document = (await (await fetch(`${guarded.rootUrl}/openapi.json`, { headers: bearer })).json()) as {
      paths: Record<string, Record<string, { security?: unknown }>>
    }
    for (const [path, item] of Object.entries(document.paths)) {
      const prefix = 'servers' in item ? '' : '/api'
      for (const method of Object.keys(item).filter((key) => key !== 'servers')) {
        const answer = await raw(guarded, prefix + path.replaceAll(/\{\w+\}/g, 'x'), {
          method: method.toUpperCase(),
        })
        const isLinked = path.startsWith('/function-calls/')
        const isPublic =
          method === 'head'
            ? path === '/instance/'
            : isLinked || (method === 'get' && (path === '/instance/' || path === '/preflight/'))
        expect([method, path, answer.status, answer.headers['www-authenticate']]).toEqual([
          method,
          path,
          ...(isPublic && !isLinked ? [200, undefined] : [401, 'Bearer']),
        ])
        expect([method, path, item[method]?.security]).toEqual([method, path, isPublic ? [] : undefined])
        if (!isPublic && method !== 'head')
          expect(JSON.parse(answer.text)).toEqual({
            error: 'authentication required',
            code: 'unauthenticated',
            details: [],
          })
      }
    }
    expect((await raw(guarded, '/api/instance/', { method: 'HEAD' })).status).toBe(200)
    expect((await raw(guarded, '/api/preflight/', { method: 'HEAD' })).status).toBe(401)
    for (const path of ['/', '/openapi.json', '/api/search/', '/api/nothing/', '/nothing'])
      expect([path, (await raw(guarded, path)).status]).toEqual([path, 401])
    for (const path of ['/', '/openapi.json', '/api/environments/'])
      expect([path, (await raw(guarded, path, { headers: bearer })).status]).toEqual([path, 200])
    const page = await raw(guarded, '/docs/')
    expect([
      page.status,
      String(page.headers['content-type']).startsWith('text/html'),
      page.text.includes('/execution-runs/'),
    ]).toEqual([200, true, false])
  })

  test('nothing but the whole token is one', async () => {
    for (const authorization of [
      '',
      'Bearer',
      'Bearer ',
      `Bearer ${token.slice(0, -1)}`,
      `Bearer ${token}x`,
      token,
      `Basic ${Buffer.from(`:${token}`).toString('base64')}`,
    ])
      expect([
        authorization,
        (await raw(guarded, '/api/environments/', { headers: { authorization } })).status,
      ]).toEqual([authorization, 401])
    expect((await raw(guarded, `/api/environments/?token=${encodeURIComponent(token)}`)).status).toBe(401)
    expect(
      (await raw(guarded, '/api/environments/', { headers: { authorization: `bearer ${token}` } })).status,
    ).toBe(200)
  })

  test('a foreign Host is 403, with and without the token', async () => {
    for (const host of ['evil.example', 'evil.example:80', 'localhost.evil.example', '169.254.169.254']) {
      const answer = await raw(guarded, '/api/environments/', { headers: { ...bearer, host } })
      expect([host, answer.status, JSON.parse(answer.text).code]).toEqual([host, 403, 'forbidden'])
      expect([host, (await raw(open, '/api/environments/', { headers: { host } })).status]).toEqual([
        host,
        403,
      ])
    }
    for (const host of ['localhost', '127.0.0.1:1', '[::1]', 'orrery.example', 'ORRERY.example:9999'])
      expect([
        host,
        (await raw(guarded, '/api/environments/', { headers: { ...bearer, host } })).status,
      ]).toEqual([host, 200])
  })

  test('an allowed origin may ask from a browser, another one may not', async () => {
    const preflight = await raw(guarded, '/api/environments/', {
      method: 'OPTIONS',
      headers: {
        origin,
        'access-control-request-method': 'POST',
        'access-control-request-headers': 'authorization, content-type, idempotency-key',
      },
    })
    expect(preflight).toMatchObject({ status: 200, headers: { 'access-control-allow-origin': origin } })
    expect(String(preflight.headers['access-control-allow-methods'])).toMatch(/POST/)
    for (const name of ['authorization', 'content-type', 'idempotency-key'])
      expect(String(preflight.headers['access-control-allow-headers']).toLowerCase()).toContain(name)
    const read = await raw(guarded, '/api/execution-scopes/', { headers: { ...bearer, origin } })
    expect(read).toMatchObject({
      status: 200,
      headers: { 'access-control-allow-origin': origin, vary: expect.stringContaining('Origin') },
    })
    for (const name of ['x-total-count', 'link', 'etag', 'location', 'retry-after'])
      expect(String(read.headers['access-control-expose-headers']).toLowerCase()).toContain(name)
    for (const foreign of ['https://evil.example', `${origin}.evil.example`, 'null', 'http://desk.example'])
      for (const service of [guarded, open]) {
        const refused = await raw(service, '/api/execution-scopes/', {
          headers: { ...bearer, origin: foreign },
        })
        expect([foreign, refused.status, refused.headers['access-control-allow-origin']]).toEqual([
          foreign,
          403,
          undefined,
        ])
      }
  })

  test('every answer names request and version, and hides what serves it', async () => {
    const answers = [
      await raw(open, '/api/environments/', { headers: { 'x-request-id': 'mine-1' } }),
      await raw(open, '/api/nothing/'),
      await raw(guarded, '/api/environments/'),
      await raw(open, '/docs/'),
    ]
    expect(answers[0]?.headers['x-request-id']).toBe('mine-1')
    for (const { headers } of answers) {
      expect(headers['x-request-id']).toMatch(/\S/)
      expect(headers['akoflow-server']).toMatch(/^\d+\.\d+\.\d+/)
      expect(headers['x-powered-by']).toBeUndefined()
      expect(headers['server']).toBeUndefined()
    }
  })

  test('errors come as problems to who asks for problems', async () => {
    const answer = await open.call(
      'POST',
      '/execution-scopes/',
      { id: '' },
      { accept: 'application/problem+json, application/json;q=0.9' },
    )
    expect([answer.status, answer.headers.get('content-type')]).toEqual([422, 'application/problem+json'])
    expect(answer.body).toMatchObject({
      type: 'urn:orrery:error:unacceptable',
      title: expect.any(String),
      status: 422,
      detail: answer.body.error,
      instance: '/api/execution-scopes/',
      code: 'unacceptable',
    })
  })
})
