import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { z } from 'zod'
import { sql } from '../../src/db/sql.ts'
import { until } from '../failures/programs.ts'
import { makeVaultKeyFile } from '../support/reach.ts'
import { openService, type TestService } from '../support/service.ts'
import { examples, makeBaseWorld, worldVariables } from './whole-documents.ts'

let service: TestService
beforeAll(async () => {
  service = await openService({
    environment: { SERVICE_VAULT_KEY_FILE: makeVaultKeyFile(), ...worldVariables },
  })
  await makeBaseWorld(service)
})
afterAll(() => service[Symbol.asyncDispose]())

/** A fresh copy of the first example of a route. */
const exampleOf = (method: string, template: string, key: string): any =>
  structuredClone(examples.find((one) => one.method === method && one.template === template)!.body(key))
const newest = async (query: string): Promise<any> => (await service.get(`/audit-events/?${query}`))[0]

test('an accepted run is `created`, also when its workflow has begun', async () => {
  for (let i = 0; i < 10; i++) {
    const run = await service.post('/execution-runs/', {
      id: `accepted-${String(i)}`,
      schedulePlanId: 'base-plan',
      mode: 'simulation',
    })
    expect([run.status, run.startedAt]).toEqual(['created', undefined])
  }
  for (let i = 0; i < 10; i++) await service.finished(`accepted-${String(i)}`)
})

test('the document says that times of a task that are not known are absent', async () => {
  const { components } = (await (await fetch(`${service.rootUrl}/openapi.json`)).json()) as any
  const { properties, required } = components.schemas.TaskExecution
  for (const time of ['readyAt', 'dataReadyAt', 'queuedAt', 'startedAt', 'finishedAt'])
    expect([time, properties[time].description, required.includes(time)]).toEqual([
      time,
      expect.stringMatching(/absent while/),
      false,
    ])
})

test('the audit record of a refused change says so', async () => {
  expect((await service.call('DELETE', '/environments/nowhere/')).status).toBe(404)
  expect(await newest('environmentId=nowhere')).toMatchObject({
    outcome: 'failed',
    summary: 'refused: environment nowhere deleted',
  })
})

test('a used plan cannot be deleted, and the refusal speaks of the plan', async () => {
  const plan = exampleOf('POST', '/schedule-plans/import/', 'used-plan')
  await service.post('/schedule-plans/import/', plan)
  await service.post('/execution-runs/', {
    id: 'user-of-plan',
    schedulePlanId: 'used-plan',
    mode: 'simulation',
  })
  await service.finished('user-of-plan')
  const refused = await service.call('DELETE', '/schedule-plans/used-plan/')
  expect([refused.status, refused.body.error]).toEqual([
    422,
    'planId: the plan "used-plan" cannot be deleted: a run executes it',
  ])
})

test('a plan is not deleted while a run of it with the same embedded workflow is accepted', async () => {
  const planned = exampleOf('POST', '/schedule-plans/', 'raced-plan')
  planned.workflow.activities[0].simulation = { durationSeconds: 3 }
  await service.post('/schedule-plans/', planned)
  const waiting = (count: number) =>
    until(`${String(count)} statements that wait for locks`, 120, async () => {
      const found = await service.db.only(
        z.number(),
        sql`select count(*)::int from pg_stat_activity where datname = current_database()
          and wait_event_type = 'Lock'`,
      )
      return found === count
    })
  const calls = await service.db.transaction(async (tx) => {
    // The acceptance has locked the workflow when it reads this table.
    await tx.run(sql`lock table activity_resource_profiles in access exclusive mode`)
    const run = { id: 'racing-run', schedulePlanId: 'raced-plan', mode: 'simulation' }
    const accepted = service.call('POST', '/execution-runs/', { run, workflow: planned.workflow })
    await waiting(1)
    const deleted = service.call('DELETE', '/schedule-plans/raced-plan/')
    await waiting(2)
    return { accepted, deleted }
  })
  expect([(await calls.accepted).status, (await calls.deleted).status]).toEqual([202, 422])
  await service.finished('racing-run')
})

test('a refusal of a value is in the words of the service', async () => {
  const refusalOf = async (template: string, key: string, literal: string): Promise<string> => {
    const body = JSON.stringify({ ...exampleOf('POST', template, 'refused'), [key]: '#' }).replace(
      '"#"',
      literal,
    )
    const answer = await service.call('POST', template, body, { 'content-type': 'application/json' })
    expect(answer.text).not.toMatch(/too small|too big|expected|invalid input/i)
    const findings = (answer.body.details as { path: string; message: string }[]).filter(
      ({ path }) => path === key,
    )
    return `${String(answer.status)} ${findings.map(({ message }) => message).join('; ')}`
  }
  expect(await refusalOf('/planning-sessions/', 'deadlineSeconds', '-1')).toBe(
    '422 must be at least 0 (got -1)',
  )
  expect(await refusalOf('/planning-sessions/', 'algorithms', '[{"id": ""}]')).toMatch(/^422/)
  expect(await refusalOf('/execution-runs/', 'seed', '1e300')).toBe(
    '422 must be at most 9007199254740991 (got 1e+300)',
  )
  for (const [template, key] of [
    ['/execution-runs/', 'seed'],
    ['/resources/', 'cpuCores'],
    ['/resources/', 'memoryBytes'],
  ] as const)
    expect(await refusalOf(template, key, '9223372036854775808')).toMatch(
      new RegExp(
        `^422 (${[
          'the integer 9223372036854775808 is beyond 2\\^53-1 and would lose digits',
          'must be a whole number of at most 2\\^53-1',
        ].join('|')})$`,
      ),
    )
  expect(await refusalOf('/execution-runs/', 'title', JSON.stringify('x'.repeat(300)))).toBe(
    '422 must have at most 255 characters',
  )
})

test('a blank executionTarget and a blank theme mean the default', async () => {
  const resource = exampleOf('POST', '/resources/', 'blank-target')
  expect(await service.post('/resources/', { ...resource, executionTarget: '' })).toMatchObject({
    executionTarget: 'batch',
  })
  expect(
    await service.ok('PUT', '/user-preferences/client-blank/', { theme: '', animationsEnabled: true }),
  ).toMatchObject({
    theme: 'light',
  })
  const refused = await service.call('PUT', '/user-preferences/client-blank/', { theme: 'mauve' })
  expect([refused.status, refused.body.error]).toEqual([
    422,
    'theme: must be one of light, dark (got "mauve")',
  ])
})

test('a PUT of an environment that does not exist is 404, whatever else is wrong with it', async () => {
  const document = exampleOf('PUT', '/environments/{environmentId}/', 'x')
  for (const wrong of [{ ...document, environment: { ...document.environment, name: '' } }, document])
    expect((await service.call('PUT', '/environments/nowhere/', wrong)).status).toBe(404)
  expect((await service.call('PUT', '/environments/nowhere/', '{"environment": 7}')).status).toBe(400)
})

test('a check lists no stage that it did not try', async () => {
  const stagesOf = async (configuration: Record<string, unknown>): Promise<string[]> =>
    (
      (await service.post('/connection-tests/', { id: 'probe', name: 'probe', type: 'local', configuration }))
        .stages as { stage: string }[]
    ).map(({ stage }) => stage)
  expect(await stagesOf({})).toEqual(
    expect.arrayContaining(['shell', 'scheduler', 'container engine', 'rights']),
  )
  expect(await stagesOf({ scheduler: 'none' })).not.toContain('scheduler')
  expect(await stagesOf({ skipSchedulerCheck: true })).not.toContain('scheduler')
})
