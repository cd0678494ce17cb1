import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { ApplicationFailure, Context } from '@temporalio/activity'
import { Client, Connection, WorkflowNotFoundError } from '@temporalio/client'
import { z } from 'zod'
import { raw, sql } from '../../src/db/sql.ts'
import { dispatchedKinds, durableKinds } from '../../src/kinds.ts'
import { openLog } from '../../src/observability/log.ts'
import { dispatchedOperation, openDispatcher } from '../../src/operations/dispatcher.ts'
import { endProof } from '../../src/operations/end-digest.ts'
import { endOperation } from '../../src/operations/records.ts'
import { temporalIdOf } from '../../src/operations/temporal-id.ts'
import { until } from '../failures/programs.ts'
import { cloneDatabase, type TestDatabase } from '../support/database.ts'
import { openService, temporalAddress, type TestService } from '../support/service.ts'
import { proved } from '../support/share.ts'
import { recordStatements } from '../support/statements.ts'
import { threeSteps, threeStepsKind, threeStepsTable, type ThreeStepsActivities } from './three-steps.ts'

/** Why what was done was taken back, by the id of the operation. */
const takenBack = new Map<string, string | undefined>()
const activities: typeof threeSteps.activities = (parts) => {
  const { step, takeBack } = threeSteps.activities(parts) as ThreeStepsActivities
  return {
    step: async (id: string, ...of: [number, number]) => {
      if (id === 'in-vain' && Context.current().info.attempt === 1)
        throw new Error('the site gives no answer')
      if (id === 'garbled') throw ApplicationFailure.nonRetryable('the program said a\0b')
      await step(id, ...of)
    },
    takeBack: async (id: string, reason?: string) => {
      takenBack.set(id, reason)
      await takeBack(id)
    },
  }
}

let service: TestService
let temporal: Connection
beforeAll(async () => {
  for (const kind of threeSteps.kinds ?? []) {
    const { pageSummary } = kind
    kind.pageSummary = (db, id, generation) =>
      id.startsWith('unreadable')
        ? Promise.reject(new Error(`the record ${id} cannot be read`))
        : pageSummary(db, id, generation)
  }
  const workflowsPath = new URL('three-steps-workflow.ts', import.meta.url).pathname
  service = await openService({ further: { ...threeSteps, activities, workflowsPath }, lookEverySeconds: 1 })
  for (const statement of threeStepsTable) await service.db.run(raw(statement))
  temporal = await Connection.connect({ address: temporalAddress() })
  // Its time goes by during the other tests.
  await accept('in-vain', { stepMs: 600_000 })
})
afterAll(async () => {
  await temporal.close()
  await service[Symbol.asyncDispose]()
})

const accept = (id: string, more: object = {}) => service.post('/three-steps/', { id, stepMs: 20, ...more })
const ended = (id: string) =>
  until(`the end of ${id}`, 60, async () => {
    const { operation } = await service.get(`/three-steps/${id}/`)
    return ['completed', 'failed', 'cancelled'].includes(operation.status) ? operation : undefined
  })
const eventsOf = async (id: string): Promise<string[]> =>
  (await service.get(`/three-steps/${id}/events/`)).items.map(
    ({ eventType }: { eventType: string }) => eventType,
  )
const workflowOf = (id: string, generation = 1) =>
  new Client({ connection: temporal, namespace: service.namespace }).workflow.getHandle(
    `three-steps/${id}/${String(generation)}`,
  )

