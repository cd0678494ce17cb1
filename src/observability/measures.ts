import { Counter, Gauge, Histogram, type Registry } from 'prom-client'
import { version } from '../version.ts'

/** A value of the record at one moment; equal in every process that reads the same database. */
export interface GaugeRow {
  name: string
  labels: Readonly<Record<string, string>>
  value: number
}

/** The number of connections to the database by state. */
type PoolState = {
  used: number
  idle: number
  /** Requests that wait for a connection. */
  waiting: number
  /** Connections that may still be opened. */
  unopened: number
}

const modes = ['real', 'simulation'] as const
const endings = ['completed', 'failed', 'cancelled'] as const

/** Gauges of the record: their meaning, and their labels. */
const ofRecord = {
  orrery_runs: ['Open runs by state (created, running, paused) and mode', ['state', 'mode']],
  orrery_tasks: ['Latest attempts of the activities of open runs, by site and state', ['site', 'state']],
  orrery_site_silent_seconds: [
    'Seconds since a site with tasks of open runs last answered about one of them; 0: it answers',
    ['site'],
  ],
  orrery_site_leftovers: [
    'What runs that are over have left at a site, until it confirms the end or the runs are deleted',
    ['site'],
  ],
  orrery_site_leftovers_oldest_seconds: ['Age of the oldest of orrery_site_leftovers', ['site']],
  orrery_connection_up: ['1: the last check of the connection found it online', ['connection']],
  orrery_connection_waits_for_login: ['1: a person has to log in at the connection', ['connection']],
  orrery_dispatch_backlog: ['Accepted records whose workflow is not started yet', ['kind']],
  orrery_dispatch_oldest_seconds: [
    'Age of the oldest of orrery_dispatch_backlog; 0: there is none',
    ['kind'],
  ],
} as const

const seconds = (from: number, to: number): number[] => {
  const out: number[] = []
  for (let bound = from; bound <= to; bound *= 10) out.push(bound, bound * 2.5, bound * 5)
  return out
}

/**
 * All counters of the service beside requests, under the names of docs/operations.md; no label
 * holds the id of a run or a task.
 */
export const openMeasures = (registry: Registry) => {
  const registers = [registry]
  const recorded = new Map(
    Object.entries(ofRecord).map(([name, [help, labels]]) => [
      name,
      new Gauge({ name, help, labelNames: [...labels], registers }),
    ]),
  )
  const measures = {
    runsEnded: new Counter({
      name: 'orrery_runs_ended_total',
      help: 'Runs that ended, as they ended',
      labelNames: ['status', 'mode'],
      registers,
    }),
    runSeconds: new Histogram({
      name: 'orrery_run_seconds',
      help: 'Time from the start of a real run to its end',
      buckets: seconds(1, 100_000),
      registers,
    }),
    attemptsEnded: new Counter({
      name: 'orrery_task_attempts_ended_total',
      help: 'Attempts of activities that ended; failure_class is empty where they did not fail',
      labelNames: ['driver', 'status', 'failure_class'],
      registers,
    }),
    taskWaits: new Histogram({
      name: 'orrery_task_wait_seconds',
      help:
        'How long activities that could start waited, for what: cores, lane, site, login, data, ' +
        'retry, queue (of the site), machine (of a cloud)',
      labelNames: ['driver', 'cause'],
      buckets: [0.01, 0.1, 0.5, ...seconds(1, 10_000)],
      registers,
    }),
    workflowsRestarted: new Counter({
      name: 'orrery_workflows_restarted_total',
      help: 'Workflows of open records that were started again after Temporal had ended, reset or lost them',
      labelNames: ['kind'],
      registers,
    }),
    leaseTakeovers: new Counter({
      name: 'orrery_lease_takeovers_total',
      help: 'Sites of runs that this process took over from another that had not left them',
      registers,
    }),
    commitSeconds: new Histogram({
      name: 'orrery_commit_seconds',
      help: 'Time of one step of a site in the database',
      buckets: [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10],
      registers,
    }),
    eventStreams: new Gauge({
      name: 'orrery_event_streams',
      help: 'Clients that follow events or a log',
      registers,
    }),
    eventStreamsCut: new Counter({
      name: 'orrery_event_streams_cut_total',
      help: 'Streams of events and logs that were ended because their reader was too slow',
      registers,
    }),
    planningSeconds: new Histogram({
      name: 'orrery_planning_seconds',
      help: 'Time of one planning algorithm, by algorithm',
      labelNames: ['algorithm'],
      buckets: [0.01, 0.1, 0.5, ...seconds(1, 1_000)],
      registers,
    }),
    transferBytes: new Counter({
      name: 'orrery_transfer_bytes_total',
      help: 'Bytes of data between activities that were moved, by strategy',
      labelNames: ['strategy'],
      registers,
    }),
    storageCalls: new Counter({
      name: 'orrery_storage_calls_total',
      help: 'Calls of storages that ended, by type of storage, method and outcome (ok, or why not)',
      labelNames: ['type', 'method', 'outcome'],
      registers,
    }),
    storageBytes: new Counter({
      name: 'orrery_storage_bytes_total',
      help: 'Bytes of contents that went through calls of storages, by type of storage and method',
      labelNames: ['type', 'method'],
      registers,
    }),
    cost: new Counter({
      name: 'orrery_cost_total',
      help: 'Cost of real runs that ended, in the currency of the configuration',
      registers,
    }),
    planError: new Histogram({
      name: 'orrery_plan_error_ratio',
      help: 'Measured makespan of a completed real run over the planned one; 1: as planned',
      buckets: [0.5, 0.75, 0.9, 0.95, 1, 1.05, 1.1, 1.25, 1.5, 2, 3, 5, 10],
      registers,
    }),
    /** Replaces the values of the record; values that are missing in `rows` are removed. */
    setRecorded: (rows: readonly GaugeRow[]): void => {
      for (const gauge of recorded.values()) gauge.reset()
      for (const { name, labels, value } of rows) recorded.get(name)?.set(labels, value)
    },
    /** Reads the state of the pool at each scrape. */
    watchPool: (read: () => PoolState): void => {
      const gauge = new Gauge({
        name: 'orrery_db_pool',
        help: 'Connections to the database by state: used, idle, unopened; waiting: requests that wait for one',
        labelNames: ['state'],
        registers,
        collect: () => {
          for (const [state, count] of Object.entries({ ...read() })) gauge.set({ state }, count)
        },
      })
    },
    /** Whether each part of the process can be used; the same parts as `/readyz`. */
    ready: new Gauge({
      name: 'orrery_ready',
      help: '1: the part can be used, as /readyz shows',
      labelNames: ['part'],
      registers,
    }),
  }
  new Gauge({
    name: 'orrery_build_info',
    help: '1, with the version of the service',
    labelNames: ['version'],
    registers,
  }).set({ version }, 1)
  // A counter that begins at its first event shows no increase then: rules would miss the first of
  // each.
  for (const mode of modes) for (const status of endings) measures.runsEnded.inc({ status, mode }, 0)
  return measures
}

export type Measures = ReturnType<typeof openMeasures>
