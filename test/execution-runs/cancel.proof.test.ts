import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { startLeaseMs } from '../../src/executor/scheduling-state.ts'
import type { Answer } from '../support/client.ts'
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
const until = async (what: string, done: () => boolean | Promise<boolean>, seconds = 50): Promise<void> => {
  for (const end = Date.now() + seconds * 1_000; ;) {
    if (await done()) return
    if (Date.now() > end) throw new Error(`not within ${String(seconds)} s: ${what}`)
    await new Promise((resolve) => setTimeout(resolve, 20))
  }
}
const statusOf = async (runId: string, name: string): Promise<string> => {
  // Without the run's files: thousands of them make an answer that is old when it is read.
  const { items } = await service.get(`/execution-runs/${runId}/activities/?pageSize=100`)
  return items.find((task: any) => task.externalId === name)?.status
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
      run:
        `echo $$ >> ${pids}; (setsid sh -c 'echo $$ >> ${pids}; (setsid sh -c "echo \\$\\$ >> ` +
        `${pids}; sleep 60" &) ; sleep 60' &); (trap '' TERM; echo $$; sleep 60) & sleep 60`,
      lane: [0, 0],
    },
    { name: 'beside', run: `echo $$ >> ${pids}; sleep 60`, lane: [0, 1] },
    { name: 'next', run: `echo next >> ${ledger}`, lane: [0, 1] },
  ])
  await start(given.planId, 'tree-run')
  await until(
    'four processes',
    () => existsSync(pids) && readFileSync(pids, 'utf8').trim().split('\n').length === 4,
  )
  const answer = await cancel('tree-run')
  expect([answer.status, answer.body.status, answer.headers.get('location')]).toEqual([
    202,
    'running',
    '/api/execution-runs/tree-run/',
  ])
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
  expect(activityOf(record, given, 'next')).toMatchObject({
    status: 'cancelled',
    failureReason: 'the run was cancelled',
  })
  expect(existsSync(ledger)).toBe(false)
  // What is cancelled stays so, and says the same again.
  const again = await cancel('tree-run')
  expect([again.status, again.body.status]).toEqual([202, 'cancelled'])
})

test('a run that waits for a lane of another run is cancelled while the other one holds it, and that one completes', async () => {
  const gate = join(service.dataDir, 'gate')
  const given = await world([{ name: 'long', run: `until [ -e ${gate} ]; do sleep 0.1; done`, lane: [0, 0] }])
  await start(given.planId, 'holder')
  await until('the holder runs', async () => (await statusOf('holder', 'long')) === 'running')
  await start(given.planId, 'waiter')
  await until('the waiter waits', async () => (await statusOf('waiter', 'long')) === 'queued')
  await cancel('waiter')
  const { run } = await service.finished('waiter', 5)
  expect([run.status, await statusOf('holder', 'long')]).toEqual(['cancelled', 'running'])
  const record = await checked(service, given, 'waiter')
  expect([record.handles, activityOf(record, given, 'long').startedAt]).toEqual([[], undefined])
  writeFileSync(gate, '')
  expect((await service.finished('holder')).run.status).toBe('completed')
})

