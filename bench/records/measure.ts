import { readFileSync } from 'node:fs'
import { performance } from 'node:perf_hooks'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
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

/** Rows of every kind that lists and searches read, written by the database itself. */
export const fill = async (
  client: pg.Client,
  {
    workflows,
    runs,
    environments,
    files,
    audits,
  }: Record<'workflows' | 'runs' | 'environments' | 'files' | 'audits', number>,
): Promise<void> => {
  // Words that occur in one record of a thousand, and texts as people give them.
  const word = (n: string) => `'w' || lpad(to_hex(((${n})::bigint * 7919) % 4096), 3, '0')`
  await client.query(`insert into environments (id, name, description, status)
    select 'env-' || n, 'Site ' || ${word('n')} || ' ' || n, 'machines of group ' || ${word('n + 11')}, 'ready'
    from generate_series(1, ${String(environments)}) n`)
  await client.query(`insert into workflow_definitions (id, external_id, name, namespace)
    select 'flow-' || n, 'flow-' || n, 'Flow ' || ${word('n')} || ' of ' || n, 'space ' || (n % 50)
    from generate_series(1, ${String(workflows)}) n`)
  await client.query(`insert into execution_runs (id, schedule_plan_id, content_version_id, mode, status, title,
      activity_count, started_at, finished_at, makespan_seconds, created_at)
    select 'many-' || n, 'bench-plan', 'bench-v1', case n % 2 when 0 then 'real' else 'simulation' end,
      (array['completed', 'failed', 'cancelled'])[1 + n % 3], 'Run ' || ${word('n')} || ' ' || n, 1,
      now() - n * interval '1 second', now(), n, now() - n * interval '1 second'
    from generate_series(1, ${String(runs)}) n`)
  await client.query(`insert into data_object_instances (id, data_object_id, execution_run_id, producer_activity_id,
      relative_path, size_bytes, checksum)
    select 'many-file-' || n, 'data-bench-0-0', 'many-' || (1 + n % ${String(Math.max(1, runs))}), 'bench-a0',
      'out/' || ${word('n')} || '-' || n || '.dat', n, 'sha256:' || md5(n::text)
    from generate_series(1, ${String(files)}) n`)
  await client.query(`insert into audit_events (id, event_type, actor_id, actor_type, execution_id, outcome, summary,
      occurred_at)
    select 'audit-many-' || n, 'kind.' || (n % 40), 'actor-' || (n % 1000), 'user', 'many-' || (n % 10000), 'succeeded',
      'deed ' || n, now() - n * interval '1 second'
    from generate_series(1, ${String(audits)}) n`)
  await client.query('vacuum (analyze)')
}
