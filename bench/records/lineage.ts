import { performance } from 'node:perf_hooks'
import { openDatabase } from '../../src/db/pool.ts'
import { openRunGraphs } from '../../src/domains/provenance/run-graphs.ts'
import { fileId, recordRun, taskId } from '../provenance/rows.ts'
import { startDaemon } from '../daemon.ts'
import type { Benchmark } from '../report.ts'
import { interleaved, median, medianRatio, seeded } from '../rounds.ts'
import { connected, timedGet } from './measure.ts'

/** Everything that leads to a node, by PostgreSQL over a table of edges with an index. */
const recursive = (depth: string): string => `with recursive reach (node, steps) as (
    select $1::text collate "C", 0 union
    select e.a, ${depth === '' ? '0' : 'r.steps + 1'} from reach r join bench_edges e on e.b = r.node
      ${depth === '' ? '' : `where r.steps < ${depth}`})
  select count(distinct node)::int - 1 as nodes from reach`

export const recordLineage: Benchmark = {
  about:
    'lineage of a file in a run of 10,000 activities: everything it came of, and five steps, against WITH RECURSIVE',
  async run({ rounds, tiny }) {
    const activities = tiny ? 300 : 10_000
    const random = seeded(3)
    // Layers of ten: nearly everything is an ancestor of the last ones.
    const edges = Array.from({ length: activities }, (_, to) => {
      const before = Math.floor(to / 10 - 1) * 10
      return before < 0
        ? []
        : Array.from({ length: 3 }, () => [before + Math.floor(random() * 10), to] as const)
    }).flat()
    const daemon = await startDaemon()
    await using db = openDatabase(daemon.databaseUrl(), { max: 4 })
    const client = await connected(daemon)
    try {
      await recordRun(db, { name: 'wide', activities, edges, files: () => 2 })
      await client.query('create table bench_edges (a text collate "C", b text collate "C")')
      const links = [...edges, ...Array.from({ length: activities }, (_, p) => [p, undefined] as const)]
      const pairs = links.flatMap(([from, to]) =>
        [0, 1].map((n) => {
          const file = fileId('wide', from, n)
          return to === undefined ? [taskId('wide', from), file] : [file, taskId('wide', to)]
        }),
      )
      await client.query('insert into bench_edges select distinct * from unnest($1::text[], $2::text[])', [
        pairs.map(([from]) => from),
        pairs.map(([, to]) => to),
      ])
      await client.query('create index on bench_edges (b, a)')
      await client.query('vacuum (analyze) bench_edges')
      const root = fileId('wide', activities - 1, 0)
      const graphs = openRunGraphs()
      const ofMemory = async (id: string): Promise<number> => {
        const graph = await graphs.of(db, 'wide-run')
        const reach = graph?.reach({ tasks: [], files: [id] }, 'prior')
        // The file itself is among them.
        return (reach?.tasks.length ?? 0) + (reach?.files.length ?? 0) - 1
      }
      const ofSql = async (id: string, depth = ''): Promise<number> =>
        (
          (await client.query({ name: `reach${depth}`, text: recursive(depth), values: [id] })).rows as {
            nodes: number
          }[]
        )[0]?.nodes ?? 0
      const compare = async (id: string): Promise<void> => {
        const [ours, theirs] = [await ofMemory(id), await ofSql(id)]
        if (ours !== theirs) throw new Error(`${id}: ${String(ours)} against ${String(theirs)}`)
      }
      // The same answer on random nodes, before anything is measured.
      const checked = tiny ? 50 : 1_000
      for (let n = 0; n < checked; n += 1) await compare(fileId('wide', Math.floor(random() * activities), 0))
      // And just after inserts, each of which is committed with an event of the run.
      const inserted = tiny ? 10 : 100
      for (let n = 0; n < inserted; n += 1) {
        const position = Math.floor(random() * activities)
        const file = fileId('wide', position, 2 + n)
        const [task, beside] = [taskId('wide', position), fileId('wide', position, 0)]
        await client.query('begin')
        await client.query(
          `insert into data_object_instances (id, data_object_id, execution_run_id, producer_activity_id,
              relative_path, size_bytes, checksum)
            select $1, data_object_id, execution_run_id, producer_activity_id, $1, size_bytes, checksum
            from data_object_instances where id = $2`,
          [file, beside],
        )
        await client.query(
          `with run as (update execution_runs set last_event_sequence = last_event_sequence + 1
              where id = 'wide-run' returning last_event_sequence)
            insert into operation_events (operation_id, sequence, event_type, aggregate_type, aggregate_id)
            select 'wide-run', last_event_sequence, 'activity.completed', 'activity_execution', $1 from run`,
          [task],
        )
        await client.query(
          'insert into bench_edges select $1::text, $2::text union all ' +
            'select $2::text, b from bench_edges where a = $3',
          [task, file, beside],
        )
        await client.query('commit')
        await compare(file)
        await compare(root)
      }
      const seconds = async (work: () => Promise<unknown>): Promise<number> => {
        const began = performance.now()
        await work()
        return (performance.now() - began) / 1_000
      }
      const path = `/provenance/lineage/data_instances/${root}/`
      const { cold, warm } = await interleaved(Math.max(rounds, 5), {
        'in memory': () => seconds(() => ofMemory(root)),
        'WITH RECURSIVE': () => seconds(() => ofSql(root)),
        'closure over HTTP': () => seconds(() => timedGet(daemon, `${path}closure/`)),
        'five steps over HTTP': () =>
          seconds(() => timedGet(daemon, `${path}?direction=prior&depth=5&maxNodes=500`)),
        'five steps, WITH RECURSIVE': () => seconds(() => ofSql(root, '5')),
      })
      return {
        sides: Object.entries(warm).map(([name, values]) => ({
          ...{ name, unit: 's', warm: values },
          cold: cold[name as keyof typeof cold],
        })),
        goals: [
          {
            ...{ what: 'closure in memory against the recursive query', unit: '×', sense: 'least', goal: 20 },
            measured: medianRatio(warm['WITH RECURSIVE'], warm['in memory']),
          },
          {
            ...{
              what: 'five steps over HTTP against the recursive query',
              unit: '×',
              sense: 'most',
              goal: 2,
            },
            measured: medianRatio(warm['five steps over HTTP'], warm['five steps, WITH RECURSIVE']),
          },
        ],
        notes: [
          `${String(activities)} activities of 3 predecessors and 2 files in layers of 10; ` +
            `${String(checked)} random files have the same number of ancestors on both sides, and so have ` +
            `${String(inserted)} files just after their insert; ` +
            `the one measured has ${String(await ofSql(root))}`,
          'the recursive query reads a table of edges that is made for it, with an index; the views that clients ' +
            'read would take it longer',
          `the closure over HTTP takes ${(median(warm['closure over HTTP']) * 1_000).toFixed(0)} ms, with the links ` +
            'to every other kind of record and a line of JSON each',
        ],
        versions: {},
      }
    } finally {
      await client.end()
      await daemon.stop()
    }
  },
}
