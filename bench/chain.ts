import { startDaemon } from './daemon.ts'
import { chainDag } from './dag.ts'
import { startNaive } from './naive/program.ts'
import { plan, timedRun } from './planned-run.ts'
import type { Benchmark } from './report.ts'
import { interleaved, median, medianRatio } from './rounds.ts'

const fullLength = 40

export const chain: Benchmark = {
  about:
    'chain of 40 no-op tasks, milliseconds per hop (whole run / 40), beside the same chain of ' +
    'activities in the bare Temporal SDK',
  async run({ rounds, tiny }) {
    const length = tiny ? 4 : fullLength
    const daemon = await startDaemon()
    try {
      const dag = chainDag(length)
      const planned = await plan(daemon, {
        name: 'chain',
        dag,
        command: () => ({ entrypoint: 'true' }),
        runtime: { configuration: { launch: 'none' } },
        lanes: 1,
      })
      const naive = await startNaive(daemon)
      try {
        let number = 0
        const inside: number[] = []
        const perHop = (seconds: number): number => (seconds * 1_000) / length
        const { cold, warm } = await interleaved(rounds, {
          Orrery: async () => {
            const id = `run-${String(++number)}`
            const { seconds } = await timedRun(daemon, planned, id)
            const { activities } = await daemon.ok('GET', `/execution-runs/${id}/`)
            const starts = activities.map((activity: any) => activity.startedAt as number)
            inside.push(((Math.max(...starts) - Math.min(...starts)) * 1_000) / (length - 1))
            return perHop(seconds)
          },
          'bare SDK': async () => perHop(await naive.run(`chain-${String(++number)}`, dag)),
        })
        return {
          sides: [
            { name: 'Orrery, whole run', unit: 'ms per hop', cold: cold.Orrery, warm: warm.Orrery },
            {
              name: 'Orrery, from start to start (recorded)',
              unit: 'ms per hop',
              cold: inside[0] ?? 0,
              warm: inside.slice(1),
            },
            {
              name: 'bare Temporal SDK, whole workflow',
              unit: 'ms per hop',
              cold: cold['bare SDK'],
              warm: warm['bare SDK'],
            },
          ],
          goals: [
            { what: 'per hop', unit: ' ms', measured: median(warm.Orrery), sense: 'most', goal: 10, aim: 3 },
            {
              what: 'against the bare SDK',
              unit: '×',
              measured: medianRatio(warm.Orrery, warm['bare SDK']),
              sense: 'most',
              goal: 0.5,
            },
          ],
          notes: [
            `${String(length)} tasks on both sides, order checked from their times; an intent and ` +
              'an end are durable at every hop',
          ],
          versions: {},
        }
      } finally {
        await naive.stop()
      }
    } finally {
      await daemon.stop()
    }
  },
}
