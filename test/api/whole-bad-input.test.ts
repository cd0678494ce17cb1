import { afterAll, beforeAll, describe, expect, test } from '@jest/globals'
import { once } from 'node:events'
import { request, type IncomingMessage } from 'node:http'
import { connect } from 'node:net'
import { isDeepStrictEqual } from 'node:util'
import { json as readJson } from 'node:stream/consumers'
import { withoutPlaybooks } from '../support/cloud.ts'
import { isForLack } from '../support/needs.ts'
import { makeVaultKeyFile } from '../support/reach.ts'
import { openService, type TestService } from '../support/service.ts'
import { openShare } from '../support/share.ts'
import { tableCounts } from '../support/table-counts.ts'
import {
  cloudConfiguration,
  examples,
  makeBaseWorld,
  worldVariables,
  type Example,
} from './whole-documents.ts'
import { changed, openPlaces, raw, written } from './whole-places.ts'

type Json = Record<string, any>

let service: TestService
let document: Json
let places: ReturnType<typeof openPlaces>
beforeAll(async () => {
  service = await openService({
    environment: {
      SERVICE_CONSOLE_ENABLED: 'true',
      SERVICE_VAULT_KEY_FILE: makeVaultKeyFile(),
      ...worldVariables,
    },
  })
  document = (await (await fetch(`${service.rootUrl}/openapi.json`)).json()) as Json
  places = openPlaces(document)
  await makeBaseWorld(service)
})
afterAll(() => service[Symbol.asyncDispose]())

const nameOf = ({ method, template, form }: Example): string =>
  `${method} ${template}${form === undefined ? '' : `, ${form}`}`
const named = examples.map((example) => [nameOf(example), example] as const)

let made = 0
const fresh = (): string => `k${String((made += 1))}`

/**
 * Sends a body as it is; unlike `fetch`, which copies it four times, of which 32 MiB take a second.
 */
const send = async (
  example: Example,
  key: string,
  body?: string | Buffer,
  type?: string,
): Promise<{ status: number; body: any }> => {
  const sent = request(service.baseUrl + example.path(key), {
    method: example.method,
    headers: {
      ...(type === undefined ? {} : { 'content-type': type }),
      ...(body === undefined ? {} : { 'content-length': Buffer.byteLength(body) }),
    },
  })
  sent.end(body)
  const [answer] = (await once(sent, 'response')) as [IncomingMessage]
  // An answer that comes before the body is read may be followed by the end of the connection.
  sent.on('error', () => undefined)
  return { status: answer.statusCode ?? 0, body: await readJson(answer) }
}

/** Until nothing is planned, simulated, copied, indexed or asked of a cloud any more. */
const atRest = async (): Promise<void> => {
  for (;;) {
    const runs = (await service.get('/execution-runs/?pageSize=100')).items as { run: { status: string } }[]
    const sessions = (await service.get('/planning-sessions/')) as { status: string }[]
    const downloads = (await service.get('/storages/base-files/downloads/')) as { status: string }[]
    const indexRuns = (await service.get('/storages/base-files/index-runs/')) as { status: string }[]
    const clouds = (await service.get('/cloud-operations/')) as { status: string }[]
    const still = [...downloads, ...indexRuns, ...clouds].some(({ status }) =>
      ['queued', 'running', 'streaming'].includes(status),
    )
    if (
      !still &&
      runs.every(({ run }) => run.status === 'completed') &&
      sessions.every(({ status }) => status === 'completed')
    )
      return
    await new Promise((resolve) => setTimeout(resolve, 50))
  }
}

/** Nothing that the tests of a group send, all of which is refused, leaves a row. */
const leavingNothing = (): void => {
  let before: Record<string, number>
  beforeAll(async () => {
    before = await tableCounts(service.db)
  })
  afterAll(async () => {
    expect(await tableCounts(service.db)).toEqual(before)
  })
}

/** Every answer in `wrong` deviates from what was expected of it. */
const refusingAll = async (
  work: (
    expectStatus: (what: string, answer: { status: number; body: any }, ...allowed: number[]) => void,
  ) => Promise<void>,
): Promise<void> => {
  const wrong: string[] = []
  await work((what, { status, body }, ...allowed) => {
    if (!allowed.includes(status))
      wrong.push(
        `${what}: ${String(status)} instead of ${allowed.join(' or ')}: ${JSON.stringify(body).slice(0, 200)}`,
      )
    else if (
      typeof body.error !== 'string' ||
      body.error === '' ||
      typeof body.code !== 'string' ||
      !Array.isArray(body.details)
    )
      wrong.push(`${what}: not the common error: ${JSON.stringify(body)}`)
  })
  expect(wrong).toEqual([])
}

