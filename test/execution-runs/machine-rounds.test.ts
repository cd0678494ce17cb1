import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { z } from 'zod'
import { openTurns } from '../../src/db/each-record.ts'
import { sql } from '../../src/db/sql.ts'
import { watchBudgets } from '../../src/domains/execution-runs/budget.ts'
import { endUnusedMachines } from '../../src/domains/execution-runs/machines.ts'
import { cloneDatabase, type TestDatabase } from '../support/database.ts'

/** The rounds that look after machines and money, over rows whose times the tests choose. */

let clone: TestDatabase
beforeAll(async () => {
  clone = await cloneDatabase()
  // Rows need no documents that they would refer to.
  await clone.db.run(sql`do $$ declare one record; begin
    for one in select conrelid::regclass as of_table, conname from pg_constraint where contype = 'f' loop
      execute format('alter table %s drop constraint %I', one.of_table, one.conname);
    end loop; end $$`)
})
afterAll(() => clone.drop())

const IdRow = z.object({ id: z.string() })
const engine = {
  start: () => Promise.resolve('started' as const),
  signal: () => Promise.resolve(true),
  cancel: () => Promise.resolve(true),
}
/** No record fails here. */
const turns = openTurns<{ id: string }>(
  ({ id }) => id,
  (error) => {
    throw error
  },
)

test('every run with a budget is watched, however many there are', async () => {
  await clone.db.run(
    sql`insert into execution_runs (id, schedule_plan_id, content_version_id, mode, status, activity_count, budget,
        on_budget)
      select 'run-' || to_char(n, 'fm0000'), 'plan', 'version', 'real', 'running', 1,
        case when n = 250 then 1 else 1000 end, 'stop' from generate_series(1, 250) n`,
  )
  await clone.db.run(
    sql`insert into task_executions (id, execution_run_id, activity_position, plan_assignment_id, activity_id,
        external_id, planned_resource_id, runtime_id, started_at, finished_at, cost)
      select id || ':a', id, 0, 'assignment', 'a', 'a', 'resource', 'runtime', 0, 1, 2 from execution_runs`,
  )
  expect(await watchBudgets({ db: clone.db, engine }, turns)).toBe(1)
  expect(
    await clone.db.many(IdRow, sql`select id from execution_runs where cancel_requested_at is not null`),
  ).toEqual([{ id: 'run-0250' }])
})

interface MachineRow {
  status: string
  /** The run that it was made for, which has given it back so many seconds ago. */
  releasedAgo?: number
  /** Its last operation, which ended so many seconds ago. */
  operation?: { kind: string; status?: string; ago: number }
  reason?: string
  wasReady?: boolean
  policy?: string
}

/** Stores an instance of a target of its own, whose machines may stay for 600 s without use. */
const addMachine = async (
  id: string,
  { status, releasedAgo, operation, reason, wasReady = true, policy = 'keep' }: MachineRow,
): Promise<void> => {
  const { db } = clone
  const ago = (seconds: number) => sql`clock_timestamp() - make_interval(secs => ${seconds})`
  const runId = releasedAgo === undefined ? null : 'over'
  await db.run(sql`insert into cloud_capacity_targets (id, environment_id, name, provider, provider_machine_type,
      image_reference, vcpu, memory_mib, lifecycle_policy, configuration)
    values (${id}, 'clouds', ${id}, 'aws', 'm5.large', 'ami-1', 2, 4096, ${policy}, '{"idleSeconds": 600}')`)
  await db.run(sql`insert into cloud_instances (id, capacity_target_id, environment_id, connection_id, provider,
      name, status, region, ssh_username, provider_id, failure_reason, ready_at, execution_run_id, created_at)
    values (${id}, ${id}, 'clouds', 'account', 'aws', ${id}, ${status}, 'us-east-1', 'akoflow', ${`i-${id}`},
      ${reason ?? null}, ${wasReady ? ago(9_000) : null}, ${runId}, ${ago(9_000)})`)
  if (releasedAgo !== undefined)
    await db.run(sql`insert into run_machines (execution_run_id, capacity_target_id, ordinal, instance_id, released_at)
      values ('over', ${id}, 1, ${id}, ${ago(releasedAgo)})`)
  if (operation !== undefined)
    await db.run(sql`insert into cloud_operations (id, kind, status, environment_id, instance_id, finished_at)
      values (${`${id}-${operation.kind}`}, ${operation.kind}, ${operation.status ?? 'completed'}, 'clouds', ${id},
        ${ago(operation.ago)})`)
}

const stopped = (ago: number) => ({ kind: 'stop', ago })
const failed = (kind: string, ago: number) => ({ kind, status: 'failed', ago })
test.each<[string, MachineRow, 'stays' | 'ends']>([
  ['idle', { status: 'ready', releasedAgo: 60 }, 'stays'],
  ['idle for too long', { status: 'ready', releasedAgo: 1_000 }, 'ends'],
  ['idle, of another policy', { status: 'ready', releasedAgo: 1, policy: 'destroy-after-execution' }, 'ends'],
  ['stopped by a person', { status: 'stopped', releasedAgo: 1_000, operation: stopped(60) }, 'stays'],
  [
    'stopped by a person long ago',
    { status: 'stopped', releasedAgo: 9e3, operation: stopped(1_000) },
    'ends',
  ],
  ['stopped, then given back', { status: 'stopped', releasedAgo: 60, operation: stopped(1_000) }, 'stays'],
  [
    'stopped by its provider',
    { status: 'stopped', releasedAgo: 60, reason: 'the machine was stopped' },
    'ends',
  ],
  ['started again', { status: 'ready', releasedAgo: 1_000, operation: { kind: 'start', ago: 60 } }, 'stays'],
  [
    'failed in a configuration',
    { status: 'failed', releasedAgo: 9e3, operation: failed('configure', 60) },
    'stays',
  ],
  ['failed before it was ready', { status: 'failed', releasedAgo: 60, wasReady: false }, 'ends'],
  [
    'not ended by the provider',
    { status: 'destroying', releasedAgo: 9e3, operation: failed('destroy', 60) },
    'ends',
  ],
])('an unused machine of a run, %s', async (name, row, end) => {
  await addMachine(name, row)
  await endUnusedMachines({ db: clone.db, engine }, turns)
  expect((await isBeingEnded(name)) ? 'ends' : 'stays').toBe(end)
})

test.each<[string, MachineRow, 'stays' | 'ends']>([
  ['ready', { status: 'ready', operation: { kind: 'provision', ago: 9_000 } }, 'stays'],
  ['stopped for long', { status: 'stopped', operation: stopped(9_000) }, 'stays'],
  ['failed', { status: 'failed', wasReady: false, operation: failed('provision', 60) }, 'stays'],
  ['failed long ago', { status: 'failed', wasReady: false, operation: failed('provision', 1_000) }, 'ends'],
  [
    'left in the making',
    { status: 'provisioning', wasReady: false, operation: failed('provision', 1_000) },
    'ends',
  ],
  ['left in its end', { status: 'destroying', operation: failed('destroy', 1_000) }, 'ends'],
])("a person's machine, %s", async (state, row, end) => {
  const name = `person's, ${state}`
  await addMachine(name, row)
  await endUnusedMachines({ db: clone.db, engine }, turns)
  expect((await isBeingEnded(name)) ? 'ends' : 'stays').toBe(end)
})

/** Whether the end of an instance was asked for. */
const isBeingEnded = async (id: string): Promise<boolean> =>
  (await clone.db.run(sql`select from cloud_operations where instance_id = ${id} and kind = 'destroy'
    and status = 'queued'`)) > 0
