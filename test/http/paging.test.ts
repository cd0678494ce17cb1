import { afterAll, beforeAll, describe, expect, jest, test } from '@jest/globals'
import { AsyncLocalStorage } from 'node:async_hooks'
import { text } from 'node:stream/consumers'
import fc from '../support/fast-check.ts'
import { z } from 'zod'
import {
  arraySizes,
  envelope,
  envelopeOf,
  envelopeSizes,
  pageOf,
  pageQueryOf,
  pagedArray,
} from '../../src/http/paging.ts'
import type { Reply } from '../../src/http/route.ts'
import {
  Count,
  Id,
  JsonObject,
  Name,
  OptionalId,
  Timestamp,
  jsonObjectBounds,
} from '../../src/http/schema.ts'
import { textArray } from '../../src/http/text-array.ts'
import { openStars, type Stars } from './stars.ts'

test('a time whose + became a blank in a query is told how to write it', () => {
  expect(Timestamp.safeParse('2026-01-31T12:00:00+02:00').success).toBe(true)
  expect(Timestamp.safeParse('2026-01-31T12:00:00 02:00').error?.issues[0]?.message).toContain('%2B')
  expect(Timestamp.safeParse('yesterday').error?.issues[0]?.message).not.toContain('%2B')
})

describe('pages', () => {
  test.each([
    [{}, envelopeSizes, 1, 20],
    [{}, arraySizes, 1, 1_000],
    [{ page: -3, pageSize: 5 }, envelopeSizes, 1, 5],
    [{ page: 0 }, arraySizes, 1, 1_000],
    [{ pageSize: 101 }, envelopeSizes, 1, 20],
    [{ pageSize: 100 }, envelopeSizes, 1, 100],
    [{ pageSize: 0 }, envelopeSizes, 1, 20],
    [{ pageSize: 5_000 }, arraySizes, 1, 1_000],
    [{ page: 9e15, pageSize: 7 }, arraySizes, 2 ** 31 - 1, 7],
  ])('%j of %j', (query, sizes, page, pageSize) => {
    expect(pageOf(query, sizes)).toEqual({
      page,
      pageSize,
      limit: pageSize + 1,
      offset: (page - 1) * pageSize,
    })
  })

  test('walked by their links or by hasNext give every row once, in order', () => {
    fc.assert(
      fc.property(fc.integer({ min: 0, max: 60 }), fc.integer({ min: 1, max: 20 }), (count, pageSize) => {
        const rows = Array.from({ length: count }, (_, i) => i)
        const walked: number[] = []
        let target: string | undefined = `/api/things/?kind=a%2Fb&pageSize=${pageSize}`
        const enveloped: number[] = []
        let hasNext = true
        for (let i = 1; target !== undefined; i++) {
          const search = new URLSearchParams(target.split('?')[1])
          expect(search.get('kind')).toBe('a/b')
          const page = pageOf(
            z
              .strictObject({ ...pageQueryOf(arraySizes), kind: z.string() })
              .parse(Object.fromEntries(search)),
            arraySizes,
          )
          const read = rows.slice(page.offset, page.offset + page.limit)
          const reply: Reply<number[]> = pagedArray(read, { page, total: count, target })
          walked.push(...(reply.body ?? []))
          expect(reply.headers['X-Total-Count']).toBe(String(count))
          const links = new Map<string | undefined, string | undefined>(
            [...(reply.headers['Link'] ?? '').matchAll(/<([^>]+)>; rel="(\w+)"/g)].map(
              ([, link, relation]) => [relation, link],
            ),
          )
          expect(links.has('prev')).toBe(i > 1)
          const wrapped = envelope(read, { page, total: count })
          expect(envelopeOf(z.number()).parse(wrapped)).toEqual(wrapped)
          enveloped.push(...wrapped.items)
          hasNext = wrapped.hasNext
          target = links.get('next')
          expect(hasNext).toBe(target !== undefined)
        }
        expect(walked).toEqual(rows)
        expect(enveloped).toEqual(rows)
      }),
      { numRuns: 60, seed: 2 },
    )
  })

  test('link to their neighbours with every value of the query, also one with a question mark', () => {
    const page = pageOf({ page: 1, pageSize: 1 }, arraySizes)
    for (const [search, kept] of [
      ['?kind=what?&pageSize=1', '?kind=what%3F&pageSize=1&page=2'],
      ['?', '?page=2&pageSize=1'],
      ['', '?page=2&pageSize=1'],
    ] as const)
      expect(pagedArray(['a', 'b'], { page, total: 2, target: `/things/${search}` }).headers['Link']).toBe(
        `</things/${kept}>; rel="next"`,
      )
  })

  test('count to 10,000 and say when there are more', () => {
    const page = pageOf({ page: 1, pageSize: 1 })
    expect(envelope(['a', 'b'], { page, total: 10_001 })).toEqual({
      items: ['a'],
      page: 1,
      pageSize: 1,
      total: 10_000,
      hasNext: true,
      totalIsLowerBound: true,
    })
    expect(envelope(['a'], { page, total: 10_000 })).toEqual({
      items: ['a'],
      page: 1,
      pageSize: 1,
      total: 10_000,
      hasNext: false,
    })
    expect(pagedArray(['a'], { page, total: 10_001, target: '/x/' }).headers).toEqual({
      'X-Total-Count': '10000+',
    })
  })
})