/**
 * What functions call back: nothing is said of a call, and no document looked at, without the
 * signed link of the call.
 */
const isLinked = (path: string): boolean => path.startsWith('/function-calls/')
/**
 * What is taken here runs on this machine, or empties the service: documents of the console and of
 * a reset are tried in tests of their own, not changed at random.
 */
const runs = (path: string): boolean => path.startsWith('/console-') || path === '/factory-reset/'

describe('the examples', () => {
  test('are of every route that takes a document', () => {
    const taking = Object.entries<Json>(document['paths']).flatMap(([path, item]) =>
      Object.entries<Json>(item)
        .filter(
          ([, operation]) =>
            operation['requestBody']?.content['application/json'] !== undefined &&
            !isLinked(path) &&
            !runs(path),
        )
        .map(([method]) => `${method.toUpperCase()} ${path}`),
    )
    expect([...new Set(examples.map(({ method, template }) => `${method} ${template}`))].sort()).toEqual(
      taking.sort(),
    )
  })

  test.each(named)('%s is accepted, as JSON and as YAML', async (_name, example) => {
    for (const type of ['application/json', 'application/yaml']) {
      // One run of a storage is open at a time.
      if (example.template.endsWith('/index-runs/')) await atRest()
      const key = fresh()
      const answer = await send(example, key, JSON.stringify(example.body(key)), type)
      if (isForLack(answer.body.error, 'ansible-core', 'bubblewrap')) continue
      expect([answer.status < 300, answer.body]).toEqual([true, expect.anything()])
    }
  })

  test('a cloud target takes no more instances than its maximum', async () => {
    const folder = '/environments/clouds'
    const target = examples.find(({ template }) => template.endsWith('/cloud-capacity-targets/'))
    await service.post(`${folder}/cloud-capacity-targets/`, {
      ...target?.body('full'),
      ...withoutPlaybooks,
      configuration: cloudConfiguration,
      maximumInstances: 1,
    })
    const instance = (name: string) =>
      service.call('POST', `${folder}/cloud-instances/`, {
        ...{ capacityTargetId: 'full', name, sshUsername: 'akoflow', instanceId: name },
      })
    const first = await instance('full-1')
    expect([first.status, first.body]).toEqual([202, expect.anything()])
    const second = await instance('full-2')
    expect([second.status, second.body.state]).toEqual([409, 'maximum-instances'])
  })

  test('have been planned and simulated when the rest begins', atRest)
})

