import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { startLeaseMs } from '../../src/executor/book-state.ts'
import { openService, type TestService } from '../support/service.ts'
import { makeWorld, recordOf, type WorldTask } from '../support/worlds.ts'
import { activityOf, checked } from './checked.ts'

let service: TestService
beforeAll(async () => {
  service = await openService()
}, 120_000)
afterAll(() => service[Symbol.asyncDispose]())

const start = (planId: string, id: string, mode = 'real'): Promise<unknown> =>
  service.post('/execution-runs/', { id, schedulePlanId: planId, mode })
const cancel = (id: string) => service.call('POST', `/execution-runs/${id}/cancel/`)
const until = async (what: string, done: () => boolean | Promise<boolean>): Promise<void> => {
  for (const end = Date.now() + 20_000; ;) {
    if (await done()) return
    if (Date.now() > end) throw new Error(`not within 20 s: ${what}`)
    await new Promise((resolve) => setTimeout(resolve, 20))
  }
}
const statusOf = async (runId: string, name: string): Promise<string> => {
  const { activities } = await service.get(`/execution-runs/${runId}/`)
  return activities.find((task: any) => task.externalId === name)?.status
}

let worlds = 0
const world = (tasks: readonly WorldTask[], more: object = {}) => {
  worlds += 1
  return makeWorld(service, { name: `c${String(worlds)}`, tasks, ...more })
}

test('a running run ends within seconds with everything it started, double-forked children in sessions of their own included', async () => {
  const pids = join(service.dataDir, 'pids')
  const ledger = join(service.dataDir, 'starts')
  const given = await world([
    {
      name: 'tree',
      run: `echo $$ >> ${pids}; (setsid sh -c 'echo $$ >> ${pids}; (setsid sh -c "echo \\$\\$ >> ${pids}; sleep 60" &) ; sleep 60' &); (trap '' TERM; echo $$; sleep 60) & sleep 60`,
      lane: [0, 0],
    },
    { name: 'beside', run: `echo $$ >> ${pids}; sleep 60`, lane: [0, 1] },
    { name: 'next', run: `echo next >> ${ledger}`, lane: [0, 1] },
  ])
  await start(given.planId, 'tree-run')
  await until('four processes', () => existsSync(pids) && readFileSync(pids, 'utf8').trim().split('\n').length === 4)
  const answer = await cancel('tree-run')
  expect([answer.status, answer.body.status, answer.headers.get('location')]).toEqual([202, 'running', '/api/execution-runs/tree-run/'])
  expect(answer.body.cancelRequestedAt).toEqual(expect.any(String))
  expect((await cancel('tree-run')).status).toBe(202)
  const began = Date.now()
  const { run } = await service.finished('tree-run')
  expect(Date.now() - began).toBeLessThan(10_000)
  expect(run).toMatchObject({ status: 'cancelled', completedActivityCount: 0 })
  expect(
    readFileSync(pids, 'utf8')
      .trim()
      .split('\n')
      .filter((pid) => existsSync(`/proc/${pid}`)),
  ).toEqual([])
  const record = await checked(service, given, 'tree-run')
  expect(activityOf(record, given, 'tree')).toMatchObject({ status: 'cancelled' })
  expect(activityOf(record, given, 'next')).toMatchObject({ status: 'cancelled' })
  expect(existsSync(ledger)).toBe(false)
  // What is cancelled stays so, and says the same again.
  const again = await cancel('tree-run')
  expect([again.status, again.body.status]).toEqual([202, 'cancelled'])
})

test('a run that waits for a lane of another run is cancelled at once, the other goes on', async () => {
  const given = await world([{ name: 'long', run: 'sleep 2', lane: [0, 0] }])
  await start(given.planId, 'holder')
  await until('the holder runs', async () => (await statusOf('holder', 'long')) === 'running')
  await start(given.planId, 'waiter')
  await until('the waiter waits', async () => (await statusOf('waiter', 'long')) === 'queued')
  await cancel('waiter')
  const { run } = await service.finished('waiter', 5)
  expect(run.status).toBe('cancelled')
  expect((await checked(service, given, 'waiter')).handles).toEqual([])
  expect((await service.finished('holder')).run.status).toBe('completed')
})

