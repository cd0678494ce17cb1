import { afterAll, beforeAll, describe, expect, test } from '@jest/globals'
import fc from '../support/fast-check.ts'
import { readDocument } from '../../src/http/body.ts'
import { createYamlReader } from '../../src/http/yaml-reader.ts'
import { usualBodyPace } from '../../src/http/pace.ts'
import { json, raw, openStars, statusOf, yaml, type Stars } from './stars.ts'
import { growth } from '../support/growth.ts'
import { proved } from '../support/share.ts'

let service: Stars
beforeAll(async () => {
  service = await openStars()
})
afterAll(() => service.close())

const post = (body: unknown) => service.request('/api/stars/', json(body))
const paths = (answer: { body: Record<string, unknown> }) =>
  (answer.body['details'] as { path: string }[]).map((detail) => detail.path)

describe('documents', () => {
  test('are created from JSON, from each YAML type and without Content-Type, and answer with Location', async () => {
    for (const [i, type] of [
      'application/json',
      'application/json; charset=utf-8',
      'application/yaml',
      'application/x-yaml',
      'text/yaml',
      undefined,
    ].entries()) {
      const body =
        type?.includes('yaml') === true
          ? `id: y${i}\nname: Sol\nplanets: 8\n`
          : JSON.stringify({ id: `y${i}`, name: 'Sol', planets: 8 })
      const answer = await service.request('/api/stars/', {
        method: 'POST',
        headers: type === undefined ? {} : { 'content-type': type },
        body: Buffer.from(body),
      })
      expect([type, answer.status]).toEqual([type, 201])
      expect(answer.headers.get('location')).toBe(`/api/stars/y${i}/`)
      expect(answer.body).toMatchObject({ id: `y${i}`, planets: 8, kind: 'dwarf' })
    }
  })

  test('of another type, charset or encoding are 415', async () => {
    for (const headers of [
      { 'content-type': 'text/plain' },
      { 'content-type': 'application/xml' },
      { 'content-type': 'application/jsonx' },
      { 'content-type': 'multipart/form-data; boundary=x' },
      { 'content-type': 'application/json; charset=utf-16' },
      { 'content-type': 'application/json', 'content-encoding': 'gzip' },
    ]) {
      const answer = await service.request('/api/stars/', { method: 'POST', headers, body: '{}' })
      expect([headers, answer.status, answer.body['code']]).toEqual([headers, 415, 'unsupported_media_type'])
    }
  })

  test('with every kind of mistake get all of them at once, as 400 when one is about form', async () => {
    const content = await post({
      name: '  ',
      kind: 'huge',
      planets: -1,
      moons: [{ name: 'Io', radius: 0 }, { radius: null }],
      metadata: {},
    })
    expect(content.status).toBe(422)
    expect(paths(content).toSorted()).toEqual([
      'id',
      'kind',
      'moons.0.radius',
      'moons.1.name',
      'moons.1.radius',
      'name',
      'planets',
    ])
    const form = await post({
      id: 7,
      name: '',
      colour: 'red',
      planets: 'many',
      moons: {},
      light: [],
      kind: 1,
    })
    expect(form.status).toBe(400)
    expect(paths(form).toSorted()).toEqual(['colour', 'id', 'kind', 'light', 'moons', 'name', 'planets'])
    expect(service.stars.has('7')).toBe(false)
  })

  test.each([
    ['a missing field', { name: 'x' }, 422, 'id'],
    ['null where required', { id: null, name: 'x' }, 422, 'id'],
    ['a blank id', { id: '', name: 'x' }, 422, 'id'],
    ['an id of 256 characters', { id: 'x'.repeat(256), name: 'x' }, 422, 'id'],
    ['a control character in an id', { id: 'a\nb', name: 'x' }, 422, 'id'],
    ['a fraction for a whole number', { id: 'a', name: 'x', planets: 1.5 }, 422, 'planets'],
    ['a wrong JSON type', { id: 'a', name: 'x', planets: '1' }, 400, 'planets'],
    ['an object for a string', { id: {}, name: 'x' }, 400, 'id'],
    ['an unknown key', { id: 'a', name: 'x', mas: 1 }, 400, 'mas'],
    [
      'an unknown nested key',
      { id: 'a', name: 'x', moons: [{ name: 'b', radius: 1, r: 1 }] },
      400,
      'moons.0.r',
    ],
    ['a wrong member of a union', { id: 'a', name: 'x', light: { colour: 5 } }, 400, 'light.colour'],
    ['NUL in a text', { id: 'a', name: 'x', metadata: { deep: ['a\0b'] } }, 422, 'metadata.deep.0'],
    ['NUL in a key', { id: 'a', name: 'x', metadata: { 'a\0b': 1 } }, 422, 'metadata.a\0b'],
    ['a lone surrogate', { id: 'a', name: 'x\ud800' }, 422, 'name'],
  ])('with %s', async (_what, body, status, path) => {
    const answer = await post(body)
    expect(answer.status).toBe(status)
    expect(paths(answer)).toContain(path)
    expect(answer.body['code']).toBe(status === 400 ? 'invalid' : 'unacceptable')
  })

  test.each([
    [
      'an integer beyond 2^53-1',
      '{"id":"a","name":"x","metadata":{"n":9007199254740993}}',
      422,
      'metadata.n',
    ],
    [
      'the same, negative, with spaces',
      '{"id":"a","name":"x","metadata":{"n": [ -9999999999999999 ]}}',
      422,
      'metadata.n.0',
    ],
    ['an integer of 400 digits in a measure', `{"id":"a","name":"x","mass":${'9'.repeat(400)}}`, 422, 'mass'],
    ['the same in a declared field', '{"id":"a","name":"x","planets":9007199254740992}', 422, 'planets'],
    ['an infinite number', '{"id":"a","name":"x","mass":1e400}', 422, 'mass'],
    ['__proto__', '{"id":"a","name":"x","__proto__":{"polluted":true}}', 422, '__proto__'],
    [
      '__proto__ inside metadata, escaped',
      '{"id":"a","name":"x","metadata":{"\\u005f_proto__":{"polluted":true}}}',
      422,
      'metadata.__proto__',
    ],
    ['keys that differ only in case', '{"id":"a","name":"x","Name":"y"}', 400, 'Name'],
  ])('whose JSON has %s', async (_what, body, status, path) => {
    const answer = await service.request('/api/stars/', { method: 'POST', body: Buffer.from(body) })
    expect([answer.status, paths(answer)]).toEqual([status, expect.arrayContaining([path])])
    expect(({} as { polluted?: boolean }).polluted).toBeUndefined()
  })

  test('keep every key of a free-form object but __proto__, which is 422', async () => {
    const any = {
      constructor: { prototype: { polluted: true } },
      ...{ prototype: 1, toString: 'x', valueOf: [1], hasOwnProperty: null, toJSON: 1, then: { then: 1 } },
    }
    for (const sent of [json({ any }), yaml(JSON.stringify({ any }))]) {
      const answer = await service.request('/api/echo/', sent)
      expect([answer.status, answer.body]).toEqual([200, { any }])
    }
    const hostile = '{"list": [{"constructor": 1, "__proto__": {"polluted": true}}]}'
    for (const [sent, path] of [
      [{ method: 'POST', body: Buffer.from(`{"any": ${hostile}}`) }, 'any.list.0.__proto__'],
      [yaml(`any: ${hostile}`), 'any.list.0.__proto__'],
      [yaml('any: {<<: {__proto__: {polluted: true}}}'), 'any.__proto__'],
    ] as const) {
      const answer = await service.request('/api/echo/', sent)
      expect([answer.status, answer.body['code'], paths(answer)]).toEqual([422, 'unacceptable', [path]])
      expect(({} as { polluted?: boolean }).polluted).toBeUndefined()
    }
  })

  test('keep large floats, long digits and well-formed Unicode', async () => {
    const body = {
      any: {
        flops: 1e21,
        tiny: 0.12345678901234568,
        digest: '1234567890123456789012345678901234567890',
        text: 'é😀\t\n',
      },
    }
    expect((await service.request('/api/echo/', json(body))).body).toEqual(body)
  })

  test('keep numbers of 2^53 and more that are written with all their digits', async () => {
    for (const text of [
      ...['20000000000000000', '-10000000000000000', '9007199254740992', '9007199254740994'],
      ...['1000000000000000000000', `1${'0'.repeat(300)}`, '12345678901234560000'],
    ]) {
      const any = { n: Number(text), list: [Number(text)] }
      for (const sent of [
        { method: 'POST', body: Buffer.from(`{"any":{"n":${text},"list":[${text}]}}`) },
        yaml(`any: {n: ${text}, list: [${text}]}`),
      ])
        expect((await service.request('/api/echo/', sent)).body).toEqual({ any })
    }
    for (const text of [
      ...['9007199254740993', '20000000000000001', '9223372036854775807', '9223372036854775808'],
      ...['18446744073709551615', '-9007199254740995', '9'.repeat(400)],
    ]) {
      const body = Buffer.from(`{"any":{"n":${text}}}`)
      const answer = await service.request('/api/echo/', { method: 'POST', body })
      expect([text, answer.status, paths(answer)]).toEqual([text, 422, ['any.n']])
    }
  })

  test('nested a hundred times deeper than the bound are 400', async () => {
    for (const [open, close] of [
      ['{"a":', '}'],
      ['[', ']'],
    ] as const) {
      const deep = `${open.repeat(20_000)}1${close.repeat(20_000)}`
      for (const body of [
        `{"id":"a","name":"x","metadata":{"a":${deep}}}`,
        `{"id":"a","name":"x","moons":${deep}}`,
      ]) {
        const answer = await service.request('/api/stars/', { method: 'POST', body: Buffer.from(body) })
        expect([body.slice(0, 60), answer.status, answer.body['code']]).toEqual([
          body.slice(0, 60),
          400,
          'invalid',
        ])
      }
    }
  })

  test('round a declared measure of more than 2^53, as JSON writers spell 1e18 with all its zeros', async () => {
    expect((await post({ id: 'heavy', name: 'x', mass: 1e18 })).body).toMatchObject({ mass: 1e18 })
  })

  test('match keys in any case, and null means omitted where a field may be', async () => {
    const answer = await post({
      ID: 'upper',
      NAME: 'Big',
      Kind: null,
      moons: [{ NAME: 'm', Radius: 2 }],
      note: null,
      mass: null,
      metadata: { Kept: null },
    })
    expect(answer.body).toEqual({
      id: 'upper',
      name: 'Big',
      kind: 'dwarf',
      planets: 0,
      note: null,
      moons: [{ name: 'm', radius: 2 }],
      metadata: { Kept: null },
    })
  })

  test('a blank text means omitted where a field may be, and is 422 where it may not', async () => {
    const blank = await post({ id: 'blank', name: 'x', kind: '', note: '', metadata: { kept: '' } })
    expect(blank.body).toEqual({
      ...{ id: 'blank', name: 'x', kind: 'dwarf', planets: 0, moons: [], metadata: { kept: '' } },
    })
    const refused = await post({ id: '', name: '', kind: '', moons: [{ name: '', radius: 1 }] })
    expect([refused.status, paths(refused)]).toEqual([422, ['id', 'name', 'moons.0.name']])
  })

  test.each([
    ['nothing', ''],
    ['half a document', '{"id":"a"'],
    ['a trailing comma', '{"id":"a",}'],
    ['two documents', '{}{}'],
    ['NaN', '{"planets":NaN}'],
    ['a comment', '{/**/}'],
  ])('that are %s are 400', async (_what, body) => {
    const answer = await service.request('/api/stars/', {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body,
    })
    expect([answer.status, answer.body['code']]).toEqual([400, 'invalid'])
  })

  test('that are not UTF-8 are 400', async () => {
    const answer = await service.request('/api/stars/', {
      method: 'POST',
      body: Buffer.from([0x7b, 0x22, 0xff, 0xfe, 0x22, 0x3a, 0x31, 0x7d]),
    })
    expect(answer.status).toBe(400)
  })

  test('whose root is no object are 400', async () => {
    for (const body of ['[]', '"x"', '5', 'true'])
      expect([
        (await service.request('/api/stars/', { method: 'POST', body: Buffer.from(body) })).status,
        body,
      ]).toEqual([400, body])
    expect((await service.request('/api/stars/', { method: 'POST', body: Buffer.from('null') })).status).toBe(
      422,
    )
  })
})

