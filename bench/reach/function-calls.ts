import { http } from '@google-cloud/functions-framework'
import { getTestServer } from '@google-cloud/functions-framework/testing'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync, rmSync } from 'node:fs'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { openFunctions } from '../../src/clients/functions.ts'
import { openServerlessDriver } from '../../src/drivers/runtime/serverless/driver.ts'
import { startDaemon, type Daemon } from '../daemon.ts'
import { newFolder } from '../folder.ts'
import { plan, timedRun, type Planned } from '../planned-run.ts'
import type { Benchmark } from '../report.ts'
import { interleaved, median } from '../rounds.ts'
import { bag } from './places.ts'

interface Load {
  inFlight: number
  callsPerLane: number
}

const full: Load = { inFlight: 200, callsPerLane: 5 }
/**
 * The own time of one call, 1 to 3 s with a resolution of milliseconds. No two calls of a turn are
 * alike, so calls that begin together do not end together.
 */
const ownSeconds = (lane: number, call: number): number => 1 + ((lane * 1_009 + call * 617) % 2_003) / 1_000

interface Sleep {
  name: string
  argv?: string[]
}

/**
 * A function that follows the call protocol and only sleeps, so that the measurement covers
 * everything else.
 */
const serveSleeper = async (): Promise<void> => {
  http('sleeper', (request, response) => {
    const { name, argv = ['0'] } = request.body as Sleep
    const startedAt = Date.now() / 1_000
    setTimeout(
      () => {
        response.json({
          schemaVersion: 1,
          name,
          exitCode: 0,
          startedAt,
          finishedAt: Date.now() / 1_000,
          coldStart: false,
          stdout: 'b3Zlcgo=',
        })
      },
      Number(argv[0]) * 1_000,
    )
  })
  const server = getTestServer('sleeper').listen(0, '127.0.0.1')
  await once(server, 'listening')
  process.stdout.write(`http://127.0.0.1:${String((server.address() as AddressInfo).port)}/\n`)
  // The benchmark holds the other end of the pipe. When the benchmark ends, this process ends.
  process.stdin.resume().once('end', () => process.exit(0))
}

/** Seconds of each call beyond the function's own time, sorted. */
const overheads = async (
  { inFlight, callsPerLane }: Load,
  call: (lane: number, turn: number) => Promise<number>,
): Promise<number[]> => {
  const lanes = Array.from({ length: inFlight }, async (_, lane) => {
    await sleep((lane * 2_000) / inFlight)
    const measured: number[] = []
    for (let turn = 0; turn < callsPerLane; turn++) {
      const began = performance.now()
      const own = await call(lane, turn)
      measured.push((performance.now() - began) / 1_000 - own)
    }
    return measured
  })
  return (await Promise.all(lanes)).flat().sort((a, b) => a - b)
}

/**
 * The overheads of a run with as many activities, from its record: from the intent to the start of
 * the function, plus from its end to its answer.
 */
const overheadsOfRun = async (daemon: Daemon, planned: Planned, runId: string): Promise<number[]> => {
  await timedRun(daemon, planned, runId, 100)
  const { activities } = await daemon.ok('GET', `/execution-runs/${runId}/?attempts=all`)
  return (activities as { startedAt: number; finishedAt: number; runtimeSeconds: number }[])
    .map(({ startedAt, finishedAt, runtimeSeconds }) => finishedAt - startedAt - runtimeSeconds)
    .sort((a, b) => a - b)
}
const at = (sorted: readonly number[], share: number): number =>
  sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] as number
const milliseconds = (value: number): number => value * 1_000

