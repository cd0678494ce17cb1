import { describe, expect, test } from '@jest/globals'
import { breakingChanges } from './breaking-changes.ts'

type Json = Record<string, any>

/** What breaks clients, by small documents of one operation, in both directions. */

const text = { type: 'string' }
const count = { type: 'integer' }
const none = { type: 'null' }
const object = (properties: Json, more: Json = {}): Json => ({ type: 'object', properties, ...more })
const others = (additionalProperties: Json | boolean): Json => object({}, { additionalProperties })
const json = (schema: Json): Json => ({ content: { 'application/json': { schema } } })
const referred = { $ref: '#/components/schemas/Thing' }

const documentOf = (post: Json, components: Json = {}): Json => ({
  paths: { '/things/': { post: { operationId: 'make', responses: {}, ...post } } },
  components,
})
const below = (changes: string[]): string[] => changes.map((change) => change.replace('POST /things/ ', ''))

/** The changes of a schema: of one that is sent, and of one that is answered. */
const changesOf = (before: Json, after: Json, [old, now]: readonly Json[] = []) => ({
  sent: below(
    breakingChanges(
      documentOf({ requestBody: json(before) }, old),
      documentOf({ requestBody: json(after) }, now),
    ),
  ),
  answered: below(
    breakingChanges(
      documentOf({ responses: { 200: json(before) } }, old),
      documentOf({ responses: { 200: json(after) } }, now),
    ),
  ),
})

describe('a schema that takes more breaks what is answered, one that takes less what is sent:', () => {
  test.each<[string, Json, Json, narrowed: string, widened: string]>([
    [
      'a form of anyOf',
      { anyOf: [text, count] },
      { anyOf: [text, count, none] },
      'body: null is no longer taken',
      '200: null is answered, too',
    ],
    [
      'a form of oneOf beside one schema',
      text,
      { oneOf: [text, none] },
      'body: null is no longer taken',
      '200: null is answered, too',
    ],
    [
      'a type of a list beside forms',
      { anyOf: [count, text] },
      { type: ['string', 'integer', 'null'] },
      'body: null is no longer taken',
      '200: null is answered, too',
    ],
    [
      'a number beside integers',
      { anyOf: [count, none] },
      { anyOf: [{ type: 'number' }, none] },
      'body: number is no longer taken',
      '200: number is answered, too',
    ],
    [
      'anything beside a text',
      { items: text, type: 'array' },
      { items: {}, type: 'array' },
      'body[]: anything became string',
      '200[]: string became anything',
    ],
    [
      'values of other members',
      others(count),
      others({ type: 'number' }),
      'body.*: number became integer',
      '200.*: integer became number',
    ],
    [
      'other members of any kind',
      others(text),
      others(true),
      'body.*: anything became string',
      '200.*: string became anything',
    ],
    [
      'a form within other members',
      others({ anyOf: [text] }),
      others({ anyOf: [text, none] }),
      'body.*: null is no longer taken',
      '200.*: null is answered, too',
    ],
  ])('%s', (_name, narrow, wide, narrowed, widened) => {
    expect(changesOf(narrow, wide)).toEqual({ sent: [], answered: [widened] })
    expect(changesOf(wide, narrow)).toEqual({ sent: [narrowed], answered: [] })
  })
})

test('members of a form are compared with those of the form that they come nearest to', () => {
  const before = { anyOf: [object({ a: text, b: text }), object({ c: text }), none] }
  const after = { anyOf: [none, object({ c: text }), object({ b: text })] }
  expect(changesOf(before, after)).toEqual({ sent: ['body.a: is gone'], answered: ['200.a: is gone'] })
  // A new member is no break, in whichever form.
  const more = { anyOf: [object({ a: text, b: text }), object({ c: text, d: text }), none] }
  expect(changesOf(before, more)).toEqual({ sent: [], answered: [] })
})

test('other members are no longer taken, or are gone; a closed answer may be opened', () => {
  expect(changesOf(others(text), others(false))).toEqual({
    sent: ['body.*: is no longer taken'],
    answered: ['200.*: is gone'],
  })
  expect(changesOf(object({}), others(false))).toEqual({
    sent: ['body.*: is no longer taken'],
    answered: [],
  })
  expect(changesOf(others(false), others(text))).toEqual({ sent: [], answered: [] })
})

test('a schema that holds itself, and parts of allOf, are looked into', () => {
  const parts = (value: Json): Json => ({
    schemas: {
      Thing: { allOf: [{ $ref: '#/components/schemas/Base' }, object({ value })] },
      Base: object({ inner: { anyOf: [referred, none] } }),
    },
  })
  expect(changesOf(referred, referred, [parts(text), parts(text)])).toEqual({ sent: [], answered: [] })
  const { sent, answered } = changesOf(referred, referred, [parts(text), parts(count)])
  expect(sent).toContain('body.value: string became integer')
  expect(answered).toContain('200.value: string became integer')
})

describe('refusals', () => {
  const refused = (status: number, schema?: Json, type = 'application/json'): Json => ({
    responses: { [status]: schema === undefined ? {} : { content: { [type]: { schema } } } },
  })
  const changes = (before: Json, after: Json): string[] =>
    below(breakingChanges(documentOf(before), documentOf(after)))
  const error = object({ error: text, state: text })

  test('a status that goes away breaks, a new one does not', () => {
    const both = { responses: { ...refused(409, error)['responses'], ...refused(422, error)['responses'] } }
    expect(changes(both, refused(422, error))).toEqual(['POST /things/: 409 is gone'])
    expect(changes(refused(422, error), both)).toEqual([])
  })

  test('a shape, a member or a media type that goes away breaks', () => {
    expect(changes(refused(409, error), refused(409, object({ error: text })))).toEqual([
      '409.state: is gone',
    ])
    expect(changes(refused(409, object({ error: text })), refused(409, error))).toEqual([])
    expect(changes(refused(409, error), refused(409, error, 'application/problem+json'))).toEqual([
      '409: application/json is gone',
    ])
    expect(changes(refused(409, error), refused(409))).toEqual(['409: application/json is gone'])
  })

  test('behind a reference, too', () => {
    const refusal = (schema: Json) => ({ responses: { Refused: json(schema) } })
    const post = { responses: { 409: { $ref: '#/components/responses/Refused' } } }
    const [old, now] = [documentOf(post, refusal(error)), documentOf(post, refusal(object({ state: text })))]
    expect(below(breakingChanges(old, now))).toEqual(['409.error: is gone'])
    expect(breakingChanges(now, old)).toEqual([])
  })
})

test('a body that becomes required breaks', () => {
  const whose = (required: boolean) => documentOf({ requestBody: { ...json(text), required } })
  expect(below(breakingChanges(whose(false), whose(true)))).toEqual(['POST /things/: a body is now required'])
  expect(breakingChanges(whose(true), whose(false))).toEqual([])
})