describe('YAML', () => {
  const values: [string, string, unknown][] = [
    ['anchors', 'any: {a: &x [1, 2], b: *x}', { a: [1, 2], b: [1, 2] }],
    [
      'core scalars',
      'any: [1, 0x10, 1.5, ~, null, true, yes, "1", 2024-01-01]',
      [1, 16, 1.5, null, null, true, 'yes', '1', '2024-01-01'],
    ],
    ['blocks and comments', 'any: # c\n  text: |\n    a\n    b\n  1: one\n', { text: 'a\nb\n', 1: 'one' }],
    ['core tags', 'any: [!!str 5, !!int "7"]', ['5', 7]],
    [
      'a hundred aliases',
      `any: {a: &x v, b: [${Array(100).fill('*x').join(', ')}]}`,
      { a: 'v', b: Array(100).fill('v') },
    ],
    ['a merge key', 'any: {a: &x {k: 1, l: 2}, b: {l: 3, <<: *x}}', { a: { k: 1, l: 2 }, b: { k: 1, l: 3 } }],
    ['a merge of several', 'any: {<<: [{k: 1}, {k: 2, l: 2}], m: 3}', { k: 1, l: 2, m: 3 }],
    [
      'a merge inside a merged map',
      'any: {a: &x {k: 1}, b: &y {<<: *x, l: 2}, c: {<<: *y, l: 4}}',
      { a: { k: 1 }, b: { k: 1, l: 2 }, c: { k: 1, l: 4 } },
    ],
    ['a quoted key of that name', 'any: {"<<": 1}', { '<<': 1 }],
    ['an anchor used before it is defined again', 'any: [&x 1, *x, &x 2, *x]', [1, 1, 2, 2]],
  ]
  test.each(values)('reads %s', async (_what, text, value) => {
    const answer = await service.request('/api/echo/', yaml(text))
    expect([answer.status, answer.body]).toEqual([200, { any: value }])
  })

  const long = 'y'.repeat(700_000)
  const bombs = (levels: number): string =>
    [
      'a0: &a0 [x, x]',
      ...Array.from(
        { length: levels },
        (_, i) =>
          `a${i + 1}: &a${i + 1} [*a${i}, *a${i}, *a${i}, *a${i}, *a${i}, *a${i}, *a${i}, *a${i}, *a${i}]`,
      ),
    ].join('\n')
  test.each([
    ['101 aliases', `any: {a: &x v, b: [${Array(101).fill('*x').join(', ')}]}`],
    ['a billion laughs', bombs(9)],
    ['a long text in 100 aliases', `any: [&x ${long}, ${Array(100).fill('*x').join(', ')}]`],
    ['an anchor inside itself', 'any: &a [*a]'],
    ['an unknown alias', 'any: *nobody'],
    ['a custom tag', 'any: !shell "rm -rf /"'],
    ['a JavaScript tag', 'any: !!js/function "function () {}"'],
    ['a binary tag', 'any: !!binary aGVsbG8='],
    ['duplicate keys', 'any: {a: 1, a: 2}'],
    ['duplicate keys of two types', 'any: {1: a, "1": b}'],
    ['several documents', 'any: 1\n---\nany: 2\n'],
    ['a tab as indent', 'any:\n\t- 1'],
    ['an unclosed bracket', 'any: [1, 2'],
    ['an unclosed quote', 'any: "1'],
    ['a merge of what is no map', 'any: {<<: 1}'],
    ['a merge of a list with a text', 'any: {<<: [{a: 1}, b]}'],
    ['two merge keys', 'any: {<<: {a: 1}, <<: {b: 1}}'],
    ['a merge of a map that holds itself', 'any: &a {<<: *a}'],
    ['a collection as key', 'any: {[1, 2]: 3}'],
    ['101 levels', `any: ${'['.repeat(100)}${']'.repeat(100)}`],
    ['1e5 brackets', `any: ${'['.repeat(1e5)}`],
    ['1e5 closed brackets', `any: ${'['.repeat(1e5)}${']'.repeat(1e5)}`],
    ['1e5 braces', `any: ${'{a: '.repeat(1e5)}`],
    ['1e5 dashes', `any:\n  ${'- '.repeat(1e5)}x`],
    ['1e5 question marks', `${'? '.repeat(1e5)}x`],
    ['2,000 indented keys', Array.from({ length: 2_000 }, (_, i) => `${' '.repeat(i)}k:`).join('\n')],
  ])('refuses %s with 400', async (_what, text) => {
    const answer = await service.request('/api/echo/', yaml(text))
    expect([answer.status, answer.body['code']]).toEqual([400, 'invalid'])
    expect(({} as { polluted?: boolean }).polluted).toBeUndefined()
  })

  test('names every duplicate key with its path, and the line of a syntax error', async () => {
    const twice = await service.request('/api/echo/', yaml('any:\n  a: {x: 1, x: 2}\n  b: 1\n  b: 2\n'))
    expect(paths(twice).toSorted()).toEqual(['any.a.x', 'any.b'])
    const syntax = await service.request('/api/echo/', yaml('any:\n  - 1\n  b: 2\n'))
    expect(syntax.body['error']).toMatch(/line 3/)
  })

  test('integers beyond 2^53-1 and infinite numbers are 422', async () => {
    for (const text of [
      'any: {n: 9007199254740993}',
      'any: {n: .inf}',
      'any: {n: .nan}',
      'any: {n: 0xffffffffffffffff}',
    ]) {
      const answer = await service.request('/api/echo/', yaml(text))
      expect([text, answer.status, paths(answer)]).toEqual([text, 422, ['any.n']])
    }
  })

  proved('a map of many keys is read without quadratic work', async () => {
    const read = async (count: number): Promise<void> => {
      const text = `any:\n${Array.from({ length: count }, (_, i) => `  k${i}: ${i}`).join('\n')}\n`
      expect((await service.request('/api/echo/', yaml(text))).status).toBe(200)
    }
    expect(await growth(read, 2_500)).toBeLessThan(1.6)
  })

  proved('a large document is read aside: others are served meanwhile, and its bounds hold', async () => {
    const text = (items: number, last: string) =>
      `any:\n${Array.from(
        { length: items },
        (_, i) => `  - {id: a${i}, size: ${i}, big: 9007199254740991}`,
      ).join('\n')}\n${last}`
    const large = service.request('/api/echo/', yaml(text(12_000, '  - {id: last}\n')))
    let served = 0
    let waiting = true
    void large.then(() => (waiting = false))
    while (waiting && served <= 5) {
      await service.request('/')
      served++
    }
    const answer = await large
    expect([answer.status, (answer.body['any'] as unknown[]).length]).toEqual([200, 12_001])
    expect(served).toBeGreaterThan(5)
    expect(
      paths(await service.request('/api/echo/', yaml(text(6_500, '  - {n: 9007199254740993}\n')))),
    ).toEqual(['any.6500.n'])
    expect((await service.request('/api/echo/', yaml(text(6_500, '  - {n: 1, n: 2}\n')))).body).toMatchObject(
      {
        code: 'invalid',
        details: [{ path: 'any.6500.n' }],
      },
    )
    const endless = await service.request('/api/echo/', yaml(`any:\n${'- a\n'.repeat(1_000_000)}`))
    expect([endless.status, endless.body['error']]).toEqual([400, expect.stringMatching(/as JSON/)])
  })

  test('gives the same value as JSON for any document', async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.dictionary(fc.stringMatching(/^[a-z]{1,8}$/), fc.jsonValue({ maxDepth: 4 })),
        async (value) => {
          const text = JSON.stringify({ any: value })
          fc.pre(!text.includes('__proto__') && !text.includes('\\u0000') && !/e\+\d/.test(text))
          const [a, b] = await Promise.all([
            service.request('/api/echo/', { method: 'POST', body: Buffer.from(text) }),
            service.request('/api/echo/', yaml(text)),
          ])
          expect(a.status).toBe(200)
          expect(b.body).toEqual(a.body)
        },
      ),
      { numRuns: 60, seed: 7 },
    )
  })
})

