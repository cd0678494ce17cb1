import { isDeepStrictEqual } from 'node:util'
import { DriverError } from '../../src/drivers/runtime/contract/driver.ts'
import type * as DecidingModule from '../../src/executor/scheduling.ts'
import type * as StateModule from '../../src/executor/scheduling-state.ts'
import type {
  SchedulingState,
  SchedulingFacts,
  TaskCommand,
  Effect,
  Step,
} from '../../src/executor/scheduling-state.ts'
import type { Outcome } from '../../src/executor/attempts-in-flight.ts'
import { openHostCores, type CoreShare, type HostCores } from '../../src/executor/host-cores.ts'
import type { CommitResult } from '../../src/executor/journal.ts'
import { intentName } from '../../src/executor/names.ts'
import {
  claim,
  commit,
  endsAfter,
  laneOf,
  load,
  makeDb,
  Replaced,
  type ModelDb,
  type ModelTask,
} from './model-db.ts'
import { moveOf, type Fate, type Scenario } from './scenario.ts'

/**
 * Plays a scenario with the real scheduling, a model of the database and a model of the sites, and throws
 * at the first law that is broken. What `loop.ts`, `effect-runner.ts` and `answers.ts` do with promises
 * happens here in steps, between which anything may happen: a kill, a frozen holder that wakes
 * later, a lost answer, a cancel.
 */

const broken = (law: string, what: string): never => {
  throw new Error(`${law}: ${what}`)
}

const laws = {
  intent: 'no effect without a committed intent',
  once: 'no name is started twice',
  lane: 'no two tasks of a lane are alive at once',
  order: 'a task starts after its predecessors',
  files: 'a task takes the files of the last attempts of its predecessors',
  conserved: 'lanes and cores are conserved',
  cancelled: 'nothing starts after a seen cancel',
  paused: 'nothing starts in a pause, the start lease apart',
  waits: 'an attempt that its site does not mention waits, and nothing starts for it',
  ends: 'every task ends in bounded steps',
  settled: 'a finished run is settled',
  equal: 'equal committed state and equal events give equal decisions',
  recorded: 'what was started is on record',
  same: 'a run with take-overs ends as one without',
} as const

type Question = Extract<Effect, { type: 'findAhead' | 'readHolds' | 'readCommands' | 'readForeignEnds' }>
/** The scheduling that is played; both functions are of one copy of the executor. */
export type Scheduling = Pick<typeof DecidingModule, 'decide'> & Pick<typeof StateModule, 'openScheduling'>
type SiteEvent = Parameters<Scheduling['decide']>[1] extends infer E
  ? E extends unknown
    ? Omit<E, 'at' | 'ms' | 'contended'>
    : never
  : never

/** Something that was started outside. */
interface Thing {
  position: number
  attempt: number
  lanes: readonly string[]
  startedAt: number
  endedAt: number | undefined
  outcome: Outcome | undefined
  /** The driver was asked to end it. */
  unwanted: boolean
  epoch: number
}

/** One worker that holds, or believes to hold, a site. */
interface Holder {
  site: string
  epoch: number
  state: SchedulingState
  /** The same state, from a load of its own; it is given the same events. */
  shadow: SchedulingState
  host: HostCores | undefined
  cores: CoreShare | undefined
  asked: { question: Question; since: number }[]
  pause: { until: number } | undefined
  woken: boolean
  step: Step | undefined
  sentAt: number
  answer: CommitResult | undefined
  /** Positions by name: what its driver watches. */
  submitted: Map<string, number>
  left: string | undefined
  frozen: boolean
  sawCancel: boolean
  /** Its driver was asked to end everything, what comes later too. */
  stopsAll: boolean
  /** Adopted positions of which the driver knows nothing, in a pause. */
  held: Set<number>
}

interface Play {
  scheduling: Scheduling
  scenario: Scenario
  db: ModelDb
  ms: number
  things: Map<string, Thing>
  /** Names of living things by lane. */
  alive: Map<string, string>
  holders: Holder[]
  sites: string[]
  settled: Set<string>
  takeOvers: number
  cancelledAt: number | undefined
  pausedAt: number | undefined
  /** Outcomes were not those of the scenario alone. */
  disturbed: boolean
  completedPositions: Set<number>
}

