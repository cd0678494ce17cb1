import { createReadStream, createWriteStream, rmSync, statSync } from 'node:fs'
import { join } from 'node:path'
import { performance } from 'node:perf_hooks'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { from as copyFrom, to as copyTo } from 'pg-copy-streams'
import { openDatabase } from '../../src/db/pool.ts'
import { recordRun } from '../provenance/rows.ts'
import { startDaemon } from '../daemon.ts'
import { newFolder } from '../folder.ts'
import type { Benchmark } from '../report.ts'
import { interleaved, median, medianRatio } from '../rounds.ts'
import { connected, fill, filledRun, latenciesOf, memoryDuring } from './measure.ts'

const tables = [
  'environments',
  'workflow_definitions',
  'execution_runs',
  'data_object_instances',
  'audit_events',
]

export const recordArchives: Benchmark = {
  about: 'export, import and activation of an instance of 1,000,000 rows, against COPY of the same tables',
  async run({ rounds, tiny }) {
    const share = tiny ? 500 : 250_000
    const folder = newFolder('archives-')
    const daemon = await startDaemon()
    await using db = openDatabase(daemon.databaseUrl(), { max: 2 })
    const client = await connected(daemon)
    const url = (path: string): string => daemon.facts().baseUrl + path
    const seconds = async (work: () => Promise<unknown>): Promise<number> => {
      const began = performance.now()
      await work()
      return (performance.now() - began) / 1_000
    }
    try {
      await recordRun(db, filledRun)
      await fill(client, { workflows: share, environments: 0, runs: share, files: share, audits: share })
      const zip = join(folder, 'instance.zip')
      const grown: number[] = []
      let [activation, archive] = [0, '']
      const withMemory = async (work: () => Promise<unknown>): Promise<number> => {
        const found = await memoryDuring(daemon.facts().pids.daemon, () => seconds(work))
        grown.push(found.grown)
        return found.value
      }
      const { cold, warm } = await interleaved(Math.min(rounds, 3), {
        export: () =>
          withMemory(async () => {
            const answer = await fetch(url('/instances/default/export/'))
            if (answer.status !== 200 || answer.body === null) throw new Error(await answer.text())
            await pipeline(Readable.fromWeb(answer.body as never), createWriteStream(zip))
          }),
        'COPY out': () =>
          seconds(async () => {
            for (const table of tables)
              await pipeline(
                client.query(copyTo(`copy ${table} to stdout`)),
                createWriteStream(join(folder, table)),
              )
          }),
        import: () =>
          withMemory(async () => {
            const answer = await fetch(url('/instances/import/'), {
              method: 'POST',
              headers: { 'content-type': 'application/zip', 'content-length': String(statSync(zip).size) },
              body: Readable.toWeb(createReadStream(zip)) as never,
              duplex: 'half',
            } as never)
            const body = (await answer.json()) as { id: string }
            if (answer.status !== 201) throw new Error(JSON.stringify(body))
            archive = body.id
          }),
        'COPY in': () =>
          seconds(async () => {
            await client.query('drop schema if exists beside cascade; create schema beside')
            await client.query('begin')
            for (const table of tables) {
              await client.query(`create table beside.${table} (like public.${table} including all)`)
              await pipeline(
                createReadStream(join(folder, table)),
                client.query(copyFrom(`copy beside.${table} from stdin`)),
              )
            }
            await client.query('commit')
          }),
      })
      activation = await seconds(() => daemon.ok('POST', `/instance-activations/${archive}/`))
      const paths = ['/execution-runs/many-7/', '/execution-runs/?pageSize=50', '/search/?q=w0a1']
      const [times, reads] = [tiny ? 3 : 60, { own: [] as number[], archive: [] as number[] }]
      for (let round = 0; round < 5; round += 1) {
        await daemon.ok('POST', `/instance-activations/${archive}/`)
        await latenciesOf(daemon, paths, 3)
        reads.archive.push(median(await latenciesOf(daemon, paths, times)))
        await daemon.ok('POST', '/instance-activations/default/')
        await latenciesOf(daemon, paths, 3)
        reads.own.push(median(await latenciesOf(daemon, paths, times)))
      }
      return {
        sides: [
          ...Object.entries(warm).map(([name, values]) => ({
            ...{ name, unit: 's', warm: values },
            cold: cold[name as keyof typeof cold],
          })),
          { name: 'reads of the default instance', unit: 'ms', warm: reads.own },
          { name: 'reads of the archive', unit: 'ms', warm: reads.archive },
        ],
        goals: [
          {
            ...{ what: 'rows/s of an export against COPY', unit: '×', sense: 'least', goal: 0.5 },
            measured: medianRatio(warm['COPY out'], warm.export),
          },
          {
            ...{ what: 'rows/s of an import against COPY', unit: '×', sense: 'least', goal: 0.5 },
            measured: medianRatio(warm['COPY in'], warm.import),
          },
          { what: 'memory', unit: ' MiB', measured: Math.max(...grown), sense: 'most', goal: 256 },
          { what: 'activation', unit: ' s', measured: activation, sense: 'most', goal: 1 },
          {
            ...{
              what: 'reads of the archive against the default instance',
              unit: '×',
              sense: 'least',
              goal: 0.9,
            },
            measured: medianRatio(reads.own, reads.archive),
          },
        ],
        notes: [
          `${(share * 4).toLocaleString('en')} rows in four tables; ` +
            `the archive has ${String(statSync(zip).size)} bytes`,
          'COPY writes and reads plain text over the same protocol, without digest, redaction, ZIP and checks; ' +
            'its tables have the same indexes and constraints, and no foreign keys',
          'profile of the thread of the daemon, a million rows: 0.8 s JSON, 0.7 s search for names of keys, 0.3 s ' +
            'for references and 0.2 s for secrets, 0.5 s garbage, 0.4 s rows from COPY to text, 0.2 s digest, 0.1 s ' +
            "CRC-32, the rest text to bytes, streams and COPY's messages; PostgreSQL and compression work beside it",
        ],
        versions: {},
      }
    } finally {
      await client.end()
      await daemon.stop()
      rmSync(folder, { recursive: true, force: true })
    }
  },
}
