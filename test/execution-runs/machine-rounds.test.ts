import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { z } from 'zod'
import { sql } from '../../src/db/sql.ts'
import { watchBudgets } from '../../src/domains/execution-runs/budget.ts'
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
const raise = (error: unknown): never => {
  throw error
}

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
  expect(await watchBudgets({ db: clone.db, engine }, raise)).toBe(1)
  expect(
    await clone.db.many(IdRow, sql`select id from execution_runs where cancel_requested_at is not null`),
  ).toEqual([{ id: 'run-0250' }])
})
