import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { chain } from './chain.ts'
import { commit } from './commit.ts'
import { importing } from './import.ts'
import { montageNaiveTemporal } from './montage-naive-temporal.ts'
import { montageNoop } from './montage-noop.ts'
import { montageProcesses } from './montage-processes.ts'
import { containerTasks } from './reach/container-tasks.ts'
import { functionCalls } from './reach/function-calls.ts'
import { hostToHost } from './reach/host-to-host.ts'
import { kubernetesJobs } from './reach/kubernetes-jobs.ts'
import { slurmTasks } from './reach/slurm-tasks.ts'
import { sshChain } from './reach/ssh-chain.ts'
import { sshTasks } from './reach/ssh-tasks.ts'
import { reads } from './reads.ts'
import { loadNow, record, sectionOf, type Benchmark } from './report.ts'
import { secondStart } from './second-start.ts'

const benchmarks: Record<string, Benchmark> = {
  'montage-noop': montageNoop,
  'montage-naive-temporal': montageNaiveTemporal,
  'montage-processes': montageProcesses,
  chain,
  reads,
  import: importing,
  'second-start': secondStart,
  commit,
  'ssh-tasks': sshTasks,
  'ssh-chain': sshChain,
  'slurm-tasks': slurmTasks,
  'host-to-host': hostToHost,
  'container-tasks': containerTasks,
  'function-calls': functionCalls,
  'kubernetes-jobs': kubernetesJobs,
}

const usage = `npm run bench -- NAME… [--rounds N]   (all: every one of them)\n\n${Object.entries(benchmarks)
  .map(([name, { about }]) => `  ${name.padEnd(24)} ${about}`)
  .join('\n')}\n`

process.once('SIGTERM', () => process.exit(143))

const { values, positionals } = parseArgs({ allowPositionals: true, options: { rounds: { type: 'string', default: '5' } } })
const rounds = Number(values.rounds)
const names = positionals.includes('all') ? Object.keys(benchmarks) : positionals
const unknown = names.filter((name) => !Object.hasOwn(benchmarks, name))
if (names.length === 0) process.stdout.write(usage)
else if (unknown.length > 0 || !Number.isInteger(rounds) || rounds < 1) {
  process.stderr.write(
    unknown.length > 0
      ? `there is no benchmark ${unknown.join(', ')}\n\n${usage}`
      : `--rounds ${values.rounds} is not a whole number from 1\n`,
  )
  process.exitCode = 2
} else
  for (const name of names) {
    const benchmark = benchmarks[name] as Benchmark
    process.stderr.write(`${name}: ${benchmark.about}\n`)
    const load = loadNow()
    const started = Date.now()
    const report = await benchmark.run({ rounds })
    const section = sectionOf(name, benchmark.about, report, { rounds, load, seconds: (Date.now() - started) / 1_000 })
    process.stdout.write(`\n${section}\n\n`)
    record(join(import.meta.dirname, 'RESULTS.md'), Object.keys(benchmarks), name, section)
  }