const runId = 'run'
const leaseMs = 200
const otherRun = 'another run'
const siteName = (site: number): string => `site-${String(site)}`
const seconds = (play: Play): number => 1_000 + play.ms / 1_000

const lanesOf = (scenario: Scenario, i: number): string[] => {
  const task = scenario.tasks[i] as Scenario['tasks'][number]
  return task.free
    ? []
    : task.lanes.map((core) => laneOf([`resource-${String(task.site)}`, `c${String(core)}`, 's']))
}

const rowsOf = (scenario: Scenario): ModelTask[] =>
  scenario.tasks.map((task, position) => ({
    id: `${runId}:a${String(position)}`,
    position,
    activity_id: `a${String(position)}`,
    external_id: `a${String(position)}`,
    resource_id: `resource-${String(task.site)}`,
    runtime_id: 'runtime',
    attempt: 1,
    first_attempt: 1,
    user_attempts: 1,
    status: 'blocked',
    core_ids: task.lanes.map((core) => `c${String(core)}`),
    slot_id: 's',
    order_on_resource: scenario.orders[position] as number,
    ready_at: null,
    queued_at: null,
    started_at: null,
    finished_at: null,
    not_before: null,
    intended: false,
    ahead: false,
    walltime_extensions: 0,
    suspects: 0,
    silent_since: null,
    latest: true,
    handle: null,
    handleStartedAt: null,
    hostId: null,
    queueReason: null,
    exitCode: null,
    failureReason: null,
    externalIdAtSite: null,
  }))

const factsOf = (play: Play, site: string): SchedulingFacts => ({
  runId,
  contentVersionId: 'version',
  effectKey: 'key',
  site,
  hostId: site,
  onFailure: play.scenario.onFailure,
  prices: new Map(),
  patience: { silentSeconds: 60, firstPauseSeconds: 0.1, longestPauseSeconds: 0.2, attempts: 2 },
  aheadPerLane: play.scenario.aheadPerLane,
  hostCores: play.scenario.hostCores,
  brings: false,
})

const commandOf = (scenario: Scenario, i: number): TaskCommand => ({
  argv: [],
  environment: {},
  cpu: (scenario.tasks[i] as Scenario['tasks'][number]).cpu,
  memoryBytes: 1,
  timeoutSeconds: 0,
  maxAttempts: scenario.maxAttempts,
  retryDelaySeconds: 0.05,
  expectedOutputs: [],
})

/** A new holder of a site, made from what is committed. */
const takeOver = (play: Play, site: string): void => {
  const { scenario, db } = play
  const epoch = claim(db, site)
  const of = {
    mine: scenario.tasks.map((task) => siteName(task.site) === site),
    schedulesItself: scenario.tasks.map(({ free }) => free),
  }
  const open = (): SchedulingState =>
    play.scheduling.openScheduling(factsOf(play, site), load(db), of, seconds(play))
  const host = scenario.hostCores === undefined ? undefined : openHostCores(scenario.hostCores, () => play.ms)
  const holder: Holder = {
    site,
    epoch,
    state: open(),
    shadow: open(),
    host,
    cores: host?.share(0),
    asked: [],
    pause: undefined,
    woken: false,
    step: undefined,
    sentAt: 0,
    answer: undefined,
    submitted: new Map(),
    left: undefined,
    frozen: false,
    sawCancel: false,
    stopsAll: false,
    held: new Set(),
  }
  play.holders.push(holder)
  happen(play, holder, { type: 'begin' })
}

/** Gives an event to both states of a holder, and does what follows. */
const happen = (play: Play, holder: Holder, what: SiteEvent): Step | undefined => {
  const moment = { at: seconds(play), ms: play.ms, contended: holder.cores?.contended === true }
  const event = { ...moment, ...what } as Parameters<Scheduling['decide']>[1]
  const decision = play.scheduling.decide(holder.state, event)
  const same = play.scheduling.decide(holder.shadow, event)
  if (!isDeepStrictEqual(decision, same))
    broken(laws.equal, `${what.type}: ${JSON.stringify([decision, same])}`)
  for (const effect of decision.effects) act(play, holder, effect)
  checkCores(play, holder)
  return decision.commit
}