describe('what is no document', () => {
  leavingNothing()
  const deep = (open: string, close: string): string => open.repeat(100_000) + close.repeat(100_000)
  const bomb = [
    'a: &a [x, x, x, x, x, x, x, x, x]',
    ...'bcdefghi'.split('').map(
      (name, i) =>
        `${name}: &${name} [${Array(9)
          .fill(`*${'abcdefgh'[i] ?? ''}`)
          .join(', ')}]`,
    ),
  ].join('\n')

  const isSent = openShare(10)
  const isTyped = openShare(8)
  test.each(named)('%s refuses it with 400', async (_name, example) => {
    const whole = JSON.stringify(example.body('never'))
    await refusingAll(async (expectStatus) => {
      const json: Record<string, string> = {
        'not JSON': 'hello',
        'half JSON': whole.slice(0, whole.length / 2),
        'JSON and more': `${whole}}`,
        NaN: '{"id": NaN}',
        'an array': '[]',
        'a number': '7',
        'a text': '"text"',
        'nested 100,000 deep': deep('{"a":', '').replace(/:$/, ':1') + '}'.repeat(100_000),
        'arrays 100,000 deep': `{"metadata": ${deep('[', ']')}}`,
        'not UTF-8': '',
      }
      for (const [what, text] of Object.entries(json).filter(isSent))
        expectStatus(
          what,
          await send(
            example,
            'never',
            what === 'not UTF-8' ? Buffer.from([0x7b, 0x22, 0xff, 0x22, 0x7d]) : text,
          ),
          400,
        )
      expectStatus(
        'a proto',
        await send(example, 'never', `{"__proto__": {"polluted": true}, ${whole.slice(1)}`),
        422,
      )
      const yaml: Record<string, string> = {
        'not YAML': '{a: [',
        'an alias bomb': bomb,
        'a tag': 'id: !!js/function "x"\n',
        'an own tag': 'id: !thing {a: 1}\n',
        'a key twice': `id: a\nid: b\n`,
        'two documents': 'id: a\n---\nid: b\n',
        'sequences 100,000 deep': `metadata: ${deep('[', ']')}`,
        'a list': '- a\n- b\n',
        'an unknown alias': 'id: *nowhere\n',
      }
      for (const [what, text] of Object.entries(yaml).filter(isSent))
        expectStatus(`YAML: ${what}`, await send(example, 'never', text, 'application/yaml'), 400)
      const { requestBody } = document['paths'][example.template][example.method.toLowerCase()]
      if (requestBody.required === true) expectStatus('no body', await send(example, 'never'), 400, 422)
      expectStatus('null', await send(example, 'never', 'null', 'application/json'), 400, 422)
      for (const type of [
        'text/plain',
        'application/xml',
        'multipart/form-data; boundary=x',
        'application/json; charset=iso-8859-1',
        'application/x-www-form-urlencoded',
        '*/*',
      ].filter(isTyped))
        expectStatus(
          type,
          await send(example, 'never', whole, type),
          // A context comes as a form, too: this one has no field.
          example.template === '/build-contexts/' && type.startsWith('multipart/') ? 422 : 415,
        )
    })
    expect(({} as Json)['polluted']).toBeUndefined()
  })

  test('what is said of broken JSON does not quote it', async () => {
    for (const text of [
      '{"password": "hunter2" "',
      '{"name":"\\"\\ud800\\"hunter2 and more text around it", "a": 1',
      '["hunter2", hunter2]',
      'hunter2',
    ]) {
      const { status, body } = await send(examples[0]!, 'never', text)
      expect([status, body.error]).toEqual([400, expect.not.stringContaining('hunter2')])
    }
  })

  test('32 MiB and one byte is 413 everywhere, and 32 MiB is not', async () => {
    const isLarge = openShare(12)
    const limit = 32 * 1024 * 1024
    const padded = (bytes: number): Buffer =>
      Buffer.concat([
        Buffer.from('{"unknown key of the test":"'),
        Buffer.alloc(bytes - 30, 'x'),
        Buffer.from('"}'),
      ])
    const over = padded(limit + 1)
    expect(over).toHaveLength(limit + 1)
    await refusingAll(async (expectStatus) => {
      for (const [name, example] of named.filter(isLarge))
        expectStatus(name, await send(example, 'never', over), 413)
      const most = padded(limit)
      for (const template of ['/environments/', '/workflow-definitions/'])
        expectStatus(
          template,
          await send(
            examples.find((one) => one.template === template)!,
            'never',
            most,
          ),
          400,
        )
      // Without a length the limit is found while reading.
      const chunks = new ReadableStream({
        start(controller) {
          for (let at = 0; at < over.length; at += 1 << 20)
            controller.enqueue(over.subarray(at, at + (1 << 20)))
          controller.close()
        },
      })
      const answer = await fetch(`${service.baseUrl}/environments/`, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: chunks,
        duplex: 'half',
      } as RequestInit)
      expectStatus('chunked', { status: answer.status, body: await answer.json() }, 413)
    })
  })

  test('a body that ends half-way leaves nothing', async () => {
    await refusingAll(async () => {
      for (const [, example] of named) {
        const body = JSON.stringify(example.body('half'))
        const socket = connect(Number(new URL(service.baseUrl).port), '127.0.0.1')
        const received: Buffer[] = []
        socket.on('data', (data: Buffer) => received.push(data))
        socket.on('error', () => undefined)
        const closed = once(socket, 'close')
        socket.end(
          `${example.method} /api${example.path('half')} HTTP/1.1\r\nHost: ` +
            `localhost\r\nContent-Type: application/json\r\nContent-Length: ${String(body.length + 1)}\r\n\r\n${body}`,
        )
        await closed
        expect(Buffer.concat(received).toString()).toMatch(/^$|^HTTP\/1\.1 400 /)
      }
    })
  })
})

/** Whether a schema is that of numbers, and not of any value. */
const typed = (schema: Json): boolean => schema['type'] === 'number' || schema['type'] === 'integer'

/** Of the values of fields. */
const isPlayed = openShare(25)

const samplesOf: Record<string, unknown> = { string: 'text', number: 7, boolean: true, array: [], object: {} }

