import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { cloneDatabase, type TestDatabase } from '../support/database.ts'
import { describeSchema } from '../support/describe-schema.ts'

const file = join(import.meta.dirname, 'schema.sql')

let clone: TestDatabase
beforeAll(async () => {
  clone = await cloneDatabase()
})
afterAll(() => clone.drop())

test('test/db/schema.sql is what the migrations result in; npm run docs:schema writes it', async () => {
  const text = await describeSchema(clone.db)
  if (process.env['UPDATE_SCHEMA'] === '1') writeFileSync(file, text)
  expect(readFileSync(file, 'utf8')).toBe(text)
})