describe('size and pace of a body', () => {
  const limit = 32 * 1024 * 1024
  const padded = (size: number): Buffer => {
    const head = Buffer.from('{"id":"big","name":"x","note":"')
    return Buffer.concat([head, Buffer.alloc(size - head.length - 2, 0x61), Buffer.from('"}')])
  }

  test('of 32 MiB is read and of one byte more is 413, by length and by chunks', async () => {
    expect((await service.request('/api/stars/', { method: 'POST', body: padded(limit) })).status).toBe(201)
    const announced = await service.request('/api/stars/', { method: 'POST', body: padded(limit + 1) })
    expect([announced.status, announced.body['code']]).toEqual([413, 'too_large'])
    const chunked = (size: number) =>
      new ReadableStream({
        start(controller) {
          const bytes = padded(size)
          for (let i = 0; i < size; i += 1 << 20) controller.enqueue(bytes.subarray(i, i + (1 << 20)))
          controller.close()
        },
      })
    expect(
      (await service.request('/api/stars/', { method: 'POST', body: chunked(limit), duplex: 'half' })).status,
    ).toBe(409)
    expect(
      (await service.request('/api/stars/', { method: 'POST', body: chunked(limit + 1), duplex: 'half' }))
        .status,
    ).toBe(413)
  })

  proved(
    'a body of millions of tiny values is refused before they are built; one long text is not',
    async () => {
      for (const [part, fine] of [
        ['[],', false],
        ['1,', false],
        [`"${'a,[{'.repeat(500)}",`, true],
      ] as const) {
        const body = Buffer.from(`{"any":[${part.repeat(Math.floor((limit - 100) / part.length))}1]}`)
        const answer = await service.request('/api/echo/', { method: 'POST', body })
        expect([part.slice(0, 4), answer.status]).toEqual([part.slice(0, 4), fine ? 200 : 413])
      }
      const keys = Array.from({ length: 900_000 }, (_, i) => `"k${i}":1`).join(',')
      expect(
        (await service.request('/api/echo/', { method: 'POST', body: Buffer.from(`{"any":{${keys}}}`) }))
          .body,
      ).toMatchObject({
        code: 'too_large',
        error: expect.stringMatching(/250000 keys/),
      })
      const quoted = await service.request('/api/echo/', yaml(`any: "${'x'.repeat(5_000_000)}"`))
      expect([quoted.status, quoted.body['error']]).toEqual([400, expect.stringMatching(/quoted text/)])
    },
  )

  test('a larger limit of bytes allows more values', async () => {
    const body = Buffer.from(`[${'1,'.repeat(4_200_000)}1]`)
    const read = (most: number) => readDocument(body, 'json', { limit: most, readYaml: createYamlReader() })
    await expect(read(limit)).rejects.toThrow(/more than 4194304 values; SERVICE_BODY_LIMIT_BYTES/)
    expect(await read(2 * limit)).toHaveLength(4_200_001)
  })

  test('a route may have a limit of its own', async () => {
    expect(
      (await service.request('/api/stars/import/', { method: 'POST', body: padded(2_000) })).status,
    ).toBe(202)
    expect(
      (await service.request('/api/stars/import/', { method: 'POST', body: padded(2_001) })).status,
    ).toBe(413)
  })

  test('announced too large with Expect is refused before it is sent, else continued', async () => {
    const head = (length: number): string =>
      `POST /api/stars/import/ HTTP/1.1\r\nHost: localhost\r\nContent-Length: ${length}\r\nExpect: 100-continue\r\n\r\n`
    expect(statusOf(await raw(service.port, head(2_001)))).toBe(413)
    expect(statusOf(await raw(service.port, head(10)))).toBe(100)
  })

  test('cut off in the middle is 400 for a client that still listens', async () => {
    const answer = await raw(
      service.port,
      'POST /api/stars/ HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{"id":',
      {
        half: true,
      },
    )
    expect(statusOf(answer)).toBe(400)
    expect(answer).toContain('"code":"invalid"')
  })

  test('of a client that stops sending ends with 408, and others are served meanwhile', async () => {
    const slow = await openStars({
      timeouts: { headersMs: 300, keepAliveMs: 1_000 },
      bodyPace: { ...usualBodyPace, wholeMs: 600 },
    })
    try {
      const stuck = [
        raw(slow.port, 'POST /api/stars/ HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{"id":', {
          ms: 8_000,
        }),
        raw(slow.port, 'GET /api/stars/ HTTP/1.1\r\nHost: loc', { ms: 8_000 }),
      ]
      expect((await slow.request('/api/stars/')).status).toBe(200)
      expect((await Promise.all(stuck)).map(statusOf)).toEqual([408, 408])
    } finally {
      await slow.close()
    }
  })

  test('a client that leaves in the middle of a body leaves no trace', async () => {
    const before = service.audits.length
    await raw(
      service.port,
      'POST /api/stars/ HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500\r\n\r\n{"id":',
      { ms: 50 },
    )
    expect((await service.request('/api/stars/')).status).toBe(200)
    expect(service.logged.filter((line) => line.level === 'error')).toEqual([])
    expect(service.audits.slice(before).filter((record) => record.outcome === 'succeeded')).toEqual([])
  })
})

