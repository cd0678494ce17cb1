import { constants } from 'node:os'
import { ArgumentError, readArguments } from '../src/arguments.ts'
import { chain } from './chain.ts'
import { commit } from './commit.ts'
import { openBenchFolder } from './folder.ts'
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
import { loadNow, record, resultsFile, sectionOf, type Benchmark } from './report.ts'
import { secondStart } from './second-start.ts'
import { tracesFolder } from './workloads.ts'

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

const usage = `npm run bench -- NAME… [--rounds N] [--tiny] [--output FILE | --record]
npm run bench -- --help | --version

  NAME           a benchmark of those below, or all: every one of them
  --rounds N     measured rounds beside the cold one (default 5, with --tiny 1)
  --tiny         workloads so small that a round takes seconds; its figures say nothing and go to a file with --output only
  --output FILE  takes the figures (default bench-results.md in the checkout)
  --record       the figures go to bench/RESULTS.md, as those of this repository

${Object.entries(benchmarks)
  .map(([name, { about }]) => `  ${name.padEnd(24)} ${about}`)
  .join('\n')}
`

interface Options {
  names: string[]
  rounds: number
  tiny: boolean
  /** Takes the figures. */
  file: string | undefined
}

/** What the machine lacks for a benchmark; a machine that cannot even be asked lacks that. */
const lackOf = async (benchmark: Benchmark): Promise<string | undefined> => {
  try {
    return await benchmark.missing?.()
  } catch (error) {
    return (error as Error).message
  }
}

/** Measures one benchmark and writes its figures. Returns what kept it from that, in a line, or undefined. */
const measure = async (name: string, { rounds, tiny, file }: Options): Promise<string | undefined> => {
  const benchmark = benchmarks[name] as Benchmark
  const missing = await lackOf(benchmark)
  if (missing !== undefined) return `${name} cannot run here: ${missing}`
  process.stderr.write(`${name}: ${benchmark.about}\n`)
  const load = loadNow()
  const started = Date.now()
  const folder = openBenchFolder()
  try {
    const report = await benchmark.run({ rounds, tiny })
    const section = sectionOf(name, benchmark.about, report, { rounds, tiny, load, seconds: (Date.now() - started) / 1_000 })
    process.stdout.write(`\n${section}\n\n`)
    if (file === undefined) return undefined
    record(file, Object.keys(benchmarks), name, section)
    process.stderr.write(`the figures of ${name} are in ${file}\n`)
    return undefined
  } catch (error) {
    return `${name} failed: ${(error as Error).stack ?? String(error)}`
  } finally {
    await folder.leave()
  }
}

const measureAll = async (options: Options): Promise<void> => {
  // Handlers of 'exit' run, which kill the daemon at once; what they leave goes with the folder.
  for (const signal of ['SIGTERM', 'SIGINT', 'SIGHUP'] as const) process.once(signal, () => process.exit(128 + constants.signals[signal]))
  for (const name of options.names) {
    const obstacle = await measure(name, options)
    if (obstacle === undefined) continue
    process.stderr.write(`${obstacle}\n`)
    process.exitCode = 1
  }
}

const options = readArguments(
  {
    usage,
    options: {
      rounds: { type: 'string' },
      tiny: { type: 'boolean', default: false },
      output: { type: 'string' },
      record: { type: 'boolean', default: false },
    },
    positionals: [0, Infinity],
  },
  ({ values, positionals }): Options => {
    const { tiny, output, record: recording } = values
    const rounds = Number(values.rounds ?? (tiny ? 1 : 5))
    const names = positionals.includes('all') ? Object.keys(benchmarks) : positionals
    const unknown = names.filter((name) => !Object.hasOwn(benchmarks, name))
    if (unknown.length > 0) throw new ArgumentError(`there is no benchmark ${unknown.join(', ')}`)
    if (!Number.isInteger(rounds) || rounds < 1) throw new ArgumentError(`--rounds ${String(values.rounds)} is not a whole number from 1`)
    if (recording && (tiny || output !== undefined)) throw new ArgumentError(`--record goes with neither --tiny nor --output`)
    try {
      tracesFolder()
      return { names, rounds, tiny, file: tiny && output === undefined ? undefined : resultsFile({ output, record: recording }) }
    } catch (error) {
      throw new ArgumentError((error as Error).message, { cause: error })
    }
  },
)
if (options.names.length === 0) process.stdout.write(usage)
else await measureAll(options)
