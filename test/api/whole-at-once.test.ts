import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { until } from '../failures/programs.ts'
import { makeVaultKeyFile } from '../support/reach.ts'
import { openService, type TestService } from '../support/service.ts'
import { tableCounts } from '../support/table-counts.ts'
import { examples, makeBaseWorld, worldVariables } from './whole-documents.ts'

// Environments, resources, scopes, topologies, workflows, plans and sessions have this test of
// their own.
let service: TestService
beforeAll(async () => {
  service = await openService({
    environment: { SERVICE_VAULT_KEY_FILE: makeVaultKeyFile(), ...worldVariables },
  })
  await makeBaseWorld(service)
})
afterAll(() => service[Symbol.asyncDispose]())

const sixtyFour = async (method: string, path: string, body?: unknown): Promise<Record<number, number>> => {
  const answers = await Promise.all(Array.from({ length: 64 }, () => service.call(method, path, body)))
  const statuses: Record<number, number> = {}
  for (const { status } of answers) statuses[status] = (statuses[status] ?? 0) + 1
  return statuses
}
/** Tables that have grown, and by how many rows. */
const growth = async (work: () => Promise<unknown>): Promise<Record<string, number>> => {
  const before = await tableCounts(service.db)
  await work()
  const after = await tableCounts(service.db)
  return Object.fromEntries(
    Object.entries(after).flatMap(([table, rows]) =>
      rows === before[table] ? [] : [[table, rows - (before[table] ?? 0)]],
    ),
  )
}

test('64 equal runs make one, which is executed once', async () => {
  const body = examples.find(({ form }) => form === 'with its snapshot')!.body('once')
  const grown = await growth(async () => {
    expect(await sixtyFour('POST', '/execution-runs/', body)).toEqual({ 202: 1, 409: 63 })
    await service.finished('once')
  })
  expect(grown).toMatchObject({ execution_runs: 1, run_snapshots: 1, task_executions: 2 })
  const { events } = await service.get('/execution-runs/once/')
  const kinds = events.map(
    ({ eventType, aggregateId }: any) => `${eventType as string} ${aggregateId as string}`,
  )
  expect(kinds).toEqual([...new Set(kinds)])
})

test('64 equal duplications make one workflow', async () => {
  const grown = await growth(async () => {
    expect(
      await sixtyFour('POST', '/workflow-definition-actions/duplicate/base-flow/', { name: 'copy' }),
    ).toEqual({ 201: 1, 422: 63 })
  })
  expect(grown).toMatchObject({ workflow_definitions: 1, workflow_versions: 1, activity_definitions: 2 })
})

test('64 equal preferences of a new client make one', async () => {
  expect(
    await growth(async () =>
      expect(await sixtyFour('PUT', '/user-preferences/client-once/', { theme: 'dark' })).toEqual({
        200: 64,
      }),
    ),
  ).toEqual({ user_preferences: 1 })
})

test('64 equal selections of a candidate make one plan', async () => {
  await service.post('/planning-sessions/', {
    id: 'session',
    workflowVersionId: 'base-flow-v1',
    executionScopeId: 'base-scope',
    algorithms: [{ id: 'heft' }],
  })
  await until(
    'the session',
    120,
    async () => (await service.get('/planning-sessions/session/')).session.status === 'completed',
  )
  const [candidate] = await service.get('/planning-sessions/session/candidates/')
  const grown = await growth(async () => {
    const statuses = await sixtyFour(
      'POST',
      `/planning-sessions/session/candidates/${encodeURIComponent(candidate.id)}/select/`,
    )
    expect(Object.keys(statuses).every((status) => ['201', '409', '422'].includes(status))).toBe(true)
    expect(statuses[201]).toBeGreaterThanOrEqual(1)
  })
  expect(grown).toEqual({ schedule_plans: 1, schedule_plan_assignments: 2 })
})

test('64 equal creates under one Idempotency-Key: one is done, every other one gets its answer or is told to wait', async () => {
  const body = examples.find(({ template }) => template === '/execution-scopes/')!.body('keyed')
  const answers = await Promise.all(
    Array.from({ length: 64 }, () =>
      service.call('POST', '/execution-scopes/', body, { 'idempotency-key': 'one' }),
    ),
  )
  const done = answers.filter(({ status }) => status === 201)
  expect(
    answers
      .filter(({ status }) => status !== 201)
      .every(({ status, headers }) => status === 409 && headers.get('retry-after') !== null),
  ).toBe(true)
  expect(done.filter(({ headers }) => headers.get('idempotency-replayed') === null)).toHaveLength(1)
  expect(new Set(done.map(({ text }) => text)).size).toBe(1)
})