test('a list that is streamed reads all of it in the instance of its request', async () => {
  const instance = new AsyncLocalStorage<string>()
  const read = jest.fn(async (ids: readonly string[]) =>
    ids
      .filter((id) => id !== '5')
      .map((id) => JSON.stringify(`${id}${'x'.repeat(2 ** 21)} in ${instance.getStore()}`)),
  )
  const ids = Array.from({ length: 20 }, (_, i) => String(i))
  const answer = await instance.run('archive', () => textArray(ids, read))
  const begun = read.mock.calls.length
  const parts: string[] = 'stream' in answer ? JSON.parse(await text(answer.stream)) : []
  expect(parts.map((part) => part.replaceAll('x', ''))).toEqual(
    ids.filter((id) => id !== '5').map((id) => `${id} in archive`),
  )
  expect(read.mock.calls.length).toBeGreaterThan(begun)
  expect(read.mock.calls.flat(2)).toEqual(ids)
  expect(await textArray([], read)).toEqual({ body: '[]' })
})

describe('over HTTP', () => {
  let service: Stars
  beforeAll(async () => {
    service = await openStars()
    for (let i = 0; i < 1_003; i++) {
      const id = String(i).padStart(5, '0')
      service.stars.set(id, { id, name: 'x', kind: i % 2 === 0 ? 'dwarf' : 'giant', planets: 0, moons: [] })
    }
  })
  afterAll(() => service.close())

  test('an array without page holds 1,000 and links to the rest', async () => {
    const first = await service.request('/api/stars/')
    expect((JSON.parse(first.text) as unknown[]).length).toBe(1_000)
    expect(first.headers.get('x-total-count')).toBe('1003')
    const next = /<([^>]+)>; rel="next"/.exec(first.headers.get('link') ?? '')?.[1] ?? ''
    const second = await service.request(next)
    expect((JSON.parse(second.text) as { id: string }[]).map((one) => one.id)).toEqual([
      '01000',
      '01001',
      '01002',
    ])
    expect(second.headers.get('link')).toMatch(/^<\/api\/stars\/\?page=1&pageSize=1000>; rel="prev"$/)
    const filtered = await service.request('/api/stars/?kind=giant&page=0&pageSize=2')
    expect(filtered.headers.get('link')).toBe('</api/stars/?kind=giant&page=2&pageSize=2>; rel="next"')
  })

  test('an envelope has 20 unless asked otherwise', async () => {
    expect((await service.request('/api/star-pages/')).body).toMatchObject({
      page: 1,
      pageSize: 20,
      total: 1_003,
      hasNext: true,
    })
    expect((await service.request('/api/star-pages/?page=51')).body).toMatchObject({
      items: [{}, {}, {}],
      hasNext: false,
    })
    expect((await service.request('/api/star-pages/?page=abc')).status).toBe(400)
  })
})

describe('shared schemas', () => {
  test('an id is 1–255 characters of any script, without control characters and half pairs', () => {
    for (const good of ['a', 'a/b c', '😀'.repeat(255), 'ñ', '..', '__proto__'])
      expect([good.slice(0, 9), Id.safeParse(good).success]).toEqual([good.slice(0, 9), true])
    for (const bad of [
      '',
      ' ',
      '😀'.repeat(256),
      'x'.repeat(256),
      'a\u0000',
      'a\n',
      '\u007f',
      '\u0085',
      '\ud800',
      'a\udc00b',
      5,
      null,
    ])
      expect(Id.safeParse(bad).success).toBe(false)
    expect(OptionalId.safeParse('').success).toBe(true)
    expect(Id.safeParse('').error?.issues).toHaveLength(1)
  })

  test('a name is not blank; counts are whole and safe; timestamps have a zone', () => {
    for (const bad of ['', ' \t', '\u00a0', 'x'.repeat(256), 'a\nb'])
      expect([bad, Name.safeParse(bad).success]).toEqual([bad, false])
    expect(Name.safeParse('').error?.issues).toHaveLength(1)
    expect(Name.parse(' a ')).toBe(' a ')
    for (const bad of [-1, 0.5, 2 ** 53, Infinity, NaN, '1'])
      expect([bad, Count.safeParse(bad).success]).toEqual([bad, false])
    expect(Timestamp.safeParse('2026-01-01T00:00:00Z').success).toBe(true)
    for (const bad of ['2026-01-01', '2026-01-01T00:00:00', 'now'])
      expect(Timestamp.safeParse(bad).success).toBe(false)
  })

  test('a free-form object is bounded in depth, values and characters', () => {
    const nested = (levels: number): object => (levels === 0 ? {} : { a: nested(levels - 1) })
    expect(JsonObject.safeParse(nested(jsonObjectBounds.depth - 1)).success).toBe(true)
    expect(JsonObject.safeParse(nested(jsonObjectBounds.depth)).success).toBe(false)
    expect(JsonObject.safeParse({ a: Array(9_998).fill(1) }).success).toBe(true)
    expect(JsonObject.safeParse({ a: Array(9_999).fill(1) }).success).toBe(false)
    expect(JsonObject.safeParse({ a: 'x'.repeat(jsonObjectBounds.characters - 1) }).success).toBe(true)
    expect(JsonObject.safeParse({ a: 'x'.repeat(jsonObjectBounds.characters) }).success).toBe(false)
    for (const wrong of [[], 'x', null, 5])
      expect(JsonObject.safeParse(wrong).error?.issues[0]?.code).toBe('invalid_type')
  })
})
