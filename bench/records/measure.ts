import { readFileSync } from 'node:fs'
import { performance } from 'node:perf_hooks'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { withoutIndexes } from '../../src/db/archive-schema.ts'
import type { Daemon } from '../daemon.ts'

/** One value of many measured: `share` 0.99 for the 99th percentile. */
export const percentile = (values: readonly number[], share: number): number => {
  const sorted = values.toSorted((a, b) => a - b)
  return sorted[Math.min(sorted.length - 1, Math.ceil(sorted.length * share) - 1)] ?? Number.NaN
}

/** Reads a path whole, and checks its status. @returns milliseconds, and the body */
export const timedGet = async (
  daemon: Pick<Daemon, 'facts'>,
  path: string,
  options: RequestInit = {},
): Promise<{ ms: number; body: Buffer }> => {
  const began = performance.now()
  const answer = await fetch(daemon.facts().baseUrl + path, options)
  const body = Buffer.from(await answer.arrayBuffer())
  const ms = performance.now() - began
  if (answer.status !== 200)
    throw new Error(`${path} answered ${String(answer.status)}: ${body.toString().slice(0, 500)}`)
  return { ms, body }
}

/** Milliseconds of each path in turn, `times` times. */
export const latenciesOf = async (
  daemon: Pick<Daemon, 'facts'>,
  paths: readonly string[],
  times: number,
): Promise<number[]> => {
  const all: number[] = []
  for (let round = 0; round < times; round += 1)
    for (const path of paths) all.push((await timedGet(daemon, path)).ms)
  return all
}

const residentOf = (pid: number): number =>
  Number(/VmRSS:\s+(\d+) kB/.exec(readFileSync(`/proc/${String(pid)}/status`, 'utf8'))?.[1] ?? 0) / 1_024

/** The growth of a process's memory while `work` runs, in MiB, looked at every 20 ms. */
export const memoryDuring = async <T>(
  pid: number,
  work: () => Promise<T>,
): Promise<{ grown: number; value: T }> => {
  const before = residentOf(pid)
  let most = before
  let over = false
  const looking = (async () => {
    while (!over) {
      most = Math.max(most, residentOf(pid))
      await sleep(20)
    }
  })()
  try {
    return { value: await work(), grown: most - before }
  } finally {
    over = true
    await looking
  }
}

/** A connection to the daemon's own database, as psql has one. */
export const connected = async (daemon: Pick<Daemon, 'databaseUrl'>): Promise<pg.Client> => {
  const client = new pg.Client({ connectionString: daemon.databaseUrl() })
  await client.connect()
  return client
}

/** Numbers of rows. Each run has its share of attempts and files, which stand beside each other. */
export type Sizes = Record<'workflows' | 'runs' | 'environments' | 'files' | 'audits', number> & {
  attempts?: number
}

/** Activities of the workflow whose runs `fill` writes: `recordRun` with this name has made it. */
export const filledRun = { name: 'bench', activities: 9, edges: [] }

/**
 * Rows of every kind that lists and searches read, written by the database itself, which makes the
 * indexes after them.
 */
export const fill = async (
  client: pg.Client,
  { workflows, runs, environments, files, audits, attempts = 0 }: Sizes,
): Promise<void> => {
  // Words that occur in one record of a thousand, and texts as people give them.
  const word = (n: string) => `'w' || lpad(to_hex(((${n})::bigint * 7919) % 4096), 3, '0')`
  const { name, activities } = filledRun
  const each = Math.ceil(attempts / Math.max(1, runs))
  await client.query("set maintenance_work_mem = '1GB'; set synchronous_commit = off")
  const remake = await withoutIndexes(client, 'public')
  await client.query(`insert into environments (id, name, description, status)
    select 'env-' || n, 'Site ' || ${word('n')} || ' ' || n, 'machines of group ' || ${word('n + 11')}, 'ready'
    from generate_series(1, ${String(environments)}) n`)
  await client.query(`insert into workflow_definitions (id, external_id, name, namespace)
    select 'flow-' || n, 'flow-' || n, 'Flow ' || ${word('n')} || ' of ' || n, 'space ' || (n % 50)
    from generate_series(1, ${String(workflows)}) n`)
  await client.query(`insert into execution_runs (id, schedule_plan_id, content_version_id, mode, status, title,
      activity_count, started_at, finished_at, makespan_seconds, created_at)
    select 'many-' || n, '${name}-plan', '${name}-v1', case n % 2 when 0 then 'real' else 'simulation' end,
      (array['completed', 'failed', 'cancelled'])[1 + n % 3], 'Run ' || ${word('n')} || ' ' || n, 1,
      now() - n * interval '1 second', now(), n, now() - n * interval '1 second'
    from generate_series(1, ${String(runs)}) n`)
  await client.query(`insert into task_executions (id, execution_run_id, activity_position, plan_assignment_id,
      activity_id, external_id, planned_resource_id, allocated_resource_id, runtime_id, attempt, latest, status,
      handle_name, ready_at, started_at, finished_at, runtime_seconds, cost, exit_code)
    select 'many-task-' || n, 'many-' || run, position, 'x' || position, '${name}-a' || position, 'a' || position,
      '${name}-host', '${name}-host', '${name}-rt', attempt, place + ${String(activities)} >= ${String(each)},
      case when n % 10000 = 1 then 'cancelled' when n % 20 = 2 then 'failed' else 'completed' end,
      't' || n, n, n, n + 1, n % 3600, 0.001, 0
    from generate_series(1, ${String(attempts)}) n
    cross join lateral (select 1 + (n - 1) / ${String(each)} as run, (n - 1) % ${String(each)} as place) r
    cross join lateral (select place % ${String(activities)} as position,
      1 + place / ${String(activities)} as attempt) p`)
  await client.query(`insert into data_object_instances (id, data_object_id, execution_run_id, producer_activity_id,
      relative_path, size_bytes, checksum)
    select 'many-file-' || n, 'data-${name}-' || position || '-0',
      'many-' || (1 + (n - 1)::bigint * ${String(runs)} / ${String(files)}), '${name}-a' || position,
      'out/' || ${word('n')} || '-' || n || '.dat', n, 'sha256:' || md5(n::text)
    from generate_series(1, ${String(files)}) n cross join lateral (select n % ${String(activities)} as position) p`)
  // Sealed, as records are a second later: the sealer would number them while reads are measured. Its
  // own numbers stay far below.
  await client.query(`insert into audit_events (id, event_type, actor_id, actor_type, execution_id, outcome, summary,
      occurred_at, seal_number)
    select 'audit-many-' || n, 'kind.' || (n % 40), 'actor-' || (n % 1000), 'user', 'many-' || (n % 10000), 'succeeded',
      'deed ' || n, now() - n * interval '1 second', 1000000000 + n
    from generate_series(1, ${String(audits)}) n`)
  await remake()
  await client.query('vacuum (analyze)')
}
