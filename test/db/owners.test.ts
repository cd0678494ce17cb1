import { describe, expect, test } from '@jest/globals'
import { readdirSync, readFileSync } from 'node:fs'
import { join, relative } from 'node:path'
import { parseSync } from 'oxc-parser'
import { constraintTexts } from '../../src/constraints.ts'
import { domainOrder, owners, partOf } from '../support/owners.ts'

/**
 * Every table has one domain that writes it. Read from the texts of all statements, in programs and
 * in the database's functions.
 */

const root = join(import.meta.dirname, '../..')
const read = (file: string): string => readFileSync(join(root, file), 'utf8')
const filesBelow = (folder: string, ending: string): string[] =>
  readdirSync(join(root, folder), { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile() && entry.name.endsWith(ending))
    .map((entry) => relative(root, join(entry.parentPath, entry.name)))
    .toSorted()

const schema = read('test/db/schema.sql')
const tables = [...schema.matchAll(/^create table (\w+) \(/gm)].map(([, name = '']) => name)
const ownerOfTable = new Map(
  Object.entries(owners).flatMap(([owner, own]) => own.map((table) => [table, owner] as const)),
)

interface Text {
  file: string
  text: string
  /** Whether it is a statement or a piece of one, and no sentence. */
  isSql: boolean
}

const statement =
  /^\s*(with|select|insert|update|delete|merge|truncate|copy)\b[\s\S]*\b(set|values|from|select|where|using)\b/i

/** The literals of a program: templates with ` ? ` for what is put in. */
const literals = (file: string, source: string): Text[] => {
  const found: Text[] = []
  const visit = (node: unknown, tag: string | undefined): void => {
    if (Array.isArray(node)) return node.forEach((one) => visit(one, undefined))
    if (typeof node !== 'object' || node === null) return
    const { type, ...rest } = node as { type?: string } & Record<string, unknown>
    if (type === 'TaggedTemplateExpression') {
      visit(rest['quasi'], (rest['tag'] as { name?: string }).name ?? '')
      return
    }
    if (type === 'TemplateLiteral') {
      const quasis = rest['quasis'] as { value: { cooked: string } }[]
      const text = quasis.map(({ value }) => value.cooked).join(' ? ')
      found.push({ file, text, isSql: tag === 'sql' || statement.test(text) })
      visit(rest['expressions'], undefined)
      return
    }
    if (type === 'Literal' && typeof rest['value'] === 'string')
      return void found.push({ file, text: rest['value'], isSql: statement.test(rest['value']) })
    for (const value of Object.values(rest)) visit(value, undefined)
  }
  visit(parseSync(file, source).program, undefined)
  return found
}

const plain = (sql: string): string => sql.replace(/--.*$/gm, ' ').replace(/'(?:[^']|'')*'/g, "''")

/** Tables that a statement writes; `?` where the name is put in. */
const written = (sql: string): string[] =>
  [
    ...plain(sql).matchAll(
      new RegExp(
        `(?:${[
          String.raw`\binsert\s+into|(?<!\bfor\s|\bkey\s|\bdo\s)\bupdate(?:\s+only)?`,
          String.raw`\bdelete\s+from(?:\s+only)?|\bmerge\s+into|\btruncate(?:\s+table)?|\bcopy`,
        ].join('|')})${String.raw`\s+(?!set\b)(?:public\.)?"?([\w?]+)`}`,
        'gi',
      ),
    ),
  ].map(([, name = '']) => name.toLowerCase())

/**
 * Whether a text names a table: any mention of a name with an underscore, and of others where a
 * statement reads.
 */
const names = ({ text, isSql }: Text, table: string): boolean =>
  table.includes('_')
    ? new RegExp(`(?<![\\w.'"])${table}\\b`).test(text)
    : isSql && new RegExp(`\\b(?:from|join|using)\\s+${table}\\b`, 'i').test(plain(text))

const ownerOf = (file: string): string | undefined =>
  /^src\/domains\/([^/]+)\//.exec(file)?.[1] ??
  partOf[file] ??
  Object.entries(partOf).find(([folder]) => file.startsWith(`${folder}/`))?.[1]

const programs = ['src', 'workflows', 'activities'].flatMap((folder) => filesBelow(folder, '.ts'))
const definitions = [...filesBelow('src/db/functions', '.sql'), ...filesBelow('src/db/views', '.sql')]
const texts: Text[] = [
  ...programs.flatMap((file) => literals(file, read(file))),
  ...definitions.map((file) => ({ file, text: read(file), isSql: true })),
]

/**
 * The kit of operations writes the columns that all kinds have, and the statements of runs append
 * events beside what they are about.
 */
const ofOperations = (file: string, table: string): boolean =>
  (table === '?' && file.startsWith('src/operations/')) ||
  (['operation_events', 'event_feed_open'].includes(table) && ownerOf(file) === 'execution-runs')

/** Archives carry every table away and back, and a reset empties them all. */
const ofWholeSchemas = (file: string, table: string): boolean =>
  ['?', 'pg_temp'].includes(table) && ['src/db/archive-schema.ts', 'src/db/empty-tables.ts'].includes(file)

/** `file writes table of owner`, for every text whose owner is another. */
const foreignWrites = (all: readonly Text[]): string[] =>
  all
    .filter(({ isSql }) => isSql)
    .flatMap(({ file, text }) =>
      written(text)
        .filter((table) => ownerOfTable.get(table) === undefined || ownerOfTable.get(table) !== ownerOf(file))
        .filter((table) => !ofOperations(file, table) && !ofWholeSchemas(file, table))
        .map((table) => `${file} writes ${table} of ${ownerOfTable.get(table) ?? 'nobody'}`),
    )

const below = (owner: string | undefined, other: string): boolean =>
  owner !== undefined && domainOrder.indexOf(other) > domainOrder.indexOf(owner) && owner !== 'db'

/**
 * `file reads table of owner`, where the owner stands below the reader in the order of domains, or
 * the reader is no owner at all.
 */
const readsBelow = (all: readonly Text[]): string[] =>
  all.flatMap((text) =>
    [...ownerOfTable]
      .filter(([, owner]) => ownerOf(text.file) !== owner && below(ownerOf(text.file), owner))
      .filter(([table]) => names(text, table))
      .map(([table, owner]) => `${text.file} reads ${table} of ${owner}`),
  )

describe('the map of owners', () => {
  test('has every table of the schema once, and no other', () => {
    expect(Object.values(owners).flat().toSorted()).toEqual(tables.toSorted())
  })

  test('names domains in their order, and what belongs to them', () => {
    expect(Object.keys(owners).filter((owner) => owner !== 'db' && !domainOrder.includes(owner))).toEqual([])
    expect(Object.values(partOf).filter((owner) => !(owner in owners))).toEqual([])
    expect(definitions.filter((file) => [undefined, 'db'].includes(ownerOf(file)))).toEqual([])
  })
})

test('only its owner writes a table', () => {
  expect(foreignWrites(texts)).toEqual([])
  // So that a test that has lost sight of the statements is no success.
  expect(texts.filter(({ isSql, text }) => isSql && written(text).length > 0).length).toBeGreaterThan(100)
})

test('a domain reads tables of those above it only', () => {
  expect(readsBelow(texts)).toEqual([])
})

test('statements are where an owner is', () => {
  const strange = texts.filter(
    ({ file, isSql, text }) =>
      isSql && ownerOf(file) === undefined && tables.some((table) => names({ file, isSql, text }, table)),
  )
  expect(strange.map(({ file, text }) => `${file}: ${text.slice(0, 80)}`)).toEqual([])
})

describe('what is looked for', () => {
  const planted = (file: string, source: string): string[] => {
    const all = literals(file, source)
    return [...foreignWrites(all), ...readsBelow(all)]
  }
  const file = 'src/domains/credentials/planted.ts'

  test('is found in any form of a statement', () => {
    for (const [sql, table] of [
      ['insert into connections (id) values (${id})', 'connections'],
      ['with x as (select 1) insert into connections select 1', 'connections'],
      ['UPDATE only connections set name = 1', 'connections'],
      ['with gone as (delete from\n connections where id = ${id} returning id) select 1', 'connections'],
      ['merge into connections using x on true when matched then do nothing', 'connections'],
      ['truncate connections', 'connections'],
      ['update ${table} set name = 1', '?'],
      ['insert into no_such_table values (1)', 'no_such_table'],
    ] as const)
      expect([sql, planted(file, `db.run(sql\`${sql}\`)`)]).toEqual([
        sql,
        expect.arrayContaining([
          `${file} writes ${table} of ${table === 'connections' ? 'environments' : 'nobody'}`,
        ]),
      ])
    expect(planted(file, `db.prepared('x', 'delete from connections', [])`)).toContain(
      `${file} writes connections of environments`,
    )
    expect(
      planted(file, `db.many(Row, sql\`select 1 from credentials c join connections x on true\`)`),
    ).toEqual([`${file} reads connections of environments`])
    expect(planted(file, `const from = 'execution_runs r'`)).toEqual([
      `${file} reads execution_runs of execution-runs`,
    ])
  })

  test('is not found in locks, conflicts, comments, values and sentences', () => {
    for (const source of [
      'sql`select 1 from credentials for update`',
      'sql`select 1 from credentials for no key update of credentials`',
      "sql`insert into credentials values (1) on conflict (id) do update set shown = 'delete from connections'`",
      'sql`select 1 -- update connections set name = 1`',
      "'update the connections that use it'",
      "say('no credential of connections')",
    ])
      expect([source, planted(file, source)]).toEqual([source, []])
  })
})

test('texts of constraints stand with the domain whose tables have them, each once', () => {
  const tableOf = new Map<string, string>()
  for (const [, table = '', body = ''] of schema.matchAll(/^create table (\w+) \(\n([\s\S]*?)\n\)/gm))
    for (const [, name = ''] of body.matchAll(/^ {2}constraint (\w+) /gm)) tableOf.set(name, table)
  for (const [, name = '', table = ''] of schema.matchAll(/^CREATE UNIQUE INDEX (\w+) ON public\.(\w+)/gm))
    tableOf.set(name, table)
  const stated = Object.entries(constraintTexts).flatMap(([domain, of]) =>
    Object.keys(of).map((name) => ({ domain, name })),
  )
  expect(stated.filter(({ domain, name }) => ownerOfTable.get(tableOf.get(name) ?? '') !== domain)).toEqual(
    [],
  )
  expect(stated.length).toBe(new Set(stated.map(({ name }) => name)).size)
  expect(stated.length).toBeGreaterThan(50)
})
