import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { MockActivityEnvironment } from '@temporalio/testing'
import { executionRunActivities } from '../../activities/execution-run.ts'
import { openCompute, type Compute } from '../../src/compute/compute.ts'
import {
  claimSite,
  commitSite,
  LeasePassedOn,
  loadRun,
  stepParts,
  type JournalEntry,
  type TaskStart,
} from '../../src/executor/journal.ts'
import { abandonRun, closeRun, openRun, runKind } from '../../src/domains/execution-runs/operation.ts'
import { retryRun } from '../../src/domains/execution-runs/steering.ts'
import { readOperation, requestCancel } from '../../src/operations/records.ts'
import { quietReports } from '../support/quiet-reports.ts'
import { openService, type TestService } from '../support/service.ts'
import { proved, runsOf } from '../support/share.ts'
import { makeWorld, recordOf, type World } from '../support/worlds.ts'

let service: TestService
let world: World
beforeAll(async () => {
  // Without an engine nobody but the test writes the runs.
  service = await openService({ temporalAddress: '127.0.0.1:9' })
  world = await makeWorld(service, {
    name: 'steps',
    cores: [2],
    tasks: [{ name: 'a', policy: { maxAttempts: 2 } }, { name: 'b' }, { name: 'c', after: ['a'] }],
  })
})
afterAll(() => service[Symbol.asyncDispose]())

const site = 'local@here'
const nothing: JournalEntry = {
  takenBack: [],
  starts: [],
  ends: [],
  retries: [],
  states: [],
  intents: [],
  outputs: [],
  transfers: [],
  leftovers: [],
}
const intent = (run: string, task: string, core: string): JournalEntry['intents'][number] => ({
  id: `${run}:steps-${task}`,
  name: `name-${run}-${task.replace(':', '-')}`,
  directory: null,
  host: 'here',
  readyAt: 1,
  startedAt: 2,
  lanes: [['steps-host-1', core, 'default']],
  ahead: false,
})
const end = (
  run: string,
  task: string,
  status: 'completed' | 'failed',
  final: boolean,
): JournalEntry['ends'][number] => ({
  id: `${run}:steps-${task}`,
  activityId: `steps-${task}`,
  attempt: 1,
  status,
  readyAt: 1,
  startedAt: 2,
  finishedAt: 3,
  runtimeSeconds: 1,
  queueSeconds: 1,
  overheadSeconds: 0,
  transferSeconds: 0,
  transferBytes: 0,
  cost: 0,
  cpuSeconds: null,
  peakMemoryBytes: null,
  measuredBy: 'none',
  exitCode: status === 'completed' ? 0 : 1,
  failureClass: status === 'completed' ? null : 'user',
  failureReason: status === 'completed' ? null : 'no luck',
  manifest: null,
  siteQueueSeconds: 4,
  place: { node: 'n1', pod: 'p1' },
  externalId: null,
  final,
  order: 1,
  heir: null,
})
const opened = async (run: string): Promise<number> => {
  await service.post('/execution-runs/', { id: run, schedulePlanId: 'steps-plan', mode: 'real' })
  await openRun(service.db, { id: run, generation: 1 })
  return (await claimSite(service.db, run, site, 'test')).epoch
}
/** Everything on record, without the clock of the server. */
const facts = async (run: string): Promise<unknown> => {
  const { run: state, activities, handles, events } = await recordOf(service, run)
  const { startedAt: _startedAt, createdAt: _createdAt, ...steady } = state
  const text = JSON.stringify({
    steady,
    activities,
    handles,
    events: events.map(({ occurredAt: _occurredAt, ...event }: any) => event),
  })
  return JSON.parse(text.replaceAll(run, 'RUN'))
}

/**
 * Steps of a run with everything that a step can hold; the second is the one in which a task that
 * had waited gets its lane.
 */
