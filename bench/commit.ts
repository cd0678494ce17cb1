import { readFileSync } from 'node:fs'
import pg from 'pg'
import { montageDag } from './dag.ts'
import { startDaemon } from './daemon.ts'
import { plan, timedRun } from './planned-run.ts'
import type { Benchmark } from './report.ts'
import { interleaved, median, secondsOf } from './rounds.ts'

const perStep = 256

interface Task {
  id: string
  position: number
}

/**
 * Processor milliseconds that a process has used (fields 14 and 15 of its stat, in hundredths of a
 * second).
 */
const processorMs = (pid: number): number => {
  const fields = (
    readFileSync(`/proc/${String(pid)}/stat`, 'utf8')
      .split(') ')
      .at(-1) as string
  ).split(' ')
  return (Number(fields[11]) + Number(fields[12])) * 10
}

const json = (items: readonly unknown[]): string | null => (items.length === 0 ? null : JSON.stringify(items))

export const commit: Benchmark = {
  about:
    'the one statement that changes a run (commit_site) alone: 1,066 tasks from intent to end in ' +
    `steps of ${String(perStep)}`,
  async run({ rounds, tiny }) {
    const { dag, origin } = montageDag(tiny)
    const daemon = await startDaemon()
    const client = new pg.Client(daemon.databaseUrl())
    try {
      const planned = await plan(daemon, {
        name: 'montage',
        dag,
        command: () => ({ entrypoint: 'true' }),
        runtime: { configuration: { launch: 'none' } },
        lanes: perStep,
      })
      await timedRun(daemon, planned, 'pattern')
      await client.connect()
      const pid = Number((await client.query('select pg_backend_pid() as pid')).rows[0].pid)
      const processor: number[] = []
      let number = 0

      /** A run like the pattern, with all tasks still to run and no executor. */
      const copy = async (): Promise<{ runId: string; tasks: Task[] }> => {
        const runId = `copy-${String(++number)}`
        await client.query(
          `insert into execution_runs (id, schedule_plan_id, content_version_id, mode, status, activity_count)
           select $1, schedule_plan_id, content_version_id, mode, 'running', activity_count
             from execution_runs where id = 'pattern'`,
          [runId],
        )
        await client.query(
          `insert into task_executions (id, execution_run_id, activity_position, plan_assignment_id,
            activity_id, external_id, planned_resource_id, runtime_id, core_ids)
           select $1 || ':' || activity_id, $1, activity_position, plan_assignment_id, activity_id,
             external_id, planned_resource_id, runtime_id, core_ids
           from task_executions where execution_run_id = 'pattern'`,
          [runId],
        )
        await client.query(
          `insert into site_leases (execution_run_id, site, epoch) values ($1, 'bench', 1)`,
          [runId],
        )
        const { rows } = await client.query<Task>(
          'select id, activity_position as position from task_executions where execution_run_id = $1 order by 2',
          [runId],
        )
        return { runId, tasks: rows }
      }

      const { cold, warm } = await interleaved(rounds, {
        commit: async () => {
          const { runId, tasks } = await copy()
          const before = processorMs(pid)
          const seconds = await secondsOf(async () => {
            let ends: unknown[] = []
            for (let i = 0; i < tasks.length + perStep; i += perStep) {
              const step = tasks.slice(i, i + perStep)
              const intents = step.map(({ id, position }, lane) => ({
                id,
                name: `t-${String(number).padStart(20, '0')}${String(position).padStart(20, '0')}`,
                directory: `/var/lib/orrery/work/0123456789abcdef01234567/${String(position)}-mdifffit-id0000001/1`,
                host: 'host',
                readyAt: 1.5,
                startedAt: 2.5,
                lanes: [['bench', String(lane), '']],
                ahead: false,
              }))
              const { rows } = await client.query<{ acquired: string[] }>({
                name: 'commit_site',
                text: 'select * from commit_site($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)',
                values: [
                  runId,
                  'bench',
                  1,
                  json(ends),
                  null,
                  null,
                  json(intents),
                  null,
                  null,
                  null,
                  null,
                  null,
                ],
              })
              if (rows[0]?.acquired.length !== intents.length)
                throw new Error(
                  `${String(rows[0]?.acquired.length)} of ${String(intents.length)} intents got their lanes`,
                )
              const measured = {
                readyAt: 1,
                startedAt: 2,
                finishedAt: 3,
                runtimeSeconds: 1,
                queueSeconds: 0,
                overheadSeconds: 0,
                transferSeconds: 0,
                transferBytes: 0,
                cost: 0,
              }
              ends = step.map(({ id }, order) => ({
                ...measured,
                id,
                status: 'completed',
                cpuSeconds: null,
                peakMemoryBytes: null,
                measuredBy: 'none',
                exitCode: 0,
                failureClass: null,
                failureReason: null,
                manifest: null,
                siteQueueSeconds: null,
                node: null,
                externalId: null,
                final: false,
                order,
                heir: null,
              }))
            }
          })
          processor.push(((processorMs(pid) - before) * 1_000) / tasks.length)
          return (seconds * 1e6) / tasks.length
        },
      })
      return {
        sides: [
          { name: 'commit_site, intent and end of a task', unit: 'µs', cold: cold.commit, warm: warm.commit },
          {
            name: 'processor time of its PostgreSQL backend',
            unit: 'µs',
            cold: processor[0] ?? 0,
            warm: processor.slice(1),
          },
        ],
        goals: [{ what: 'per task', unit: ' µs', measured: median(warm.commit), sense: 'most', goal: 100 }],
        notes: [
          `fsync on; ${String(Math.ceil(Object.keys(dag).length / perStep))} commits in each round`,
          origin,
        ],
        versions: {},
      }
    } finally {
      await client.end()
      await daemon.stop()
    }
  },
}
