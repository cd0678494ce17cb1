import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { z } from 'zod'
import { migrate } from '../../src/db/migrate.ts'
import { readMigrations } from '../../src/db/migrations.ts'
import { openDatabase } from '../../src/db/pool.ts'
import { insertRows } from '../../src/db/rows.ts'
import { join, sql, where } from '../../src/db/sql.ts'
import { refusalOf } from '../../src/constraints.ts'
import { until } from '../failures/programs.ts'
import { cloneDatabase, type TestDatabase } from '../support/database.ts'

let test1: TestDatabase
beforeAll(async () => {
  test1 = await cloneDatabase()
})
afterAll(() => test1.drop())

test('pieces nest and placeholders are numbered through', () => {
  const both = where(sql`a = ${1}`, undefined, sql`b in (${join([sql`${2}`, sql`${3}`])})`)
  const query = sql`select * from t ${both} limit ${4}`
  expect(query.toQuery()).toEqual({
    text: 'select * from t where a = $1 and b in ($2, $3) limit $4',
    values: [1, 2, 3, 4],
  })
})

test('a row comes back in camelCase, typed, without its empty columns', async () => {
  const row = await test1.db.one(
    z.object({ bigNumber: z.number(), at: z.string(), nothing: z.string().optional() }),
    sql`select 9007199254740991::bigint as big_number, timestamptz '2026-01-02 03:04:05+01' as at, null::text
      as nothing`,
  )
  expect(row).toEqual({ bigNumber: 9007199254740991, at: '2026-01-02T02:04:05.000Z' })
})

test('a text with NUL is stored with U+FFFD in its place, alone, in a list and in a row', async () => {
  const said = 'a\0b'
  const row = await test1.db.one(
    z.object({ one: z.string(), list: z.array(z.string()) }),
    sql`select ${said}::text as one, ${[said, 'c']}::text[] as list`,
  )
  expect(row).toEqual({ one: 'a\ufffdb', list: ['a\ufffdb', 'c'] })
  expect(await test1.db.prepared('nul', 'select $1::text as one', [said])).toEqual([{ one: 'a\ufffdb' }])
  await insertRows(test1.db, sql`insert into execution_scopes`, 'id name', [{ id: said, name: said }])
  const stored = sql`delete from execution_scopes returning id, name`
  expect(await test1.db.many(z.object({ id: z.string(), name: z.string() }), stored)).toEqual([
    { id: 'a\ufffdb', name: 'a\ufffdb' },
  ])
})

test('two statements in one text are refused by the server', async () => {
  await expect(test1.db.run(sql`select 1; select 2`)).rejects.toThrow(/multiple commands/)
})

test('a failed transaction leaves nothing', async () => {
  await expect(
    test1.db.transaction(async (tx) => {
      await tx.run(sql`insert into execution_scopes (id, name) values ('s', 's')`)
      await tx.transaction((inner) =>
        inner.run(sql`insert into execution_scopes (id, name) values ('s', 's')`),
      )
    }),
  ).rejects.toMatchObject({ constraint: 'execution_scopes_pkey' })
  expect(await test1.db.many(z.object({}), sql`select 1 as one from execution_scopes`)).toEqual([])
})

test('a statement that PostgreSQL ends, and a change of a database that takes none, may be tried again', async () => {
  const late = test1.db.transaction(async (tx) => {
    await tx.run(sql`set local statement_timeout = 1`)
    await tx.run(sql`select pg_sleep(60)`)
  })
  const refused = test1.db.snapshot((tx) => tx.run(sql`delete from execution_scopes`))
  const unavailable = { code: 'unavailable' }
  expect(await Promise.all([late, refused].map((failing) => failing.catch(refusalOf)))).toMatchObject([
    unavailable,
    unavailable,
  ])
})

test('a violated constraint becomes words with a path', async () => {
  await test1.db.run(sql`insert into execution_scopes (id, name) values ('s', 's')`)
  const refusal = await test1.db
    .run(sql`insert into execution_scopes (id, name) values ('s', 's')`)
    .catch(refusalOf)
  expect(refusal).toMatchObject({ code: 'unacceptable', details: [{ path: 'id' }] })
})

test('a migration waits for another program longer than a statement of the service may take', async () => {
  const holder = await test1.db.session()
  await holder.query('select pg_advisory_lock(7355608151)')
  const limited = openDatabase(`${test1.url}?options=-c%20statement_timeout%3D200`, { max: 1 })
  const migrating = migrate(limited)
  try {
    const waited = until('a wait beyond the limit', 30, async () => {
      const { rows } = await holder.query(`select 1 from pg_stat_activity where datname = current_database()
        and wait_event = 'advisory' and clock_timestamp() - query_start > interval '300 ms'`)
      return rows.length > 0
    })
    await Promise.race([waited, migrating])
    await holder.query('select pg_advisory_unlock(7355608151)')
    expect((await migrating).old).toEqual([])
  } finally {
    await limited[Symbol.asyncDispose]()
    await holder.end()
  }
})

test('a database of a newer schema is refused, and so is one whose migrations had another text', async () => {
  const newest = (await readMigrations()).at(-1)?.number ?? 0
  await test1.db.run(
    sql`insert into schema_migrations (number, name, hash) values (${newest + 1}, 'later', 'x')`,
  )
  await expect(migrate(test1.db as never)).rejects.toThrow(/start the newer version/)
  await test1.db.run(sql`delete from schema_migrations where number = ${newest + 1}`)
  await test1.db.run(sql`update schema_migrations set hash = 'other' where number = 1`)
  await expect(migrate(test1.db as never)).rejects.toThrow(/other text/)
})