const story = (run: string): JournalEntry[] => [
  { ...nothing, intents: [intent(run, 'a', 'core-0')] },
  {
    ...nothing,
    states: [
      {
        id: `${run}:steps-b`,
        status: 'queued',
        atSite: false,
        readyAt: 1,
        queuedAt: 2,
        reason: 'its lane is held by another',
      },
    ],
    intents: [intent(run, 'b', 'core-1')],
  },
  {
    ...nothing,
    states: [
      {
        id: `${run}:steps-a`,
        status: 'queued',
        atSite: true,
        reason: 'at the site: Priority',
        externalId: '4711',
      },
    ],
  },
  {
    ...nothing,
    states: [
      { id: `${run}:steps-b`, atSite: true, reason: 'waiting for the site: no route', silentSince: 3 },
    ],
  },
  {
    ...nothing,
    states: [
      { id: `${run}:steps-a`, status: 'running', atSite: true, reason: '', externalId: '4711' },
      { id: `${run}:steps-b`, atSite: true, reason: '' },
    ],
  },
  {
    ...nothing,
    ends: [end(run, 'a', 'failed', false)],
    retries: [
      {
        id: `${run}:steps-a:2`,
        after: `${run}:steps-a`,
        attempt: 2,
        userAttempts: 2,
        walltimeExtensions: 1,
        readyAt: 3,
        notBefore: 4,
      },
    ],
    intents: [intent(run, 'a:2', 'core-0')],
  },
  {
    ...nothing,
    ends: [end(run, 'b', 'completed', false), { ...end(run, 'a:2', 'completed', false), order: 2 }],
    outputs: [
      {
        id: `${run}:o:1`,
        objectId: `${run}:o`,
        activityId: 'steps-b',
        attempt: 1,
        path: 'x',
        pathBytes: null,
        sizeBytes: 1,
        checksum: null,
        uri: 'file://here/x',
        resourceId: 'steps-host-1',
        versionId: 'steps-v1',
        declared: false,
      },
    ],
    transfers: [
      {
        id: `${run}:t`,
        producer: 'steps-a',
        consumer: 'steps-c',
        source: 'x',
        target: 'y',
        bytes: 1,
        networkBytes: 2,
        filesTransferred: 3,
        route: { links: [], strategy: 'gateway', reason: 'no other way', from: 'a', to: 'b' },
        strategy: 'gateway',
        startedAt: 1,
        finishedAt: 2,
        cost: 0,
      },
    ],
    intents: [intent(run, 'c', 'core-0')],
  },
  {
    ...nothing,
    ends: [end(run, 'c', 'failed', true)],
    leftovers: [{ name: `left-by-${run}`, words: 'no route' }],
  },
]

const outputs = runsOf(20_000, 140_000)
proved(
  'many outputs of one attempt are on record whole, with its end; given again they change nothing',
  async () => {
    const epoch = await opened('many')
    const many = Array.from({ length: outputs }, (_, i) => ({
      ...{ id: `many:o:${String(i)}`, objectId: `many:${String(i)}`, versionId: 'steps-v1', declared: false },
      ...{ activityId: 'steps-b', attempt: 1, path: `out/${String(i)}`, pathBytes: null },
      ...{ sizeBytes: 1, checksum: null },
      ...{ uri: `file://here/out/${String(i)}`, resourceId: 'steps-host-1' },
    }))
    const step = { ...nothing, ends: [end('many', 'b', 'completed', false)], outputs: many }
    const counted = async (): Promise<number[]> => {
      const [row] = await service.db.prepared<Record<string, string>>(
        'counted',
        `select (select count(*) from data_object_instances where execution_run_id = $1) as instances,
        (select count(*) from data_locations where execution_run_id = $1) as locations,
        (select count(*) from task_executions where execution_run_id = $1 and status = 'completed') as completed`,
        ['many'],
      )
      return Object.values(row ?? {}).map(Number)
    }
    await expect(commitSite(service.db, 'many', site, epoch + 1, step)).rejects.toThrow(LeasePassedOn)
    expect(await counted()).toEqual([0, 0, 0])
    await commitSite(service.db, 'many', site, epoch, {
      ...nothing,
      intents: [intent('many', 'b', 'core-1')],
    })
    for (const _ of [1, 2]) {
      await commitSite(service.db, 'many', site, epoch, step)
      expect(await counted()).toEqual([outputs, outputs, 1])
    }
    const { dataObjectsTotal } = await service.get('/execution-runs/many/')
    expect(dataObjectsTotal).toBe(outputs)
  },
)

