import { afterAll, beforeAll, expect, test } from '@jest/globals'
import fc from '../support/fast-check.ts'
import { makeVaultKeyFile } from '../support/reach.ts'
import { beforeNextLook } from '../support/pace.ts'
import { openService, type TestService } from '../support/service.ts'
import { examples, makeBaseWorld, worldVariables, type Example } from './whole-documents.ts'
import { changed, openPlaces, raw, written, type Place } from './whole-places.ts'

type Json = Record<string, any>

let service: TestService
let document: Json
let places: ReturnType<typeof openPlaces>
beforeAll(async () => {
  service = await openService({
    environment: { SERVICE_VAULT_KEY_FILE: makeVaultKeyFile(), ...worldVariables },
  })
  document = (await (await fetch(`${service.rootUrl}/openapi.json`)).json()) as Json
  places = openPlaces(document)
  await makeBaseWorld(service)
}, 120_000)
afterAll(() => service[Symbol.asyncDispose]())

const named = examples.map(
  (example) =>
    [
      `${example.method} ${example.template}${example.form === undefined ? '' : `, ${example.form}`}`,
      example,
    ] as const,
)
let made = 0
const fresh = (): string => `k${String((made += 1))}`
const json = { 'content-type': 'application/json' }

/** At most `count` of the items, spread over all of them. */
const spread = <T>(items: readonly T[], count: number): T[] =>
  items.filter(
    (_, i) =>
      Math.floor((i * count) / items.length) !== Math.floor(((i - 1) * count) / items.length) ||
      items.length <= count,
  )

/**
 * The status; 422 where what was asked for is one of the things that this version names as not
 * built.
 */
const statusOf = async (example: Example, path: Place['path'], value: unknown): Promise<number> => {
  const key = fresh()
  const { status, body } = await service.call(
    example.method,
    example.path(key),
    written(changed(example.body(key), path, value)),
    json,
  )
  // What was promoted before answers 200 with the first record.
  if (example.template.includes('/promote-') && status === 200) return 201
  // One index run of a storage is open at a time; another one is taken as well.
  if (example.template.endsWith('/index-runs/') && status === 409) return 202
  return status === 503 && body.code === 'not_built' ? 422 : status
}

test.each(named)(
  '%s: null of an optional field is the same as leaving it out',
  async (_name, example) => {
    const optional = places
      .placesOf(example.body('x'), places.schemaOf(example))
      .filter(({ path, required }) => typeof path.at(-1) === 'string' && !required)
    for (const { path } of spread(optional, 25)) {
      const [omitted, nothing] = [
        await statusOf(example, path, undefined),
        await statusOf(example, path, null),
      ]
      expect([path.join('.'), nothing]).toEqual([path.join('.'), omitted])
      expect(omitted).toBeLessThan(500)
    }
  },
  120_000,
)

const extremes: Record<string, unknown[]> = {
  number: [Number.MAX_SAFE_INTEGER, 1e308, 5e-324, 2 ** 31, raw('-0.0')],
  string: [
    'a/b',
    '../../etc/passwd',
    '日本語 🛰',
    "'; drop table runs; --",
    'ℵ'.repeat(255),
    '__proto__',
    '%00',
    '\\',
  ],
}

test.each(named)(
  '%s: the largest, the smallest and the strangest values are accepted or refused, and nothing fails',
  async (_name, example) => {
    const cases = places
      .placesOf(example.body('x'), places.schemaOf(example))
      .flatMap(({ path, value }) => (extremes[typeof value] ?? []).map((extreme) => ({ path, extreme })))
    const wrong: string[] = []
    for (const { path, extreme } of spread(cases, 50)) {
      const status = await statusOf(example, path, extreme)
      if (status >= 500) wrong.push(`${path.join('.')} = ${String(extreme)}: ${String(status)}`)
    }
    expect(wrong).toEqual([])
  },
  120_000,
)

test('what was accepted of it is planned, simulated or refused with a reason: nothing hangs', async () => {
  const open = async (): Promise<unknown[]> => [
    ...(await service.get('/execution-runs/?status=running')).items,
    ...(await service.get('/execution-runs/?status=created')).items,
    ...(await service.get('/planning-sessions/')).filter(
      ({ status }: Json) => status === 'queued' || status === 'running',
    ),
  ]
  const until = Date.now() + 60_000
  let left = await open()
  while (left.length > 0 && Date.now() < until) {
    await new Promise((resolve) => setTimeout(resolve, 200))
    left = await open()
  }
  expect(left).toEqual([])
}, 90_000)