describe('every field of every document', () => {
  leavingNothing()
  test.each(named)('%s: a wrong JSON type and an unknown key are 400', async (_name, example) => {
    const valid = example.body('never')
    await refusingAll(async (expectStatus) => {
      for (const { path, value, schema } of places.placesOf(valid, places.schemaOf(example))) {
        const types = places.typesOf(schema)
        const where = path.join('.')
        if (types !== undefined) {
          const allowed = types.has('integer') ? new Set([...types, 'number']) : types
          for (const [type, sample] of Object.entries(samplesOf)) {
            if (allowed.has(type) || !isPlayed()) continue
            expectStatus(
              `${where} as ${type}`,
              await send(example, 'never', written(changed(valid, path, sample))),
              400,
            )
          }
        }
        if (typeof value === 'object' && value !== null && !Array.isArray(value)) {
          const own = places.alternative(schema, value)
          expectStatus(
            `${where}.__proto__`,
            await send(
              example,
              'never',
              written(changed(valid, [...path, 'to-be-proto'], 1)).replace('to-be-proto', '__proto__'),
            ),
            422,
          )
          if (own['additionalProperties'] === false)
            expectStatus(
              `${where}.unknown`,
              await send(example, 'never', written(changed(valid, [...path, 'unknownKey'], 1))),
              400,
            )
        }
      }
    })
  })

  test.each(named)(
    '%s: missing, null, out of range, too long and unprintable values are 422',
    async (_name, example) => {
      const valid = example.body('never')
      await refusingAll(async (expectStatus) => {
        const demand = async (what: string, path: (string | number)[], value: unknown): Promise<void> => {
          if (!isPlayed()) return
          const answer = await send(example, 'never', written(changed(valid, path, value)))
          expectStatus(`${path.join('.')} ${what}`, answer, 422)
        }
        for (const { path, value, schema, required } of places.placesOf(valid, places.schemaOf(example))) {
          if (path.length === 0) continue
          const own = places.alternative(schema, value)
          if (required && path.join('.') !== example.discriminator) {
            await demand('missing', path, undefined)
            await demand('null', path, null)
          }
          if (typeof value === 'number') {
            await demand('1e400', path, raw('1e400'))
            await demand('-1e400', path, raw('-1e400'))
            if (typed(own)) {
              expect([path.join('.'), own['maximum']]).toEqual([path.join('.'), expect.any(Number)])
              if (own['type'] === 'number') await demand('1e308', path, 1e308)
              if (/^0, or /.test(own['description'] ?? '')) await demand('5e-324', path, 5e-324)
            }
            if ((own['minimum'] ?? own['exclusiveMinimum'] ?? -1) >= 0) await demand('-1', path, -1)
            if (own['exclusiveMinimum'] === 0 || own['minimum'] === 1) await demand('0', path, 0)
            if (own['type'] === 'integer') {
              await demand('1.5', path, 1.5)
              await demand('2^53+1', path, raw('9007199254740993'))
              await demand('40 digits', path, raw('1'.repeat(40)))
            }
          }
          if (typeof value === 'string') {
            await demand('NUL', path, `a\0b`)
            await demand('lone surrogate', path, 'a\ud800')
            if (own['enum'] !== undefined || own['const'] !== undefined)
              await demand('no such word', path, 'no-such-word')
            if ((own['minLength'] ?? 0) > 0) await demand('blank', path, '')
            if (own['maxLength'] === 255 && (own['minLength'] ?? 0) > 0) {
              await demand('1,000 characters', path, 'x'.repeat(1_000))
              await demand('a control character', path, 'a\u0007b')
            } else if (typeof own['maxLength'] === 'number' && own['maxLength'] <= 2 ** 20)
              await demand('too long', path, 'x'.repeat(own['maxLength'] + 1))
          }
        }
      })
    },
  )
})