const act = (play: Play, holder: Holder, effect: Effect): void => {
  const { cores } = holder
  switch (effect.type) {
    case 'start':
      for (const i of effect.positions) launch(play, holder, i)
      break
    case 'adopt':
      for (const i of effect.positions) adopt(play, holder, i)
      break
    case 'stopAll':
      holder.stopsAll = true
      for (const name of holder.submitted.keys()) {
        const thing = play.things.get(name)
        if (thing !== undefined) thing.unwanted = true
      }
      break
    case 'takeCores':
      if (effect.cores.some((core) => cores?.inTurn().includes(core) !== true))
        broken(laws.conserved, 'a core is taken twice')
      cores?.take(effect.cores)
      break
    case 'giveCores':
      cores?.give(effect.cores)
      break
    case 'requestCores':
      cores?.request(effect.request, () => (holder.woken = true))
      break
    case 'wakeOthers':
      for (const other of play.holders) if (other !== holder) other.woken = true
      break
    case 'rest':
      cores?.request(effect.request, () => (holder.woken = true))
      holder.pause = { until: play.ms + effect.ms }
      break
    case 'gather':
      holder.woken = false
      holder.pause = { until: play.ms + effect.ms }
      break
    case 'leave':
      leave(play, holder, effect.why)
      break
    default:
      holder.asked.push({ question: effect, since: play.ms })
  }
}

const nameOf = (holder: Holder, i: number): string =>
  intentName('key', i, (holder.state.tasks[i] as ModelTask).attempt)

const launch = (play: Play, holder: Holder, i: number): void => {
  const { db, scenario, things, alive } = play
  const task = holder.state.tasks[i] as ModelTask
  const name = nameOf(holder, i)
  const row = db.tasks.get(task.id)
  const which = `${task.id} at ${String(play.ms)} by ${String(holder.epoch)}`
  if (row === undefined || !(row.handle === name || row.ahead)) return broken(laws.intent, which)
  if (holder.sawCancel) broken(laws.cancelled, which)
  if (row.ahead && holder.state.paused) broken(laws.paused, which)
  if (row.ahead && play.cancelledAt !== undefined && play.ms > play.cancelledAt + leaseMs)
    broken(laws.cancelled, `${which}, ahead`)
  if (row.ahead && play.pausedAt !== undefined && play.ms > play.pausedAt + leaseMs)
    broken(laws.paused, `${which}, ahead`)
  holder.submitted.set(name, i)
  const known = things.get(name)
  // A frozen holder and its successor may both hand on what is committed: the driver starts a name
  // once.
  if (known !== undefined && (row.ahead || known.epoch === holder.epoch)) broken(laws.once, which)
  if (known !== undefined) return
  for (const [from, to] of scenario.edges) {
    if (to !== i) continue
    if (!play.completedPositions.has(from)) broken(laws.order, `${which} before a${String(from)}`)
    const { attempt } = holder.state.tasks[from] as ModelTask
    if (attempt !== db.latest[from]?.attempt) broken(laws.files, `${which}: a${String(from)}`)
  }
  const lanes = lanesOf(scenario, i)
  for (const lane of lanes) {
    if (alive.has(lane)) broken(laws.lane, `${which}: ${lane} is ${String(alive.get(lane))}'s`)
    if (db.leases.get(lane) === otherRun) broken(laws.lane, `${which}: ${lane} is another run's`)
    alive.set(lane, name)
  }
  things.set(name, {
    ...{
      position: i,
      attempt: task.attempt,
      lanes,
      startedAt: seconds(play),
      endedAt: undefined,
      outcome: undefined,
    },
    unwanted: false,
    epoch: holder.epoch,
  })
}

type Flags = Pick<CommitResult, 'paused' | 'cancelled'>

/**
 * What the driver does not know starts now, or at the end of a pause, unless the driver was asked to
 * end everything or the run has failed. `flags`: as the holder has read them.
 */
