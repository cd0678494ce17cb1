import { randomBytes } from 'node:crypto'
import { openDatabase, type Database } from '../../src/db/pool.ts'

export interface TestDatabase {
  db: Database
  url: string
  drop: () => Promise<void>
}

/** A fresh database of the newest schema, cloned from the template of the test run; `drop` it in `afterAll`. */
export const cloneDatabase = async (): Promise<TestDatabase> => {
  const base = process.env['ORRERY_TEST_DATABASE']
  if (base === undefined)
    throw new Error('ORRERY_TEST_DATABASE is not set: run the tests with npm test, whose global setup starts PostgreSQL')
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
  const url = base.replace(/\/postgres$/, `/${name}`)
  const db = openDatabase(url, { max: 10, onError: () => undefined })
  return {
    db,
    url,
    drop: async () => {
      await db[Symbol.asyncDispose]()
      await statement(`drop database if exists ${name} with (force)`)
      await admin[Symbol.asyncDispose]()
    },
  }
}
