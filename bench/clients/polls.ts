import { execFile } from 'node:child_process'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { promisify } from 'node:util'
import { startDaemon, type Daemon } from '../daemon.ts'
import type { Dag } from '../dag.ts'
import { plan, timedRun } from '../planned-run.ts'
import type { Benchmark } from '../report.ts'
import { interleaved, median, medianRatio } from '../rounds.ts'

const connections = 16
const fullSeconds = 3

/** Activities without dependencies, as in a sweep of parameters. */
const sweep = (activities: number): Dag =>
  Object.fromEntries(Array.from({ length: activities }, (_, k) => [`t${String(k)}`, []]))

const load = async (url: string, seconds: number): Promise<number> => {
  const program = join(import.meta.dirname, '../reads/load.ts')
  const { stdout } = await promisify(execFile)(process.execPath, [
    program,
    url,
    String(connections),
    String(seconds),
  ])
  return (JSON.parse(stdout) as { perSecond: number }).perSecond
}

/** Bytes of an answer's body as it is sent. */
const sentBytes = async (url: string, coding: string): Promise<number> => {
  const answer = await fetch(url, { headers: { 'accept-encoding': coding } })
  await answer.arrayBuffer()
  return Number(answer.headers.get('content-length'))
}

/** The delay of the daemon's event loop since the last call, in milliseconds. */
const loopDelay = async (daemon: Daemon): Promise<number> => {
  const text = await (await fetch(`${daemon.facts().adminUrl}/metrics`)).text()
  const seconds = /^nodejs_eventloop_lag_p99_seconds (\S+)/m.exec(text)?.[1]
  if (seconds === undefined) throw new Error('the metrics have no delay of the event loop')
  return Number(seconds) * 1_000
}

/** The delay of the event loop while one client reads the compressed body, again and again. */
const delayWhile = async (daemon: Daemon, url: string, seconds: number): Promise<number> => {
  await loopDelay(daemon)
  for (const until = performance.now() + seconds * 1_000; performance.now() < until;)
    await sentBytes(url, 'br')
  return loopDelay(daemon)
}

export const polls: Benchmark = {
  about:
    'a poll of a run of 10,000 tasks: its summary against the whole run, requests/s and bytes; the ' +
    'whole run compressed and not, and the delay of the event loop meanwhile',
  async run({ rounds, tiny }) {
    const activities = tiny ? 100 : 10_000
    const seconds = tiny ? 0.2 : fullSeconds
    const daemon = await startDaemon()
    try {
      const none = { configuration: { launch: 'none' } }
      const planned = await plan(daemon, {
        name: 'sweep',
        dag: sweep(activities),
        command: () => ({ entrypoint: 'true' }),
        runtime: none,
        lanes: 256,
      })
      await timedRun(daemon, planned, 'sweep')
      const whole = `${daemon.facts().baseUrl}/execution-runs/sweep/`
      const summary = `${whole}summary/`
      const bytes = {
        summary: await sentBytes(summary, 'identity'),
        whole: await sentBytes(whole, 'identity'),
        br: await sentBytes(whole, 'br'),
        gzip: await sentBytes(whole, 'gzip'),
      }
      const { cold, warm } = await interleaved(rounds, {
        summary: () => load(summary, seconds),
        whole: () => load(whole, seconds),
      })
      await loopDelay(daemon)
      await sleep(seconds * 1_000)
      const idleDelay = await loopDelay(daemon)
      const delays: number[] = []
      for (let round = 0; round < rounds; round++) delays.push(await delayWhile(daemon, whole, seconds))
      return {
        sides: [
          { name: 'summary', unit: 'requests/s', cold: cold.summary, warm: warm.summary },
          { name: 'whole run', unit: 'requests/s', cold: cold.whole, warm: warm.whole },
          { name: 'event loop, p99 while the whole run is read', unit: 'ms', warm: delays },
        ],
        goals: [
          {
            what: 'summary against the whole run',
            unit: '×',
            measured: medianRatio(warm.summary, warm.whole),
            sense: 'least',
            goal: 100,
          },
          { what: 'bytes of a summary', unit: 'bytes', measured: bytes.summary, sense: 'most', goal: 4_096 },
          {
            what: 'whole run, Brotli against none',
            unit: '×',
            measured: bytes.br / bytes.whole,
            sense: 'most',
            goal: 1 / 8,
          },
          {
            what: 'whole run, gzip against none',
            unit: '×',
            measured: bytes.gzip / bytes.whole,
            sense: 'most',
            goal: 1 / 8,
          },
          {
            what: 'p99 of the event loop, whole run with Brotli',
            unit: ' ms',
            measured: median(delays),
            sense: 'most',
            goal: 20,
          },
        ],
        notes: [
          `the event loop is looked at every 10 ms, which counts: at rest its p99 is ` +
            `${idleDelay.toFixed(1)} ms`,
          `${activities.toLocaleString('en')} activities without programs; the whole run has ` +
            `${String(bytes.whole)} bytes, ${String(bytes.br)} with Brotli, ${String(bytes.gzip)} with ` +
            `gzip; a summary has ${String(bytes.summary)}`,
          `${String(connections)} keep-alive connections from a process of their own for ` +
            `${String(seconds)} s; ${String(Math.round(median(warm.summary)))} summaries/s`,
        ],
        versions: {},
      }
    } finally {
      await daemon.stop()
    }
  },
}
