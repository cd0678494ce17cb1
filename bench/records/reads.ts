import { execFileSync } from 'node:child_process'
import { writeFileSync } from 'node:fs'
import { performance } from 'node:perf_hooks'
import { openDatabase } from '../../src/db/pool.ts'
import { recordRun } from '../provenance/rows.ts'
import { startDaemon } from '../daemon.ts'
import type { Benchmark, Goal } from '../report.ts'
import { connected, fill, filledRun, latenciesOf, memoryDuring, percentile, type Sizes } from './measure.ts'

/** Questions of one kind, and the bound of their warm percentile in milliseconds. */
interface Kind {
  what: string
  paths: string[]
  share: number
  goal: number
}

const words = ['w0a1', 'w3ff', 'w777', 'wabc', 'w123']

const entity = (name: string, search: string): string => `/provenance/entities/${name}/?pageSize=50&${search}`
const file = (search: string): string => entity('data_instances', search)
const filtered = (name: string, field: string, value: string): string =>
  entity(name, `filterField=${field}&filterValue=${value}`)

const kindsOf = ({ runs, files, attempts = 0 }: Sizes): Kind[] => [
  {
    ...{ what: 'search, three letters and more', share: 0.99, goal: 20 },
    paths: words.map((word) => `/search/?q=${word}`),
  },
  {
    ...{ what: 'search, one and two letters', share: 0.99, goal: 100 },
    paths: ['f', 'fl', 'w', 'w0', 'q'].map((text) => `/search/?q=${text}`),
  },
  {
    ...{ what: 'entities by id or link', share: 0.99, goal: 20 },
    paths: [17, 4_711, 1_999].flatMap((n) => [
      filtered('data_instances', 'id', `many-file-${String(n % files)}`),
      filtered('data_instances', 'execution_run_id', `many-${String(n % runs)}`),
      filtered('task_executions', 'id', `many-task-${String(n % attempts)}`),
      filtered('task_executions', 'execution_run_id', `many-${String(n % runs)}`),
    ]),
  },
  {
    ...{ what: 'entities by a link that many share', share: 0.99, goal: 20 },
    paths: [
      filtered('data_instances', 'data_object_id', 'data-bench-3-0'),
      filtered('task_executions', 'activity_id', 'bench-a3'),
    ],
  },
  {
    ...{ what: 'entities by a status that many have', share: 0.99, goal: 20 },
    paths: [
      ...['completed', 'failed'].map((status) => filtered('task_executions', 'status', status)),
      filtered('runs', 'status', 'failed'),
    ],
  },
  {
    ...{ what: 'entities by a status that few have or none', share: 0.99, goal: 20 },
    paths: [
      ...['cancelled', 'running'].map((status) => filtered('task_executions', 'status', status)),
      filtered('runs', 'status', 'running'),
    ],
  },
  {
    ...{ what: 'entities sorted by id, a page', share: 0.99, goal: 100 },
    paths: [file('sortField=id'), file('sortField=id&sortOrder=desc&page=5')],
  },
  {
    ...{ what: 'entities sorted by another field, a page', share: 0.99, goal: 100 },
    paths: [
      file('sortField=size_bytes&sortOrder=desc'),
      entity('task_executions', 'sortField=runtime_seconds&page=5'),
    ],
  },
  {
    ...{ what: 'entities filtered, sorted, a page', share: 0.99, goal: 100 },
    paths: [
      file('filterField=execution_run_id&filterValue=many-17&sortField=size_bytes&q=out'),
      entity('runs', 'filterField=status&filterValue=failed&sortField=created_at&sortOrder=desc&page=5'),
    ],
  },
  {
    ...{ what: 'entities by q, at most 1,000 matches', share: 0.99, goal: 20 },
    paths: words.map((word) => file(`q=${word}`)),
  },
  {
    ...{ what: 'entities by q, more matches', share: 0.99, goal: 100 },
    paths: [file('q=out'), file('q=w0')],
  },
  {
    ...{ what: 'page of runs', share: 0.95, goal: 100 },
    paths: ['/execution-runs/?pageSize=50', '/execution-runs/?pageSize=50&page=20'],
  },
  {
    ...{ what: 'page of audit records', share: 0.95, goal: 100 },
    paths: [
      ...['/audit-events/?limit=200', '/audit-events/?eventType=kind.7', '/audit-events/?actorId=actor-9'],
      `/audit-events/?executionId=many-7&until=${new Date().toISOString()}`,
    ],
  },
]

