import { expect, test } from '@jest/globals'
import fc from '../support/fast-check.ts'
import { openAnyOf } from '../../src/any-of.ts'
import { openRedaction } from '../../src/domains/instance/archives/redaction.ts'

const bytes = (most: number, least = 0) =>
  fc
    .uint8Array({ minLength: least, maxLength: most, max: 2 })
    .map((values) => Buffer.from(values.map((value) => value * 120 + 7)))

test('of many strings the first in a text is found, of those that begin there the longest', () => {
  fc.assert(
    fc.property(fc.array(bytes(9, 3), { maxLength: 6 }), bytes(80), fc.nat(20), (strings, text, from) => {
      const [first] = strings
        .map((one) => ({ at: text.indexOf(one, from), end: text.indexOf(one, from) + one.length }))
        .filter(({ at }) => at >= 0)
        .toSorted((a, b) => a.at - b.at || b.end - a.end)
      expect(openAnyOf(strings)(text, from)).toEqual(first)
    }),
    { numRuns: 2_000 },
  )
})

test('a string is found at every place of a text, and next to its ends', () => {
  const strings = Array.from({ length: 500 }, (_, n) => Buffer.from(`secret-${String(n)}-value`))
  const find = openAnyOf(strings)
  for (const [n, each] of strings.entries()) {
    const text = Buffer.concat([Buffer.alloc(n, 's'), each, Buffer.alloc(n % 7, 'e')])
    expect(find(text)).toEqual({ at: n, end: n + each.length })
    expect(find(text.subarray(0, n + each.length - 1))).toBeUndefined()
  }
})

const row = (configuration: string): string => `{"id":"a","configuration":${configuration}}\n`
const redacted = (configuration: string): string =>
  openRedaction([])
    .lines({ name: 'connections', key: ['id'] }, row(configuration), true)
    .toString()
const marks = '"credentialStatus":"redacted","requiresReconfiguration":true'

test('a member of any name outlives the removal of secrets beside it', () => {
  expect(redacted('{"__proto__":{"kept":1,"password":"x"},"constructor":2,"token":"y"}')).toBe(
    row(`{"__proto__":{"kept":1},"constructor":2,${marks}}`),
  )
})

test.each([
  'pass_word_base64',
  'api__key_value',
  'T.O.K.E.N',
  String.raw`kube\nconfig`,
  String.raw`to\u001fken`,
  String.raw`sec\"ret`,
  String.raw`\\token`,
])('a secret goes whatever stands between the letters of its name: %s', (key) => {
  expect(redacted(`{"${key}":"x","kept":"${String.raw`to\nken`}"}`)).toBe(
    row(`{"kept":"${String.raw`to\nken`}",${marks}}`),
  )
})

test.each([
  ['connections', 'lab:x@host:22', 'lab@host:22'],
  ['connections', 'https://lab:x@host', 'https://lab@host'],
  ['storages', 'https://AKIA:x@minio:9000/bucket', 'https://AKIA@minio:9000/bucket'],
  ['storages', 'one:two@tcp:/fs', 'one:two@tcp:/fs'],
])('an endpoint of %s goes without its password: %s', (name, endpoint, kept) => {
  const line = (text: string): string => `{"id":"a","endpoint":${JSON.stringify(text)}}\n`
  const lines = openRedaction([]).lines({ name, key: ['id'] }, line(endpoint), true)
  expect(lines.toString()).toBe(line(kept))
})

test('references of the vault go from texts, and nothing that only looks like a reference', () => {
  const table = { name: 'things', key: ['id', 'name'] }
  const given = {
    ...{ id: 'vault:ssh-key/a', name: 'vault:ssh-key/b', environment_id: 'vault:ssh-key/c' },
    ...{ image: 'registry.example.org/env:latest', version_id: 'artifact-version:env:v1:system:' },
    facts: {
      ...{ 'env:lab': 1, 'env:cloud': 2, resourceId: 'vault:ssh-key/d', credentialRef: 'env:LAB_KEY' },
      ...{ paths: ['file:/scratch/in.fits', 'vault:ssh-keys/none'], n: 1 },
    },
  }
  const line = (summary: string, more: object = {}): string =>
    `${JSON.stringify({ ...given, ...more, summary })}\n`
  const redaction = openRedaction([])
  const lines = redaction.lines(table, line('opened:\nvault:ssh-key/lab-1, "vault:signing-key/x"'), true)
  expect(lines.toString()).toBe(
    line('opened:\n[redacted], "[redacted]"', { facts: { ...given.facts, credentialRef: '' } }),
  )
  redaction.lines(table, line('vault:ssh-key/lab-2'), true)
  expect(redaction.references()).toEqual([{ table: 'things', column: 'summary', texts: 2 }])
})

test('a removed value is named by the whole key of its row; the list ends before a manifest is too long', () => {
  const secret = 'the-secret-value'
  const table = { name: 'events', key: ['kind', 'number', 'id'] }
  const row = (number: number, id: string): string =>
    `${JSON.stringify({ id, kind: `of ${secret}`, number, text: secret })}\n`
  const few = openRedaction([secret])
  few.lines(table, row(1, 'a/b') + row(2, 'vault:ssh-key/mine'), false)
  expect(few.hits).toEqual(
    ['1/a/b', '2/vault:ssh-key/mine'].flatMap((rest) =>
      ['kind', 'text'].map((column) => ({ table: 'events', id: `of [redacted]/${rest}`, column })),
    ),
  )
  const many = openRedaction([secret])
  for (let number = 0; number < 1_000; number++) many.lines(table, row(number, 'é'.repeat(500)), false)
  expect(many.count).toBe(2_000)
  expect(many.hits.length).toBeGreaterThan(100)
  expect(JSON.stringify(many.hits, undefined, 2).length).toBeLessThan(256 * 1024)
})