const adopt = (play: Play, holder: Holder, i: number, flags: Flags = play.db.run): void => {
  const { attempt, id } = holder.state.tasks[i] as ModelTask
  const name = nameOf(holder, i)
  const known = play.things.get(name)
  if (known === undefined && !holder.stopsAll && holder.state.stopping !== 'failed') {
    if (holder.state.paused) {
      holder.held.add(i)
      return
    }
    if (flags.paused) broken(laws.paused, `${id} at ${String(play.ms)}, adopted`)
    if (flags.cancelled) broken(laws.cancelled, `${id} at ${String(play.ms)}, adopted`)
    launch(play, holder, i)
    return
  }
  holder.submitted.set(name, i)
  if (known === undefined)
    play.things.set(name, unstarted(play, { position: i, attempt, epoch: holder.epoch }))
  else known.unwanted ||= holder.stopsAll
}

/** The driver was asked to end a name before anything was started under it. */
const unstarted = (play: Play, of: Pick<Thing, 'position' | 'attempt' | 'epoch'>): Thing => {
  const at = seconds(play)
  const thing: Thing = { ...of, lanes: [], startedAt: at, endedAt: at, outcome: undefined, unwanted: true }
  thing.outcome = collected(thing, at, 0, 'cancelled')
  return thing
}

const collected = (
  thing: Thing,
  finishedAt: number,
  exitCode: number,
  reason: 'exited' | 'cancelled',
): Outcome => ({
  kind: 'collected',
  collected: {
    state: {
      state: 'ended',
      externalId: 'x',
      startedAt: thing.startedAt,
      finishedAt,
      exitCode,
      signal: null,
      reason,
    },
    submittedAt: thing.startedAt,
    wallSeconds: 0,
    cpuSeconds: null,
    peakMemoryBytes: null,
    measuredBy: 'none',
    manifest: { schemaVersion: 1, runtime: 'x', hostname: 'x', root: '', files: [], summary: noFiles },
    missingOutputs: [],
    stderrTail: '',
  },
})
const noFiles = {
  initialFiles: 0,
  finalFiles: 0,
  createdFiles: 0,
  modifiedFiles: 0,
  deletedFiles: 0,
  outputBytes: 0,
}

const outcomes: Record<Fate, (thing: Thing, at: number) => Outcome> = {
  done: (thing, at) => collected(thing, at, 0, 'exited'),
  user: (thing, at) => collected(thing, at, 1, 'exited'),
  lost: () => ({ kind: 'lost', cause: 'NODE_FAIL' }),
  refused: () => ({ kind: 'refused', error: new DriverError('refused', 'no such image') }),
}

/** Something outside ends, as the scenario has it or because it is unwanted. */
const end = (play: Play, name: string, thing: Thing): void => {
  const at = seconds(play)
  const fate = play.scenario.tasks[thing.position]?.fates[thing.attempt - 1] ?? 'done'
  thing.endedAt = at
  thing.outcome = thing.unwanted ? collected(thing, at, 0, 'cancelled') : outcomes[fate](thing, at)
  if (!thing.unwanted && fate === 'done') play.completedPositions.add(thing.position)
  for (const lane of thing.lanes) if (play.alive.get(lane) === name) play.alive.delete(lane)
  // The files of some are read for long.
  if ((thing.position + thing.attempt) % 2 === 0) return
  for (const holder of play.holders) {
    const position = holder.submitted.get(name)
    if (position !== undefined && !holder.frozen) happen(play, holder, { type: 'programEnded', position })
  }
}

const deliver = (play: Play, holder: Holder, name: string): void => {
  const position = holder.submitted.get(name)
  const outcome = play.things.get(name)?.outcome
  if (position === undefined || outcome === undefined) return
  holder.submitted.delete(name)
  happen(play, holder, { type: 'attemptEnded', position, outcome, copied: [] })
  holder.woken = true
}

/** The holder does the next thing that its loop would do; `hurry`: time passes until it can. */
const proceed = (play: Play, holder: Holder, hurry: boolean): void => {
  const [first] = holder.asked
  if (first !== undefined) {
    const due = first.question.type === 'findAhead' ? first.since + first.question.afterMs : first.since
    if (play.ms < due && !hurry) return
    play.ms = Math.max(play.ms, due)
    holder.asked.shift()
    happen(play, holder, answerTo(play, holder, first.question))
    return
  }
  if (holder.left !== undefined) return
  if (holder.step !== undefined) {
    if (holder.answer === undefined) apply(play, holder, holder.step)
    else answered(play, holder, holder.answer)
    return
  }
  if (holder.pause !== undefined && !holder.woken && play.ms < holder.pause.until) {
    if (!hurry) return
    play.ms = holder.pause.until
  }
  holder.pause = undefined
  holder.woken = false
  const { paused } = holder.state
  holder.step = happen(play, holder, { type: 'tick', cores: holder.cores?.inTurn() })
  if (paused && (holder.step?.entry.intents.length ?? 0) > 0)
    broken(laws.paused, `an intent at ${String(play.ms)}`)
  holder.sentAt = play.ms
}

