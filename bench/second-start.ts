import { chainDag } from './dag.ts'
import { startDaemon } from './daemon.ts'
import { plan, timedRun } from './planned-run.ts'
import type { Benchmark } from './report.ts'
import { median, secondsOf } from './rounds.ts'

export const secondStart: Benchmark = {
  about:
    'start of the daemon with its servers on a used data folder: until the first answer of the ' +
    'API, and until the first run has completed',
  async run({ rounds }) {
    const started = performance.now()
    const daemon = await startDaemon()
    try {
      await daemon.ok('GET', '/environments/')
      const first = (performance.now() - started) / 1_000
      const planned = await plan(daemon, {
        name: 'chain',
        dag: chainDag(3),
        command: () => ({ entrypoint: 'true' }),
        runtime: { configuration: { launch: 'none' } },
        lanes: 1,
      })
      await timedRun(daemon, planned, 'before')
      const answers: number[] = []
      const runs: number[] = []
      const afterKill: number[] = []
      for (let round = 0; round < rounds; round++) {
        let answered = 0
        await daemon.end('SIGTERM')
        runs.push(
          await secondsOf(async () => {
            answered = await secondsOf(async () => {
              await daemon.startAgain()
              await daemon.ok('GET', '/environments/')
            })
            await timedRun(daemon, planned, `run-${String(round)}`)
          }),
        )
        answers.push(answered)
        await daemon.end('SIGKILL')
        afterKill.push(
          await secondsOf(async () => {
            await daemon.startAgain()
            await daemon.ok('GET', '/environments/')
          }),
        )
        process.stderr.write(
          `  round ${String(round + 1)}/${String(rounds)}: answer ${answered.toFixed(2)} s, run ` +
            `${(runs.at(-1) ?? 0).toFixed(2)} s, after a kill ${(afterKill.at(-1) ?? 0).toFixed(2)} s\n`,
        )
      }
      return {
        sides: [
          {
            name: 'first answer, cold: the first start on an empty folder',
            unit: 's',
            cold: first,
            warm: answers,
          },
          { name: 'first run completed', unit: 's', warm: runs },
          { name: 'first answer after SIGKILL', unit: 's', warm: afterKill },
        ],
        goals: [
          {
            what: 'first answer, second start',
            unit: ' s',
            measured: median(answers),
            sense: 'most',
            goal: 10,
            aim: 5,
          },
        ],
        notes: [
          'from the spawn of the process on; the programs of PostgreSQL and Temporal are in the cache folder',
        ],
        versions: {},
      }
    } finally {
      await daemon.stop()
    }
  },
}