test('an operation is accepted, shows what it does, and completes with its events and its audit records', async () => {
  // A workflow is asked once a second: a step lasts longer.
  const accepted = await accept('first', { stepMs: 2_500 })
  expect(accepted).toMatchObject({ id: 'first', status: 'queued', generation: 1, done: 0 })
  const open = await until('its second step', 30, async () => {
    const found = await service.get('/three-steps/first/')
    return found.live?.step === 2 ? found : undefined
  })
  expect(open.operation).toMatchObject({ status: 'running' })
  await service.db.run(sql`update three_steps set step_ms = 20 where id = 'first'`)
  expect(await ended('first')).toMatchObject({ status: 'completed', done: 3 })
  expect((await service.get('/three-steps/first/')).live).toBeUndefined()
  // Its end is once and for all.
  const again = endOperation(service.db, threeStepsKind, { id: 'first', generation: 1 }, { status: 'failed' })
  expect(await again).toBe(false)
  expect((await service.get('/three-steps/first/')).operation.status).toBe('completed')
  expect(await eventsOf('first')).toEqual(['three.steps.started', 'three.steps.completed'])
  const audit = (await service.get('/audit-events/?limit=1000')) as {
    eventType: string
    externalId?: string
  }[]
  expect(audit.filter(({ externalId }) => externalId === 'first').map(({ eventType }) => eventType)).toEqual(
    expect.arrayContaining(['three.steps.started', 'three.steps.completed']),
  )
  await until(
    'its workflow to end as Completed',
    10,
    async () => (await workflowOf('first').describe()).status.name === 'COMPLETED',
  )
})

test('a cancel stops the step under way, takes back what was done, and again is harmless; Temporal shows it as Canceled', async () => {
  await accept('stopped', { stepMs: 60_000 })
  await until('its first step', 30, async () => (await service.get('/three-steps/stopped/')).live?.step === 1)
  expect(await service.post('/three-steps/stopped/cancel/')).toMatchObject({ id: 'stopped' })
  expect(await ended('stopped')).toMatchObject({ status: 'cancelled', done: 0 })
  expect(await service.post('/three-steps/stopped/cancel/')).toMatchObject({ status: 'cancelled' })
  expect(await eventsOf('stopped')).toEqual(['three.steps.started', 'three.steps.cancelled'])
  const [end] = (await service.get('/audit-events/?eventType=three.steps.cancelled')) as {
    metadata: unknown
  }[]
  expect(end?.metadata).toEqual({
    operation: { kind: 'three-steps', id: 'stopped' },
    events: 2,
    eventsDigest: expect.stringMatching(/^[0-9a-f]{64}$/),
    eventsDigestForm: 'digests',
  })
  await until(
    'its workflow to end as Canceled',
    10,
    async () => (await workflowOf('stopped').describe()).status.name === 'CANCELLED',
  )
})

test('an end is proven by the digests of its events; one of an earlier version, by their text', async () => {
  await accept('proven')
  await ended('proven')
  const [end] = (await service.get('/audit-events/?eventType=three.steps.completed')) as {
    metadata: Record<string, unknown>
    occurredAt: string
    externalId: string
  }[]
  expect(end).toMatchObject({ externalId: 'proven', metadata: { eventsDigestForm: 'digests' } })
  const { eventsDigestForm, ...facts } = end!.metadata
  const ofText = await service.db.only(
    z.string(),
    sql`select encode(sha256(convert_to(string_agg(concat_ws('|', sequence, event_type, aggregate_type, aggregate_id,
        payload, extract(epoch from occurred_at)), chr(10) order by sequence), 'UTF8')), 'hex')
      from operation_events where kind = 'three-steps' and operation_id = 'proven'`,
  )
  expect(facts.eventsDigest).not.toBe(ofText)
  const verdicts = () =>
    Promise.all(
      [
        end!.metadata,
        { ...facts, eventsDigest: ofText },
        { ...facts, eventsDigest: ofText, eventsDigestForm },
      ].map((metadata) =>
        endProof([threeStepsKind])(service.db, {
          ...{ executionId: undefined, sessionId: undefined, metadata },
          occurredAt: end!.occurredAt.replace('Z', ''),
        }),
      ),
    )
  const changed = 'changed: the events of operation of three steps proven are not those that it ended with'
  expect(await verdicts()).toEqual([undefined, undefined, changed])
  await service.db.run(sql`update operation_events set payload = '{"other": 1}'
    where kind = 'three-steps' and operation_id = 'proven' and sequence = 1`)
  expect(await verdicts()).toEqual([changed, changed, changed])
})

