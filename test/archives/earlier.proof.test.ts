import { afterAll, beforeAll, test } from '@jest/globals'
import { makeVaultKeyFile } from '../support/reach.ts'
import { openService, type TestService } from '../support/service.ts'
import { derivedExport, importsAndReads, unexportedSchemas } from './earlier-exports.ts'

/** Exports of instances that were brought from a real export to each later schema. */

let service: TestService
beforeAll(async () => {
  service = await openService({ environment: { SERVICE_VAULT_KEY_FILE: makeVaultKeyFile() } })
})
afterAll(() => service[Symbol.asyncDispose]())

test.each(await unexportedSchemas())(
  'an export of schema %s imports, and its records are read',
  async (schema) => importsAndReads(service, schema, await derivedExport(schema)),
)