describe('a blank text counts as left out where it may be left out', () => {
  // What comes behind counts rows.
  afterAll(atRest)

  test('in every document of every route, as far as its schema goes', async () => {
    const differing: string[] = []
    const isAsked = openShare(8)
    let found = 0
    for (const [path, item] of Object.entries<Json>(document['paths']))
      for (const [method, operation] of Object.entries<Json>(item)) {
        const schema = operation['requestBody']?.content['application/json']?.schema as Json | undefined
        if (schema === undefined || isLinked(path) || path === '/factory-reset/') continue
        const at = path.replaceAll(/\{\w+\}/g, 'no-such-record')
        for (const text of places.optionalTexts(schema)) {
          // The members at the top tell the form of a workflow.
          if (path.startsWith('/workflow-definitions/') && text.path.length === 0) continue
          found += 1
          if (!isAsked()) continue
          const sent = (members: Json): unknown =>
            text.path.reduceRight<unknown>(
              (inner, step) => (typeof step === 'number' ? [inner] : { [step]: inner }),
              members,
            )
          const [blank, without] = [{ [text.name]: '' }, {}].map((members) =>
            service.call(method.toUpperCase(), at, sent(members)),
          )
          const [one, other] = [await blank!, await without!]
          if (one.status !== other.status || !isDeepStrictEqual(one.body.details, other.body.details))
            differing.push(
              `${method} ${path} ${[...text.path, text.name].join('.')}: ${one.text.slice(0, 200)} beside ` +
                other.text.slice(0, 200),
            )
        }
      }
    expect(differing).toEqual([])
    expect(found).toBeGreaterThan(300)
  })

  /** The places of blank texts in an answer, without the numbers of items. */
  const blanksOf = (value: unknown, at = ''): string[] => {
    if (value === '') return [at]
    if (typeof value !== 'object' || value === null) return []
    const inner = Object.entries(value).flatMap(([key, member]) =>
      blanksOf(member, Array.isArray(value) ? `${at}[]` : `${at}.${key}`),
    )
    return [...new Set(inner)].toSorted()
  }

  test.each(named)('%s: its texts are blank', async (_name, example) => {
    const answers: unknown[] = []
    for (const as of ['left out', 'blank'] as const) {
      if (example.template.endsWith('/index-runs/')) await atRest()
      const key = fresh()
      const body = places.withTexts(example.body(key), places.schemaOf(example), as)
      const { status, body: answer } = await send(example, key, written(body))
      // What was promoted before is answered with 200 instead of 201.
      answers.push([status < 300 ? 'taken' : status, answer.details, blanksOf(answer)])
    }
    expect(answers[1]).toEqual(answers[0])
  })
})

describe('every path and query', () => {
  leavingNothing()
  const operations = (): { method: string; path: string; operation: Json }[] =>
    Object.entries<Json>(document['paths'])
      .filter(([, item]) => item['servers'] === undefined)
      .flatMap(([path, item]) =>
        Object.entries<Json>(item)
          // A WebSocket is asked for in another way.
          .filter(([method, operation]) => method !== 'head' && operation['responses']?.['101'] === undefined)
          .map(([method, operation]) => ({ method: method.toUpperCase(), path, operation })),
      )

  test('an id that cannot be one is 400, one that nobody has 404', async () => {
    const isAsked = openShare(8)
    await refusingAll(async (expectStatus) => {
      for (const { method, path, operation } of operations()) {
        // Preferences are made for any client, and a document is looked at before its path.
        if (!path.includes('{') || operation['requestBody'] !== undefined) continue
        const tail = /\{\w+\}$/.test(path)
        // A record of an entity is asked for by both; an entity that nobody knows is 400.
        const entity = path.includes('{id}') ? path.replace('{entity}', 'resources') : path
        const at = (id: string): string => entity.replaceAll(/\{\w+\}/g, id)
        const unknown = isLinked(path) ? 401 : entity.includes('{entity}') ? 400 : 404
        const impossible = ['%00', 'a%07b', '%', '%ff', '%ed%a0%80', 'x'.repeat(tail ? 5_000 : 1_100)]
        for (const id of impossible.filter(isAsked))
          expectStatus(`${method} ${path} ${id.slice(0, 20)}`, await service.call(method, at(id)), 400)
        for (const id of [
          'a%2Fb',
          '..%2F..%2Fetc%2Fpasswd',
          '%E6%97%A5%E6%9C%AC',
          '__proto__',
          'constructor',
          '%27%20or%201%3D1',
          '%C2%A0',
        ].filter(isAsked))
          expectStatus(`${method} ${path} ${id}`, await service.call(method, at(id)), unknown)
      }
    })
  })

  test('an unknown, repeated or malformed query parameter is 400', async () => {
    await refusingAll(async (expectStatus) => {
      for (const { method, path, operation } of operations()) {
        const at = path.replaceAll(/\{\w+\}/g, 'no-such-record')
        for (const query of ['unknown=1', '__proto__=1', 'a=%', 'constructor=1'])
          expectStatus(`${method} ${path}?${query}`, await service.call(method, `${at}?${query}`), 400)
        const names = (operation['parameters'] as Json[])
          .filter((one) => one['in'] === 'query')
          .map((one) => one['name'] as string)
        for (const name of names)
          expectStatus(
            `${method} ${path} ${name} twice`,
            await service.call(method, `${at}?${name}=1&${name}=1`),
            400,
          )
        for (const name of names.filter((one) => one === 'page' || one === 'pageSize'))
          for (const value of ['abc', '1.5', '1e3', '99999999999999999999', '0x1'])
            expectStatus(
              `${method} ${path}?${name}=${value}`,
              await service.call(method, `${at}?${name}=${value}`),
              400,
            )
      }
    })
  })
})

