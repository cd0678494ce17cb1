import { startDaemon } from './daemon.ts'
import { montageDag } from './dag.ts'
import { startNaive } from './naive/program.ts'
import { killing, plan, timedRun } from './planned-run.ts'
import type { Benchmark } from './report.ts'
import { interleaved, median, medianRatio, seeded } from './rounds.ts'

export const montageNaiveTemporal: Benchmark = {
  about:
    '1,066-task Montage of no-op tasks against a naive Temporal program (one activity per task) on ' +
    'the same tuned server',
  async run({ rounds, tiny }) {
    const { dag, origin } = montageDag(tiny)
    const daemon = await startDaemon()
    let naive: Awaited<ReturnType<typeof startNaive>> | undefined
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
      const events = { orrery: [] as number[], naive: [] as number[] }
      const bytes = { orrery: [] as number[], naive: [] as number[] }
      const kills = killing(daemon, planned, seeded(2), () => median(took))
      naive = await startNaive(daemon)
      const { cold, warm } = await interleaved(
        rounds,
        {
          Orrery: async () => {
            const id = `run-${String(++number)}`
            const { seconds } = await timedRun(daemon, planned, id)
            took.push(seconds)
            const history = await naive?.historyOf(`execution-run/${id}/1`)
            events.orrery.push(history?.events ?? Infinity)
            bytes.orrery.push(history?.bytes ?? Infinity)
            return seconds
          },
          naive: async () => {
            const id = `naive-${String(++number)}`
            const seconds = (await naive?.run(id, dag)) ?? Infinity
            const history = await naive?.historyOf(id)
            events.naive.push(history?.events ?? 0)
            bytes.naive.push(history?.bytes ?? 0)
            return seconds
          },
        },
        async () => {
          // Its worker would lose the server. The reaction of the worker is not measured here.
          await naive?.stop()
          naive = undefined
          await kills.round()
          naive = await startNaive(daemon)
          await naive.run(`naive-warm-${String(++number)}`, dag)
        },
      )
      return {
        sides: [
          {
            name: 'Orrery: HTTP, Temporal, PostgreSQL with fsync',
            unit: 's',
            cold: cold.Orrery,
            warm: warm.Orrery,
          },
          { name: 'naive Temporal program', unit: 's', cold: cold.naive, warm: warm.naive },
          { name: 'Orrery', unit: 'history events', warm: events.orrery },
          { name: 'naive', unit: 'history events', warm: events.naive },
          { name: 'Orrery', unit: 'history bytes', warm: bytes.orrery },
          { name: 'naive', unit: 'history bytes', warm: bytes.naive },
        ],
        goals: [
          {
            what: 'tasks/s against naive',
            unit: '×',
            measured: medianRatio(warm.naive, warm.Orrery),
            sense: 'least',
            goal: 10,
          },
          {
            what: 'history events, naive over Orrery',
            unit: '×',
            measured: medianRatio(events.naive, events.orrery),
            sense: 'least',
            goal: 20,
          },
        ],
        notes: [
          `${String(tasks)} tasks on both sides, order of every edge checked from their times; ` +
            `${String(Math.round(tasks / median(warm.Orrery)))} against ` +
            `${String(Math.round(tasks / median(warm.naive)))} tasks/s`,
          'the naive worker has the default options of the SDK and a process of its own; its time ' +
            'is from starting the workflow to its result',
          kills.note(),
          origin,
        ],
        versions: {},
      }
    } finally {
      await naive?.stop()
      await daemon.stop()
    }
  },
}
