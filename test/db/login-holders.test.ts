import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { loginRecords } from '../../src/connections/login-holders.ts'
import { sql } from '../../src/db/sql.ts'
import { cloneDatabase, type TestDatabase } from '../support/database.ts'

/** The record by which the processes of a fleet know each other's logins. */

let database: TestDatabase
beforeAll(async () => {
  database = await cloneDatabase()
})
afterAll(async () => {
  await database?.drop()
})

const held = {
  login: 'a'.repeat(64),
  waiting: false,
  address: '127.0.0.1:7300',
  since: '2026-01-31T12:00:00.125Z',
}
const waiting = { login: 'b'.repeat(64), waiting: true, since: '2026-01-31T12:00:01.000Z' }

test('holds what each process said last, until it is silent for 15 s by the clock of the database', async () => {
  const { db } = database
  const records = loginRecords(db)
  await records.write('one', [held, waiting])
  await records.write('two', [waiting])
  expect(await records.read()).toEqual([
    { ...held, process: 'one' },
    { ...waiting, process: 'one' },
    { ...waiting, process: 'two' },
  ])
  // The same login is waited for, and then held.
  await records.write('two', [{ ...held, login: waiting.login }])
  await records.write('one', [held])
  expect(await records.read()).toEqual([
    { ...held, process: 'one' },
    { ...held, login: waiting.login, process: 'two' },
  ])
  await db.run(sql`update login_holders set seen_at = clock_timestamp() - interval '16 seconds'`)
  expect(await records.read()).toEqual([])
  // A renewal brings back one's own and sweeps what others left.
  await records.write('one', [held])
  expect(await records.read()).toEqual([{ ...held, process: 'one' }])
  expect(await db.run(sql`select from login_holders`)).toBe(1)
  await records.write('one', [])
  expect(await records.read()).toEqual([])
})

test('takes what many processes say at once', async () => {
  const records = loginRecords(database.db)
  await records.write('gone', [held, waiting])
  await database.db.run(sql`update login_holders set seen_at = clock_timestamp() - interval '1 hour'`)
  await Promise.all(
    Array.from({ length: 200 }, (_one, index) =>
      records.write(`p${String(index % 10)}`, index % 3 === 0 ? [waiting, held] : [held, waiting]),
    ),
  )
  expect(await records.read()).toHaveLength(20)
})
