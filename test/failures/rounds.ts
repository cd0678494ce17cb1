import { chmodSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { availableParallelism } from 'node:os'
import { join } from 'node:path'
import { setTimeout as pause } from 'node:timers/promises'
import type { ReadyFacts } from '../../src/embedded/ready-file.ts'
import { violationsOf } from '../execution-runs/checker.ts'
import { kill } from '../support/kill.ts'
import {
  allOf,
  dependenciesOf,
  makeWorld,
  recordOf,
  type World,
  type WorldPlace,
  type WorldTask,
} from '../support/worlds.ts'
import { ledgerViolations, readLedger, withLedger } from './ledger.ts'
import { transferViolations } from './moved.ts'
import { dataFolder, readyOf, removeFolder, startProgram, until, type Program } from './programs.ts'

/** What is killed in a round: a process from outside, or the daemon by itself at a named place. */
export type Blow =
  | 'daemon'
  | 'worker'
  | 'postgres'
  | 'temporal'
  | 'everything'
  | 'site'
  | { failpoint: string }

/** Another place for the tasks than this machine. */
export interface RoundsSite {
  place: WorldPlace
  connections: Record<string, unknown>[]
  environment: Record<string, string>
  /** Path of the ledger as tasks see it, and as this machine does. */
  ledger: { at: string; seen: string }
  /** Stores what the service needs to get there. */
  introduce: (programs: Programs) => Promise<unknown>
  /** The site answers nobody for so many milliseconds, and its sessions end. */
  outage: (forMs: number) => Promise<void>
}

export interface Round {
  number: number
  blow: string
  afterMs: number
  seconds: number
  violations: string[]
  /** Its run did not end within `runSeconds`. */
  isStuck: boolean
}

const failpoints = [
  'intended-not-started',
  'started-not-watched',
  'ended-not-recorded',
  'before-commit',
  'committed',
]
const blows: Blow[] = ['daemon', 'worker', 'postgres', 'temporal', 'everything']

/** mulberry32: the same rounds for the same seed. */
export const randomOf = (seed: number): (() => number) => {
  let state = seed
  return () => {
    state = (state + 0x6d2b79f5) | 0
    let t = Math.imul(state ^ (state >>> 15), 1 | state)
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t
    return ((t ^ (t >>> 14)) >>> 0) / 4_294_967_296
  }
}

/**
 * A DAG of short tasks in five layers, each needing up to three of the layer before. `long`: every
 * tenth takes 2 to 5 s, so that a blow finds some that run.
 */
export const ledgerTasks = (
  count: number,
  ledger: string,
  random: () => number,
  long = false,
): WorldTask[] => {
  const layers = 5
  const seconds = (i: number): number => (long && i % 10 === 0 ? 2 + random() * 3 : 0.01 + random() * 0.12)
  return Array.from({ length: count }, (_, i) => {
    const layer = Math.floor((i * layers) / count)
    const from = Math.floor(((layer - 1) * count) / layers)
    const before =
      layer === 0
        ? []
        : Array.from(
            { length: 1 + Math.floor(random() * 3) },
            () => `t${String(from + Math.floor(random() * (count / layers)))}`,
          )
    return {
      name: `t${String(i)}`,
      run: withLedger(ledger, `sleep ${seconds(i).toFixed(3)}; echo ${String(i)} > made-by-${String(i)}`),
      after: [...new Set(before)],
      outputs: [`made-by-${String(i)}`],
    }
  })
}

/** What each of `ledgerTasks` leaves, by name of the task: path and bytes. */
export const ledgerFiles = (tasks: readonly WorldTask[]): Map<string, Map<string, number>> =>
  new Map(tasks.map(({ name }) => [name, new Map([[`made-by-${name.slice(1)}`, name.length]])]))

export interface RoundsOptions {
  seed: number
  tasks: (ledger: string, random: () => number) => WorldTask[]
  /**
   * What each task makes: path and bytes. Given, the transfers of each run are compared with it.
   */
  made?: (tasks: readonly WorldTask[]) => ReadonlyMap<string, ReadonlyMap<string, number>>
  /** Another build of the service than this checkout. */
  build?: string
  /** Only these instead of all kinds in turn. */
  blows?: Blow[]
  /**
   * A blow from outside comes between 0.3 s and this after the run was accepted; 2.8 s by default.
   */
  latestBlowMs?: number
  /** A blow at a named place comes when that is passed for the so many-th time at most; 25 by default. */
  latestPass?: number
  environment?: Record<string, string>
  /** Where the tasks run; absent: here. */
  site?: RoundsSite
  /** The longest that a run may take, blow and recovery included. */
  runSeconds?: number
  say?: (line: string) => void
}

/**
 * The real programs on one data folder: a daemon with its embedded servers, and one more worker.
 */
export const openPrograms = (dataDir: string, options: Pick<RoundsOptions, 'build' | 'environment'>) => {
  let daemon: Program | undefined
  let worker: Program | undefined
  let ready: ReadyFacts | undefined
  const environment = {
    SERVICE_DATA_DIR: dataDir,
    SERVICE_LISTEN_ADDRESS: '127.0.0.1:0',
    ...options.environment,
  }
  const failpointFile = join(dataDir, 'failpoints')
  const call = async (
    method: string,
    path: string,
    body?: unknown,
  ): Promise<{ status: number; body: any }> => {
    if (ready === undefined) throw new Error('the daemon has not been started')
    const answer = await fetch(ready.baseUrl + path, {
      method,
      headers: { 'content-type': 'application/json' },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    })
    const text = await answer.text()
    return { status: answer.status, body: text === '' ? undefined : JSON.parse(text) }
  }
  const ok = async (method: string, path: string, body?: unknown): Promise<any> => {
    const answer = await call(method, path, body)
    if (answer.status >= 300)
      throw new Error(
        `${method} ${path} answered ${String(answer.status)}: ${JSON.stringify(answer.body).slice(0, 1_000)}`,
      )
    return answer.body
  }
  return {
    call,
    get: (path: string) => ok('GET', path),
    post: (path: string, body?: unknown) => ok('POST', path, body),
    baseUrl: () => ready?.baseUrl ?? '',
    /** The daemon's own database, with its password. */
    databaseUrl: (): string => {
      const url = new URL(ready?.databaseUrl ?? '')
      url.password = readFileSync(join(dataDir, 'postgresql.password'), 'utf8').trim()
      return url.href
    },
    get daemon() {
      return daemon
    },
    get worker() {
      return worker
    },
    async startDaemon(): Promise<ReadyFacts> {
      rmSync(failpointFile, { force: true })
      daemon = await startProgram('main', { ...environment, ORRERY_FAILPOINTS: failpointFile }, options.build)
      ready = await readyOf(daemon, dataDir)
      return ready
    },
    /** Lets the daemon kill itself at this place from now on, until it is started again. */
    setFailpoint(setting: string): void {
      writeFileSync(`${failpointFile}.new`, setting)
      renameSync(`${failpointFile}.new`, failpointFile)
    },
    async startWorker(): Promise<void> {
      worker = await startProgram('worker', environment, options.build)
    },
    /** Process ids that count now: a server that was started again has another. */
    pids: async (): Promise<ReadyFacts['pids']> =>
      daemon === undefined ? Promise.reject(new Error('no daemon')) : (await readyOf(daemon, dataDir)).pids,
    killWorker: async () => {
      kill(worker?.child.pid)
      await worker?.ended
    },
    killDaemon: async () => {
      kill(daemon?.child.pid)
      await daemon?.ended
    },
    async stop(): Promise<void> {
      for (const program of [worker, daemon]) {
        program?.child.kill('SIGTERM')
        await program?.ended
      }
    },
  }
}

export type Programs = ReturnType<typeof openPrograms>

/** The blow of a round: each third is at a named place, the others are by turns. */
const blowOf = (number: number, options: RoundsOptions, random: () => number): Blow => {
  const turn = Math.floor(random() * failpoints.length)
  const given = options.blows?.[(number - 1) % options.blows.length]
  if (given !== undefined) return given
  const all: Blow[] = options.site === undefined ? blows : [...blows, 'site', 'site']
  if (number % 3 !== 1) return all[number % all.length] as Blow
  const failpoint = failpoints[(Math.floor(number / 3) + turn) % failpoints.length] as string
  return { failpoint: `${failpoint}=${String(1 + Math.floor(random() * (options.latestPass ?? 25)))}` }
}

/** Does what a blow from outside says, and starts again what does not come back by itself. */
const strike = async (programs: Programs, blow: Blow, site: RoundsSite | undefined): Promise<void> => {
  const pids = await programs.pids()
  if (blow === 'site') await site?.outage(2_000)
  if (blow === 'worker' || blow === 'everything') kill(programs.worker?.child.pid)
  if (blow === 'postgres' || blow === 'everything') kill(pids.postgres)
  if (blow === 'temporal' || blow === 'everything') kill(pids.temporal)
  if (blow !== 'daemon' && blow !== 'everything') return
  await programs.killDaemon()
  await programs.startDaemon()
}

/** A run that is hit by a blow. */
interface Hit {
  programs: Programs
  run: string
  blow: Blow
  /** Milliseconds between the start of the run and a blow from outside. */
  afterMs: number
}

/** Starts what the blow of the next run needs: the place of a failpoint is passed in the daemon. */
const prepare = async ({ programs, blow }: Hit): Promise<void> => {
  if (typeof blow === 'object') {
    await programs.killWorker()
    programs.setFailpoint(blow.failpoint)
  } else if (programs.worker?.child.exitCode !== null || programs.worker.child.signalCode !== null)
    await programs.startWorker()
}

const ended = ['completed', 'failed', 'cancelled']

/** Hits a run that was started. @returns violations */
const hit = async ({ programs, run, blow, afterMs }: Hit, options: RoundsOptions): Promise<string[]> => {
  if (typeof blow !== 'object') {
    await pause(afterMs)
    await strike(programs, blow, options.site)
    return []
  }
  await Promise.race([
    programs.daemon?.ended,
    until(`the end of ${run}`, options.runSeconds ?? 60, async () => {
      const answer = await programs.call('GET', `/execution-runs/${run}/`).catch(() => undefined)
      return ended.includes(answer?.body.run?.status)
    }),
  ])
  if (programs.daemon?.child.signalCode !== 'SIGKILL')
    return [`${run}: the failpoint ${blow.failpoint} was not reached`]
  await programs.startDaemon()
  return []
}

/** Waits for the end of a run. @returns its status, with the reason where it failed */
const endOf = ({ programs, run, blow }: Hit, seconds: number): Promise<string> =>
  until(`the end of ${run} after ${JSON.stringify(blow)}`, seconds, async () => {
    // PostgreSQL may be on its way back: 503, and nothing else, says so.
    const answer = await programs.call('GET', `/execution-runs/${run}/`)
    if (answer.status === 503) return undefined
    if (answer.status !== 200)
      throw new Error(
        `GET of ${run} answered ${String(answer.status)}: ${JSON.stringify(answer.body).slice(0, 500)}`,
      )
    const { status, failureReason } = answer.body.run as { status: string; failureReason?: string }
    if (!ended.includes(status)) return undefined
    return failureReason === undefined ? status : `${status}: ${failureReason}`
  })

/** What is wrong with the record of a run that ended, and with the ledger of its tasks. */
const recordViolations = async (
  programs: Programs,
  run: string,
  world: World,
  ledger: string,
  options: RoundsOptions,
): Promise<string[]> => {
  const reader = { get: (path: string) => programs.get(path) }
  const record = await until('the record of the run', 30, () => recordOf(reader, run).catch(() => undefined))
  return [
    ...violationsOf(record, { dependencies: dependenciesOf(world) }),
    ...ledgerViolations(
      readLedger(ledger),
      run,
      world.tasks.map((task) => world.activityId(task.name)),
      options.site === undefined ? availableParallelism() : Infinity,
    ),
    ...(options.made === undefined
      ? []
      : transferViolations(
          world,
          await allOf(reader, `/execution-runs/${run}/data-transfers/`),
          options.made(world.tasks),
        )),
  ]
}

/**
 * By turns more lanes than cores, for which tasks queue, and as many, which tasks hand on to each
 * other.
 */
const makeWorlds = async (
  programs: Programs,
  ledger: string,
  { seed, site, tasks }: RoundsOptions,
): Promise<World[]> => {
  const random = randomOf(seed)
  const worlds: World[] = []
  for (const cores of [
    [2, 2],
    [1, 1],
  ])
    worlds.push(
      await makeWorld(
        { post: (path: string, body?: unknown) => programs.post(path, body) },
        {
          ...{ name: `ledger${String(worlds.length)}`, cores, tasks: tasks(ledger, random) },
          ...(site === undefined
            ? {}
            : {
                places: cores.map(() => site.place),
                connections: worlds.length === 0 ? site.connections : [],
              }),
        },
      ),
    )
  return worlds
}

/** Runs on one data folder, each hit by one blow. */
export interface Rounds {
  /** @param number from 1; the same blow for the same number and seed */
  play: (number: number) => Promise<Round>
  close: () => Promise<void>
}

/** Starts the service with the worlds of the rounds. */
export const openRounds = async (options: RoundsOptions): Promise<Rounds> => {
  const say = options.say ?? (() => undefined)
  const dataDir = dataFolder()
  const { site } = options
  const ownLedger = join(dataDir, 'ledger')
  const ledger = site?.ledger ?? { at: ownLedger, seen: ownLedger }
  writeFileSync(ledger.seen, '')
  chmodSync(ledger.seen, 0o666)
  const programs = openPrograms(dataDir, {
    ...options,
    environment: { ...options.environment, ...site?.environment },
  })
  const close = async (): Promise<void> => {
    await programs.stop()
    removeFolder(dataDir)
  }
  let worlds: World[]
  try {
    await programs.startDaemon()
    await site?.introduce(programs)
    worlds = await makeWorlds(programs, ledger.at, options)
  } catch (error) {
    await close()
    throw error
  }

  const play = async (number: number): Promise<Round> => {
    const random = randomOf(options.seed * 1_000_003 + number)
    const world = worlds[number % worlds.length] as World
    const blow = blowOf(number, options, random)
    const afterMs = 300 + Math.floor(random() * ((options.latestBlowMs ?? 2_800) - 300))
    const run = `round-${String(number)}`
    const blown: Hit = { programs, run, blow, afterMs }
    const began = performance.now()
    await prepare(blown)
    await programs.post('/execution-runs/', { id: run, schedulePlanId: world.planId, mode: 'real' })
    const violations = await hit(blown, options)
    const status = await endOf(blown, options.runSeconds ?? 60).catch((error: unknown) => {
      violations.push(`${run} is stuck: ${(error as Error).message}`)
      return 'stuck'
    })
    if (status !== 'completed' && status !== 'stuck') violations.push(`${run} is ${status}`)
    if (status !== 'stuck')
      violations.push(...(await recordViolations(programs, run, world, ledger.seen, options)))
    const round = {
      number,
      blow: typeof blow === 'object' ? blow.failpoint : blow,
      afterMs,
      seconds: (performance.now() - began) / 1_000,
      violations,
      isStuck: status === 'stuck',
    }
    say(
      `round ${String(number)}: ${round.blow} after ${String(afterMs)} ms, ` +
        `${round.seconds.toFixed(1)} s, ${violations.length === 0 ? 'fine' : violations.slice(0, 5).join('; ')}`,
    )
    if (round.isStuck) say(programs.daemon?.output().slice(-5_000) ?? '')
    return round
  }
  return { play, close }
}

/** Plays rounds until one is stuck. @returns them, with what was wrong with each */
export const playRounds = async (options: RoundsOptions & { rounds: number }): Promise<Round[]> => {
  const { play, close } = await openRounds(options)
  const rounds: Round[] = []
  try {
    while (rounds.length < options.rounds && rounds.at(-1)?.isStuck !== true)
      rounds.push(await play(rounds.length + 1))
    return rounds
  } finally {
    await close()
  }
}