test('a failure whose text holds NUL ends its operation, in its record, its event and its audit record', async () => {
  await accept('garbled')
  const said = 'the program said a\ufffdb'
  expect(await ended('garbled')).toMatchObject({ status: 'failed', failureReason: said })
  const { items } = await service.get('/three-steps/garbled/events/')
  expect(items.at(-1)).toMatchObject({ eventType: 'three.steps.failed', payload: { reason: said } })
  const ends = (await service.get('/audit-events/?eventType=three.steps.failed')) as { summary: string }[]
  expect(ends.map(({ summary }) => summary)).toContain(`operation of three steps garbled failed: ${said}`)
})

test("Temporal's cancel is the record's; a terminated workflow goes on in a new one", async () => {
  await accept('pressed', { stepMs: 60_000 })
  await until('its first step', 30, async () => (await service.get('/three-steps/pressed/')).live?.step === 1)
  await workflowOf('pressed').cancel()
  expect(await ended('pressed')).toMatchObject({ status: 'cancelled' })
  const [row] = await service.db.prepared<{ cancel_actor: string }>(
    'who',
    'select cancel_actor from three_steps where id = $1',
    ['pressed'],
  )
  expect(row?.cancel_actor).toBe('temporal')

  await accept('terminated', { stepMs: 60_000 })
  await until(
    'its first step',
    30,
    async () => (await service.get('/three-steps/terminated/')).live?.step === 1,
  )
  // The steps of the new workflow are short.
  await service.db.run(sql`update three_steps set step_ms = 20 where id = 'terminated'`)
  await workflowOf('terminated').terminate()
  expect(await ended('terminated')).toMatchObject({ status: 'completed', done: 3 })
  expect(await eventsOf('terminated')).toEqual([
    'three.steps.started',
    'three.steps.workflow-restarted',
    'three.steps.completed',
  ])
})

test('a late cancel of a deleted operation does not reach the next one of its id', async () => {
  const id = 'reused'
  await accept(id, { stepMs: 60_000 })
  await until('its first step', 30, async () => (await service.get(`/three-steps/${id}/`)).live?.step === 1)
  // Its record ends while its workflow has a step under way.
  await endOperation(service.db, threeStepsKind, { id, generation: 1 }, { status: 'cancelled' })
  expect((await service.call('DELETE', `/three-steps/${id}/`)).status).toBe(204)
  await accept(id)
  await workflowOf(id).cancel()
  await until('what the workflow makes of the cancel', 120, async () => {
    const history = (await workflowOf(id).fetchHistory()).events ?? []
    const asked = history.find(
      ({ activityTaskScheduledEventAttributes: each }) => each?.activityType?.name === 'cancelOperation',
    )
    return history.some(
      ({ activityTaskCompletedEventAttributes: each }) =>
        each?.scheduledEventId?.toString() === (asked?.eventId?.toString() ?? 'none'),
    )
  })
  expect((await service.get(`/three-steps/${id}/`)).operation.status).toBe('queued')
  await workflowOf(id).terminate()
  expect(await ended(id)).toMatchObject({ status: 'completed', done: 3 })
})

test('a failed one names its reason, is opened again by a retry, and only an ended one is deleted', async () => {
  await accept('broken', { failsAt: 2 })
  expect(await ended('broken')).toMatchObject({
    status: 'failed',
    failureReason: 'step 2 was asked to fail',
    done: 0,
  })
  await until(
    'its workflow to end as Failed',
    10,
    async () => (await workflowOf('broken').describe()).status.name === 'FAILED',
  )
  expect((await service.call('POST', '/three-steps/first/retry/')).status).toBe(409)
  expect(await service.post('/three-steps/broken/retry/')).toMatchObject({ status: 'running', generation: 2 })
  expect(await ended('broken')).toMatchObject({ status: 'completed', generation: 2, done: 3 })
  expect(await eventsOf('broken')).toEqual(
    ['started', 'failed', 'reopened', 'completed'].map((event) => `three.steps.${event}`),
  )
  expect((await service.call('DELETE', '/three-steps/broken/')).status).toBe(204)
  expect((await service.call('GET', '/three-steps/broken/events/')).status).toBe(404)

  await accept('kept', { stepMs: 60_000 })
  const refused = await service.call('DELETE', '/three-steps/kept/')
  expect([refused.status, (refused.body as { state?: string }).state]).toEqual([
    409,
    expect.stringMatching(/queued|running/),
  ])
  await service.post('/three-steps/kept/cancel/')
  await ended('kept')
  expect((await service.call('DELETE', '/three-steps/kept/')).status).toBe(204)
})