test('ends with long manifests are cut by their bytes, in the order of the step; one that no document holds is shortened', () => {
  const manifest = (count: number): NonNullable<JournalEntry['ends'][number]['manifest']> => ({
    ...{ schemaVersion: 1, runtime: 'local', hostname: 'here', root: '/w' },
    files: Array.from({ length: count }, (_, i) => ({
      ...{ path: `f${String(i)}`, change: 'created' as const, sizeBytes: 1, modifiedUnixNano: '1' },
    })),
    summary: {
      ...{ initialFiles: 0, finalFiles: count, createdFiles: count, modifiedFiles: 0, deletedFiles: 0 },
      outputBytes: count,
    },
  })
  const counts = [9_000, 100, 9_000, 30_000, 100]
  const ends = counts.map((count, k) => ({
    ...end('cut', String(k), 'completed', true),
    ...{ order: 10 * (k + 1), manifest: manifest(count) },
  }))
  const starts = [5, 25, 45].map((order): TaskStart => ({
    id: `s${String(order)}`,
    name: 'n',
    readyAt: 0,
    startedAt: 0,
    order,
  }))
  const entry = { ...nothing, takenBack: ['t'], starts, ends: ends.toReversed(), retries: [] }
  const most = 1_000_000
  const { before, last } = stepParts(entry, { atOnce: 800_000, most })
  const parts = [...before, last]
  expect(parts.map((part) => part.ends.map(({ id }) => id.slice(-1)).join(''))).toEqual([
    '',
    '01',
    '2',
    '3',
    '4',
  ])
  expect(parts.map((part) => part.starts.map(({ order }) => order))).toEqual([[], [5], [25], [], [45]])
  expect(parts.flatMap(({ takenBack }) => takenBack)).toEqual(['t'])
  expect(before[0]?.takenBack).toEqual(['t'])
  const long = parts[3]?.ends[0]?.manifest
  expect(JSON.stringify(long?.files).length).toBeGreaterThan(most * 0.9)
  expect(JSON.stringify(long).length).toBeLessThan(most + 1_000)
  expect(long?.warnings).toEqual([
    expect.stringContaining(
      `the last ${(30_000 - long!.files.length).toLocaleString('en')} files are on record`,
    ),
  ])
  expect(long?.summary.finalFiles).toBe(30_000)
  const wide = manifest(30_000)
  for (const file of wide.files) file.path = `測${file.path}`
  const shortest = stepParts({ ...nothing, ends: [{ ...ends[0]!, manifest: wide }] }, { atOnce: most, most })
  const [cut] = shortest.last.ends
  expect(Buffer.byteLength(JSON.stringify(cut))).toBeLessThan(most + 1_000)
  expect(stepParts(entry).before).toHaveLength(1)
  expect(stepParts({ ...nothing, ends: ends.slice(1, 3) })).toMatchObject({ before: [] })
})

test('a step that is given twice does what it does once, and says the same', async () => {
  const once = await opened('once')
  for (const entry of story('once')) await commitSite(service.db, 'once', site, once, entry)
  const expected = await facts('once')
  await service.db.prepared('free', 'delete from lane_leases', [])
  const twice = await opened('twice')
  for (const entry of story('twice')) {
    const first = await commitSite(service.db, 'twice', site, twice, entry)
    expect(await commitSite(service.db, 'twice', site, twice, entry)).toEqual(first)
  }
  expect(await facts('twice')).toEqual(expected)
})

test('a step of a holder that was replaced changes nothing', async () => {
  await service.db.prepared('free', 'delete from lane_leases', [])
  const stale = await opened('stale')
  const [first, ...rest] = story('stale')
  await commitSite(service.db, 'stale', site, stale, first as JournalEntry)
  expect(await claimSite(service.db, 'stale', site, 'another')).toMatchObject({
    epoch: stale + 1,
    before: 'test',
  })
  const before = await facts('stale')
  for (const entry of rest)
    await expect(commitSite(service.db, 'stale', site, stale, entry)).rejects.toThrow(LeasePassedOn)
  expect(await facts('stale')).toEqual(before)
})

test('a step of a holder from before a deletion of its run changes nothing of the next run of its id', async () => {
  await service.db.prepared('free', 'delete from lane_leases', [])
  const stale = await opened('reused')
  expect((await closeRun(service.db, { id: 'reused' })).status).toBe('failed')
  expect((await service.call('DELETE', '/execution-runs/reused/')).status).toBe(204)
  await opened('reused')
  const before = await facts('reused')
  for (const entry of story('reused'))
    await expect(commitSite(service.db, 'reused', site, stale, entry)).rejects.toThrow(LeasePassedOn)
  expect(await facts('reused')).toEqual(before)
})