const answerTo = (play: Play, holder: Holder, question: Question): SiteEvent => {
  const { db, scenario } = play
  switch (question.type) {
    case 'findAhead':
      return {
        type: 'aheadFound',
        started: new Map(question.positions.map((i) => [i, play.things.get(nameOf(holder, i))?.startedAt])),
      }
    case 'readHolds': {
      const cores = coresHeld(db, holder, question.positions)
      return {
        type: 'holdsRead',
        cores,
        transfers: [],
        stopping: db.run.cancelled || db.run.status !== 'running',
        paused: db.run.paused,
      }
    }
    case 'readCommands':
      return {
        type: 'commandsRead',
        commands: new Map(question.positions.map((i) => [i, commandOf(scenario, i)])),
      }
    case 'readForeignEnds':
      return { type: 'foreignEnds', ends: endsAfter(db, question.after) }
  }
}

const isOver = (status: string): boolean =>
  status === 'completed' || status === 'failed' || status === 'cancelled'

const coresHeld = (
  db: ModelDb,
  holder: Holder,
  positions: readonly number[],
): Map<number, readonly number[]> => {
  const { cores, state, site } = holder
  if (cores === undefined) return new Map()
  return new Map(
    positions.map((i) => {
      const held: number[] = []
      for (const [lane, id] of db.leases) {
        const [resource, core] = JSON.parse(lane) as [string, string]
        if (id === state.tasks[i]?.id && resource === `@host/${site}`)
          held.push(Number(core.replace('core-', '')))
      }
      return [i, cores.hold(held)]
    }),
  )
}

const apply = (play: Play, holder: Holder, step: Step): void => {
  try {
    holder.answer = commit(play.db, holder.site, holder.epoch, step.entry)
  } catch (error) {
    if (!(error instanceof Replaced)) throw error
    play.holders = play.holders.filter((other) => other !== holder)
    return
  }
  checkLeases(play)
}

const answered = (play: Play, holder: Holder, result: CommitResult): void => {
  const { acquired, holders, cancelled, paused, failed, run_status: runStatus } = result
  holder.step = undefined
  holder.answer = undefined
  happen(play, holder, { type: 'commitAnswered', acquired, holders })
  const freeCores = holder.cores?.free ?? Infinity
  if (cancelled) holder.sawCancel = true
  happen(play, holder, {
    type: 'flagsSeen',
    sentAt: holder.sentAt,
    freeCores,
    cancelled,
    paused,
    failed,
    runStatus,
  })
  const held = [...holder.held]
  holder.held.clear()
  for (const i of held) adopt(play, holder, i, result)
}

const leave = (play: Play, holder: Holder, why: string): void => {
  holder.left = why
  if (why === 'idle' && !holder.frozen) checkIdle(play, holder)
  // What a holder says that has been replaced is not heard.
  if (why !== 'settled' || holder.frozen) return
  const { state, site, host } = holder
  const mine = play.db.latest.filter(({ position }) => state.mine[position])
  const open = mine.filter(
    (task) => task.ahead || (task.handle !== null && !isOver(task.status) && !neverGiven(play, task)),
  )
  if (open.length > 0) broken(laws.settled, `${open.map(({ id }) => id).join()} at ${site}`)
  if (state.stopping === 'no') {
    const undone = mine.filter(
      ({ status, position }) => !isOver(status) && state.frontier.states[position] !== 3,
    )
    if (undone.length > 0) broken(laws.settled, `${undone.map(({ id }) => id).join()} at ${site} did not run`)
  }
  if (holder.submitted.size > 0)
    broken(laws.settled, `${[...holder.submitted.values()].join()} are in flight at ${site}`)
  if (host !== undefined && host.free < host.count)
    broken(laws.conserved, `cores are held at the end of ${site}`)
  play.settled.add(site)
}