proved(
  'one whose time is over while a try is under way names what the last one before it failed with',
  async () => {
    const failureReason = 'the site gives no answer'
    expect(await ended('in-vain')).toMatchObject({ status: 'failed', failureReason })
    expect(takenBack.get('in-vain')).toBe(failureReason)
  },
)

proved('a host that takes no work fails it by name, and one that is full of work is waited for', async () => {
  await accept('gone')
  await accept('full')
  const failureReason = expect.stringMatching(
    /^no worker of the host "gone" took it within .* SERVICE_HOST_ID/,
  )
  expect(await ended('gone')).toMatchObject({ status: 'failed', failureReason })
  expect(await ended('full')).toMatchObject({ status: 'completed', done: 3 })
  expect([takenBack.get('full'), takenBack.get('gone')]).toEqual(['it is there', failureReason])
})

test('events come as a stream, from the last one that the reader has; an unknown operation is 404 everywhere', async () => {
  await accept('streamed', { stepMs: 300 })
  const read = async (last?: string): Promise<{ status: number; text: string }> => {
    const answer = await fetch(`${service.baseUrl}/three-steps/streamed/events/`, {
      headers: { accept: 'text/event-stream', ...(last === undefined ? {} : { 'last-event-id': last }) },
    })
    return { status: answer.status, text: await answer.text() }
  }
  const { text } = await read()
  expect([...text.matchAll(/^event: (.*)$/gm)].map(([, type]) => type)).toEqual([
    'three.steps.started',
    'three.steps.completed',
  ])
  expect([...(await read('1')).text.matchAll(/^event: (.*)$/gm)].map(([, type]) => type)).toEqual([
    'three.steps.completed',
  ])
  expect((await read('2')).status).toBe(204)
  const listed = await fetch(`${service.baseUrl}/three-steps/streamed/events/`, {
    headers: { accept: 'application/json, text/event-stream;q=0.1' },
  })
  expect(await listed.json()).toMatchObject({ total: 2 })
  for (const [method, path] of [
    ['GET', ''],
    ['GET', 'events/'],
    ['POST', 'cancel/'],
    ['POST', 'retry/'],
    ['DELETE', ''],
  ] as const)
    expect([path, (await service.call(method, `/three-steps/nothing/${path}`)).status]).toEqual([path, 404])
  expect(await service.get('/three-steps/?pageSize=2')).toHaveLength(2)
})