test('late activities of a deleted run do not reach the next run of its id', async () => {
  const id = 'simulated'
  await using compute = openCompute({ threads: 1 })
  const run = <T>(work: () => Promise<T>): Promise<T> => new MockActivityEnvironment().run(work)
  const accept = async (): Promise<string> => {
    await service.post('/execution-runs/', { id, schedulePlanId: world.planId, mode: 'simulation' })
    return (await readOperation(service.db, runKind, { id }))?.key ?? ''
  }
  const replace = async (): Promise<void> => {
    await requestCancel(service.db, runKind, { id }, { actorId: 'test' })
    expect(await run(() => activities.closeRun(id, 1, 'finished', first))).toMatchObject({
      status: 'cancelled',
    })
    expect((await service.call('DELETE', `/execution-runs/${id}/`)).status).toBe(204)
    next = await accept()
    expect(await run(() => activities.openRun(id, 1, next))).toMatchObject({ state: 'simulate' })
  }
  const activities = executionRunActivities({
    ...{ db: service.db, engine: { taskQueue: 'q' }, reports: quietReports() },
    draining: new AbortController().signal,
    compute: {
      simulate: async (...request: Parameters<Compute['simulate']>) => {
        await replace()
        return compute.simulate(...request)
      },
    },
  } as never)
  let next = ''
  const first = await accept()
  await run(() => activities.openRun(id, 1, first))
  await run(() => activities.simulateRun(id, first))
  const read = async () => (await service.get(`/execution-runs/${id}/`)).run
  const before = await read()
  expect(before).toMatchObject({ status: 'running', completedActivityCount: 0, activityCount: 3 })

  expect(await run(() => activities.openRun(id, 1, first))).toMatchObject({ state: 'over' })
  expect(await run(() => activities.runSite(id, 1, site, first))).toMatchObject({
    settled: true,
    completed: 0,
  })
  await run(() => activities.cancelRun(id, 1, first))
  await abandonRun(service.db, { id, key: first }, site, 'the engine failed')
  for (const files of ['to finish', 'left', 'finished'] as const)
    expect(await run(() => activities.closeRun(id, 1, files, first))).toEqual({
      status: 'cancelled',
      completed: 0,
    })
  expect(await read()).toEqual(before)
  expect((await readOperation(service.db, runKind, { id }))?.cancelRequestedAt).toBeUndefined()
  // A workflow of an earlier version knows no key.
  expect(await run(() => activities.closeRun(id, 1, 'finished'))).toMatchObject({ status: 'failed' })
})

test('a lane of the longest names is held by one task at a time, and its holder is told', async () => {
  await service.db.prepared('free', 'delete from lane_leases', [])
  const epoch = await opened('long')
  let seed = 7
  // Text that the database cannot make shorter.
  const name = (): string =>
    Array.from({ length: 255 }, () => {
      seed = (seed * 48_271) % 2_147_483_647
      return String.fromCodePoint(0x10000 + (seed % 60_000))
    }).join('')
  const lane: [string, string, string] = [`${name()}@${name()}`, name(), name()]
  const asking = (task: string) => ({
    ...nothing,
    intents: [{ ...intent('long', task, ''), lanes: [lane] }],
  })
  const first = await commitSite(service.db, 'long', site, epoch, asking('a'))
  expect(first.acquired).toEqual(['long:steps-a'])
  const second = await commitSite(service.db, 'long', site, epoch, asking('b'))
  expect(second.acquired).toEqual([])
  expect(JSON.stringify(second)).toContain('long:steps-a')
})

/** An intent whose lanes come to it from the task before it. */
const intentAhead = (run: string, task: string): JournalEntry['intents'][number] => ({
  ...intent(run, task, ''),
  lanes: [],
  ahead: true,
})
const holderOf = async (core: string): Promise<string | undefined> => {
  const [row] = await service.db.prepared<{ id: string }>(
    'holder_of',
    'select task_execution_id as id from lane_leases where core_id = $1',
    [core],
  )
  return row?.id
}

