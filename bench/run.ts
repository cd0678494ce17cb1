import { constants } from 'node:os'
import { ArgumentError, readArguments } from '../src/programs/arguments.ts'
import { deliveries } from './artifacts/deliveries.ts'
import { largeContext } from './artifacts/large-context.ts'
import { largeSif } from './artifacts/large-sif.ts'
import { secondBuild } from './artifacts/second-build.ts'
import { chain } from './chain.ts'
import { cloudInstances } from './cloud/instances.ts'
import { cloudPromise } from './cloud/promise.ts'
import { cloudReactions } from './cloud/reactions.ts'
import { polls } from './clients/polls.ts'
import { streams } from './clients/streams.ts'
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
import { consoleCommands, consoleKeys, consoleMemory, consoleOutput } from './records/console.ts'
import { consoleReaders } from './records/console-readers.ts'
import { loadNow, record, resultsFile, sectionOf, type Benchmark } from './report.ts'
import { recordArchives } from './records/archives.ts'
import { recordCrate } from './records/crate.ts'
import { recordLineage } from './records/lineage.ts'
import { recordReads, recordReads10m } from './records/reads.ts'
import { recordSql } from './records/sql.ts'
import { recordStreams } from './records/streams.ts'
import { recordZip } from './records/zip.ts'
import { secondStart } from './second-start.ts'
import { storageChecksums } from './storage/checksums.ts'
import { storageArchives } from './storage/archives.ts'
import { copiesCut } from './storage/copies-cut.ts'
import { copiesMany } from './storage/copies-many.ts'
import { copiesS3 } from './storage/copies-s3.ts'
import { copiesSsh } from './storage/copies-ssh.ts'
import { storageDirectories } from './storage/directories.ts'
import { indexRuns } from './storage/index-runs.ts'
import { tracesFolder } from './workloads.ts'

const benchmarks: Record<string, Benchmark> = {
  'montage-noop': montageNoop,
  'montage-naive-temporal': montageNaiveTemporal,
  'montage-processes': montageProcesses,
  chain,
  reads,
  polls,
  streams,
  import: importing,
  'second-start': secondStart,
  commit,
  'ssh-tasks': sshTasks,
  'ssh-chain': sshChain,
  'slurm-tasks': slurmTasks,
  'host-to-host': hostToHost,
  'container-tasks': containerTasks,
  'cloud-instances': cloudInstances,
  'cloud-reactions': cloudReactions,
  'cloud-promise': cloudPromise,
  'second-build': secondBuild,
  'large-context': largeContext,
  'large-sif': largeSif,
  deliveries,
  'function-calls': functionCalls,
  'kubernetes-jobs': kubernetesJobs,
  'console-keys': consoleKeys,
  'console-output': consoleOutput,
  'console-memory': consoleMemory,
  'console-commands': consoleCommands,
  'console-readers': consoleReaders,
  'index-runs': indexRuns,
  'storage-checksums': storageChecksums,
  'storage-directories': storageDirectories,
  'storage-archives': storageArchives,
  'copies-ssh': copiesSsh,
  'copies-s3': copiesS3,
  'copies-many': copiesMany,
  'copies-cut': copiesCut,
  'record-lineage': recordLineage,
  'record-sql': recordSql,
  'record-reads': recordReads,
  'record-reads-10m': recordReads10m,
  'record-crate': recordCrate,
  'record-archives': recordArchives,
  'record-streams': recordStreams,
  'record-zip': recordZip,
}

const usage = `npm run bench -- NAME… [--rounds N] [--tiny] [--output FILE | --record]
npm run bench -- --help | --version

  NAME           a benchmark of those below, or all: every one of them
  --rounds N     measured rounds beside the cold one (default 5, with --tiny 1)
  --tiny         workloads so small that a round takes seconds; its figures say nothing and go to a
                 file with --output only
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
  /** The file for the figures. */
  file: string | undefined
}

/** The parts that the machine lacks for a benchmark. A failed check counts as a lack. */
const lackOf = async (benchmark: Benchmark): Promise<string | undefined> => {
  try {
    return await benchmark.missing?.()
  } catch (error) {
    return (error as Error).message
  }
}

/**
 * Measures one benchmark and writes its figures. @returns the obstacle in one line, or undefined
 */
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
    const section = sectionOf(name, benchmark.about, report, {
      rounds: report.rounds ?? rounds,
      tiny,
      load,
      seconds: (Date.now() - started) / 1_000,
    })
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
  // Handlers of 'exit' run and kill the daemon at once; its leftovers are removed with the folder.
  for (const signal of ['SIGTERM', 'SIGINT', 'SIGHUP'] as const)
    process.once(signal, () => process.exit(128 + constants.signals[signal]))
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
    if (!Number.isInteger(rounds) || rounds < 1)
      throw new ArgumentError(`--rounds ${String(values.rounds)} is not a whole number from 1`)
    if (recording && (tiny || output !== undefined))
      throw new ArgumentError(`--record goes with neither --tiny nor --output`)
    try {
      tracesFolder()
      return {
        names,
        rounds,
        tiny,
        file: tiny && output === undefined ? undefined : resultsFile({ output, record: recording }),
      }
    } catch (error) {
      throw new ArgumentError((error as Error).message, { cause: error })
    }
  },
)
if (options.names.length === 0) process.stdout.write(usage)
else await measureAll(options)
