import { openDatabase } from '../../src/db/pool.ts'
import { recordRun } from '../provenance/rows.ts'
import { startDaemon } from '../daemon.ts'
import type { Benchmark, Goal } from '../report.ts'
import { connected, fill, latenciesOf, memoryDuring, percentile } from './measure.ts'

const million = 1_000_000

export const recordReads: Benchmark = {
  about: 'search, entities, lists of runs and of audit records, with 1,000,000 records of each kind',
  async run({ tiny }) {
    const size = tiny ? 2_000 : million
    const times = tiny ? 2 : 20
    const daemon = await startDaemon()
    await using db = openDatabase(daemon.databaseUrl(), { max: 2 })
    const client = await connected(daemon)
    try {
      await recordRun(db, { name: 'bench', activities: 1, edges: [] })
      await fill(client, {
        ...{ workflows: size / 4, environments: size / 4, runs: size, files: size, audits: size },
      })
      const words = ['w0a1', 'w3ff', 'w777', 'wabc', 'w123']
      const entity = (search: string): string => `/provenance/entities/data_instances/?pageSize=50&${search}`
      const kinds: { what: string; paths: string[]; share: number; goal: number }[] = [
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
          paths: [17, 4_711 % size, 1_999 % size].flatMap((n) => [
            entity(`filterField=id&filterValue=many-file-${String(n)}`),
            entity(`filterField=execution_run_id&filterValue=many-${String(n)}`),
          ]),
        },
        {
          ...{ what: 'entities sorted by id, a page', share: 0.99, goal: 100 },
          paths: [entity('sortField=id'), entity('sortField=id&sortOrder=desc&page=5')],
        },
        {
          ...{ what: 'entities by q', share: 0.99, goal: 100 },
          paths: words.map((word) => entity(`q=${word}`)),
        },
        {
          ...{ what: 'page of runs', share: 0.95, goal: 100 },
          paths: ['/execution-runs/?pageSize=50', '/execution-runs/?pageSize=50&page=20'],
        },
        {
          ...{ what: 'page of audit records', share: 0.95, goal: 100 },
          paths: [
            ...[
              '/audit-events/?limit=200',
              '/audit-events/?eventType=kind.7',
              '/audit-events/?actorId=actor-9',
            ],
            `/audit-events/?executionId=many-7&until=${new Date().toISOString()}`,
          ],
        },
      ]
      const goals: Goal[] = []
      const sides = []
      let most = 0
      for (const { what, paths, share, goal } of kinds) {
        const cold = await latenciesOf(daemon, paths, 1)
        const { value: warm, grown } = await memoryDuring(daemon.facts().pids.daemon, () =>
          latenciesOf(daemon, paths, Math.ceil((times * 5) / paths.length)),
        )
        most = Math.max(most, grown)
        sides.push({ name: what, unit: 'ms', cold: Math.max(...cold), warm })
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
          `${size.toLocaleString('en')} runs, files and audit records each, a quarter of that of workflows and ` +
            'environments; a word of the search occurs in one record of 4,096',
          'each figure is of requests one after the other, over HTTP, with their bodies read',
        ],
        versions: {},
      }
    } finally {
      await client.end()
      await daemon.stop()
    }
  },
}