test('a run in the wait before another attempt is cancelled within a second', async () => {
  const ledger = join(service.dataDir, 'attempts')
  const given = await world([
    { name: 'flaky', run: `echo $AKOFLOW_ATTEMPT >> ${ledger}; exit 1`, policy: { maxAttempts: 3, retryDelaySeconds: 30 } },
  ])
  await start(given.planId, 'retrying')
  await until(
    'the first attempt failed',
    async () => (await service.get('/execution-runs/retrying/activities/?attempts=all')).items.length === 2,
  )
  const began = Date.now()
  await cancel('retrying')
  expect((await service.finished('retrying')).run.status).toBe('cancelled')
  expect(Date.now() - began).toBeLessThan(3_000)
  await checked(service, given, 'retrying')
  expect(readFileSync(ledger, 'utf8')).toBe('1\n')
})

test('a run whose inputs are being staged is cancelled, and its task never starts', async () => {
  const mark = join(service.dataDir, 'staged-and-started')
  const given = await world([
    { name: 'make', run: 'i=0; while [ $i -lt 3000 ]; do echo $i > f$i; i=$((i+1)); done', lane: [0, 0] },
    { name: 'use', run: `echo started > ${mark}; sleep 60`, after: ['make'], lane: [0, 1] },
  ])
  await start(given.planId, 'staging')
  await until('the second task is prepared', async () => ['preparing', 'running'].includes(await statusOf('staging', 'use')))
  const startedBefore = existsSync(mark)
  await cancel('staging')
  const { run } = await service.finished('staging', 15)
  expect(run.status).toBe('cancelled')
  const record = await checked(service, given, 'staging')
  expect(activityOf(record, given, 'use').status).toBe('cancelled')
  // What had begun by then has ended; what had not never begins.
  const started = existsSync(mark)
  await new Promise((resolve) => setTimeout(resolve, 1_000))
  expect(existsSync(mark)).toBe(started)
  expect(started || !startedBefore).toBe(true)
})

test('a run that is over cannot be cancelled: 409 with its state; an unknown one is 404', async () => {
  const given = await world([{ name: 'quick' }])
  const broken = await world([{ name: 'broken', run: 'exit 1' }])
  await start(given.planId, 'done')
  await start(broken.planId, 'gone')
  await Promise.all([service.finished('done'), service.finished('gone')])
  const [done, gone] = [await cancel('done'), await cancel('gone')]
  expect([done.status, done.body.code, done.body.state]).toEqual([409, 'conflict', 'completed'])
  expect([gone.status, gone.body.code, gone.body.state]).toEqual([409, 'conflict', 'failed'])
  expect((await cancel('nobody')).status).toBe(404)
  expect((await service.get('/execution-runs/done/')).run.status).toBe('completed')
})

test('a simulation that is asked to end while it is accepted ends cancelled or completed, never in between', async () => {
  const given = await world(Array.from({ length: 50 }, (_, i) => ({ name: `t${String(i)}`, seconds: 1 })))
  for (let k = 0; k < 5; k++) {
    const id = `sim-${String(k)}`
    await start(given.planId, id, 'simulation')
    const answer = await cancel(id)
    expect([202, 409]).toContain(answer.status)
    const { run } = await service.finished(id)
    expect(run.completedActivityCount).toBe(run.status === 'completed' ? 50 : 0)
    expect(answer.status === 409 || run.status === 'cancelled' || run.status === 'completed').toBe(true)
    await checked(service, given, id)
  }
})

test('races of cancel against completion: a run is one or the other, and nothing starts once cancelled is seen', async () => {
  const ledger = join(service.dataDir, 'race')
  const given = await world([
    { name: 'a', run: `echo "$AKOFLOW_RUN_ID $(date +%s.%N)" >> ${ledger}` },
    { name: 'b', run: `echo "$AKOFLOW_RUN_ID $(date +%s.%N)" >> ${ledger}`, after: ['a'] },
  ])
  const seen = new Map<string, number>()
  for (let batch = 0; batch < 6; batch++) {
    await Promise.all(
      Array.from({ length: 5 }, async (_, k) => {
        const id = `race-${String(batch)}-${String(k)}`
        await start(given.planId, id)
        await new Promise((resolve) => setTimeout(resolve, (batch * 5 + k) * 25))
        await cancel(id)
        const { run } = await service.finished(id)
        seen.set(id, Date.now() / 1_000)
        expect(['completed', 'cancelled']).toContain(run.status)
      }),
    )
  }
  await new Promise((resolve) => setTimeout(resolve, 500))
  const starts = existsSync(ledger)
    ? readFileSync(ledger, 'utf8')
        .trim()
        .split('\n')
        .map((line) => line.split(' '))
    : []
  for (const [id, at] of starts) expect(Number(at)).toBeLessThanOrEqual(seen.get(id as string) as number)
  for (const id of seen.keys()) await checked(service, given, id)
  expect(starts.length).toBeGreaterThan(0)
})