test.each([2 ** 31, Number.MAX_SAFE_INTEGER])(
  'a machine described with %d cores and a capacity of two is planned for like any other',
  async (cpuCores) => {
    const key = fresh()
    const machine = {
      id: key,
      name: key,
      providerId: key,
      executionTarget: 'direct',
      cpuCores,
      cpuCapacity: 2,
      memoryBytes: 2 ** 31,
      computeSpeedup: 1,
      schedulable: true,
    }
    await service.post('/environments/', {
      environment: { id: key, name: key },
      version: { id: `${key}-v1`, version: 1 },
      resources: [machine],
    })
    await service.post('/execution-scopes/', { id: key, name: key, environmentVersionIds: [`${key}-v1`] })
    await service.post('/workflow-definitions/', {
      name: key,
      spec: {
        namespace: 'tests',
        activities: ['a', 'b', 'c'].map((name) => ({
          name,
          cpuLimit: '1',
          simulation: { durationSeconds: 1 },
        })),
      },
    })
    await service.post('/planning-sessions/', {
      id: key,
      workflowVersionId: `${key}-v1`,
      executionScopeId: key,
      algorithms: [{ id: 'heft' }],
    })
    let session: Json = {}
    for (
      const began = performance.now();
      session['status'] !== 'completed' && session['status'] !== 'failed';
      await beforeNextLook(began)
    )
      session = (await service.get(`/planning-sessions/${key}/`)).session as Json
    const [candidate] = await service.get(`/planning-sessions/${key}/candidates/`)
    // Two of the three fit beside each other.
    expect([session['status'], candidate.predicted]).toEqual([
      'completed',
      { makespanSeconds: 2, cost: 0, feasible: true },
    ])
  },
)

const segment = fc.oneof(
  fc.constantFrom(
    'base',
    'base-v1',
    'base-plan',
    'base-flow',
    'default',
    'client-0',
    'nobody',
    '..',
    'import',
  ),
  fc.string({ unit: 'binary', minLength: 1, maxLength: 20 }),
)
const encoded = (id: string): string => encodeURIComponent(id.toWellFormed())

test('400 requests of every kind to every route: no internal error, and every answer is one that the document promises', async () => {
  const operations = Object.entries<Json>(document['paths'])
    // A reset empties the service under test.
    .filter(([path, item]) => item['servers'] === undefined && path !== '/factory-reset/')
    .flatMap(([path, item]) =>
      Object.keys(item)
        .filter((method) => method !== 'head')
        .map((method) => ({ method: method.toUpperCase(), path })),
    )
  const bodies = fc.oneof(
    {
      weight: 4,
      arbitrary: fc.record({
        example: fc.constantFrom(...examples),
        at: fc.nat(),
        value: fc.jsonValue({ maxDepth: 3 }),
      }),
    },
    { weight: 1, arbitrary: fc.jsonValue({ maxDepth: 4 }).map((value) => ({ text: JSON.stringify(value) })) },
    {
      weight: 1,
      arbitrary: fc.string({ unit: 'binary', maxLength: 200 }).map((text) => ({ text: text.toWellFormed() })),
    },
  )
  const request = fc.record({
    operation: fc.constantFrom(...operations),
    ids: fc.array(segment, { minLength: 3, maxLength: 3 }),
    query: fc.oneof(
      { weight: 3, arbitrary: fc.constant('') },
      fc.constantFrom(
        '?page=2&pageSize=1',
        '?page=-1',
        '?pageSize=1000000000',
        '?status=running',
        '?tail=1',
        '?x=1',
      ),
      fc.webQueryParameters().map((text) => `?${text}`),
    ),
    body: bodies,
    type: fc.constantFrom(
      'application/json',
      'application/yaml',
      'application/json; charset=utf-8',
      'text/plain',
    ),
    headers: fc.dictionary(
      fc.constantFrom(
        'accept',
        'if-match',
        'if-none-match',
        'idempotency-key',
        'x-request-id',
        'last-event-id',
      ),
      fc.oneof(
        fc.constantFrom(
          '*',
          '"a"',
          'W/"a"',
          '*/*',
          'text/html',
          'text/event-stream',
          'application/problem+json',
          '5',
        ),
        fc.string({ unit: 'grapheme-ascii', minLength: 1, maxLength: 30 }).map((text) => text.trim() || 'x'),
      ),
      { maxKeys: 2 },
    ),
  })
  await fc.assert(
    fc.asyncProperty(request, async ({ operation, ids, query, body, type, headers }) => {
      let at = 0
      const path = operation.path.replaceAll(/\{\w+\}/g, () => encoded(ids[at++] ?? ''))
      const key = fresh()
      let text: string
      if ('text' in body) text = body.text
      else {
        // A valid document of some route with one place of it changed; mostly of another route,
        // which must not matter.
        const own = examples.filter(
          ({ template, method }) => template === operation.path && method === operation.method,
        )
        const example = own[body.at % Math.max(1, own.length)] ?? body.example
        const all = places.placesOf(example.body(key), places.schemaOf(example))
        text = JSON.stringify(changed(example.body(key), all[body.at % all.length]?.path ?? [], body.value))
      }
      const answer = await service.call(
        operation.method,
        path + query,
        operation.method === 'GET' ? undefined : text,
        operation.method === 'GET' ? headers : { 'content-type': type, ...headers },
      )
      expect([answer.status, answer.text]).not.toEqual([500, expect.anything()])
      // The console is off, lest a command of the dice is run.
      const off = operation.path.startsWith('/console-') && answer.body?.code === 'unavailable'
      if (answer.status >= 500 && !off)
        expect(answer.body).toMatchObject({
          code: 'not_built',
          error: expect.stringMatching(/not built in this version/),
        })
    }),
    { numRuns: 400, seed: 20_260, endOnFailure: true },
  )
}, 120_000)
