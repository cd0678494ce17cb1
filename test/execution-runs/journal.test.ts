import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { claimSite, commitSite, LeasePassedOn, type Entry } from '../../src/domains/execution-runs/journal.ts'
import { openRun } from '../../src/domains/execution-runs/store.ts'
import { openService, type TestService } from '../support/service.ts'
import { makeWorld, recordOf } from '../support/worlds.ts'

let service: TestService
beforeAll(async () => {
  // Without an engine nobody but the test writes the runs.
  service = await openService({ temporalAddress: '127.0.0.1:9' })
  await makeWorld(service, {
    name: 'steps',
    cores: [2],
    tasks: [{ name: 'a', policy: { maxAttempts: 2 } }, { name: 'b' }, { name: 'c', after: ['a'] }],
  })
}, 120_000)
afterAll(() => service[Symbol.asyncDispose]())

const site = 'local@here'
const nothing: Entry = { ends: [], retries: [], states: [], intents: [], outputs: [], transfers: [] }
const intent = (run: string, task: string, core: string): Entry['intents'][number] => ({
  id: `${run}:steps-${task}`,
  name: `name-${run}-${task.replace(':', '-')}`,
  directory: null,
  host: 'here',
  readyAt: 1,
  startedAt: 2,
  lanes: [['steps-host-1', core, 'default']],
})
const end = (run: string, task: string, status: 'completed' | 'failed', final: boolean): Entry['ends'][number] => ({
  id: `${run}:steps-${task}`,
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
  final,
})
const opened = async (run: string): Promise<number> => {
  await service.post('/execution-runs/', { id: run, schedulePlanId: 'steps-plan', mode: 'real' })
  await openRun(service.db, run, 1)
  return claimSite(service.db, run, site, 'test')
}
/** Everything on record, without the clock of the server. */
const facts = async (run: string): Promise<unknown> => {
  const { run: state, activities, handles, events } = await recordOf(service, run)
  const { startedAt: _startedAt, createdAt: _createdAt, ...steady } = state
  const text = JSON.stringify({ steady, activities, handles, events: events.map(({ occurredAt: _occurredAt, ...event }: any) => event) })
  return JSON.parse(text.replaceAll(run, 'RUN'))
}

/** Steps of a run with everything that a step can hold; the second is the one in which a task that had waited gets its lane. */
const story = (run: string): Entry[] => [
  { ...nothing, intents: [intent(run, 'a', 'core-0')] },
  {
    ...nothing,
    states: [{ id: `${run}:steps-b`, status: 'queued', readyAt: 1, queuedAt: 2, reason: 'its lane is held by another' }],
    intents: [intent(run, 'b', 'core-1')],
  },
  { ...nothing, states: [{ id: `${run}:steps-a`, status: 'running', externalId: '4711' }] },
  {
    ...nothing,
    ends: [end(run, 'a', 'failed', false)],
    retries: [{ id: `${run}:steps-a:2`, after: `${run}:steps-a`, attempt: 2, userAttempts: 2, readyAt: 3, notBefore: 4 }],
    intents: [intent(run, 'a:2', 'core-0')],
  },
  {
    ...nothing,
    ends: [end(run, 'b', 'completed', false), end(run, 'a:2', 'completed', false)],
    outputs: [
      {
        id: `${run}:o:1`,
        objectId: `${run}:o`,
        activityId: 'steps-b',
        attempt: 1,
        path: 'x',
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
        strategy: 'runtime-local',
        startedAt: 1,
        finishedAt: 2,
        cost: 0,
      },
    ],
    intents: [intent(run, 'c', 'core-0')],
  },
  { ...nothing, ends: [end(run, 'c', 'failed', true)] },
]

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
  await commitSite(service.db, 'stale', site, stale, first as Entry)
  expect(await claimSite(service.db, 'stale', site, 'another')).toBe(stale + 1)
  const before = await facts('stale')
  for (const entry of rest) await expect(commitSite(service.db, 'stale', site, stale, entry)).rejects.toThrow(LeasePassedOn)
  expect(await facts('stale')).toEqual(before)
})

test('a lane is had by one task at a time, and the other learns by whom; all lanes of a task or none', async () => {
  await service.db.prepared('free', 'delete from lane_leases', [])
  const [a, b] = [await opened('lane-a'), await opened('lane-b')]
  expect((await commitSite(service.db, 'lane-a', site, a, { ...nothing, intents: [intent('lane-a', 'a', 'core-0')] })).acquired).toEqual([
    'lane-a:steps-a',
  ])
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
  expect((await commitSite(service.db, 'lane-a', site, a, { ...nothing, intents: [intent('lane-a', 'b', 'core-1')] })).acquired).toEqual([
    'lane-a:steps-b',
  ])
})

test('once a cancel is on record no intent is accepted', async () => {
  await service.db.prepared('free', 'delete from lane_leases', [])
  const epoch = await opened('cancelled')
  expect((await service.call('POST', '/execution-runs/cancelled/cancel/')).status).toBe(202)
  const result = await commitSite(service.db, 'cancelled', site, epoch, { ...nothing, intents: [intent('cancelled', 'a', 'core-0')] })
  expect([result.acquired, result.cancelled]).toEqual([[], true])
  expect((await recordOf(service, 'cancelled')).handles).toEqual([])
})
