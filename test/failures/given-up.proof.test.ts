import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { openService, type TestService } from '../support/service.ts'
import { makeWorld, recordOf } from '../support/worlds.ts'

let service: TestService
beforeAll(async () => {
  service = await openService()
}, 120_000)
afterAll(() => service[Symbol.asyncDispose]())

test('a site at which the engine itself fails 30 times in a row is given up: the run ends failed with the reason, and nothing of it lives on', async () => {
  const pids = join(service.dataDir, 'pids')
  const world = await makeWorld(service, {
    name: 'broken',
    cores: [1, 1],
    tasks: [
      { name: 'spoilt', lane: [0, 0], launch: 'none' },
      {
        name: 'beside',
        run: `trap 'sleep 2; exit 1' TERM; echo $$ >> ${pids}; while :; do sleep 0.1; done`,
        lane: [1, 0],
      },
    ],
  })
  // What no caller can store: the executor cannot even read what it is to start there.
  await service.db.prepared(
    'spoil',
    `update activity_definitions set resource_requirements = 'null' where workflow_version_id = $1 ` +
      `and external_id like '%spoilt'`,
    [world.workflowVersionId],
  )
  await service.post('/execution-runs/', { id: 'broken-run', schedulePlanId: world.planId, mode: 'real' })
  // 30 attempts with pauses from 0.1 to 5 s.
  const { run } = await service.finished('broken-run', 240)
  expect(run).toMatchObject({
    status: 'failed',
    failureReason: expect.stringMatching(/the engine failed at site rehearsal \(TypeError\)/),
  })
  const { activities } = await recordOf(service, 'broken-run')
  expect(activities.map(({ status }) => status)).toEqual(['cancelled', 'cancelled'])
  const [pid] = readFileSync(pids, 'utf8').trim().split('\n') as [string]
  expect(existsSync(`/proc/${pid}`)).toBe(false)
}, 330_000)