/** The integer that a large number is written as: its fewest digits, and zeros to its size. */
const writtenOut = (number: number): bigint => {
  const [, whole = '', part = '', exponent = ''] =
    /^(-?\d)(?:\.(\d+))?e\+(\d+)$/.exec(number.toExponential()) ?? []
  return BigInt(whole + part) * 10n ** BigInt(Number(exponent) - part.length)
}

test('integers keep their digits or are refused, for any integer', async () => {
  await fc.assert(
    fc.asyncProperty(
      fc.bigInt({ min: -(2n ** 66n), max: 2n ** 66n }),
      fc.constantFrom('application/json', 'application/yaml'),
      async (integer, type) => {
        const answer = await service.request('/api/echo/', {
          method: 'POST',
          headers: { 'content-type': type },
          body: `{"any": [${integer}]}`,
        })
        const safe = integer >= BigInt(Number.MIN_SAFE_INTEGER) && integer <= BigInt(Number.MAX_SAFE_INTEGER)
        const kept = safe || writtenOut(Number(integer)) === integer
        expect(answer.status).toBe(kept ? 200 : 422)
        if (kept) expect(answer.body).toEqual({ any: [Number(integer)] })
      },
    ),
    {
      numRuns: 200,
      seed: 17,
      examples: [
        [2n ** 53n - 1n, 'application/json'],
        [2n ** 53n, 'application/json'],
        [-(2n ** 53n), 'application/json'],
        [9007199254740990n, 'application/json'],
        [10n ** 16n, 'application/json'],
      ],
    },
  )
})

describe('anything', () => {
  const text = fc.oneof(
    fc.string({ unit: 'binary' }),
    fc.json(),
    fc.constantFrom('{}', '[]', 'null', '{"id":1}', '- ', '&a *a', '!!x', '? ', '\u0000'),
  )
  test('sent as a body never gives a 5xx', async () => {
    await fc.assert(
      fc.asyncProperty(
        text,
        fc.constantFrom('application/json', 'application/yaml'),
        fc.constantFrom('/api/stars/', '/api/echo/', '/api/stars/x/'),
        async (body, type, path) => {
          const answer = await service.request(path, {
            method: path.endsWith('x/') ? 'PUT' : 'POST',
            headers: { 'content-type': type },
            body: Buffer.from(body),
          })
          expect(answer.status).toBeLessThan(500)
          if (answer.status >= 400)
            expect(answer.body).toMatchObject({
              error: expect.any(String),
              code: expect.any(String),
              details: expect.any(Array),
            })
        },
      ),
      { numRuns: 400, seed: 11 },
    )
  })
})
