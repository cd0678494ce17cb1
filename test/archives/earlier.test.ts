import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { makeVaultKeyFile } from '../support/reach.ts'
import { openService, type TestService } from '../support/service.ts'
import {
  derivedExport,
  exportedSchemas,
  exportsFolder,
  importsAndReads,
  unexportedSchemas,
} from './earlier-exports.ts'

let service: TestService
beforeAll(async () => {
  service = await openService({ environment: { SERVICE_VAULT_KEY_FILE: makeVaultKeyFile() } })
})
afterAll(() => service[Symbol.asyncDispose]())

test('there are exports', () => expect(exportedSchemas().length).toBeGreaterThanOrEqual(2))

test.each(exportedSchemas())('an export of schema %s imports, and its records are read', (schema) =>
  importsAndReads(service, schema, readFileSync(join(exportsFolder, `${String(schema)}.zip`))),
)

// The proof takes each later schema.
test('so does that of an instance that was brought to the next schema', async () => {
  const [oldest = 0] = exportedSchemas()
  const next = (await unexportedSchemas()).find((schema) => schema > oldest)
  expect(next).toBeDefined()
  await importsAndReads(service, Number(next), await derivedExport(Number(next)))
})