export const functionCalls: Benchmark = {
  about:
    `${full.inFlight * full.callsPerLane} calls of a function of 1 to 3 s, ${full.inFlight} in ` +
    `flight: time beyond the function's own, against bare requests`,
  async run({ rounds, tiny }) {
    const load = tiny ? { inFlight: 8, callsPerLane: 1 } : full
    const { inFlight, callsPerLane } = load
    const child = spawn(process.execPath, [...process.execArgv, import.meta.filename, 'serve'], {
      stdio: ['pipe', 'pipe', 'inherit'],
    })
    const [line] = (await once(child.stdout, 'data')) as [Buffer]
    const endpoint = line.toString().trim()
    const root = newFolder('function-calls-')
    const functions = openFunctions({ addressAllowed: () => true })
    const driver = openServerlessDriver({
      ...{ root, runtime: 'bench', taskVariable: 'ORRERY_TASK', invoke: functions.invoke },
      configuration: { endpoint, concurrency: inFlight },
    })
    const daemon = await startDaemon()
    try {
      const all: Record<'run' | 'driver' | 'requests', number[][]> = { run: [], driver: [], requests: [] }
      let turns = 0
      const measure = async (side: keyof typeof all, measured: Promise<number[]>): Promise<number> => {
        const sorted = await measured
        all[side].push(sorted)
        return milliseconds(at(sorted, 0.5))
      }
      const planned = await plan(daemon, {
        name: 'function-calls',
        dag: bag(inFlight * callsPerLane),
        command: (task) => ({
          entrypoint: String(
            ownSeconds(Number(task.slice(1)) % inFlight, Math.floor(Number(task.slice(1)) / inFlight)),
          ),
        }),
        runtime: {
          driver: 'serverless',
          configuration: { endpoint, concurrency: inFlight },
          capabilities: { batch: true, serverless: true, cancellation: true, dataStaging: true },
        },
        lanes: inFlight,
      })
      const viaDriver = async (lane: number, turn: number): Promise<number> => {
        const name = `t${turns}-${lane}-${turn}`
        const over = new Promise<void>((resolve) => void ends.set(name, resolve))
        const [outcome] = await driver.submit([
          {
            ...{
              name,
              directory: join(root, 'work', name),
              argv: [String(ownSeconds(lane, turn))],
              environment: {},
              stage: [],
            },
            ...{ expectedOutputs: [], cores: 1, memoryBytes: 0, timeoutSeconds: 60 },
          },
        ])
        if (outcome?.ok !== true) throw outcome?.error ?? new Error('no outcome')
        driver.watch([name], (ended) => ends.get(ended)?.())
        await over
        const { state, wallSeconds } = await driver.collect(name)
        if (state.state !== 'ended' || state.exitCode !== 0) throw new Error(`${name} is ${state.state}`)
        return wallSeconds
      }
      const ends = new Map<string, () => void>()
      const bare = async (lane: number, turn: number): Promise<number> => {
        const body = JSON.stringify({ name: 'bare', argv: [String(ownSeconds(lane, turn))] })
        const answer = await fetch(endpoint, {
          method: 'POST',
          body,
          headers: { 'content-type': 'application/json' },
        })
        const { startedAt, finishedAt } = (await answer.json()) as { startedAt: number; finishedAt: number }
        return finishedAt - startedAt
      }
      const { cold, warm } = await interleaved(rounds, {
        run: () => measure('run', overheadsOfRun(daemon, planned, `run-${++turns}`)),
        driver: () => {
          turns++
          return measure('driver', overheads(load, viaDriver))
        },
        requests: () => measure('requests', overheads(load, bare)),
      })
      const rows = (side: keyof typeof all, name: string) => [
        { name: `${name}: p50`, unit: 'ms', cold: cold[side], warm: warm[side] },
        {
          name: `${name}: p95`,
          unit: 'ms',
          cold: milliseconds(at(all[side][0] ?? [], 0.95)),
          warm: all[side].slice(1).map((sorted) => milliseconds(at(sorted, 0.95))),
        },
      ]
      return {
        sides: [
          ...rows('run', 'a run of Orrery, by its record'),
          ...rows('driver', 'its driver alone, from submit to collected'),
          ...rows('requests', 'bare requests'),
        ],
        goals: [
          {
            what: 'p50 beyond the function’s own time',
            unit: 'ms',
            measured: median(warm.run),
            sense: 'most',
            goal: 20,
          },
        ],
        notes: [
          'every call has its record, its claim and its end on disk, a work directory and a ' +
            'manifest; every one ended with exit code 0',
          'the function is in a process of its own in the functions framework and only sleeps',
        ],
        versions: {
          'functions-framework': (
            JSON.parse(
              readFileSync(
                join(
                  import.meta.dirname,
                  '../../node_modules/@google-cloud/functions-framework/package.json',
                ),
                'utf8',
              ),
            ) as { version: string }
          ).version,
        },
      }
    } finally {
      await daemon.stop()
      await driver.close()
      functions.close()
      child.stdin.end()
      rmSync(root, { recursive: true, force: true })
    }
  },
}

if (process.argv[1] === import.meta.filename && process.argv[2] === 'serve') await serveSleeper()
