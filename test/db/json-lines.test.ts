import { afterAll, beforeAll, expect, test } from '@jest/globals'
import fc from '../support/fast-check.ts'
import { pipeline } from 'node:stream/promises'
import { Readable } from 'node:stream'
import type pg from 'pg'
import { from as copyFrom, to as copyTo } from 'pg-copy-streams'
import { toCopyLines, toJsonLines, type ColumnKind } from '../../src/db/json-lines.ts'
import { cloneDatabase, type TestDatabase } from '../support/database.ts'

/** Rows of archives: COPY's text as JSON and back, held against PostgreSQL's own functions. */

let clone: TestDatabase
let client: pg.PoolClient
beforeAll(async () => {
  clone = await cloneDatabase()
  client = await clone.db.client()
})
afterAll(async () => {
  client.release()
  await clone.drop()
})

const columns: { name: string; kind: ColumnKind | 'other'; type: string }[] = [
  { name: 'id', kind: 'number', type: 'bigint' },
  { name: 'a "text"', kind: 'text', type: 'text' },
  { name: 'amount', kind: 'number', type: 'numeric' },
  { name: 'share', kind: 'number', type: 'float8' },
  { name: 'yes', kind: 'boolean', type: 'boolean' },
  { name: 'document', kind: 'json', type: 'jsonb' },
  { name: 'moment', kind: 'other', type: 'timestamptz' },
  { name: 'list', kind: 'other', type: 'text[]' },
  { name: 'bytes', kind: 'other', type: 'bytea' },
]
const quoted = ({ name }: { name: string }): string => `"${name.replaceAll('"', '""')}"`
const listOf = columns.map(quoted).join(', ')

const text = fc.oneof(
  fc.string({ unit: 'binary' }).map((value) => value.replaceAll('\0', '')),
  fc.constantFrom('', '\\N', '\\', '\t', '\n', '\r\n', '"', '\\.', 'null', '{}', '\v\f\b', '\u007f', 'é€😀'),
)
const row = fc.tuple(
  fc.bigInt({ min: -(2n ** 63n), max: 2n ** 63n - 1n }).map(String),
  fc.option(text),
  fc.option(
    fc.constantFrom('0', '1.50', '-0.000000000000000000001', '99999999999999999999.9', 'NaN', 'Infinity'),
  ),
  fc.option(fc.oneof(fc.double().map(String), fc.constantFrom('NaN', '-Infinity', '1e300'))),
  fc.option(fc.boolean().map(String)),
  fc.option(fc.jsonValue().map((value) => JSON.stringify(value).replaceAll(/\\u0000|\\ud[89a-f]../g, ''))),
  fc.option(
    fc.constantFrom(
      '2026-11-24T11:36:30.694Z',
      'infinity',
      '0044-03-15 12:00:00+00 BC',
      '1970-01-01T00:00:00+05',
    ),
  ),
  fc.option(fc.array(fc.option(text)).map((list) => JSON.stringify(list))),
  fc.option(fc.uint8Array().map((bytes) => `\\x${Buffer.from(bytes).toString('hex')}`)),
)

const rowsOf = async (statement: string): Promise<string> => {
  const pieces: Buffer[] = []
  for await (const piece of client.query(copyTo(statement))) pieces.push(piece as Buffer)
  return Buffer.concat(pieces).toString()
}
const jsonOf = async (table: string): Promise<string[]> =>
  (
    await client.query<{ line: string }>(
      `select row_to_json(r)::text as line from (select ${listOf} from ${table}) r order by id, 1`,
    )
  ).rows.map(({ line }) => line)

const byId = (one: unknown, other: unknown): number => {
  const [a, b] = [JSON.stringify(one), JSON.stringify(other)]
  return a < b ? -1 : a > b ? 1 : 0
}

test('every row goes as PostgreSQL writes it, and comes back as it was', async () => {
  const types = columns.map((column) => `${quoted(column)} ${column.type}`).join(', ')
  await client.query(`set timezone = 'UTC'; create temporary table here (${types});
    create temporary table there (${types})`)
  await fc.assert(
    fc.asyncProperty(fc.array(row, { minLength: 1, maxLength: 20 }), async (rows) => {
      await client.query('truncate here, there')
      for (const values of rows)
        await client.query(
          `insert into here values ($1, $2, $3, $4, $5, $6, $7,
            (select array_agg(x order by n) from json_array_elements_text($8::json) with ordinality e (x, n)), $9)`,
          values,
        )
      const list = columns.map((one) => (one.kind === 'other' ? `to_json(${quoted(one)})` : quoted(one)))
      const convert = toJsonLines(
        columns.map(({ name, kind }) => ({ name, kind: kind === 'other' ? 'json' : kind })),
      )
      const lines = convert(await rowsOf(`copy (select ${list.join(', ')} from here order by id) to stdout`))
      const withoutNulls = (line: string): unknown =>
        Object.fromEntries(Object.entries(JSON.parse(line) as object).filter(([, value]) => value !== null))
      expect(lines.split('\n').slice(0, -1).map(withoutNulls).toSorted(byId)).toEqual(
        (await jsonOf('here')).map(withoutNulls).toSorted(byId),
      )
      const taken = client.query(copyFrom(`copy there (${listOf}) from stdin`))
      await pipeline(Readable.from([toCopyLines(columns)(lines)]), taken)
      // A document that is null in JSON comes back as no document, as of json_populate_record.
      await client.query(`update here set document = null where document = 'null'`)
      expect(await jsonOf('there')).toEqual(await jsonOf('here'))
    }),
    { numRuns: 60 },
  )
})

test('columns come in any order; what is no row of the table is refused', () => {
  const convert = toCopyLines(columns)
  expect(convert('{"list":["a",null,"b\\"c"],"id":12345678901234567890.10}\n{}\n')).toBe(
    `${['12345678901234567890.10', ...Array<string>(6).fill('\\N'), '{"a",NULL,"b\\\\"c"}', '\\N'].join('\t')}\n` +
      `${Array<string>(9).fill('\\N').join('\t')}\n`,
  )
  for (const line of [
    ...['', '[]', '{', '{"id":1', '{"id":1}x', '{"id":1,}', '{"id"}', '{"id":}', '{id:1}', '{"id":1}}'],
    ...[
      '{"id":01}',
      '{"id":abc}',
      '{"other":1}',
      '{"id":"a\tb"}',
      '{"id":"\\q"}',
      '{"list":[1}',
      '{"list":[1,]}',
    ],
  ])
    expect(() => convert(`${line}\n`)).toThrow(SyntaxError)
})