/** Empties the machine's page cache. @returns whether this account may */
const dropPageCache = (): boolean => {
  try {
    execFileSync('sync')
    writeFileSync('/proc/sys/vm/drop_caches', '3')
    return true
  } catch {
    return false
  }
}

/** Ends a kind of question whose answers take seconds, once it has been asked for two minutes. */
const longestMs = 120_000

const readsOf = (about: string, sizesOf: (tiny: boolean) => Sizes): Benchmark => ({
  about,
  async run({ tiny }) {
    const sizes = sizesOf(tiny)
    const least = tiny ? 10 : 100
    const daemon = await startDaemon()
    try {
      const filling = await connected(daemon)
      const began = performance.now()
      {
        await using db = openDatabase(daemon.databaseUrl(), { max: 2 })
        await recordRun(db, filledRun)
        await fill(filling, sizes)
      }
      const filledIn = (performance.now() - began) / 1_000
      const { rows } = await filling.query<{ bytes: string }>(
        'select pg_database_size(current_database()) as bytes',
      )
      await filling.end()
      const kinds = kindsOf(sizes)
      const cold: number[] = []
      let dropped = !tiny
      await daemon.end('SIGTERM')
      await daemon.startAgain()
      // What the service does once after its start is no part of a read.
      await latenciesOf(daemon, ['/execution-scopes/?pageSize=1'], 20)
      for (const { paths } of kinds) {
        dropped &&= dropPageCache()
        cold.push(Math.max(...(await latenciesOf(daemon, paths, 1))))
      }
      const goals: Goal[] = []
      const sides = []
      const shortened: string[] = []
      let most = 0
      for (const [n, { what, paths, share, goal }] of kinds.entries()) {
        await latenciesOf(daemon, paths, 1)
        const { value: warm, grown } = await memoryDuring(daemon.facts().pids.daemon, async () => {
          const all: number[] = []
          const until = performance.now() + longestMs
          while (all.length < least && performance.now() < until)
            all.push(...(await latenciesOf(daemon, paths, 1)))
          return all
        })
        if (warm.length < least) shortened.push(`${what} ${String(warm.length)}`)
        most = Math.max(most, grown)
        sides.push({ name: what, unit: 'ms', cold: cold[n] as number, warm })
        goals.push({
          what: `${what}, p${String(share * 100)}`,
          unit: ' ms',
          measured: percentile(warm, share),
          sense: 'most',
          goal,
        })
      }
      goals.push({
        what: 'memory while pages are read',
        unit: ' MiB',
        measured: most,
        sense: 'most',
        goal: 50,
      })
      return {
        sides,
        goals,
        notes: [
          `${Object.entries(sizes)
            .map(([kind, rows]) => `${rows.toLocaleString('en')} ${kind}`)
            .join(', ')}; ` +
            `written in ${filledIn.toFixed(0)} s, ${(Number(rows[0]?.bytes) / 2 ** 30).toFixed(1)} GiB with indexes; ` +
            'a word of the search occurs in one record of 4,096',
          'each figure is of requests one after the other, over HTTP, with their bodies read',
          'cold: the longest of the first answers to each kind of question after a start of service and PostgreSQL' +
            (dropped
              ? '; before each kind the page cache was emptied, but not the 128 MiB of PostgreSQL itself'
              : '; the page cache was not emptied'),
          `warm: ${String(least)} requests or more` +
            (shortened.length === 0 ? '' : `, but in two minutes fewer of: ${shortened.join(', ')}`),
        ],
        versions: {},
      }
    } finally {
      await daemon.stop()
    }
  },
})

export const recordReads = readsOf(
  'search, entities, lists of runs and of audit records, with 1,000,000 records of each kind',
  (tiny) => {
    const size = tiny ? 2_000 : 1_000_000
    return {
      ...{ workflows: size / 4, environments: size / 4, runs: size },
      ...{ attempts: size, files: size, audits: size },
    }
  },
)

export const recordReads10m = readsOf(
  'the questions of record-reads, with 10,000,000 records in all: ten attempts and eleven files to a run',
  (tiny) => {
    const share = tiny ? 20 : 10_000
    return {
      ...{ workflows: 15 * share, environments: 5 * share, runs: 35 * share },
      ...{ attempts: 350 * share, files: 400 * share, audits: 195 * share },
    }
  },
)
