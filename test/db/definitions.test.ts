import { afterAll, beforeAll, beforeEach, expect, test } from '@jest/globals'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { readDefinitions, readPublished } from '../../src/db/definitions.ts'
import { migrate } from '../../src/db/migrate.ts'
import { readMigrations } from '../../src/db/migrations.ts'
import { cloneDatabase, type TestDatabase } from '../support/database.ts'

/** Functions and views: one file each, applied again when they change. */

let clone: TestDatabase
let statement: (text: string) => Promise<Record<string, unknown>[]>
beforeAll(async () => {
  clone = await cloneDatabase()
  statement = async (text) => {
    const client = await clone.db.client()
    try {
      return (await client.query<Record<string, unknown>>(text)).rows
    } finally {
      client.release()
    }
  }
})
afterAll(() => clone.drop())
beforeEach(() => migrate(clone.db).then(() => undefined))

const signatures = async (): Promise<string[]> =>
  (
    await statement(
      `select p.oid::regprocedure::text || ' returns ' || pg_get_function_result(p.oid) as text ` +
        `from pg_proc p where p.pronamespace = 'public'::regnamespace order by 1`,
    )
  ).map(({ text }) => String(text))
const views = async (): Promise<string[]> =>
  (
    await statement(
      `select case n.nspname when 'public' then '' else n.nspname || '.' end || c.relname as name
        from pg_class c join pg_namespace n on n.oid = c.relnamespace
       where c.relkind = 'v' and n.nspname in ('public', 'provenance') order by 1`,
    )
  ).map(({ name }) => String(name))
/** Folder, schema and name of a definition's file. */
const definition = /^(functions|views)\/(provenance\/)?(?:derived\/)?(\w+)\.sql$/
const applied = async (): Promise<Record<string, unknown>[]> =>
  statement('select number, hash, applied_at::text as at from schema_definitions order by number')
const comment = async (): Promise<unknown> =>
  (await statement(`select obj_description('activity_lifecycle_events'::regclass) as text`))[0]?.['text']
const source = async (): Promise<string> =>
  String((await statement(`select prosrc as text from pg_proc where proname = 'commit_site'`))[0]?.['text'])

/** A function under the right name that does nothing, as another version might have left it. */
const replaceCommit = async (): Promise<void> => {
  const [found] = await statement(
    `select pg_get_functiondef(oid) as text from pg_proc where proname = 'commit_site'`,
  )
  await statement(String(found?.['text']).replace('acquired :=', '-- another version\n  acquired :='))
  expect(await source()).toContain('-- another version')
}

test('the set of this checkout is published; npm run docs:schema publishes it', async () => {
  const [{ hash }, published] = [await readDefinitions(), await readPublished()]
  if (process.env['UPDATE_SCHEMA'] === '1') {
    if (published.hashes.at(-1) !== hash) published.hashes.push(hash)
    published.signatures = [...new Set([...published.signatures, ...(await signatures())])].toSorted()
    writeFileSync(
      join(import.meta.dirname, '../../src/db/definitions.json'),
      `${JSON.stringify(published, null, 2)}\n`,
    )
  }
  expect(published.hashes.at(-1)).toBe(hash)
  // Workers of an earlier version call what they know: another signature is another function, and
  // the first one stays.
  expect(await signatures()).toEqual(published.signatures)
})

test('the database has the functions and views of the files, and no others; each file is one of them', async () => {
  const { files } = await readDefinitions()
  for (const { name, text } of files) {
    const [, folder, schema = '', own] = definition.exec(name) ?? []
    const created = [...text.matchAll(/^create\b.*$/gim)].map(([line]) => line)
    expect([name, created]).toEqual([
      name,
      [
        expect.stringMatching(
          `^create or replace ${folder === 'views' ? 'view' : 'function'} ${schema.replace('/', '.')}${own ?? ''}\\b`,
        ),
      ],
    ])
  }
  // Of the views of a schema those that read others stand in a folder behind them.
  expect(
    files.map(({ name }) => name.replace('derived/', '').replace('provenance/', 'provenance.')).toSorted(),
  ).toEqual(
    [
      ...(await signatures()).map((one) => `functions/${one.replace(/\(.*/, '')}.sql`),
      ...(await views()).map((one) => `views/${one}.sql`),
    ].toSorted(),
  )
})

test('no migration makes a function or view: these have files, whose changes can be read', async () => {
  const migrations = (await readMigrations()).filter(({ number }) => number > 16)
  expect(
    migrations
      .filter(({ text }) => /\bcreate\s+(or\s+replace\s+)?(function|view)\b/i.test(text))
      .map(({ name }) => name),
  ).toEqual([])
})

test('a set is applied once, and again when another one stands there', async () => {
  const before = await applied()
  expect(before).toHaveLength(1)
  await replaceCommit()
  await migrate(clone.db)
  expect(await applied()).toEqual(before)
  expect(await source()).toContain('-- another version')

  // As a version before has left it: a lower number.
  await statement(`update schema_definitions set number = 0, hash = 'earlier'`)
  await migrate(clone.db)
  expect(await source()).not.toContain('-- another version')
  expect((await applied()).map(({ number }) => number)).toEqual([0, before[0]?.['number']])
  await statement('delete from schema_definitions where number = 0')
})

test('a text that is still being written is applied at each change', async () => {
  await replaceCommit()
  await statement(`update schema_definitions set hash = 'draft'`)
  await migrate(clone.db)
  expect(await source()).not.toContain('-- another version')
})

test('the functions of a newer version stay, which may run beside this one', async () => {
  await replaceCommit()
  await statement(`insert into schema_definitions (number, hash) values (1000, 'later')`)
  await migrate(clone.db)
  expect(await source()).toContain('-- another version')
  await statement('delete from schema_definitions')
})

test('a migration may take a view away: it is back behind it', async () => {
  await statement(`comment on view activity_lifecycle_events is 'before'`)
  await statement('drop view activity_lifecycle_events')
  const newest = (await readMigrations()).at(-1)?.number ?? 0
  await statement(`delete from schema_migrations where number = ${String(newest)}`)
  await migrate(clone.db)
  expect(await views()).toContain('activity_lifecycle_events')
  expect(await comment()).toBeNull()
})

test('what cannot be applied is named, and nothing of the set is', async () => {
  await replaceCommit()
  await statement('drop view activity_lifecycle_events')
  await statement('create table activity_lifecycle_events ()')
  await statement('delete from schema_definitions')
  await expect(migrate(clone.db)).rejects.toThrow('views/activity_lifecycle_events.sql could not be applied')
  expect(await source()).toContain('-- another version')
  expect(await applied()).toEqual([])
  await statement('drop table activity_lifecycle_events')
})