describe('a value that PostgreSQL does not take', () => {
  const odd = [
    ...[
      '1e400',
      '-1e400',
      '1e-400',
      '5e-324',
      '1e308',
      'NaN',
      'Infinity',
      '-1',
      '9'.repeat(15),
      '9'.repeat(40),
    ],
    ...['0000-01-01T00:00:00Z', '0001-01-01T00:00:00Z', '0001-01-01T00:00:00+15:59', '9999-12-31T23:59:59Z'],
    ...['9999-12-31T23:59:59-15:59', '2026-01-01T00:00:00+16:00', '2026-01-01T00:00:00-23:59'],
    ...['2026-02-30T00:00:00Z', '2026-01-01T24:00:00Z', '2026-01-01T23:59:60Z', '+10000-01-01T00:00:00Z'],
    ...['null', '[]', '{}', 'true', '😀', "'", '\\', '%', 'a\u2028b', ' '],
  ].map(encodeURIComponent)
  const isTried = openShare(20)

  test('is an answer or 400 in every query of a list', async () => {
    const refused: string[] = []
    for (const [path, item] of Object.entries<Json>(document['paths'])) {
      if (path.includes('{') || item['get'] === undefined || item['servers'] !== undefined) continue
      const names = ((item['get'].parameters ?? []) as Json[]).filter((one) => one['in'] === 'query')
      for (const { name } of names)
        for (const value of odd.filter(isTried)) {
          const { status } = await service.call('GET', `${path}?${String(name)}=${value}`)
          if (status >= 500 && status !== 503) refused.push(`${path}?${String(name)}=${value}: ${status}`)
        }
    }
    expect(refused).toEqual([])
    const long = `2026-01-01T00:00:00.${'1'.repeat(200)}Z`
    for (const time of ['0000-01-01T00:00:00Z', '2026-01-01T00:00:00-23:59', long])
      expect((await service.call('GET', `/execution-runs/?since=${encodeURIComponent(time)}`)).status).toBe(
        400,
      )
  })

  test('a filter of records needs its value, which may be blank', async () => {
    const example = examples.find(({ template }) => template === '/schedule-plans/import/')!
    const { plan } = example.body('blank-plan') as { plan: Json }
    await service.post('/schedule-plans/import/', { plan: { ...plan, algorithm: '' } })
    const at = '/provenance/entities/plans/'
    const { items, total } = await service.get(`${at}?filterField=algorithm&filterValue=`)
    expect([total > 0, items.every(({ algorithm }: Json) => algorithm === '')]).toEqual([true, true])
    expect(total).toBeLessThan((await service.get(at)).total)
    const refused = await service.call('GET', `${at}?filterField=algorithm`)
    expect([refused.status, refused.body.details.map(({ path }: Json) => path)]).toEqual([
      400,
      ['filterValue'],
    ])
    expect((await service.get(`${at}?filterField=&filterValue=`)).total).toBe((await service.get(at)).total)
  })

  test('is an answer or 400 as a filter by any field of the record', async () => {
    const { items } = await service.get('/provenance/entities/')
    const refused: string[] = []
    for (const { name, fields } of items as { name: string; fields: { name: string }[] }[])
      for (const field of fields)
        for (const value of odd.filter(isTried)) {
          const path = `/provenance/entities/${name}/?filterField=${field.name}&filterValue=${value}`
          const { status } = await service.call('GET', path)
          if (status >= 500) refused.push(`${path}: ${status}`)
        }
    expect(refused).toEqual([])
    for (const [field, value] of [
      ['cost', '1e400'],
      ['created_at', '0000-01-01T00:00:00Z'],
      ['created_at', '9999-12-31T23:59:59-15:59'],
    ]) {
      const path = `/provenance/entities/runs/?filterField=${field}&filterValue=${value}`
      expect([path, (await service.call('GET', path)).status]).toEqual([path, 400])
    }
  })
})

