import { expect } from '@jest/globals'
import { configFromEnvironment } from '../../src/config.ts'
import { installSchemathesis, runSchemathesis } from '../support/schemathesis.ts'
import { makeVaultKeyFile } from '../support/reach.ts'
import { openService, type TestService } from '../support/service.ts'
import { makeBaseWorld, worldVariables } from './whole-documents.ts'
import { needs } from '../support/needs.ts'

const { afterAll, beforeAll, test } = needs('python3-venv')

let service: TestService
beforeAll(async () => {
  service = await openService({
    environment: { SERVICE_VAULT_KEY_FILE: makeVaultKeyFile(), ...worldVariables },
  })
  await makeBaseWorld(service)
}, 120_000)
afterAll(() => service[Symbol.asyncDispose]())

test('a reader of the document that knows nothing else finds no failure, no status and no shape that is not in it', async () => {
  const program = await installSchemathesis(configFromEnvironment().cacheDir)
  const { code, text } = await runSchemathesis(program, {
    document: `${service.rootUrl}/openapi.json`,
    baseUrl: service.baseUrl,
    seconds: 30,
    seed: 1,
  })
  if (code !== 0) throw new Error(text.slice(0, 20_000))
  // It has done something: a document that it cannot read would be an empty success.
  expect(Number(/(\d+) generated/.exec(text.replaceAll(',', ''))?.[1] ?? 0)).toBeGreaterThan(200)
}, 600_000)