test('races in a row of short tasks that follow each other at once: nothing starts later than the start lease after the wish, nor once cancelled is seen', async () => {
  const ledger = join(service.dataDir, 'row')
  const given = await world(
    Array.from({ length: 120 }, (_, i) => ({
      name: `t${String(i)}`,
      run: `echo "$AKOFLOW_RUN_ID $AKOFLOW_ACTIVITY_ID $(date +%s.%N)" >> ${ledger}`,
      lane: [0, i % 2] as const,
    })),
  )
  const seen = new Map<string, number>()
  let between = 0
  for (let race = 0; race < 30; race++) {
    const id = `row-${String(race)}`
    await start(given.planId, id)
    // Counts from the first task on, so that the wish comes into the row on any machine.
    await until('the first has ended', async () => (await service.get(`/execution-runs/${id}/`)).run.completedActivityCount > 0)
    await new Promise((resolve) => setTimeout(resolve, (race * 7) % 90))
    const wish = race % 3 === 2 ? 'pause' : 'cancel'
    const answer = await service.call('POST', `/execution-runs/${id}/${wish}/`)
    const wishedAt = Date.now() / 1_000
    if (wish === 'pause' && answer.status < 300) {
      await new Promise((resolve) => setTimeout(resolve, startLeaseMs + 300))
      const { activities } = await recordOf(service, id)
      for (const task of activities) expect(task.startedAt ?? 0).toBeLessThanOrEqual(wishedAt + startLeaseMs / 1_000)
      if (activities.some((task: any) => task.startedAt === undefined)) between += 1
      await service.call('POST', `/execution-runs/${id}/resume/`)
    }
    const { run } = await service.finished(id)
    seen.set(id, Date.now() / 1_000)
    const record = await checked(service, given, id)
    if (wish === 'pause') expect(run).toMatchObject({ status: 'completed', completedActivityCount: 120 })
    else if (run.status === 'cancelled') {
      between += 1
      for (const task of record.activities) expect(task.startedAt ?? 0).toBeLessThanOrEqual(wishedAt + startLeaseMs / 1_000)
    }
  }
  expect(between).toBeGreaterThanOrEqual(20)
  await new Promise((resolve) => setTimeout(resolve, 500))
  const lines = readFileSync(ledger, 'utf8').trim().split('\n')
  expect(new Set(lines.map((line) => line.split(' ').slice(0, 2).join(' '))).size).toBe(lines.length)
  for (const [id, , at] of lines.map((line) => line.split(' '))) expect(Number(at)).toBeLessThanOrEqual(seen.get(id as string) as number)
}, 300_000)

test('a run accepted while the engine is away is cancelled as created, and never starts', async () => {
  const away = await openService({ temporalAddress: '127.0.0.1:9' })
  try {
    const given = await makeWorld(away, { name: 'away', tasks: [{ name: 'a' }] })
    const accepted = await away.call('POST', '/execution-runs/', { id: 'early', schedulePlanId: given.planId, mode: 'real' })
    expect([accepted.status, accepted.body.status]).toEqual([202, 'created'])
    const answer = await away.call('POST', '/execution-runs/early/cancel/')
    expect([answer.status, answer.body.status]).toEqual([202, 'cancelled'])
    const { run, activities, live } = await away.get('/execution-runs/early/')
    expect(run).toMatchObject({ status: 'cancelled', failureReason: 'cancelled on request' })
    expect(activities.map((task: any) => task.status)).toEqual(['cancelled'])
    expect(live).toBeUndefined()
    expect((await away.call('POST', '/execution-runs/early/cancel/')).status).toBe(202)
  } finally {
    await away[Symbol.asyncDispose]()
  }
}, 120_000)