test('a run in the wait before another attempt is cancelled within three seconds, and the attempt never starts', async () => {
  const ledger = join(service.dataDir, 'attempts')
  const given = await world([
    {
      name: 'flaky',
      run: `echo $AKOFLOW_ATTEMPT >> ${ledger}; exit 1`,
      policy: { maxAttempts: 3, retryDelaySeconds: 30 },
    },
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

test('a run whose inputs are being staged is cancelled: then its task is not alive, and does not start any more', async () => {
  const given = await world([
    { name: 'make', run: 'i=0; while [ $i -lt 3000 ]; do echo $i > f$i; i=$((i+1)); done', lane: [0, 0] },
    {
      name: 'use',
      run: `echo $$ >> ${service.dataDir}/started-$AKOFLOW_RUN_ID; sleep 60`,
      after: ['make'],
      lane: [0, 1],
    },
  ])
  // On a slow machine the inputs may all be there before the end of the first activity is seen.
  let whileStaging = 0
  for (let round = 0; round < 10 && whileStaging === 0; round++) {
    const id = `staging-${String(round)}`
    const mark = join(service.dataDir, `started-${id}`)
    await start(given.planId, id)
    await until('the inputs are made', async () => (await statusOf(id, 'make')) === 'completed', 120)
    if (!existsSync(mark)) whileStaging += 1
    await cancel(id)
    const { run } = await service.finished(id, 30)
    expect(run.status).toBe('cancelled')
    const record = await checked(service, given, id)
    expect([activityOf(record, given, 'make').status, activityOf(record, given, 'use').status]).toEqual([
      'completed',
      'cancelled',
    ])
    // It may have started before the run was over, at most once.
    const starts = (): string[] => (existsSync(mark) ? readFileSync(mark, 'utf8').trim().split('\n') : [])
    const before = starts()
    expect(before.length).toBeLessThanOrEqual(1)
    expect(before.filter((pid) => existsSync(`/proc/${pid}`))).toEqual([])
    await new Promise((resolve) => setTimeout(resolve, 1_000))
    expect(starts()).toEqual(before)
  }
  expect(whileStaging).toBe(1)
}, 300_000)

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

/**
 * Holds the answer to a cancel against the run as it ended. A refused cancel has changed nothing, a
 * run is over as a whole, and it says the same when it is asked again.
 */
const expectOneOutcome = async (
  id: string,
  answer: Answer,
  activities: number,
): Promise<'completed' | 'cancelled'> => {
  const { run } = await service.finished(id)
  const { status, completedActivityCount } = run
  if (answer.status === 409) expect([answer.body.state, status]).toEqual(['completed', 'completed'])
  else expect([answer.status, ['completed', 'cancelled'].includes(status)]).toEqual([202, true])
  if (answer.body.status === 'cancelled') expect(status).toBe('cancelled')
  if (status === 'completed') expect(completedActivityCount).toBe(activities)
  else expect(completedActivityCount).toBeLessThan(activities)
  const again = await cancel(id)
  if (status === 'completed') expect([again.status, again.body.state]).toEqual([409, 'completed'])
  else expect([again.status, again.body.status]).toEqual([202, 'cancelled'])
  return status
}

test('a simulation that is asked to end while it is accepted has completed all of its activities, or none', async () => {
  const given = await world(Array.from({ length: 50 }, (_, i) => ({ name: `t${String(i)}`, seconds: 1 })))
  for (let k = 0; k < 5; k++) {
    const id = `sim-${String(k)}`
    await start(given.planId, id, 'simulation')
    const status = await expectOneOutcome(id, await cancel(id), 50)
    const { activities } = await checked(service, given, id)
    expect(new Set(activities.map((task) => task.status))).toEqual(new Set([status]))
  }
})

test('races of cancel against completion: a run is one or the other, and nothing starts once the end is seen', async () => {
  const ledger = join(service.dataDir, 'race')
  const given = await world([
    { name: 'a', run: `echo "$AKOFLOW_RUN_ID $(date +%s.%N)" >> ${ledger}` },
    { name: 'b', run: `echo "$AKOFLOW_RUN_ID $(date +%s.%N)" >> ${ledger}`, after: ['a'] },
  ])
  const began = performance.now()
  await start(given.planId, 'undisturbed')
  await service.finished('undisturbed')
  const undisturbedMs = performance.now() - began
  const seen = new Map<string, number>()
  const outcomes: string[] = []
  const races = 30
  for (let first = 0; first < races; first += 5) {
    await Promise.all(
      Array.from({ length: 5 }, async (_, k) => {
        const id = `race-${String(first + k)}`
        await start(given.planId, id)
        // From at once to five times what a run takes, most of them while it runs.
        await new Promise((resolve) =>
          setTimeout(resolve, 5 * undisturbedMs * ((first + k) / (races - 1)) ** 2),
        )
        const answer = await cancel(id)
        await service.finished(id)
        seen.set(id, Date.now() / 1_000)
        outcomes.push(await expectOneOutcome(id, answer, 2))
      }),
    )
  }
  expect(new Set(outcomes)).toEqual(new Set(['completed', 'cancelled']))
  await new Promise((resolve) => setTimeout(resolve, 500))
  const starts = readFileSync(ledger, 'utf8')
    .trim()
    .split('\n')
    .map((line) => line.split(' '))
  for (const [id = '', at] of starts) expect(Number(at)).toBeLessThanOrEqual(seen.get(id) ?? Infinity)
  for (const id of seen.keys()) await checked(service, given, id)
})

test('races in a row of short tasks that follow each other at once: once a cancel or a pause is answered nothing starts any more', async () => {
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
    await until(
      'the first has ended',
      async () => (await service.get(`/execution-runs/${id}/`)).run.completedActivityCount > 0,
    )
    await new Promise((resolve) => setTimeout(resolve, (race * 7) % 90))
    const wish = race % 3 === 2 ? 'pause' : 'cancel'
    const answer = await service.call('POST', `/execution-runs/${id}/${wish}/`)
    const answeredAt = Date.now() / 1_000
    if (wish === 'pause' && answer.status < 300) {
      await new Promise((resolve) => setTimeout(resolve, startLeaseMs + 300))
      const { activities } = await recordOf(service, id)
      for (const task of activities) expect(task.startedAt ?? 0).toBeLessThanOrEqual(answeredAt)
      if (activities.some((task: any) => task.startedAt === undefined)) between += 1
      await service.call('POST', `/execution-runs/${id}/resume/`)
    }
    const { run } = await service.finished(id)
    seen.set(id, Date.now() / 1_000)
    const record = await checked(service, given, id)
    if (wish === 'pause') expect(run).toMatchObject({ status: 'completed', completedActivityCount: 120 })
    else if ((await expectOneOutcome(id, answer, 120)) === 'cancelled') {
      between += 1
      for (const task of record.activities) expect(task.startedAt ?? 0).toBeLessThanOrEqual(answeredAt)
    }
  }
  expect(between).toBeGreaterThanOrEqual(20)
  await new Promise((resolve) => setTimeout(resolve, 500))
  const lines = readFileSync(ledger, 'utf8').trim().split('\n')
  expect(new Set(lines.map((line) => line.split(' ').slice(0, 2).join(' '))).size).toBe(lines.length)
  for (const [id, , at] of lines.map((line) => line.split(' ')))
    expect(Number(at)).toBeLessThanOrEqual(seen.get(id as string) as number)
}, 300_000)

test('a run accepted while the engine is away is cancelled as created, and never starts', async () => {
  const away = await openService({ temporalAddress: '127.0.0.1:9' })
  try {
    const given = await makeWorld(away, { name: 'away', tasks: [{ name: 'a' }] })
    const accepted = await away.call('POST', '/execution-runs/', {
      id: 'early',
      schedulePlanId: given.planId,
      mode: 'real',
    })
    expect([accepted.status, accepted.body.status]).toEqual([202, 'created'])
    const answer = await away.call('POST', '/execution-runs/early/cancel/')
    expect([answer.status, answer.body.status]).toEqual([202, 'cancelled'])
    const { run, activities, live } = await away.get('/execution-runs/early/')
    expect(run).toMatchObject({ status: 'cancelled', failureReason: 'cancelled on request' })
    expect(activities.map((task: any) => [task.status, task.startedAt])).toEqual([['cancelled', undefined]])
    expect(live).toBeUndefined()
    expect((await away.call('POST', '/execution-runs/early/cancel/')).status).toBe(202)
  } finally {
    await away[Symbol.asyncDispose]()
  }
}, 120_000)
