import { performance } from 'node:perf_hooks'
import { openDatabase } from '../../src/db/pool.ts'
import { recordRun } from '../provenance/rows.ts'
import { startDaemon } from '../daemon.ts'
import type { Benchmark } from '../report.ts'
import { interleaved, median } from '../rounds.ts'
import { connected } from './measure.ts'

export const recordSql: Benchmark = {
  about: 'POST /provenance/sql/ against the same statement prepared in a session of its own',
  async run({ rounds, tiny }) {
    const times = tiny ? 50 : 1_000
    const daemon = await startDaemon()
    await using db = openDatabase(daemon.databaseUrl(), { max: 2 })
    const client = await connected(daemon)
    try {
      await recordRun(db, { name: 'few', activities: 10, edges: [] })
      const statement =
        'select external_id, runtime_seconds from attempts where execution_run_id = ? order by 1'
      const perCall = async (work: () => Promise<unknown>): Promise<number> => {
        const began = performance.now()
        for (let n = 0; n < times; n += 1) await work()
        return (performance.now() - began) / times
      }
      await client.query('set search_path = provenance, public')
      const prepared = { name: 'same', text: statement.replace('?', '$1'), values: ['few-run'] }
      const own = (await client.query(prepared)).rows
      const answered = await daemon.ok('POST', '/provenance/sql/', { statement, params: ['few-run'] })
      if (JSON.stringify(own) !== JSON.stringify(answered)) throw new Error('the sides answer different rows')
      const { cold, warm } = await interleaved(rounds, {
        'Orrery over HTTP': () =>
          perCall(() => daemon.ok('POST', '/provenance/sql/', { statement, params: ['few-run'] })),
        'GET / over HTTP': () =>
          perCall(async () => (await fetch(daemon.facts().baseUrl.replace('/api', '/'))).text()),
        'prepared in PostgreSQL': () => perCall(() => client.query(prepared)),
      })
      const over = warm['Orrery over HTTP'].map(
        (value, i) => value - (warm['prepared in PostgreSQL'][i] ?? 0) - (warm['GET / over HTTP'][i] ?? 0),
      )
      return {
        sides: Object.entries(warm).map(([name, values]) => ({
          ...{ name, unit: 'ms', warm: values },
          cold: cold[name as keyof typeof cold],
        })),
        goals: [
          {
            ...{ what: 'the wrapper beside HTTP and the statement', unit: ' ms', sense: 'most', goal: 0.5 },
            measured: median(over),
          },
        ],
        notes: [`${String(times)} calls one after the other a round; both sides answer the same 10 rows`],
        versions: {},
      }
    } finally {
      await client.end()
      await daemon.stop()
    }
  },
}
