import { startDaemon } from './daemon.ts'
import { montageDag } from './dag.ts'
import { computeWithDask, daskMissing, daskVersion } from './dask/cluster.ts'
import { killing, plan, timedRun } from './planned-run.ts'
import type { Benchmark } from './report.ts'
import { interleaved, median, medianRatio, seeded } from './rounds.ts'

export const montageNoop: Benchmark = {
  about:
    '1,066-task Montage of no-op tasks, real mode, from posting the run to seeing it completed, ' +
    'against dask.distributed with 2 processes',
  missing: daskMissing,
  async run({ rounds, tiny }) {
    const { dag, origin } = montageDag(tiny)
    const daemon = await startDaemon()
    try {
      const tasks = Object.keys(dag).length
      const planned = await plan(daemon, {
        name: 'montage',
        dag,
        command: () => ({ entrypoint: 'true' }),
        runtime: { configuration: { launch: 'none' } },
        lanes: 256,
      })
      let number = 0
      const took: number[] = []
      let daskCold = 0
      const kills = killing(daemon, planned, seeded(1), () => median(took))
      const { cold, warm } = await interleaved(
        rounds,
        {
          Orrery: async () => {
            const { seconds } = await timedRun(daemon, planned, `run-${String(++number)}`)
            took.push(seconds)
            return seconds
          },
          'dask.distributed': async () => {
            const { first, second } = await computeWithDask(dag)
            daskCold ||= first
            return second
          },
        },
        () => kills.round(),
      )
      return {
        sides: [
          {
            name: 'Orrery: HTTP, Temporal, PostgreSQL with fsync',
            unit: 's',
            cold: cold.Orrery,
            warm: warm.Orrery,
          },
          {
            name: 'dask.distributed, 2 processes, no state',
            unit: 's',
            cold: daskCold,
            warm: warm['dask.distributed'],
          },
        ],
        goals: [
          {
            what: 'speed against dask',
            unit: '×',
            measured: medianRatio(warm['dask.distributed'], warm.Orrery),
            sense: 'least',
            goal: 5,
          },
        ],
        notes: [
          `${String(tasks)} tasks on both sides, order of every edge checked from their times; ` +
            `${String(Math.round(tasks / median(warm.Orrery)))} tasks/s`,
          'dask: a fresh cluster per round, its second computation of the graph counts',
          kills.note(),
          origin,
        ],
        versions: { 'dask.distributed': daskVersion },
      }
    } finally {
      await daemon.stop()
    }
  },
}
