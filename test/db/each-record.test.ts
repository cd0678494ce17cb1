import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { z } from 'zod'
import { eachInPages, eachRecord, openTurns } from '../../src/db/each-record.ts'
import { sql, type Sql } from '../../src/db/sql.ts'
import { openClearings } from '../../src/domains/console/clearing.ts'
import { watchBudgets } from '../../src/domains/execution-runs/budget.ts'
import { endUnusedMachines } from '../../src/domains/execution-runs/machines.ts'
import { settleCosts } from '../../src/domains/execution-runs/receipt.ts'
import type { TerminalHost } from '../../src/drivers/runtime/contract/terminal.ts'
import type { HolderPrograms } from '../../src/embedded/holder-program.ts'
import { openLog } from '../../src/observability/log.ts'
import { until } from '../failures/programs.ts'
import { cloneDatabase, type TestDatabase } from '../support/database.ts'

const away = Object.assign(new Error('refused'), { code: 'ECONNREFUSED' })

/** The records that were worked at, and those whose failure was told. */
const round = async (work: (record: number) => unknown, signal?: AbortSignal) => {
  const begun: number[] = []
  const failed: number[] = []
  const whole = await eachRecord(
    [1, 2, 3, 4],
    async (record) => {
      begun.push(record)
      return work(record)
    },
    (_error, record) => void failed.push(record),
    signal,
  )
  return { whole, begun, failed }
}

test('one failure is told, and the rest goes on', async () => {
  const fails = (record: number): void => {
    if (record === 2) throw new Error('it cannot be read')
  }
  expect(await round(fails)).toEqual({ whole: true, begun: [1, 2, 3, 4], failed: [2] })
})

test('what no record can do without ends the round: its own word, a stop, a database that is away', async () => {
  expect(await round((record) => record !== 2)).toEqual({ whole: false, begun: [1, 2], failed: [] })
  const stop = new AbortController()
  const stops = (record: number): void => {
    if (record === 3) stop.abort()
  }
  expect(await round(stops, stop.signal)).toEqual({ whole: false, begun: [1, 2, 3], failed: [] })
  await expect(
    round(() => {
      throw away
    }),
  ).rejects.toBe(away)
})

test('a record that fails waits for its next try; one that succeeds, or ends the round, does not', async () => {
  const failed: string[] = []
  const turns = openTurns<string>(
    (record) => record,
    (_error, record) => void failed.push(record),
  )
  const tried: string[] = []
  const work = async (record: string): Promise<void> => {
    tried.push(record)
    if (record === 'bad') throw new Error('it cannot be read')
  }
  for (let round = 0; round < 2; round++) expect(await turns.each(['bad', 'good'], work)).toBe(true)
  expect([tried, failed, turns.waiting]).toEqual([['bad', 'good', 'good'], ['bad'], 1])
  expect(await turns.each(['good', 'bad', 'other'], () => Promise.resolve(false))).toBe(false)
  expect(turns.waiting).toBe(1)
})

test('a list is worked through to its end, whatever stays in it', async () => {
  const all = Array.from({ length: 250 }, (_, i) => ({ id: String(1_000 + i) }))
  const turns = openTurns<{ id: string }>(
    ({ id }) => id,
    () => undefined,
  )
  const met: string[] = []
  const page = (after: string, limit: number) =>
    Promise.resolve(all.filter(({ id }) => id > after).slice(0, limit))
  const work = async ({ id }: { id: string }): Promise<void> => {
    met.push(id)
    if (id < '1101') throw new Error('it cannot be read')
  }
  expect(await eachInPages(turns, page, work)).toBe(true)
  expect(met).toEqual(all.map(({ id }) => id))
  expect(await eachInPages(turns, page, () => Promise.resolve(false))).toBe(false)
})

let database: TestDatabase
beforeAll(async () => {
  database = await cloneDatabase()
})
afterAll(() => database?.drop())

/** 101 ids; a trigger lets every change fail of those that begin with `bad`, the first hundred. */
const ids = Array.from({ length: 101 }, (_, i) => (i < 100 ? `bad-${String(i)}` : 'good'))
const IdRow = z.object({ id: z.string() })
const idsWhere = async (from: Sql): Promise<string[]> =>
  (await database.db.many(IdRow, sql`select id from ${from} order by id`)).map(({ id }) => id)