test('what is intended ahead gets the lane at the end of the one before, starts without a commit of its own, or is taken back without a trace', async () => {
  const run = 'relay'
  await service.db.prepared('free', 'delete from lane_leases', [])
  const epoch = await opened(run)
  const twice = async (entry: Partial<JournalEntry>) => {
    const step = { ...nothing, ...entry }
    const first = await commitSite(service.db, run, site, epoch, step)
    expect(await commitSite(service.db, run, site, epoch, step)).toEqual(first)
    return first
  }
  const id = (task: string): string => `${run}:steps-${task}`
  const kinds = async (): Promise<string[]> =>
    (await recordOf(service, run)).events
      .slice(1)
      .map(({ eventType, payload }: any) => `${eventType} ${payload.activityId}`)
  const step = await twice({
    intents: [intent(run, 'a', 'core-0'), intentAhead(run, 'b'), intentAhead(run, 'c')],
  })
  expect(step.acquired.sort()).toEqual([id('a'), id('b'), id('c')])
  expect(await kinds()).toEqual(['activity.started steps-a'])
  // Taken back, and intended again.
  await twice({ takenBack: [id('c')] })
  expect((await recordOf(service, run)).handles.map(({ id: handle }: any) => handle)).toEqual([id('a')])
  await twice({ intents: [intentAhead(run, 'c')] })
  // The lane goes to b before anybody else can have it.
  await twice({ ends: [{ ...end(run, 'a', 'completed', false), heir: id('b') }] })
  expect(await holderOf('core-0')).toBe(id('b'))
  await twice({ starts: [{ id: id('b'), name: 'name-b', readyAt: 3, startedAt: 3.5, order: 1 }] })
  expect((await recordOf(service, run)).activities.find((task: any) => task.id === id('b'))).toMatchObject({
    status: 'preparing',
    startedAt: 3.5,
  })
  // Begun and ended between two commits: both events, and the lane is free.
  await twice({
    ends: [
      { ...end(run, 'b', 'completed', false), order: 1 },
      { ...end(run, 'c', 'completed', false), startOrder: 2, name: 'name-c', order: 3 },
    ],
  })
  expect(await holderOf('core-0')).toBeUndefined()
  expect(await kinds()).toEqual(
    ['a', 'b', 'c'].flatMap((task) => [`activity.started steps-${task}`, `activity.completed steps-${task}`]),
  )
})

test('a lane is had by one task at a time, and the other learns by whom; all lanes of a task or none', async () => {
  await service.db.prepared('free', 'delete from lane_leases', [])
  const [a, b] = [await opened('lane-a'), await opened('lane-b')]
  expect(
    (
      await commitSite(service.db, 'lane-a', site, a, {
        ...nothing,
        intents: [intent('lane-a', 'a', 'core-0')],
      })
    ).acquired,
  ).toEqual(['lane-a:steps-a'])
  const both = {
    ...intent('lane-b', 'b', 'core-1'),
    lanes: [
      ['steps-host-1', 'core-0', 'default'],
      ['steps-host-1', 'core-1', 'default'],
    ] as const,
  }
  const refused = await commitSite(service.db, 'lane-b', site, b, { ...nothing, intents: [both as never] })
  expect([refused.acquired, refused.holders]).toEqual([[], { 'lane-b:steps-b': 'lane-a:steps-a' }])
  // The lane that was free has not been kept.
  expect(
    (
      await commitSite(service.db, 'lane-a', site, a, {
        ...nothing,
        intents: [intent('lane-a', 'b', 'core-1')],
      })
    ).acquired,
  ).toEqual(['lane-a:steps-b'])
})

test('once a cancel is on record no intent is accepted', async () => {
  await service.db.prepared('free', 'delete from lane_leases', [])
  const epoch = await opened('cancelled')
  expect((await service.call('POST', '/execution-runs/cancelled/cancel/')).status).toBe(202)
  const result = await commitSite(service.db, 'cancelled', site, epoch, {
    ...nothing,
    intents: [intent('cancelled', 'a', 'core-0')],
  })
  expect([result.acquired, result.cancelled]).toEqual([[], true])
  expect((await recordOf(service, 'cancelled')).handles).toEqual([])
})

