import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { z } from 'zod'
import { openTurns } from '../../src/db/each-record.ts'
import { sql, type Sql } from '../../src/db/sql.ts'
import type { Clouds } from '../../src/domains/cloud/clouds.ts'
import { needsApproval, watchBudgets } from '../../src/domains/execution-runs/budget.ts'
import {
  acquireMachine,
  anyToKeep,
  endUnusedMachines,
  failedMachines,
  markUsed,
  releaseMachines,
  showMachineWait,
} from '../../src/domains/execution-runs/machines.ts'
import { chargeWindows } from '../../src/domains/execution-runs/windows.ts'
import { openMachineKeeper } from '../../src/machine-keeper.ts'
import { openLog } from '../../src/observability/log.ts'
import { until } from '../failures/programs.ts'
import { cloneDatabase, type TestDatabase } from '../support/database.ts'
import { growth } from '../support/growth.ts'
import { recordStatements } from '../support/statements.ts'

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

test('without machines and budgets the keeper makes one statement a round, and sees a machine of another process', async () => {
  const { db, statements } = recordStatements(clone.db)
  const keeper = openMachineKeeper(
    {
      db,
      engine,
      clouds: {} as Clouds,
      vault: { put: () => Promise.resolve(true), ready: false },
      cloudSweepSeconds: 0,
    },
    openLog('fatal'),
  )
  const looks = (): string[] => statements.filter((text) => !text.includes('cloud_catalogs'))
  try {
    await until('three looks', 120, () => looks().length >= 3)
    expect(new Set(looks()).size).toBe(1)
    await addMachine('first', { status: 'ready', releasedAgo: 1, policy: 'destroy-after-execution' })
    await until('the end of the machine', 120, () => isBeingEnded('first'))
  } finally {
    await keeper.stop()
  }
})

test.each([
  [
    'a machine that lives',
    sql`insert into cloud_instances (id, capacity_target_id, environment_id, connection_id,
      provider, name, status, region, ssh_username)
    values ('lives', 't', 'e', 'c', 'aws', 'lives', 'provisioning', 'r', 'u')`,
  ],
  [
    'a machine in use',
    sql`insert into run_machines (execution_run_id, capacity_target_id, ordinal, instance_id)
    values ('r', 't', 1, 'gone')`,
  ],
  [
    'a cost that is not settled',
    sql`insert into run_machines (execution_run_id, capacity_target_id, ordinal,
      instance_id, released_at) values ('r', 't', 1, 'gone', now())`,
  ],
  ...['ask', 'stop'].flatMap((onBudget) =>
    ['created', 'running'].map((status): [string, Sql] => [
      `a run that is ${status}, with onBudget: ${onBudget}`,
      sql`insert into execution_runs (id, schedule_plan_id, content_version_id, mode, status, activity_count,
        on_budget) values ('r', 'p', 'v', 'real', ${status}, 1, ${onBudget})`,
    ]),
  ),
])('the rounds go on for %s', async (_what, insert) => {
  const undo = new Error('the rows are taken back')
  const work = clone.db.transaction(async (tx) => {
    await tx.run(sql`delete from cloud_instances`)
    await tx.run(sql`delete from run_machines`)
    await tx.run(sql`delete from execution_runs`)
    expect(await anyToKeep(tx)).toBe(false)
    await tx.run(insert)
    expect(await anyToKeep(tx)).toBe(true)
    throw undo
  })
  await expect(work).rejects.toBe(undo)
})

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

test.each([
  ['of a predicted cost within its budget', { cost: 1 }, false],
  ['of a predicted cost above its budget', { cost: 3 }, true],
  ['of a plan that could not be predicted', { cost: 0, failure: 'no route for 1 bytes' }, true],
])(
  'a run with onBudget: ask, %s',
  async (id, { cost, failure }: { cost: number; failure?: string }, asks) => {
    await clone.db.run(sql`insert into schedule_plans (id, workflow_version_id, content_version_id,
      execution_scope_id, source, predicted_cost, prediction_failure, assignment_count)
    values (${id}, 'version', 'version', 'scope', 'manual', ${cost}, ${failure ?? null}, 1)`)
    await clone.db.run(sql`insert into execution_runs (id, schedule_plan_id, content_version_id, mode, status,
      activity_count, budget, on_budget)
    values (${id}, ${id}, 'version', 'real', 'created', 1, 2, 'ask')`)
    expect(await needsApproval(clone.db, { id })).toBe(asks)
  },
)

interface SpendingRow {
  resource: { executionTarget?: string; pricePerSecond: number; costModel?: string }
  site?: string
  /** Seconds ago. */
  tasks: { started: number; finished?: number; cost?: number; status?: string }[]
  /** A transfer to the first task, so many seconds ago. */
  transfer?: { started: number; cost: number }
}