test('a hundred runs and machines whose rounds fail keep none behind them waiting', async () => {
  const { db } = database
  const statements = [
    sql`create function it_fails() returns trigger language plpgsql as
      $$ begin raise exception 'it cannot be changed'; end $$`,
    sql`create trigger it_fails before update on execution_runs for each row
      when (old.id like 'bad%') execute function it_fails()`,
    sql`create trigger it_fails before insert on cloud_operations for each row
      when (new.instance_id like 'bad%') execute function it_fails()`,
    sql`alter table execution_runs drop constraint execution_runs_content, drop constraint execution_runs_plan`,
    sql`insert into environments (id, name) values ('e', 'e')`,
    sql`insert into cloud_capacity_targets (id, environment_id, name, provider, provider_machine_type,
        image_reference, vcpu, memory_mib)
      values ('t', 'e', 't', 'aws', 'm', 'i', 1, 1)`,
    sql`insert into cloud_instances (id, capacity_target_id, environment_id, connection_id, provider, name, status,
        region, ssh_username, execution_run_id, machine_gone)
      select id || suffix, 't', 'e', 'c', 'aws', id, 'ready', 'r', 'u', id, suffix = '-gone'
      from unnest(${ids}::text[]) id, unnest(array['', '-gone']) suffix`,
    sql`insert into execution_runs (id, schedule_plan_id, content_version_id, mode, status, activity_count, budget,
        on_budget)
      select id || suffix, 'p', 'v', 'real', case suffix when '' then 'running' else 'completed' end, 1, -1, 'stop'
      from unnest(${ids}::text[]) id, unnest(array['', '-over']) suffix`,
    sql`insert into run_machines (execution_run_id, capacity_target_id, ordinal, instance_id, released_at)
      select id || '-over', 't', 1, id || '-gone', now() from unnest(${ids}::text[]) id`,
    sql`insert into execution_runs (id, schedule_plan_id, content_version_id, mode, status, activity_count, budget,
        on_budget, approved_at)
      select id, 'p', 'v', 'real', 'created', 1, 1, 'ask', now() - interval '1 minute'
      from unnest(array['asked-1', 'asked-2']) id`,
  ]
  for (const statement of statements) await db.run(statement)

  const engine = {
    start: () => Promise.resolve('started' as const),
    cancel: () => Promise.resolve(true),
    // As for runs without a workflow.
    signal: (...[, id]: readonly [unknown, string, ...unknown[]]) => {
      if (id.startsWith('asked')) woken.push(id)
      return Promise.resolve(false)
    },
  }
  const woken: string[] = []
  const failed: string[] = []
  const turns = () =>
    openTurns<{ id: string }>(
      ({ id }) => id,
      (_error, { id }) => void failed.push(id),
    )
  expect(await watchBudgets({ db, engine }, turns())).toBe(1)
  expect(woken).toEqual(['asked-1', 'asked-2'])
  expect(failed.splice(0)).toHaveLength(100)
  expect(await idsWhere(sql`execution_runs where cancel_requested_at is not null`)).toEqual(['good'])

  await settleCosts(db, turns())
  expect(failed.splice(0)).toHaveLength(100)
  expect(await idsWhere(sql`(select execution_run_id as id from run_machines where settled) s`)).toEqual([
    'good-over',
  ])

  expect(await endUnusedMachines({ db, engine }, turns())).toBe(1)
  expect(failed).toHaveLength(100)
  expect(await idsWhere(sql`(select instance_id as id from cloud_operations) o`)).toEqual(['good'])
})

test('sessions that cannot be cleared, without an answer or of other hosts, keep none behind them waiting', async () => {
  const { db } = database
  const insert = (names: readonly string[], place: object): Promise<number> =>
    db.run(sql`insert into console_sessions (id, status, resource_id, runtime_id, place, finished_at)
      select id, 'closed', 'r', 'u', ${JSON.stringify(place)}::jsonb, clock_timestamp()
      from unnest(${names}::text[]) id`)
  const bad = { site: 'bad', kind: 'local', configuration: {} }
  await insert(['silent'], { ...bad, site: 'silent' })
  await insert(
    ids.slice(0, 100).map((id) => `elsewhere-${id}`),
    { ...bad, host: 'another' },
  )
  await insert(ids.slice(0, 100), { ...bad, host: 'this' })
  await insert(['good'], { ...bad, site: 'good' })
  const done = (): Promise<void> => Promise.resolve()
  const clearings = openClearings({
    ...{ db, log: openLog('fatal'), serves: () => false, hostId: 'this' },
    holderPrograms: {} as HolderPrograms,
    sites: {
      at: () => {
        throw new Error('no command is there')
      },
      terminalAt: ({ site }) => {
        if (site === 'bad') throw new Error('it cannot be reached')
        if (site === 'silent')
          return {
            ownEnvironment: true,
            remove: () => new Promise(() => undefined),
          } as unknown as TerminalHost
        return { ownEnvironment: true, remove: done, close: done } as unknown as TerminalHost
      },
    },
  })
  try {
    await until('the last session to be cleared', 120, async () =>
      (await idsWhere(sql`console_sessions where cleared_at is not null`)).includes('good'),
    )
  } finally {
    await clearings.stop()
  }
  expect(await idsWhere(sql`console_sessions where cleared_at is not null`)).toEqual(['good'])
})