describe('a document with one violation of each kind gets all of them at once', () => {
  leavingNothing()
  const base = (template: string, form?: string): Json =>
    structuredClone(
      examples.find((example) => example.template === template && example.form === form)!.body('wrong'),
    ) as Json
  /** The paths of `details`, and that nothing was stored. */
  const details = async (path: string, body: unknown): Promise<string[]> => {
    let found: string[] = []
    await refusingAll(async (expectStatus) => {
      const answer = await service.call('POST', path, written(body), { 'content-type': 'application/json' })
      expectStatus(path, answer, 422)
      found = [...new Set((answer.body.details as { path: string }[]).map((detail) => detail.path))].sort()
    })
    return found
  }

  test('environment', async () => {
    const document = base('/environments/')
    document['environment'] = { id: 'base', name: ' ' }
    document['version'].version = null
    document['runtimes'][0].driver = 'teleport'
    document['runtimes'][1].name = document['runtimes'][0].name
    delete document['resources'][0].id
    document['resources'][0].cpuCapacity = -1
    document['resources'][1].providerId = 'same'
    document['resources'].push({ ...document['resources'][1], id: 'x'.repeat(300) })
    document['resources'][1].memoryBytes = raw('1e400')
    document['resourceRuntimeBindings'] = [
      { resourceId: 'nobody', runtimeId: 'wrong-simulator' },
      { resourceId: 'wrong-2', runtimeId: 'wrong-nothing' },
      { resourceId: 'wrong-2', runtimeId: 'wrong-nothing' },
    ]
    document['resourceRelations'] = [
      { sourceResourceId: 'wrong-2', targetResourceId: 'wrong-2', type: 'contains' },
    ]
    document['storages'].push({
      ...document['storages'][0],
      id: 'other-disk',
      name: 'other',
      capacityBytes: -5,
    })
    document['activityResourceProfiles'] = [
      { id: 'p', activityTypeId: 'no-such-type', resourceId: 'wrong-2' },
    ]
    document['connections'].push({ ...document['connections'][0], id: 'other' })
    expect(await details('/environments/', document)).toEqual(
      expect.arrayContaining([
        'activityResourceProfiles.0.activityTypeId',
        'connections.1.name',
        'environment.id',
        'environment.name',
        'resourceRelations.0.targetResourceId',
        'resourceRuntimeBindings.0.resourceId',
        'resources.0.cpuCapacity',
        'resources.0.id',
        'resources.1.memoryBytes',
        'resources.2.id',
        'resources.2.providerId',
        'runtimes.0.driver',
        'runtimes.1.name',
        'storages.1.capacityBytes',
        'version.version',
      ]),
    )
  })

  test('scope', async () => {
    expect(
      await details('/execution-scopes/', {
        id: 'base-scope',
        name: '',
        environmentVersionIds: ['base-v1', 'base-v1', 'none-v1', ''],
      }),
    ).toEqual(
      expect.arrayContaining([
        'environmentVersionIds.1',
        'environmentVersionIds.2',
        'environmentVersionIds.3',
        'id',
        'name',
      ]),
    )
  })

  test('topology', async () => {
    const link = (over: Json): Json => ({
      id: 'l',
      sourceResourceId: 'base-1',
      targetResourceId: 'base-2',
      bandwidthBitsPerSecond: 1,
      ...over,
    })
    const links = [
      link({ bandwidthBitsPerSecond: 0 }),
      link({ targetResourceId: 'base-1' }),
      link({ id: 'm', sourceResourceId: 'nobody', latencySeconds: -1 }),
      link({ id: 'n', pricePerByte: raw('-1e999'), maxConcurrentTransfers: 0.5 }),
    ]
    expect(
      await details('/network-topologies/', {
        id: 'base-network',
        name: null,
        version: 0,
        executionScopeId: 'no-scope',
        links,
      }),
    ).toEqual(
      expect.arrayContaining([
        'executionScopeId',
        'id',
        'links.0.bandwidthBitsPerSecond',
        'links.1.id',
        'links.1.targetResourceId',
        'links.2.latencySeconds',
        'links.2.sourceResourceId',
        'links.3',
        'links.3.maxConcurrentTransfers',
        'links.3.pricePerByte',
        'name',
        'version',
      ]),
    )
  })

  test('workflow', async () => {
    const activity = (name: string, over: Json = {}): Json => ({
      name,
      simulation: { durationSeconds: 1 },
      ...over,
    })
    const spec = {
      namespace: '',
      activities: [
        activity('a', { dependsOn: ['b'], cpuLimit: '0' }),
        activity('b', { dependsOn: ['a'], memoryLimit: '1Zi' }),
        activity('c', { dependsOn: ['nobody'], simulation: { durationSeconds: -1 } }),
        activity('c', { policy: { maxAttempts: -1 } }),
        activity('d', { simulation: { durationSeconds: raw('1e400') } }),
        { name: 'e', stage: 'some' },
      ],
      dataDependencies: [
        { producerActivity: 'a', consumerActivity: 'nobody', logicalName: '', sizeBytes: 0 },
      ],
    }
    const found = await details('/workflow-definitions/', { name: 'base-flow', spec })
    expect(found).toEqual(
      expect.arrayContaining([
        'name',
        'spec.activities.0.cpuLimit',
        'spec.activities.1.memoryLimit',
        'spec.activities.2.dependsOn.0',
        'spec.activities.2.simulation.durationSeconds',
        'spec.activities.3.name',
        'spec.activities.3.policy.maxAttempts',
        'spec.activities.4.simulation.durationSeconds',
        'spec.activities.5.stage',
        'spec.dataDependencies.0.consumerActivity',
        'spec.dataDependencies.0.sizeBytes',
        'spec.namespace',
      ]),
    )
    // The cycle.
    expect(found).toContain('spec.activities')
  })

  test('plan', async () => {
    const { plan } = base('/schedule-plans/import/') as { plan: Json }
    const [first, second] = plan['assignments'] as [Json, Json]
    const wrong = {
      ...plan,
      id: 'base-plan',
      source: 'dream',
      budget: -1,
      deadlineSeconds: raw('1e400'),
      assignments: [
        { ...first, resourceId: 'nobody' },
        { ...second, activityId: 'first' },
        { ...second, activityId: 'nobody', orderOnResource: 1.5 },
        { ...second, resourceId: '' },
      ],
    }
    expect(await details('/schedule-plans/import/', { plan: wrong })).toEqual(
      expect.arrayContaining([
        'plan.assignments.0.resourceId',
        'plan.assignments.2.orderOnResource',
        'plan.assignments.3.resourceId',
        'plan.budget',
        'plan.deadlineSeconds',
        'plan.id',
        'plan.source',
      ]),
    )
    const misplaced = {
      ...plan,
      id: 'wrong',
      assignments: [
        { ...first, resourceId: 'nobody' },
        { ...second, activityId: 'first' },
        { ...second, activityId: 'nobody' },
      ],
    }
    const found = await details('/schedule-plans/import/', { plan: misplaced })
    for (const path of [
      /assignments\.0\.resourceId/,
      /assignments\.1\.activityId/,
      /assignments\.2\.activityId/,
    ])
      expect(found.join(' ')).toMatch(path)
  })

  test('planning session', async () => {
    const wrong = {
      id: '',
      workflowVersionId: 'none-v1',
      executionScopeId: 'none',
      networkTopologyId: 'none',
      algorithms: [{ id: 'magic' }, { id: 'heft', configuration: { beamWidth: 0 } }],
      deadlineSeconds: -1,
      budget: raw('1e400'),
    }
    expect(await details('/planning-sessions/', wrong)).toEqual(
      expect.arrayContaining([
        'algorithms.0.id',
        'algorithms.1.configuration.beamWidth',
        'budget',
        'deadlineSeconds',
        'executionScopeId',
        'id',
        'networkTopologyId',
        'workflowVersionId',
      ]),
    )
  })

  test('run', async () => {
    const wrong = {
      run: {
        id: '',
        schedulePlanId: 'none',
        mode: 'dream',
        seed: 0.5,
        title: 'x'.repeat(300),
        networkModel: 'guess',
        onFailure: 'hope',
      },
    }
    expect(await details('/execution-runs/', wrong)).toEqual(
      expect.arrayContaining([
        'run.id',
        'run.mode',
        'run.networkModel',
        'run.onFailure',
        'run.seed',
        'run.title',
      ]),
    )
    const envelope = base('/execution-runs/', 'with its snapshot')
    envelope['plan'].id = 'another-plan'
    envelope['plan'].workflowVersionId = 'another-version'
    envelope['plan'].assignments[0].resourceId = 'base-2'
    envelope['plan'].assignments[1].orderOnResource = 7
    expect(await details('/execution-runs/', envelope)).toEqual([
      'plan.assignments.0.resourceId',
      'plan.assignments.1.orderOnResource',
      'plan.id',
      'plan.workflowVersionId',
    ])
  })
})
