import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { createHash } from 'node:crypto'
import { mkdirSync, mkdtempSync, realpathSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { CallAnswer } from '../../src/drivers/runtime/serverless/protocol.ts'
import { readRequestExamples, type RequestExample } from '../../src/http/request-examples.ts'
import { isForLack } from '../support/needs.ts'
import { eventually, makeVaultKeyFile } from '../support/reach.ts'
import { runFolder } from '../support/run-folder.ts'
import { openService, type TestService } from '../support/service.ts'

/** The examples of the API's document are requests that a new service accepts, in their order. */

const data = realpathSync(mkdtempSync(join(runFolder(), 'requests-')))
for (const folder of ['results', 'tools']) mkdirSync(join(data, folder))
writeFileSync(join(data, 'results', 'table.csv'), 'a,b\n')
writeFileSync(
  join(data, 'tools', 'field-tools.sif'),
  `#!/usr/bin/env run-singularity\n\0SIF_MAGIC\x0001\x0002\0${'x'.repeat(100)}`,
)

/** The store has the bytes of a context before it is described. */
const artifacts = mkdtempSync(join(runFolder(), 'request-artifacts-'))
const context = 'a context'
const digest = createHash('sha256').update(context).digest('hex')
mkdirSync(join(artifacts, 'contexts', digest.slice(0, 2)), { recursive: true })
writeFileSync(join(artifacts, 'contexts', digest.slice(0, 2), digest), context)

let service: TestService
beforeAll(async () => {
  service = await openService({
    environment: {
      SERVICE_CONSOLE_ENABLED: 'true',
      SERVICE_LOCAL_STORAGE_ROOT: data,
      SERVICE_ARTIFACT_ROOT: artifacts,
      SERVICE_VAULT_KEY_FILE: makeVaultKeyFile(),
    },
  })
})
afterAll(() => service?.[Symbol.asyncDispose]())

/** Requests that only a function sends, with the link of its call. */
const ofFunctions = new Set(['reportFunctionResult', 'writeFunctionOutput'])

test('each operation that takes a document has one example, which the document shows', async () => {
  const document = (await (await fetch(`${service.rootUrl}/openapi.json`)).json()) as { paths: object }
  const shown = Object.values<Record<string, any>>(document.paths as never)
    .flatMap((item) => Object.values(item))
    .flatMap(({ operationId, requestBody }) =>
      Object.entries<{ example?: unknown }>(requestBody?.content ?? {})
        .filter(([type]) => /json|yaml/.test(type))
        .map(([, { example }]) => [operationId as string, example] as const),
    )
  const examples = readRequestExamples()
  expect(examples.map(({ operation }) => operation).toSorted()).toEqual(
    [...new Set(shown.map(([id]) => id))].toSorted(),
  )
  const bodies = new Map(examples.map(({ operation, body }) => [operation, body]))
  for (const [id, example] of shown) expect([id, example]).toEqual([id, bodies.get(id)])
})

test('all of them are accepted', async () => {
  let sessionId = ''
  const send = ({ path, body }: RequestExample, method: string) =>
    service.call(
      method,
      path.replace('{sessionId}', sessionId),
      JSON.parse(JSON.stringify(body).replaceAll('/srv/data', data)),
    )
  const methodOf = (operation: string): string => (operation.startsWith('update') ? 'PUT' : 'POST')
  const refused: unknown[] = []
  for (const example of readRequestExamples()) {
    const { operation } = example
    if (ofFunctions.has(operation)) continue
    if (operation === 'createMaterialization')
      await eventually('the run is over', 60, async () =>
        ['completed', 'failed'].includes((await service.get('/execution-runs/survey-run/')).run.status),
      )
    // No provider is there to end the machines that the examples asked for.
    if (operation === 'resetInstance')
      await service.db.prepared('gone', 'update cloud_instances set machine_gone = true', [])
    const answer = await send(example, methodOf(operation))
    // The provider is asked, and no test reaches one.
    if (operation === 'validateCloudCredential' && answer.body.code === 'unavailable') continue
    if (isForLack(answer.body.error, 'ansible-core', 'bubblewrap')) continue
    if (answer.status >= 300) refused.push([operation, answer.status, answer.body.error])
    if (operation === 'openConsoleSession') sessionId = answer.body.id ?? answer.body.session?.id
  }
  expect(refused).toEqual([])
})

test('a function’s answer has the form that the service reads', () => {
  const example = readRequestExamples().find(({ operation }) => operation === 'reportFunctionResult')
  expect(CallAnswer.parse(example?.body)).toMatchObject({ exitCode: 0, reason: 'exited' })
})
