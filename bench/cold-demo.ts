/**
 * Starts the demo as on a new machine, with empty caches and no data, and checks its plan against
 * its run:
 *
 *   npx node bench/cold-demo.ts [--rounds 3] [--small] [--temporal PROGRAM]
 *
 * Each round builds everything that a new machine builds (`--temporal` names a program and saves
 * the four minutes of its build; the runner of local tasks is built in any case). The benchmark
 * prints the time of each round, and the peak of disk and memory of the demo and its processes.
 * Exit codes: 0 every run ended within 15 % of its plan, 1 one did not or the demo failed, 2 wrong
 * usage.
 */
import { spawn } from 'node:child_process'
import { chmodSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { parseArgs } from 'node:util'
import { folderSize } from '../examples/demo/folder-size.ts'

const largestDeviation = 0.15
const everyMs = 2000

interface Round {
  plannedSeconds: number
  measuredSeconds: number
  firstAnswerSeconds: number
  wholeSeconds: number
  peakDiskBytes: number
  leftDiskBytes: number
  peakMemoryBytes: number
}

const readOr = (file: string, otherwise: string): string => {
  try {
    return readFileSync(file, 'utf8')
  } catch {
    return otherwise
  }
}

/** Memory of a process and all its descendants in bytes. Shared memory is counted once. */
const memoryOf = (root: number): number => {
  const parents = new Map(
    readdirSync('/proc')
      .filter((name) => /^\d+$/.test(name))
      .map((name) => [Number(name), Number(/\) \S+ (\d+)/.exec(readOr(`/proc/${name}/stat`, ''))?.[1] ?? 0)]),
  )
  const descends = (pid: number | undefined): boolean =>
    pid === root || (pid !== undefined && pid > 1 && descends(parents.get(pid)))
  const shares = [...parents.keys()]
    .filter(descends)
    .map((pid) => /^Pss:\s+(\d+) kB/m.exec(readOr(`/proc/${pid}/smaps_rollup`, ''))?.[1])
  return shares.reduce((sum, kibibytes) => sum + Number(kibibytes ?? 0) * 1024, 0)
}

/** The variables of a plain user shell. None of them names a cache. */
const environmentIn = (home: string, temporal: string | undefined): Record<string, string> => {
  const kept = Object.entries(process.env).filter(([name]) =>
    /^(?:PATH|LANG|GOPROXY|GOSUMDB|SSL_CERT_(?:FILE|DIR)|(?:https?|no|all)_proxy)$/i.test(name),
  )
  return {
    ...(Object.fromEntries(kept) as Record<string, string>),
    HOME: home,
    SERVICE_CACHE_DIR: join(home, 'cache'),
    SERVICE_DATA_DIR: join(home, 'data'),
    ...(temporal === undefined ? {} : { SERVICE_TEMPORAL_BINARY: temporal }),
  }
}

/** @throws Error with the end of the demo's output when it fails */
const coldStart = async ({
  small,
  temporal,
}: {
  small: boolean
  temporal: string | undefined
}): Promise<Round> => {
  const home = mkdtempSync(join(tmpdir(), 'orrery-cold-'))
  // The embedded PostgreSQL runs as another user where root starts it.
  chmodSync(home, 0o711)
  const output = join(home, 'output')
  mkdirSync(output)
  const began = performance.now()
  const child = spawn(
    process.execPath,
    [resolve(import.meta.dirname, '../examples/demo.ts'), '--output', output, ...(small ? ['--small'] : [])],
    {
      env: environmentIn(home, temporal),
      stdio: ['ignore', 'pipe', 'pipe'],
    },
  )
  let said = ''
  for (const stream of [child.stdout, child.stderr])
    stream.on('data', (chunk: Buffer) => (said += chunk.toString()))
  const ended = new Promise<number | null>((resolve) => child.once('close', resolve))
  const stop = (): void => void child.kill('SIGTERM')
  process.once('SIGINT', stop).once('SIGTERM', stop)
  let [peakDiskBytes, peakMemoryBytes, over] = [0, 0, false]
  void ended.then(() => (over = true))
  try {
    while (!over) {
      peakDiskBytes = Math.max(peakDiskBytes, await folderSize(home))
      peakMemoryBytes = Math.max(peakMemoryBytes, memoryOf(child.pid ?? -1))
      await Promise.race([ended, sleep(everyMs)])
    }
    const code = await ended
    if (code !== 0) throw new Error(`the demo ended with ${code}:\n${said.split('\n').slice(-30).join('\n')}`)
    const summary = JSON.parse(readFileSync(/^ +figures +(\/.*)$/m.exec(said)?.[1] ?? '', 'utf8')) as {
      firstAnswerSeconds: number
      makespanSeconds: { planned: number; measured: number }
    }
    return {
      plannedSeconds: summary.makespanSeconds.planned,
      measuredSeconds: summary.makespanSeconds.measured,
      firstAnswerSeconds: summary.firstAnswerSeconds,
      wholeSeconds: (performance.now() - began) / 1000,
      peakDiskBytes,
      leftDiskBytes: await folderSize(home),
      peakMemoryBytes,
    }
  } finally {
    process.off('SIGINT', stop).off('SIGTERM', stop)
    child.kill('SIGTERM')
    await ended
    rmSync(home, { recursive: true, force: true, maxRetries: 20, retryDelay: 100 })
  }
}

const optionsOrEnd = () => {
  try {
    const { values } = parseArgs({
      options: {
        rounds: { type: 'string', default: '3' },
        small: { type: 'boolean', default: false },
        temporal: { type: 'string' },
      },
    })
    const rounds = Number(values.rounds)
    if (!Number.isInteger(rounds) || rounds < 1)
      throw new TypeError(`--rounds ${values.rounds}: give a whole number from 1`)
    return { rounds, small: values.small, temporal: values.temporal }
  } catch (error) {
    process.stderr.write(
      `${(error as Error).message}\nusage: npx node bench/cold-demo.ts [--rounds 3] [--small] [--temporal PROGRAM]\n`,
    )
    process.exit(2)
  }
}

const { rounds, ...options } = optionsOrEnd()
const mebibytes = (bytes: number): string => `${(bytes / 2 ** 20).toFixed(0)} MiB`
const deviations: number[] = []
for (let number = 1; number <= rounds; number++) {
  const round = await coldStart(options)
  const deviation = (round.measuredSeconds - round.plannedSeconds) / round.plannedSeconds
  deviations.push(deviation)
  process.stdout.write(
    [
      `round ${number} of ${rounds}: planned ${round.plannedSeconds.toFixed(1)} s, took ` +
        `${round.measuredSeconds.toFixed(1)} s (${(100 * deviation).toFixed(0)} %)`,
      `  first answer after ${round.firstAnswerSeconds.toFixed(0)} s, the whole demo ` +
        `${round.wholeSeconds.toFixed(0)} s`,
      `  disk ${mebibytes(round.peakDiskBytes)} at most, ${mebibytes(round.leftDiskBytes)} at the ` +
        `end; memory ${mebibytes(round.peakMemoryBytes)} at most`,
      '',
    ].join('\n'),
  )
}
const worst = Math.max(...deviations.map(Math.abs))
process.stdout.write(
  `${rounds} cold starts: at most ${(100 * worst).toFixed(0)} % between plan and run, ` +
    `${100 * largestDeviation} % are allowed\n`,
)
process.exitCode = worst <= largestDeviation ? 0 : 1
