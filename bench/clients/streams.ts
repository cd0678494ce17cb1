import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { setTimeout as sleep } from 'node:timers/promises'
import { startDaemon, type Daemon } from '../daemon.ts'
import { montageDag } from '../dag.ts'
import { plan, type Planned } from '../planned-run.ts'
import type { Benchmark } from '../report.ts'

interface Read {
  events: number
  lost: number
  p50: number
  p99: number
  bytes: number
}

/** Shares of a core that the daemon takes while the run is paused. */
interface Watched extends Read {
  shareAlone: number
  shareWithReaders: number
}

/** Seconds of processor time that a process has used. */
const cpuOf = (pid: number): number => {
  const stat = readFileSync(`/proc/${String(pid)}/stat`, 'utf8')
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
  return (Number(fields[11]) + Number(fields[12])) / 100
}

/** Readers of the events of a run that is paused, and then works. */
const watched = async (
  daemon: Daemon,
  planned: Planned,
  given: { runId: string; readers: number; quietSeconds: number },
): Promise<Watched> => {
  const { runId, readers, quietSeconds } = given
  await daemon.ok('POST', '/execution-runs/', { id: runId, schedulePlanId: planned.planId, mode: 'real' })
  await daemon.ok('POST', `/execution-runs/${runId}/pause/`)
  const { baseUrl, pids } = daemon.facts()
  const shareOfCore = async (): Promise<number> => {
    await sleep(2_000)
    const before = cpuOf(pids.daemon)
    await sleep(quietSeconds * 1_000)
    return (cpuOf(pids.daemon) - before) / quietSeconds
  }
  const shareAlone = await shareOfCore()
  const child = spawn(
    process.execPath,
    [join(import.meta.dirname, 'readers.ts'), `${baseUrl}/execution-runs/${runId}/events/`, String(readers)],
    { stdio: ['ignore', 'pipe', 'inherit'] },
  )
  const ended = once(child, 'exit')
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]()
  const first = await lines.next()
  if (first.value !== 'ready') throw new Error('the readers ended before all were connected')
  const shareWithReaders = await shareOfCore()
  await daemon.ok('POST', `/execution-runs/${runId}/resume/`)
  const { value } = await lines.next()
  await ended
  return { ...(JSON.parse(String(value)) as Read), shareAlone, shareWithReaders }
}

interface Watch {
  bytes: number
  seconds: number
  /** From the commit of the run's end to the client's sight of it, in milliseconds. */
  endDelayMs: number
}

/** Watches a run to its end by its summary: held until it changes, or asked for each second. */
const watch = async (daemon: Daemon, planned: Planned, runId: string, held: boolean): Promise<Watch> => {
  await daemon.ok('POST', '/execution-runs/', { id: runId, schedulePlanId: planned.planId, mode: 'real' })
  const url = `${daemon.facts().baseUrl}/execution-runs/${runId}/summary/`
  const began = performance.now()
  let bytes = 0
  let tag: string | undefined
  for (;;) {
    const answer = await fetch(url, {
      headers: {
        'accept-encoding': 'br',
        ...(held ? { prefer: 'wait=30' } : {}),
        ...(tag === undefined ? {} : { 'if-none-match': tag }),
      },
    })
    const text = await answer.text()
    bytes += Number(answer.headers.get('content-length') ?? 0)
    tag = answer.headers.get('etag') ?? tag
    const { run } = (text === '' ? {} : JSON.parse(text)) as { run?: { status: string; finishedAt?: string } }
    if (run?.finishedAt !== undefined)
      return {
        bytes,
        seconds: (performance.now() - began) / 1_000,
        endDelayMs: Date.now() - Date.parse(run.finishedAt),
      }
    if (!held) await sleep(1_000)
  }
}

const percents = (shares: readonly number[]): string =>
  shares.map((share) => `${(share * 100).toFixed(1)} %`).join(', ')

export const streams: Benchmark = {
  about:
    '1,000 readers of the events of a run, quiet and while its 1,066 tasks work; a watch of a run of ' +
    '10,000 tasks by its summary against a poll each second',
  async run({ rounds, tiny }) {
    const daemon = await startDaemon()
    try {
      const readers = tiny ? 20 : 1_000
      const { dag } = montageDag(tiny)
      const command = () => ({ entrypoint: 'sleep', arguments: [tiny ? '0.01' : '0.1'] })
      const local = { configuration: {} }
      const montage = await plan(daemon, { name: 'montage', dag, command, runtime: local, lanes: 16 })
      const activities = tiny ? 40 : 10_000
      const wide = Object.fromEntries(Array.from({ length: activities }, (_, k) => [`t${String(k)}`, []]))
      const short = () => ({ entrypoint: 'true' })
      const sweep = await plan(daemon, {
        name: 'sweep',
        dag: wide,
        command: short,
        runtime: local,
        lanes: 16,
      })
      const reads: Watched[] = []
      const holds: Watch[] = []
      const polls: Watch[] = []
      for (let round = 0; round < rounds; round++) {
        const name = String(round)
        reads.push(
          await watched(daemon, montage, { runId: `m${name}`, readers, quietSeconds: tiny ? 1 : 20 }),
        )
        holds.push(await watch(daemon, sweep, `held${name}`, true))
        polls.push(await watch(daemon, sweep, `polled${name}`, false))
      }
      const most = (values: readonly number[]): number => Math.max(...values)
      const perMinute = ({ bytes, seconds }: Watch): number => (bytes * 60) / seconds
      return {
        sides: [
          { name: 'event to reader, p99', unit: 'ms', warm: reads.map(({ p99 }) => p99) },
          { name: 'event to reader, p50', unit: 'ms', warm: reads.map(({ p50 }) => p50) },
          { name: 'bytes of a held watch', unit: 'bytes a minute', warm: holds.map(perMinute) },
          { name: 'bytes of a poll each second', unit: 'bytes a minute', warm: polls.map(perMinute) },
        ],
        goals: [
          {
            what: 'of a core for all readers, quiet',
            unit: '',
            measured: most(reads.map((read) => read.shareWithReaders - read.shareAlone)),
            sense: 'most',
            goal: 0.05,
          },
          {
            what: 'event to reader, p99',
            unit: ' ms',
            measured: most(reads.map(({ p99 }) => p99)),
            sense: 'most',
            goal: 1_000,
          },
          {
            what: 'events lost, a tenth of the readers cut',
            unit: '',
            measured: most(reads.map(({ lost }) => lost)),
            sense: 'most',
            goal: 0,
          },
          {
            what: 'bytes of a held watch',
            unit: ' a minute',
            measured: most(holds.map(perMinute)),
            sense: 'most',
            goal: 50_000,
          },
          {
            what: 'end of the run to a held watch',
            unit: ' ms',
            measured: most(holds.map(({ endDelayMs }) => endDelayMs)),
            sense: 'most',
            goal: 300,
          },
        ],
        notes: [
          `${String(readers)} readers in a process of their own; ${String(reads[0]?.events ?? 0)} events ` +
            `arrived in the first round`,
          `the daemon, its worker included, takes ${percents(reads.map(({ shareAlone }) => shareAlone))} of a ` +
            'core beside a paused run without readers, and ' +
            `${percents(reads.map(({ shareWithReaders }) => shareWithReaders))} with all of them`,
        ],
        versions: {},
      }
    } finally {
      await daemon.stop()
    }
  },
}
