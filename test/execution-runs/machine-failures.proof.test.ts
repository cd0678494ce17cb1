import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { kill } from '../support/kill.ts'
import { openService, type TestService } from '../support/service.ts'
import { makeWorld } from '../support/worlds.ts'
import { checked } from './checked.ts'

let service: TestService
beforeAll(async () => {
  service = await openService()
}, 120_000)
afterAll(() => service[Symbol.asyncDispose]())

/**
 * What a machine that dies leaves of a task: no process of it, and no recorded end. The runner goes
 * first, so that it cannot record one; its number is in the task's record.
 */
const lose = (name: string, pid: number): void => {
  const record = readFileSync(join(service.dataDir, 'tasks', `${name}.task`), 'utf8')
  kill(Number(new RegExp(`^${name} runner (\\d+) `, 'm').exec(record)?.[1]))
  kill(-pid)
}

test('50 failures of the site cost no attempt of the activities: with maxAttempts 1 the run completes', async () => {
  const ledger = join(service.dataDir, 'ledger')
  const count = 50
  writeFileSync(ledger, '')
  // A first attempt waits to be lost; the next does its work.
  const command =
    `echo "$AKOFLOW_ACTIVITY_ID $AKOFLOW_ATTEMPT $AKOFLOW_TASK $$" >> ${ledger}; if [ ` +
    '$AKOFLOW_ATTEMPT -eq 1 ]; then exec sleep 600; fi'
  const world = await makeWorld(service, {
    name: 'losing',
    cores: Array<number>(count).fill(1),
    tasks: Array.from({ length: count }, (_, i) => ({
      name: `t${String(i)}`,
      run: command,
      policy: { maxAttempts: 1 },
    })),
  })
  await service.post('/execution-runs/', { id: 'losing-run', schedulePlanId: world.planId, mode: 'real' })
  const lost = new Set<string>()
  for (const end = Date.now() + 240_000; lost.size < count && Date.now() < end;) {
    for (const line of readFileSync(ledger, 'utf8').split('\n').slice(0, -1)) {
      const [activity, attempt, name, pid] = line.split(' ') as [string, string, string, string]
      if (attempt !== '1' || lost.has(activity)) continue
      lost.add(activity)
      lose(name, Number(pid))
    }
    await new Promise((resolve) => setTimeout(resolve, 50))
  }
  expect(lost.size).toBe(count)
  const { run } = await service.finished('losing-run', 120)
  expect(run).toMatchObject({ status: 'completed', completedActivityCount: count, failedActivityCount: 0 })
  const record = await checked(service, world, 'losing-run')
  const first = record.activities.filter((task) => task.attempt === 1)
  expect(first).toHaveLength(count)
  for (const task of first)
    expect(task).toMatchObject({
      status: 'failed',
      failureClass: 'infrastructure',
      failureReason: expect.stringMatching(/lost/),
    })
  expect(record.activities.filter((task) => task.attempt === 2 && task.status === 'completed')).toHaveLength(
    count,
  )
  const starts = readFileSync(ledger, 'utf8')
    .trim()
    .split('\n')
    .map((line) => line.split(' ').slice(0, 2).join(' '))
  expect(new Set(starts).size).toBe(starts.length)
}, 420_000)

test('a loss spends none of the attempts that the activity has for its own failures', async () => {
  const ledger = join(service.dataDir, 'mixed')
  writeFileSync(ledger, '')
  const command =
    `echo "$AKOFLOW_ATTEMPT $AKOFLOW_TASK $$" >> ${ledger}; case $AKOFLOW_ATTEMPT in 1) exec sleep ` +
    '600;; 2) exit 1;; esac'
  const world = await makeWorld(service, {
    name: 'both',
    tasks: [{ name: 'task', run: command, policy: { maxAttempts: 2 } }],
  })
  await service.post('/execution-runs/', { id: 'both-run', schedulePlanId: world.planId, mode: 'real' })
  while (!existsSync(ledger) || readFileSync(ledger, 'utf8') === '')
    await new Promise((resolve) => setTimeout(resolve, 50))
  const [, name, pid] = readFileSync(ledger, 'utf8').trim().split(' ') as [string, string, string]
  lose(name, Number(pid))
  const { run } = await service.finished('both-run')
  expect(run.status).toBe('completed')
  const record = await checked(service, world, 'both-run')
  expect(record.activities.map((task) => [task.attempt, task.status, task.failureClass])).toEqual([
    [1, 'failed', 'infrastructure'],
    [2, 'failed', 'user'],
    [3, 'completed', undefined],
  ])
})