/** The run was asked to end, or ends because an activity has failed. */
const isStopping = ({ db, scenario }: Play): boolean =>
  db.run.cancelled || (scenario.onFailure === 'stop' && db.run.failed > 0)

/**
 * A site that leaves its slot to others has nothing that could start; of several sites one may have
 * ended something since, and in a pause nothing starts.
 */
const checkIdle = (play: Play, { site, state }: Holder): void => {
  if (play.sites.length > 1 || state.paused) return
  const { mine, schedulesItself } = state
  const { queue, deferred } = play.scheduling.openScheduling(
    factsOf(play, site),
    load(play.db),
    { mine, schedulesItself },
    seconds(play),
  )
  if (queue.length + deferred.length > 0)
    broken(laws.ends, `${[...queue, ...deferred].join()} could start at ${site}, which is idle`)
}

/**
 * Recorded, then not given to its executor because the run was being stopped; the run's closing
 * ends it.
 */
const neverGiven = (play: Play, { handle }: ModelTask): boolean =>
  isStopping(play) && handle !== null && !play.things.has(handle)

const checkCores = (_play: Play, { host, state }: Holder): void => {
  if (host === undefined) return
  let held = 0
  for (const some of state.heldCores.values()) held += some.length
  if (host.count - host.free !== held)
    broken(
      laws.conserved,
      `${String(held)} cores are in the state, ${String(host.count - host.free)} are taken`,
    )
}

/** Every lease is held by an attempt that goes on, and every attempt that goes on has its lanes. */
const checkLeases = ({ db, scenario }: Play): void => {
  for (const [lane, id] of db.leases) {
    const task = db.tasks.get(id)
    if (id !== otherRun && (task === undefined || isOver(task.status) || !task.latest))
      broken(laws.conserved, `${lane} is with ${id}`)
  }
  for (const { id, position, handle, status } of db.latest)
    if (handle !== null && !isOver(status))
      for (const lane of lanesOf(scenario, position))
        if (db.leases.get(lane) !== id)
          broken(laws.conserved, `${id} is without ${lane}, ${String(db.leases.get(lane))} has it`)
}

const pickOf = <T>(items: readonly T[], pick: number): T | undefined => items[pick % items.length]

/** Living things, oldest first. */
const living = (play: Play): [string, Thing][] =>
  [...play.things].filter(([, { endedAt }]) => endedAt === undefined)

/** The site answers, and does not mention the attempt, whether it lives or not. */
const unmentioned = (
  play: Play,
  holder: Holder,
  { name, position }: { name: string; position: number },
): void => {
  const [things, { attempt }] = [play.things.size, holder.state.tasks[position] as ModelTask]
  const reason = 'at the site: the scheduler does not mention job 7'
  const observation = { status: 'running', externalId: 'x', reason, waitsFor: 'site' } as const
  const step = happen(play, holder, { type: 'attemptObserved', position, observation })
  const ends = step?.entry.ends.some((end) => end.activityId === `a${String(position)}`) === true
  const goesOn = holder.submitted.get(name) === position && holder.state.tasks[position]?.attempt === attempt
  if (ends || !goesOn || play.things.size !== things) broken(laws.waits, name)
}

const replace = (play: Play, holder: Holder): void => {
  play.takeOvers += 1
  takeOver(play, holder.site)
}

const moves: Record<
  ReturnType<typeof moveOf>['kind'],
  (play: Play, pick: number, holder: Holder | undefined) => void