test('an id of any length that may be one has a workflow; those that Temporal takes stand in its name', async () => {
  for (const id of ['x'.repeat(255), '😀'.repeat(255), `a${'😀'.repeat(254)}`, '名'.repeat(255)]) {
    await accept(id)
    const path = `/three-steps/${encodeURIComponent(id)}/`
    const { operation } = await until(`the end of ${id}`, 120, async () => {
      const found = await service.get(path)
      return found.operation.status === 'completed' ? found : undefined
    })
    expect(operation).toMatchObject({ id, done: 3 })
    expect((await service.call('GET', `${path}events/`)).status).toBe(200)
  }
  const kind = { name: 'kind' }
  expect(temporalIdOf(kind, 'a/b', 2)).toBe('kind/a/b/2')
  const [one, other] = ['😀'.repeat(254) + '1', '😀'.repeat(254) + '2'].map((id) => temporalIdOf(kind, id, 1))
  expect(one).toMatch(/^kind#[0-9a-f]{64}\/1$/)
  expect(one).not.toBe(other)
})

test('an open workflow that an earlier version started under the plain id stays the only one of its record', async () => {
  const id = 'x'.repeat(250)
  const path = `/three-steps/${id}/`
  // The record as it stands at the upgrade: it is open, and its workflow was started.
  await service.db.run(sql`insert into three_steps (id, step_ms, dispatched_at) values (${id}, 50000, now())`)
  const client = new Client({ connection: temporal, namespace: service.namespace })
  const earlier = await client.workflow.start(threeStepsKind.workflow, {
    workflowId: `three-steps/${id}/1`,
    args: [id, 1],
    taskQueue: 'orrery',
  })
  await until('its first step', 120, async () => (await service.get(path)).live?.step === 1)
  await service.db.run(sql`update three_steps set dispatched_at = null where id = ${id}`)
  const dispatched = sql`select dispatched_at is not null as is from three_steps where id = ${id}`
  await until(
    'its dispatch',
    120,
    async () => (await service.db.one(z.object({ is: z.boolean() }), dispatched)).is,
  )
  await expect(client.workflow.getHandle(temporalIdOf(threeStepsKind, id, 1)).describe()).rejects.toThrow(
    WorkflowNotFoundError,
  )
  await service.post(`${path}cancel/`)
  expect(await ended(id)).toMatchObject({ status: 'cancelled' })
  await until('its end', 120, async () => (await earlier.describe()).status.name === 'CANCELLED')
})

test('a record whose workflow cannot be started keeps no other from its start', async () => {
  // As many as a round reads.
  const unreadable = Array.from({ length: 250 }, (_, i) => `unreadable-${String(i)}`)
  await service.db.run(sql`insert into three_steps (id, step_ms, created_at)
    select id, 20, now() - interval '1 hour' from unnest(${unreadable}::text[]) as given (id)`)
  await service.db.run(sql`insert into three_steps (id, step_ms) values ('behind-them', 20)`)
  expect(await accept('unreadable-asked-for')).toMatchObject({ status: 'queued' })
  const { operation } = await until('the end of the last record', 120, async () => {
    const found = await service.get('/three-steps/behind-them/')
    return found.operation.status === 'completed' ? found : undefined
  })
  expect(operation).toMatchObject({ done: 3 })
  await service.db.run(sql`delete from three_steps where id like 'unreadable%'`)
})

/** A database whose rows need only their ids. */
const cloneWithoutRules = async (): Promise<TestDatabase> => {
  const clone = await cloneDatabase()
  await clone.db.run(sql`do $$ declare one record; begin
    for one in select conrelid::regclass as of_table, conname from pg_constraint where contype in ('f', 'c')
      and conrelid <> 0 loop
      execute format('alter table %s drop constraint %I', one.of_table, one.conname);
    end loop;
    for one in select attrelid::regclass as of_table, attname from pg_attribute a join pg_class c on c.oid = attrelid
      where c.relkind = 'r' and c.relnamespace = 'public'::regnamespace and attnum > 0 and attnotnull
        and attidentity = ''
        and not exists (select from pg_index i where i.indrelid = attrelid and i.indisprimary
          and attnum = any(i.indkey)) loop
      execute format('alter table %s alter column %I drop not null', one.of_table, one.attname);
    end loop; end $$`)
  return clone
}

test('one statement finds the kinds whose work waits, and starts what waits of each', async () => {
  const clone = await cloneWithoutRules()
  const { db, statements } = recordStatements(clone.db)
  const started: string[] = []
  const dispatcher = openDispatcher(
    {
      db,
      metrics: service.metrics,
      engine: {
        start: (kind, { id }) => {
          started.push(`${kind.name}/${id}`)
          return Promise.resolve('started' as const)
        },
        standing: () => Promise.resolve({ state: 'open' as const }),
      },
    },
    dispatchedKinds.map((kind) => ({
      ...kind,
      open: () => Promise.resolve([]),
      pageSummary: () => Promise.resolve(undefined),
    })),
    openLog('fatal'),
  )
  try {
    await until('three looks', 120, () => statements.length >= 3)
    expect(new Set(statements).size).toBe(1)
    for (const { columns, states, table } of durableKinds)
      await clone.db.run(sql`insert into ${raw(table)}
          (${raw(columns?.id ?? 'id')}, ${raw(columns?.generation ?? 'generation')}, status)
        select id, 1, ${states.accepted} from unnest(array['a', 'b']) id`)
    await clone.db.run(
      sql`insert into connections (id, type) select id, 'local' from unnest(array['a', 'b']) id`,
    )
    const expected = dispatchedKinds.flatMap(({ kind }) => [`${kind.name}/a`, `${kind.name}/b`])
    await until('the start of each', 120, () => expected.every((one) => started.includes(one)))
    statements.length = 0
    await until('three more looks', 120, () => statements.length >= 3)
    expect(started.toSorted()).toEqual(expected.toSorted())
  } finally {
    await dispatcher.stop()
    await clone.drop()
  }
})

proved('every open record is looked at, however many stay open', async () => {
  const ids = Array.from({ length: 2_500 }, (_, i) => `open-${String(10_000 + i)}`)
  const met: string[] = []
  const dispatcher = openDispatcher(
    {
      db: service.db,
      metrics: service.metrics,
      engine: {
        start: () => Promise.resolve('open' as const),
        standing: (_kind, id) => {
          met.push(id)
          return Promise.resolve({ state: 'open' as const })
        },
      },
    },
    [
      {
        ...dispatchedOperation(threeStepsKind),
        undispatched: () => sql`select where false`,
        open: (_db, after, limit) =>
          Promise.resolve(
            ids
              .filter((id) => id > after)
              .slice(0, limit)
              .map((id) => ({ id, generation: 1 })),
          ),
      },
    ],
    openLog('fatal'),
  )
  await until('a look at the last one', 120, () => met.includes(ids.at(-1) ?? ''))
  await dispatcher.stop()
  expect(met).toEqual(ids)
})

test('a record whose start meets the workflow of a removed one of its id has its own once that ends', async () => {
  const ref = { id: 'used-again', generation: 1 }
  const calls: string[] = []
  let looks = 0
  let isDispatched = false
  const dispatcher = openDispatcher(
    {
      db: service.db,
      metrics: service.metrics,
      engine: {
        start: () => {
          calls.push(looks < 2 ? 'open' : 'started')
          return Promise.resolve(looks < 2 ? ('open' as const) : ('started' as const))
        },
        standing: () => {
          looks += 1
          return Promise.resolve(
            looks < 2 ? { state: 'open' as const } : { state: 'closed' as const, end: 'COMPLETED' },
          )
        },
      },
    },
    [
      {
        ...dispatchedOperation(threeStepsKind),
        lookEverySeconds: 86_400,
        undispatched: () => sql`select ${ref.id} as id, 1 as generation where ${!isDispatched}`,
        open: () => Promise.resolve([]),
        isOpen: () => Promise.resolve(true),
        pageSummary: () => Promise.resolve(undefined),
        markDispatched: () => Promise.resolve((isDispatched = true)),
        noteRestart: () => Promise.resolve(),
      },
    ],
    openLog('fatal'),
  )
  await until('the start of its own workflow', 120, () => calls.includes('started'))
  await dispatcher.stop()
  expect(calls.slice(0, 2)).toEqual(['open', 'started'])
})

test('a stop ends the workers while a round of the sweeper waits', async () => {
  const stopping = await openService()
  const workers = () => stopping.service.checks['workers']?.() ?? Promise.resolve(false)
  await until('the workers', 60, workers)
  const holder = await stopping.db.session()
  await holder.query('begin; lock table site_removals in access exclusive mode')
  const waiting = "select from pg_locks where not granted and relation = 'site_removals'::regclass"
  const waits = async () => (await holder.query(waiting)).rowCount === 1
  await until('a round that waits', 60, waits)
  const over = stopping[Symbol.asyncDispose]()
  try {
    await until('the end of the workers', 20, async () => !(await workers()))
    expect(await waits()).toBe(true)
  } finally {
    await holder.end()
    await over
  }
})

test('each kind of operation has an audit record of its begin and of its ends', async () => {
  const changes = ['started', 'completed', 'failed', 'cancelled'] as const
  const own = ['execution-run', 'connection-discovery']
  const types = await Promise.all(
    durableKinds
      .filter(({ name }) => !own.includes(name))
      .flatMap(({ name, audit }) =>
        changes.map(async (change) => [name, change, (await audit('none', change, service.db))?.eventType]),
      ),
  )
  expect(types).toHaveLength(6 * changes.length)
  for (const [name, change, type] of types)
    expect([name, change, type]).toEqual([
      name,
      change,
      expect.stringMatching(`^[a-z.-]+\\.${String(change)}$`),
    ])
  expect(new Set(types.map(([, , type]) => type)).size).toBe(types.length)
})
