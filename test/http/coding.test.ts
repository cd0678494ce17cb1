import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { request } from 'node:http'
import { brotliDecompressSync, gunzipSync } from 'node:zlib'
import { z } from 'zod'
import { Chunks, inChunks, withEnd } from '../../src/http/chunks.ts'
import { codingFor } from '../../src/http/coding.ts'
import { Reply, route } from '../../src/http/route.ts'
import { openRoutes, type OpenedRoutes } from '../support/open-routes.ts'

const items = Array.from({ length: 500 }, (_, i) => ({ id: `activity-${String(i)}`, status: 'completed' }))
const long = Array.from({ length: 4_000 }, (_, i) => `"${String(i)} ähnlich ${'x'.repeat(400)}"`)
const routes = () => [
  route('getLong', 'GET /long/', {
    tag: 'tests',
    summary: 'long',
    response: z.array(z.string()),
    raw: ['application/json'],
    handle: async () => {
      const texts = long.map((text, i) => (i === 0 ? '[' : ',') + text)
      return new Reply({ body: withEnd(await inChunks(texts), ']') as never })
    },
  }),
  route('getMany', 'GET /many/', {
    tag: 'tests',
    summary: 'many',
    response: z.array(z.unknown()),
    handle: () => items,
  }),
  route('getFew', 'GET /few/', {
    tag: 'tests',
    summary: 'few',
    response: z.array(z.unknown()),
    handle: () => [1],
  }),
  route('getPicture', 'GET /picture/', {
    tag: 'tests',
    summary: 'a picture',
    raw: ['image/png'],
    handle: () => 'x'.repeat(5_000) as never,
  }),
]

let app: OpenedRoutes
beforeAll(async () => {
  app = await openRoutes(routes)
})
afterAll(() => app.close())

/** As it comes: `fetch` would undo the coding. */
const read = (url: string, headers: Record<string, string>) =>
  new Promise<{ status: number; headers: Record<string, unknown>; body: Buffer }>((resolve, reject) => {
    request(url, { headers }, (answer) => {
      const chunks: Buffer[] = []
      answer.on('data', (chunk: Buffer) => chunks.push(chunk))
      answer.on('end', () =>
        resolve({ status: answer.statusCode ?? 0, headers: answer.headers, body: Buffer.concat(chunks) }),
      )
    })
      .on('error', reject)
      .end()
  })

test('bodies above 1 kB come in the coding that the client wants, with a tag of their own that is known again', async () => {
  const many = `${app.baseUrl}/many/`
  const plain = await read(many, {})
  expect([plain.headers['content-encoding'], plain.headers['vary']]).toEqual([
    undefined,
    expect.stringContaining('Accept-Encoding'),
  ])
  expect(JSON.parse(plain.body.toString())).toEqual(items)
  for (const [accepted, coding, undo] of [
    ['br, gzip', 'br', brotliDecompressSync],
    ['gzip, deflate', 'gzip', gunzipSync],
    ['gzip;q=0.5, br;q=0.1', 'gzip', gunzipSync],
    ['*', 'br', brotliDecompressSync],
  ] as const) {
    const answer = await read(many, { 'accept-encoding': accepted })
    expect([accepted, answer.headers['content-encoding'], Number(answer.headers['content-length'])]).toEqual([
      accepted,
      coding,
      answer.body.length,
    ])
    expect(undo(answer.body).equals(plain.body)).toBe(true)
    expect(answer.body.length).toBeLessThan(plain.body.length / 8)
    const tag = String(answer.headers['etag'])
    expect(tag).not.toBe(plain.headers['etag'])
    for (const known of [tag, `W/${tag}`, String(plain.headers['etag'])])
      expect((await read(many, { 'accept-encoding': accepted, 'if-none-match': known })).status).toBe(304)
    expect((await read(many, { 'accept-encoding': accepted, 'if-none-match': '"other-br"' })).status).toBe(
      200,
    )
  }
})

test('small bodies, pictures and clients that want none are left as they are', async () => {
  for (const [path, accepted] of [
    ['/few/', 'br, gzip'],
    ['/picture/', 'br, gzip'],
    ['/many/', 'identity'],
    ['/many/', 'br;q=0, gzip;q=0'],
    ['/many/', 'zstd'],
    ['/many/', ''],
    ['/many/', ';;,q=,=;br;q=x'],
  ] as const) {
    const answer = await read(app.baseUrl + path, { 'accept-encoding': accepted })
    expect([path, accepted, answer.status, answer.headers['content-encoding']]).toEqual([
      path,
      accepted,
      200,
      undefined,
    ])
  }
})

test('what a client wants most is chosen, Brotli of equals', () => {
  expect(
    [
      'br',
      'gzip',
      'gzip, br',
      'br;q=0.2, gzip;q=0.3',
      '*',
      'identity, *;q=0',
      undefined,
      'x'.repeat(10_000),
    ].map(codingFor),
  ).toEqual(['br', 'gzip', 'br', 'gzip', 'br', undefined, undefined, undefined])
})

test('a body in chunks comes as one in a single piece does: whole, coded, with a tag that is known again', async () => {
  expect(await inChunks(['["a"', ',"b"'])).toBe('["a","b"')
  expect(withEnd('[1', ']')).toBe('[1]')
  const chunks = await inChunks(long)
  expect(chunks).toBeInstanceOf(Chunks)
  const { parts, byteLength } = chunks as Chunks
  expect(parts.length).toBeGreaterThan(2)
  expect(Math.max(...parts.map(({ length }) => length))).toBeLessThan(300_000)
  expect([byteLength, chunks.toString() === long.join('')]).toEqual([Buffer.byteLength(long.join('')), true])

  const url = `${app.baseUrl}/long/`
  const text = `[${long.join(',')}]`
  const plain = await read(url, {})
  expect(plain.body.toString() === text).toBe(true)
  expect(Number(plain.headers['content-length'])).toBe(Buffer.byteLength(text))
  const tag = String(plain.headers['etag'])
  for (const [coding, undo] of [
    ['br', brotliDecompressSync],
    ['gzip', gunzipSync],
  ] as const) {
    const answer = await read(url, { 'accept-encoding': coding })
    expect([answer.headers['content-encoding'], Number(answer.headers['content-length'])]).toEqual([
      coding,
      answer.body.length,
    ])
    expect(undo(answer.body).toString() === text).toBe(true)
    expect(answer.headers['etag']).toBe(tag.replace(/"$/, `-${coding}"`))
    expect((await read(url, { 'accept-encoding': coding, 'if-none-match': tag })).status).toBe(304)
  }
  const head = await app.call('HEAD', '/long/', undefined, { 'accept-encoding': 'identity' })
  expect([head.status, head.headers.get('content-length')]).toEqual([200, String(Buffer.byteLength(text))])
})