> = {
  go: (play, _pick, holder) => {
    if (holder !== undefined) proceed(play, holder, false)
  },
  end: (play, pick) => {
    const found = pickOf(living(play), pick)
    if (found !== undefined) end(play, ...found)
  },
  deliver: (play, pick, holder) => {
    if (holder === undefined) return
    const ended = [...holder.submitted.keys()].filter((name) => play.things.get(name)?.outcome !== undefined)
    const name = pickOf(ended, pick)
    if (name !== undefined) deliver(play, holder, name)
  },
  endHeard: (play, pick) => {
    const found = pickOf(living(play), pick % 2)
    if (found === undefined) return
    end(play, ...found)
    for (const holder of [...play.holders]) if (!holder.frozen) deliver(play, holder, found[0])
  },
  pass: (play, pick) => {
    play.ms += [1, 5, 20, 60, 120, 250, 500, 1_200][pick % 8] as number
  },
  kill: (play, _pick, holder) => {
    if (holder === undefined || holder.frozen || holder.left !== undefined || play.takeOvers >= 5) return
    play.holders = play.holders.filter((other) => other !== holder)
    replace(play, holder)
  },
  freeze: (play, _pick, holder) => {
    if (holder === undefined || holder.frozen || holder.left !== undefined || play.takeOvers >= 5) return
    holder.frozen = true
    replace(play, holder)
  },
  drain: (play, _pick, holder) => {
    if (holder === undefined || holder.left !== undefined) return
    happen(play, holder, { type: 'drain' })
    holder.woken = true
  },
  // The step is given again, with the moment of the second time.
  lose: (play, _pick, holder) => {
    if (holder?.step === undefined || holder.answer === undefined) return
    holder.answer = undefined
    holder.sentAt = play.ms
    for (const intent of holder.step.entry.intents) intent.startedAt = seconds(play)
  },
  seen: (play, pick, holder) => {
    const name = pickOf([...(holder?.submitted.keys() ?? [])], pick)
    if (holder === undefined || name === undefined) return
    const position = holder.submitted.get(name) as number
    if (pick % 2 === 0) {
      const observation = { status: 'running', externalId: 'x', reason: null } as const
      happen(play, holder, { type: 'attemptObserved', position, observation })
    } else unmentioned(play, holder, { name, position })
    holder.woken = true
  },
  silence: (play, pick, holder) => {
    if (holder === undefined || holder.frozen || pick % 3 !== 0) return
    const name = [...holder.submitted.keys()].find((one) => play.things.get(one)?.endedAt === undefined)
    const thing = name === undefined ? undefined : play.things.get(name)
    if (name === undefined || thing === undefined) return
    play.disturbed = true
    end(play, name, thing)
    thing.outcome = { kind: 'silent', words: 'no answer' }
    play.completedPositions.delete(thing.position)
    deliver(play, holder, name)
  },
  takeLane: (play, pick) => {
    const lane = pickOf([...new Set(play.scenario.tasks.flatMap((_, i) => lanesOf(play.scenario, i)))], pick)
    if (lane === undefined || play.db.leases.has(lane)) return
    if (play.alive.has(lane))
      broken(laws.lane, `${lane} is free and ${String(play.alive.get(lane))} is alive in it`)
    play.db.leases.set(lane, otherRun)
  },
  freeLane: (play) => {
    for (const [lane, id] of play.db.leases) if (id === otherRun) play.db.leases.delete(lane)
  },
  contend: (_play, _pick, holder) => {
    // Another run that wants a core for a second, and then does not take it.
    holder?.host?.share(1).request({ need: 1, retry: false })
  },
  pause: (play) => {
    if (play.db.run.paused) return
    play.db.run.paused = true
    play.pausedAt = play.ms
  },
  resume: (play) => {
    play.db.run.paused = false
    play.pausedAt = undefined
  },
  cancel: (play, pick) => {
    if (pick % 4 !== 0) return
    play.db.run.cancelled = true
    play.cancelledAt ??= play.ms
    play.disturbed = true
  },
}

/** No more trouble: attempts end, lanes come free; every site settles in bounded steps. */
const finish = (play: Play): void => {
  moves.resume(play, 0, undefined)
  moves.freeLane(play, 0, undefined)
  const most = 200 + 120 * play.scenario.tasks.length
  for (let round = 0; play.settled.size < play.sites.length; round++) {
    if (round > most)
      broken(laws.ends, `${play.sites.filter((site) => !play.settled.has(site)).join()} go on`)
    for (const holder of [...play.holders]) {
      if (!play.holders.includes(holder)) continue
      if (holder.left !== undefined && (holder.left !== 'settled' || holder.frozen)) {
        play.holders = play.holders.filter((other) => other !== holder)
        if (!holder.frozen) takeOver(play, holder.site)
        continue
      }
      for (const name of [...holder.submitted.keys()]) {
        const thing = play.things.get(name)
        if (thing?.endedAt === undefined && thing !== undefined) end(play, name, thing)
        deliver(play, holder, name)
      }
      proceed(play, holder, true)
    }
  }
}