test('a run that is opened again has the patience of a new one, and no name that its site may have ended', async () => {
  const { db } = service
  const lost = (id: string, attempt: number, final: boolean): JournalEntry['ends'][number] => ({
    ...{ ...end('again', 'a', 'failed', final), id: `again:steps-${id}`, attempt },
    ...{ failureClass: 'infrastructure', place: { suspect: true } },
  })
  const retry = (id: string, attempt: number, userAttempts = 1): JournalEntry['retries'][number] => ({
    ...{ id: `again:steps-${id}:${String(attempt)}`, attempt, userAttempts },
    after: attempt === 2 ? `again:steps-${id}` : `again:steps-${id}:${String(attempt - 1)}`,
    ...{ walltimeExtensions: 0, readyAt: 3, notBefore: 4 },
  })
  const loaded = async () =>
    (await loadRun(db, 'again', world.workflowVersionId)).tasks.map(
      ({ external_id, attempt, first_attempt, user_attempts, suspects, ahead }) => ({
        ...{ name: external_id, attempt, first: first_attempt, own: user_attempts, suspects, ahead },
      }),
    )
  const epoch = await opened('again')
  const commit = (entry: Partial<JournalEntry>) =>
    commitSite(db, 'again', site, epoch, { ...nothing, ...entry })
  await commit({ intents: [intent('again', 'a', 'core-0'), intent('again', 'b', 'core-1')] })
  await commit({
    ends: [lost('a', 1, false), lost('b', 1, false)],
    retries: [retry('a', 2), retry('b', 2, 2)],
  })
  const waits = {
    status: 'queued',
    atSite: false,
    reason: 'waiting for its next attempt',
    waitsFor: 'retry',
  } as const
  await commit({
    states: [{ id: 'again:steps-b:2', ...waits }],
    intents: [intent('again', 'a:2', 'core-0'), { ...intent('again', 'c', ''), lanes: [], ahead: true }],
  })
  await commit({ ends: [lost('a:2', 2, true)] })
  expect(await loaded()).toEqual([
    { name: 'a', attempt: 2, first: 1, own: 1, suspects: 1, ahead: false },
    { name: 'b', attempt: 2, first: 1, own: 2, suspects: 1, ahead: false },
    { name: 'c', attempt: 1, first: 1, own: 1, suspects: 0, ahead: true },
  ])
  expect((await closeRun(db, { id: 'again', generation: 1 })).status).toBe('failed')

  await retryRun(db, 'again')
  expect(await loaded()).toEqual([
    { name: 'a', attempt: 3, first: 3, own: 1, suspects: 0, ahead: false },
    { name: 'b', attempt: 2, first: 2, own: 1, suspects: 0, ahead: false },
    { name: 'c', attempt: 2, first: 2, own: 1, suspects: 0, ahead: false },
  ])
  const { activities } = await recordOf(service, 'again')
  expect(activities.filter(({ metadata }: any) => metadata?.queueReason !== undefined)).toEqual([])
  const { epoch: next } = await claimSite(db, 'again', site, 'test')
  const entry = { ...nothing, ends: [lost('a:3', 3, false)], retries: [retry('a', 4)] }
  await commitSite(db, 'again', site, next, entry)
  expect((await loaded())[0]).toMatchObject({ attempt: 4, first: 3, suspects: 1 })
})

test('a step is recorded whatever characters its texts and names hold', async () => {
  await service.db.prepared('free', 'delete from lane_leases', [])
  const epoch = await opened('texts')
  await commitSite(service.db, 'texts', site, epoch, {
    ...nothing,
    intents: [intent('texts', 'a', 'core-0'), intent('texts', 'b', 'core-1')],
  })
  await commitSite(service.db, 'texts', site, epoch, {
    ...nothing,
    ends: [
      {
        ...end('texts', 'a', 'failed', true),
        failureReason: 'no \0 luck \ud800',
        place: { 'a\0': ['\udfff'] },
      },
    ],
    states: [{ id: 'texts:steps-b', atSite: true, reason: 'at the site: \0' }],
    leftovers: [{ name: 'left', words: '\0 \\u0000' }],
  })
  const { activities } = await recordOf(service, 'texts')
  expect(activities.find(({ id }: any) => id === 'texts:steps-a')).toMatchObject({
    failureReason: 'no \ufffd luck \ufffd',
    metadata: { 'a\ufffd': ['\ufffd'] },
  })
})
