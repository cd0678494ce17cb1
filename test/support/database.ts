import { randomBytes } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import { openDatabase, type Database } from '../../src/db/pool.ts'

export interface TestDatabase {
  db: Database
  url: string
  drop: () => Promise<void>
}

/**
 * The role of the tests may end its own sessions, but not an autovacuum worker. Such a worker ends
 * after a moment, so the drop is retried.
 */
const dropWhenVacuumed = async (drop: () => Promise<void>): Promise<void> => {
  for (let tries = 0; ; tries++) {
    try {
      await drop()
      return
    } catch (error) {
      if ((error as { code?: string }).code !== '42501' || tries >= 100) throw error
      await sleep(100)
    }
  }
}

/**
 * A fresh database of the newest schema, cloned from the template of the test run; `drop` it in
 * `afterAll`.
 */
export const cloneDatabase = async (): Promise<TestDatabase> => {
  const base = process.env['ORRERY_TEST_DATABASE']
  if (base === undefined)
    throw new Error(
      'ORRERY_TEST_DATABASE is not set: run the tests with npm test, whose global setup starts PostgreSQL',
    )
  const name = `t_${randomBytes(8).toString('hex')}`
  const admin = openDatabase(base, { max: 1 })
  const statement = async (text: string): Promise<void> => {
    const client = await admin.client()
    try {
      await client.query(text)
    } finally {
      client.release()
    }
  }
  await statement(`create database ${name} template template_orrery strategy file_copy`)
  const url = base.replace(/\/[^/]+$/, `/${name}`)
  const db = openDatabase(url, { max: 10, onError: () => undefined })
  return {
    db,
    url,
    drop: async () => {
      await db[Symbol.asyncDispose]()
      await dropWhenVacuumed(() => statement(`drop database if exists ${name} with (force)`))
      await admin[Symbol.asyncDispose]()
    },
  }
}
