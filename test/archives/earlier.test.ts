import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { makeVaultKeyFile } from '../support/reach.ts'
import { openService, type TestService } from '../support/service.ts'

/** Exports that services of earlier schemas made (`make-export.ts`). Each has to import here. */
const folder = join(import.meta.dirname, 'exports')
const exports = readdirSync(folder).filter((name) => name.endsWith('.zip'))

let service: TestService
beforeAll(async () => {
  service = await openService({ environment: { SERVICE_VAULT_KEY_FILE: makeVaultKeyFile() } })
})
afterAll(() => service[Symbol.asyncDispose]())

test('there are exports', () => expect(exports.length).toBeGreaterThanOrEqual(2))

test.each(exports)('%s imports, and its runs, plan, lineage and crate are read', async (name) => {
  const answer = await fetch(`${service.baseUrl}/instances/import/`, {
    method: 'POST',
    headers: { 'content-type': 'application/zip' },
    body: new Uint8Array(readFileSync(join(folder, name))),
  })
  const imported = (await answer.json()) as { id: string; schemaVersion: number }
  expect([answer.status, imported]).toMatchObject([
    201,
    {
      schemaVersion: Number(name.replace('.zip', '')),
      contents: { runs: 2, plans: 1, workflows: 1, artifacts: 1 },
    },
  ])
  await service.ok('POST', `/instance-activations/${imported.id}/`)
  try {
    const { run, activities } = await service.get('/execution-runs/first/')
    expect([run.status, run.mode, activities.length]).toEqual(['completed', 'real', 2])
    expect((await service.get('/execution-runs/rehearsed/')).run.mode).toBe('simulation')
    expect((await service.get('/schedule-plans/hello-plan/')).id).toBe('hello-plan')
    const { items } = await service.get('/provenance/entities/data_instances/')
    const file = items.find((item: { relative_path: string }) => item.relative_path === 'greeting.txt')
    const lineage = await service.get(`/provenance/lineage/data_instances/${String(file?.id)}/?depth=5`)
    expect(lineage.nodes.map((node: { entity: string }) => node.entity)).toEqual(
      expect.arrayContaining(['data_instances', 'task_executions', 'runs', 'workflow_versions']),
    )
    const rows = await service.post('/provenance/sql/', {
      statement: 'select external_id from attempts where execution_run_id = ? order by 1',
      params: ['first'],
    })
    expect(rows).toEqual([{ external_id: 'greet' }, { external_id: 'shout' }])
    expect((await service.get('/search/?q=hello')).total).toBeGreaterThan(2)
    expect((await fetch(`${service.baseUrl}/execution-runs/first/crate/`)).status).toBe(200)
    expect((await service.call('GET', '/execution-runs/first/activities/greet/logs/')).status).toBe(404)
  } finally {
    await service.ok('POST', '/instance-activations/default/')
  }
})
