import { expect } from '@jest/globals'
import type { TestService } from '../support/service.ts'
import { dependenciesOf, recordOf, type RunRecord, type World } from '../support/worlds.ts'
import { violationsOf } from './checker.ts'

/** The whole record of a run, after the checker has found nothing wrong with it. */
export const checked = async (
  service: Pick<TestService, 'get'>,
  world: World,
  runId: string,
): Promise<RunRecord> => {
  const record = await recordOf(service, runId)
  const most = new Map(
    world.tasks.map((task) => [world.activityId(task.name), task.policy?.maxAttempts ?? 1]),
  )
  expect(
    violationsOf(record, { dependencies: dependenciesOf(world), maxAttempts: (id) => most.get(id) ?? 1 }),
  ).toEqual([])
  return record
}

/** Starts a run and waits for its end; the record has passed the checker. */
export const runToEnd = async (
  service: TestService,
  world: World,
  run: { id: string; mode?: string; seconds?: number } & Record<string, unknown>,
): Promise<RunRecord> => {
  const { seconds, ...members } = run
  await service.post('/execution-runs/', { schedulePlanId: world.planId, mode: 'real', ...members })
  await service.finished(run.id, seconds)
  return checked(service, world, run.id)
}

export const activityOf = (record: RunRecord, world: World, name: string, attempt?: number): any =>
  record.activities
    .filter(
      (task) =>
        task.activityId === world.activityId(name) && (attempt === undefined || task.attempt === attempt),
    )
    .at(-1)