const parallel = Array.from({ length: 8 }, () => ({ started: 1_000 }))
test.each<[string, SpendingRow, 'goes on' | 'is stopped']>([
  [
    'under way on a provisioned resource without machines',
    { resource: { executionTarget: 'provisioned', pricePerSecond: 6 }, tasks: [{ started: 1_000 }] },
    'is stopped',
  ],
  [
    'that share a resource paid by windows',
    { resource: { costModel: 'active-window', pricePerSecond: 1 }, tasks: parallel },
    'goes on',
  ],
  [
    'that ended on a resource paid by windows, each with its own price so far',
    {
      resource: { costModel: 'active-window', pricePerSecond: 1 },
      tasks: parallel.map((task) => ({ ...task, finished: 10, cost: 990 })),
    },
    'goes on',
  ],
  [
    'with a gap between them on a resource paid by windows',
    {
      resource: { costModel: 'active-window', pricePerSecond: 1 },
      tasks: [{ started: 9_000, finished: 8_999, cost: 1 }, { started: 100 }],
    },
    'is stopped',
  ],
  ['on a resource paid by tasks', { resource: { pricePerSecond: 1 }, tasks: parallel }, 'is stopped'],
  [
    'on machines, whose money their provider asks for',
    { resource: { executionTarget: 'provisioned', pricePerSecond: 99 }, site: 'cloud/r', tasks: parallel },
    'goes on',
  ],
  [
    'with dear transfers to machines',
    {
      resource: { executionTarget: 'provisioned', pricePerSecond: 1 },
      ...{ site: 'cloud/r', tasks: [{ started: 10 }], transfer: { started: 20, cost: 9_000 } },
    },
    'is stopped',
  ],
  [
    'under way, with dear transfers',
    { resource: { pricePerSecond: 0 }, tasks: [{ started: 10 }], transfer: { started: 20, cost: 9_000 } },
    'is stopped',
  ],
  [
    'that ended, with transfers in their cost',
    {
      resource: { pricePerSecond: 0 },
      tasks: [{ started: 100, finished: 10, cost: 4_000 }],
      transfer: { started: 90, cost: 4_000 },
    },
    'goes on',
  ],
  [
    "in their site's queue",
    { resource: { pricePerSecond: 6 }, site: 'slurm/r', tasks: [{ started: 1_000, status: 'queued' }] },
    'goes on',
  ],
])('a run of tasks %s: budget 5000', async (name, row, end) => {
  const { db } = clone
  const id = name.slice(0, 60)
  const { costModel = '', ...priced } = row.resource
  await db.run(sql`update execution_runs set status = 'completed' where status = 'running'`)
  await db.run(sql`insert into execution_runs (id, schedule_plan_id, content_version_id, mode, status,
      activity_count, budget, on_budget)
    values (${id}, 'plan', 'version', 'real', 'running', ${row.tasks.length}, 5000, 'stop')`)
  await db.run(sql`insert into environment_versions (id, environment_id, version, status, cost_model)
    values (${id}, ${id}, 1, 'published', ${costModel})`)
  await db.run(sql`insert into run_snapshots (execution_run_id, resources, runtimes, runtime_bindings,
      execution_scope, activity_profiles, documents_hash)
    values (${id}, ${JSON.stringify([{ id: 'r', environmentVersionId: id, ...priced }])}, '[]', '[]', '{}', '[]', '')`)
  const now = sql`extract(epoch from clock_timestamp())`
  for (const [at, { started, finished = null, cost = 0, status = 'running' }] of row.tasks.entries())
    await db.run(sql`insert into task_executions (id, execution_run_id, activity_position, plan_assignment_id,
        activity_id, external_id, planned_resource_id, runtime_id, site, status, started_at, finished_at, cost)
      values (${`${id}:${String(at)}`}, ${id}, ${at}, 'assignment', ${`a${String(at)}`}, 'a', 'r', 'runtime',
        ${row.site ?? 'local'}, ${finished === null ? status : 'completed'}, ${now} - ${started}::float8,
        ${now} - ${finished}::float8, ${cost})`)
  if (row.transfer !== undefined)
    await db.run(sql`insert into data_transfer_observations (id, execution_run_id, producer_activity_id,
        consumer_activity_id, source_resource_id, target_resource_id, bytes, started_at, finished_at,
        duration_seconds, cost)
      values (${id}, ${id}, 'b', 'a0', 'far', 'r', 1, ${now} - ${row.transfer.started}::float8,
        ${now} - ${row.transfer.started}::float8, 0, ${row.transfer.cost})`)
  await watchBudgets({ db, engine }, turns)
  const stopped = await db.many(
    IdRow,
    sql`select id from execution_runs where id = ${id} and cancel_requested_at is not null`,
  )
  expect(stopped.length > 0 ? 'is stopped' : 'goes on').toBe(end)
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

test('machines that failed count for the generation of the run that asked for them', async () => {
  const { db } = clone
  await addMachine('failing', { status: 'ready' })
  await db.run(sql`insert into execution_runs (id, schedule_plan_id, content_version_id, mode, status,
      activity_count)
    values ('retried', 'failing', 'version', 'real', 'running', 1)`)
  const parts = { db, engine, vault: { put: () => Promise.resolve(true) }, cloudSshSourceRanges: [] }
  const counts: number[] = []
  for (const generation of [1, 1, 2]) {
    await db.run(sql`update execution_runs set generation = ${generation} where id = 'retried'`)
    expect(await acquireMachine(parts, 'retried', 'failing')).toBeUndefined()
    await releaseMachines(db, 'retried', { targetId: 'failing', reason: 'failed' })
    counts.push(await failedMachines(db, 'retried', 'failing'))
  }
  expect(counts).toEqual([1, 2, 1])
})

/** Whether the end of an instance was asked for. */
const isBeingEnded = async (id: string): Promise<boolean> =>
  (await clone.db.run(sql`select from cloud_operations where instance_id = ${id} and kind = 'destroy'
    and status = 'queued'`)) > 0

const WaitRow = z.object({ id: z.string(), metadata: z.json().optional() })

test('tasks wait for a machine until it takes work, and for other things still', async () => {
  const { db } = clone
  await db.run(
    sql`insert into execution_runs (id, schedule_plan_id, content_version_id, mode, status, activity_count)
      values ('waits', 'plan', 'version', 'real', 'running', 4)`,
  )
  await db.run(sql`insert into task_executions (id, execution_run_id, activity_position, plan_assignment_id,
      activity_id, external_id, planned_resource_id, runtime_id, metadata)
    select 'waits:' || n, 'waits', n, 'assignment', 'a', 'a', case n when 3 then 'n' else 'm' end, 'runtime',
      case n when 1 then '{"other": 1}'::jsonb end from generate_series(0, 3) n`)
  const waits = async () =>
    (
      await db.many(
        WaitRow,
        sql`select id, metadata from task_executions where execution_run_id = 'waits' order by id`,
      )
    ).map(({ metadata }) => metadata)
  await showMachineWait(db, 'waits', 'm', 'it is being made')
  await showMachineWait(db, 'waits', 'n', 'it is being made')
  const lane = { queueReason: 'another run has it', waitsFor: 'lane' }
  const machine = { queueReason: 'it is being made', waitsFor: 'machine' }
  expect(await waits()).toEqual([machine, { other: 1, ...machine }, machine, machine])
  await db.run(sql`update task_executions set metadata = ${JSON.stringify(lane)}::jsonb where id = 'waits:2'`)
  await markUsed(db, 'waits', 'm')
  expect(await waits()).toEqual([undefined, { other: 1 }, lane, machine])
})

test('what windows and transfers cost is charged in time that grows with the number of tasks, not with its square', async () => {
  const { db } = clone
  const sizes = [200, 800]
  for (const n of sizes) {
    const id = `windows-${String(n)}`
    await db.run(
      sql`insert into execution_runs (id, schedule_plan_id, content_version_id, mode, status, activity_count)
        values (${id}, 'plan', 'version', 'real', 'running', ${n})`,
    )
    await db.run(
      sql`insert into run_snapshots (execution_run_id, resources, runtimes, runtime_bindings, execution_scope,
          activity_profiles, documents_hash)
        values (${id}, '[{"id": "paid", "pricePerSecond": 0.5, "executionTarget": "provisioned"}]', '[]', '[]', '{}',
          '[]', '')`,
    )
    await db.run(sql`insert into task_executions (id, execution_run_id, activity_position, plan_assignment_id,
        activity_id, external_id, planned_resource_id, runtime_id, started_at, finished_at, runtime_seconds)
      select ${id} || n, ${id}, n, 'assignment', 'a' || n, 'a', 'paid', 'runtime', 0, 8, 8
      from generate_series(1, ${n}) n`)
    // Each task but the first is brought two files.
    await db.run(sql`insert into data_transfer_observations (id, execution_run_id, producer_activity_id,
        consumer_activity_id, source_resource_id, target_resource_id, bytes, started_at, finished_at,
        duration_seconds, cost)
      select ${id} || n || '-' || file, ${id}, 'a1', 'a' || n, 'one', 'other', 1, 0, 1, 1, n
      from generate_series(2, ${n}) n, generate_series(1, 2) file`)
  }
  const charge = (n: number) => db.transaction((tx) => chargeWindows(tx, `windows-${String(n)}`))
  expect(await growth(charge, 200)).toBeLessThan(1.6)
  for (const n of sizes)
    expect(
      await db.many(
        z.object({ n: z.number(), cost: z.number() }),
        sql`select activity_position as n, cost from task_executions
          where execution_run_id = ${`windows-${String(n)}`} and activity_position <= 3 order by 1`,
      ),
    ).toEqual(
      [1, 2, 3].map((i) => ({ n: i, cost: expect.closeTo((8 * 0.5) / n + (i === 1 ? 0 : 2 * i), 9) })),
    )
})
