import { sshMissing, startSsh } from '../../sites/ssh.ts'
import { chainDag } from '../dag.ts'
import { startDaemon } from '../daemon.ts'
import { rootMissing } from '../needs.ts'
import { timedRun } from '../planned-run.ts'
import type { Benchmark } from '../report.ts'
import { interleaved, median } from '../rounds.ts'
import { importKey, planOn } from './places.ts'

const fullLength = 40

export const sshChain: Benchmark = {
  about:
    `chain of ${fullLength} tasks on an SSH host: from "predecessor ended" to "successor runs", by ` +
    'the clock that the tasks read themselves',
  missing: async () => rootMissing() ?? sshMissing(),
  async run({ rounds, tiny }) {
    const length = tiny ? 4 : fullLength
    await using site = await startSsh({ hosts: 1 })
    const [host] = site.hosts
    const daemon = await startDaemon()
    try {
      const dag = chainDag(length)
      const ledger = `${host.home}/times`
      const planned = await planOn(daemon, {
        name: 'ssh-chain',
        dag,
        command: (task) => ({
          entrypoint: 'sh',
          arguments: ['-c', `from=$(date +%s%N); echo ${task} $from $(date +%s%N) >> ${ledger}`],
        }),
        places: [{ host, driver: 'ssh', cores: 1 }],
        credentialRef: await importKey(daemon, 'bench', site.key.privateKey),
      })
      let number = 0
      const all: number[] = []
      const { cold, warm } = await interleaved(rounds, {
        Orrery: async () => {
          await timedRun(daemon, planned, `run-${++number}`)
          const { stdout } = await host.run(`cat ${ledger}; rm ${ledger}`)
          const times = stdout
            .trim()
            .split('\n')
            .map((line) => line.split(' ').slice(1).map(Number)) as [number, number][]
          if (times.length !== length) throw new Error(`${times.length} of ${length} tasks noted their times`)
          times.sort(([a], [b]) => a - b)
          const gaps = times.slice(1).map(([start], i) => (start - times[i]![1]) / 1e6)
          if (number > 1) all.push(...gaps)
          return median(gaps)
        },
      })
      const sorted = all.toSorted((a, b) => a - b)
      return {
        sides: [{ name: 'Orrery, median of a run', unit: 'ms', cold: cold.Orrery, warm: warm.Orrery }],
        goals: [{ what: 'p50 over all runs', unit: ' ms', measured: median(all), sense: 'most', goal: 150 }],
        notes: [
          `p95 ${sorted[Math.floor(sorted.length * 0.95)]!.toFixed(0)} ms, longest ` +
            `${sorted.at(-1)!.toFixed(0)} ms, of ${all.length} hops`,
        ],
        versions: {},
      }
    } finally {
      await daemon.stop()
    }
  },
}