/** How a run ended: state and attempt by position, and its counts. */
interface Ending {
  tasks: string[]
  completed: number
  failed: number
}

const endingOf = ({ db, scenario }: Play): Ending => {
  const dead = new Set<number>()
  for (let again = true; again;) {
    again = false
    for (const [from, to] of scenario.edges)
      if (
        (dead.has(from) || ['failed', 'cancelled'].includes(db.latest[from]?.status ?? '')) &&
        !dead.has(to)
      ) {
        dead.add(to)
        again = true
      }
  }
  return {
    tasks: db.latest.map(({ position, status, attempt }) =>
      dead.has(position) ? 'never' : `${status} ${String(attempt)}`,
    ),
    completed: db.run.completed,
    failed: db.run.failed,
  }
}

/** Every attempt that was started is on record under its name, with one start before one end. */
const checkRecord = (play: Play): void => {
  const { db, things } = play
  const told = new Map<string, string[]>()
  for (const { id, type } of db.events) told.set(id, [...(told.get(id) ?? []), type])
  for (const task of db.tasks.values()) {
    const name = intentName('key', task.position, task.attempt)
    const started = things.has(name)
    const expected = started ? ['activity.started', `activity.${task.status}`] : []
    const known = told.get(task.id) ?? []
    if (neverGiven(play, task)) continue
    if (started !== (task.handle === name) || known.join() !== expected.join())
      broken(
        laws.recorded,
        `${task.id} ${task.status}, ${String(task.handle)}: ${known.join()}, not ${expected.join()}`,
      )
  }
}

const checkEnd = (play: Play): Ending => {
  const { db } = play
  const left = [...db.leases].filter(
    ([, id]) => id !== otherRun && !neverGiven(play, db.tasks.get(id) as ModelTask),
  )
  if (left.length > 0) broken(laws.conserved, `leases are left: ${left.join(' ')}`)
  checkRecord(play)
  const ending = endingOf(play)
  const count = (status: string): number => db.latest.filter((task) => task.status === status).length
  // What fails while the run is being cancelled is not counted.
  if (db.run.completed !== count('completed') || (!db.run.cancelled && db.run.failed !== count('failed')))
    broken(laws.conserved, `counts ${JSON.stringify(db.run)} and ${JSON.stringify(ending)} differ`)
  const free = play.cancelledAt === undefined && (play.scenario.onFailure !== 'stop' || db.run.failed === 0)
  if (free && ending.tasks.some((task) => !/^(completed|failed|never)/.test(task)))
    broken(laws.ends, JSON.stringify(ending.tasks))
  return ending
}

const playOnce = (scheduling: Scheduling, scenario: Scenario): { play: Play; ending: Ending } => {
  const sites = [...new Set(scenario.tasks.map(({ site }) => siteName(site)))]
  const play: Play = {
    scheduling,
    scenario,
    db: makeDb(rowsOf(scenario), scenario.edges),
    ms: 0,
    things: new Map(),
    alive: new Map(),
    holders: [],
    sites,
    settled: new Set(),
    takeOvers: 0,
    cancelledAt: undefined,
    pausedAt: undefined,
    disturbed: false,
    completedPositions: new Set(),
  }
  for (const site of sites) takeOver(play, site)
  for (const move of scenario.moves) {
    const { kind, pick } = moveOf(move)
    moves[kind](play, pick, pickOf(play.holders, pick))
  }
  finish(play)
  return { play, ending: checkEnd(play) }
}

/** Plays a scenario. @throws Error that names the broken law */
export const playScenario = (
  scheduling: Scheduling,
  scenario: Scenario,
): { takeOvers: number; moves: number } => {
  const { play, ending } = playOnce(scheduling, scenario)
  if (!play.disturbed && play.takeOvers > 0 && (scenario.onFailure !== 'stop' || ending.failed === 0)) {
    const calm = playOnce(scheduling, { ...scenario, moves: [] }).ending
    if (!isDeepStrictEqual(calm, ending)) broken(laws.same, JSON.stringify([calm, ending]))
  }
  return { takeOvers: play.takeOvers, moves: scenario.moves.length }
}
