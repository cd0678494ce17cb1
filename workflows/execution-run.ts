import {
  ActivityCancellationType,
  ActivityFailure,
  ApplicationFailure,
  CancellationScope,
  condition,
  continueAsNew,
  defineQuery,
  defineSignal,
  isCancellation,
  patched,
  proxyActivities,
  proxyLocalActivities,
  setCurrentDetails,
  setHandler,
  upsertMemo,
  upsertSearchAttributes,
  workflowInfo,
} from '@temporalio/workflow'
import { defineSearchAttributeKey, SearchAttributeType } from '@temporalio/common'
import type { ExecutionRunActivities, FilesAtEnd } from '../activities/execution-run.ts'
import type { Signals } from '../src/operations/kind.ts'
import { endAsRecord, outOfReach, type End } from './ends.ts'
import {
  runDetails,
  runStateOf,
  sentence,
  waitsFor,
  type SiteStatus,
  type Headline,
} from '../src/page-details.ts'

/** The live state of an open run; the status route serves it as `live`. */
export interface LiveRun {
  phase: 'opening' | 'simulating' | 'running' | 'closing'
  sites: {
    site: string
    state: 'in flight' | 'waiting' | 'waiting for other sites' | 'settled' | 'given up'
    completed: number
    running: number
  }[]
  completed: number
  total: number
  waitingFor?: 'approval'
}

export const liveRunQuery = defineQuery<LiveRun>('live')
/** Sent after a change for a resting site: a cancel, a resume, a predecessor's end elsewhere. */
export const wakeSignal = defineSignal('wake')
/**
 * Sent by a working site now and then: its progress, and (since there is `status`) what its tasks
 * wait for.
 */
export const progressSignal = defineSignal<Signals['progress']>('progress')
/** Sent for a site of a cancelled run that no worker executes: the run ends without it. */
export const abandonedSignal = defineSignal<Signals['abandoned']>('abandoned')

const retry = {
  initialInterval: '200 milliseconds',
  backoffCoefficient: 2,
  maximumInterval: '10 seconds',
} as const
const dispatched = (summary: string) =>
  proxyActivities<ExecutionRunActivities>({
    summary,
    startToCloseTimeout: '1 hour',
    // The activities send a heartbeat every second; a large record can keep their process from it
    // for some seconds.
    heartbeatTimeout: '15 seconds',
    retry,
  })
/**
 * Runs in the process of the workflow's own task: this saves one trip through the server at the
 * start of a run, and one at its end.
 */
const alongside = (summary: string) =>
  proxyLocalActivities<ExecutionRunActivities>({
    summary,
    startToCloseTimeout: '10 minutes',
    localRetryThreshold: '5 seconds',
    retry,
  })

const runState = defineSearchAttributeKey('RunState', SearchAttributeType.KEYWORD)
const runMode = defineSearchAttributeKey('RunMode', SearchAttributeType.KEYWORD)
const waitsForKey = defineSearchAttributeKey('WaitsFor', SearchAttributeType.KEYWORD)

/**
 * A resting site looks again by itself after this long, in case a signal was lost with its sender.
 */
const restSeconds = 15
/** The same in a pause, whose end a signal brings: each look loads the run. */
const pausedRestSeconds = 60
/** A wake this long before a site is left may come behind the last look of its executor at the record. */
const lateWakeMs = 1_000
/** Far below the server's warning at 10,240 events; a site costs about 10 events a rest. */
const eventsBeforeNewHistory = 2_000

type Opened = Awaited<ReturnType<ExecutionRunActivities['openRun']>>
type LiveSite = LiveRun['sites'][number]

/** The state that the handlers of an open run change, and its work reads. */
interface Run {
  id: string
  generation: number
  /** Names the record; absent in workflows of earlier versions. */
  key: string | undefined
  headline: Headline | undefined
  live: LiveRun
  /** By site: its last signal. */
  statuses: Map<string, SiteStatus>
  /** Counts events for a resting site. */
  wakes: number
  /** When the last of them came from outside. */
  wokenAt: number
  /** The values in the search attributes of Temporal's page. */
  shown: { state: string; waitsFor: string | undefined }
  stopSimulation: () => void
  /** Where the history is long, asks the sites in flight to detach; called after each signal. */
  renew: () => void
  /** The sites in flight were asked to detach. */
  detaching: boolean
  /** By site, in the order of their begin: the activities in flight. */
  calls: Map<string, CancellationScope>
  abandoned: Set<string>
}

const showDetails = (run: Run): void => {
  const { live } = run
  live.completed = live.sites.reduce((sum, { completed }) => sum + completed, 0)
  setCurrentDetails(runDetails(run.headline, live, [...run.statuses.values()]))
}

/** Absent in histories of earlier versions, where the reason of a site that rests stayed. */
const restIsShown = 'a site that rests waits for nothing'

/**
 * Sets state and reason for the search of Temporal's page; only at a change, since each costs an
 * event. `isShown`: asked at a change alone.
 */
const show = (run: Run, isShown: () => boolean = () => true): void => {
  const statuses = [...run.statuses.values()]
  const running = run.live.sites.reduce((sum, site) => sum + site.running, 0)
  const next = { state: runStateOf(statuses, running), waitsFor: waitsFor(statuses) }
  const { shown } = run
  if (run.live.phase !== 'running' || (shown.state === next.state && shown.waitsFor === next.waitsFor)) return
  if (!isShown()) return
  run.shown = next
  upsertSearchAttributes([
    { key: runState, value: next.state },
    { key: waitsForKey, value: next.waitsFor ?? null },
  ])
}

/** An event for resting sites has come from outside. */
const wake = (run: Run): void => {
  run.wakes += 1
  run.wokenAt = Date.now()
}

const listen = (run: Run): void => {
  setHandler(liveRunQuery, () => run.live)
  setHandler(wakeSignal, () => {
    wake(run)
    run.renew()
  })
  setHandler(progressSignal, (site, completed, running, status) => {
    const entry = run.live.sites.find((candidate) => candidate.site === site)
    if (entry !== undefined) Object.assign(entry, { completed, running })
    if (entry !== undefined && status !== undefined) {
      run.statuses.set(site, status)
      show(run)
    }
    showDetails(run)
    run.renew()
  })
  setHandler(abandonedSignal, (site) => {
    run.abandoned.add(site)
    run.wakes += 1
    run.calls.get(site)?.cancel()
    run.renew()
  })
}

const isGivenUp = (error: unknown): boolean =>
  error instanceof ActivityFailure &&
  error.cause instanceof ApplicationFailure &&
  error.cause.type === 'SiteGivenUp'

/** Whether a site that was left just now has to be looked at again; never in earlier histories. */
const isWokenLate = ({ wokenAt }: Run): boolean =>
  Date.now() - wokenAt < lateWakeMs && patched('a wake while a site is left ends its rest')

/** Sites in flight detach for a new history. */
const detaches = 'sites in flight detach for a new history'

/**
 * Runs one site until it is settled, given up, or the history has to begin anew; `renew` is called
 * after each rest.
 */
const runSite = async (run: Run, entry: LiveSite, taskQueue: string, renew: () => boolean): Promise<void> => {
  const { site } = entry
  const activities = proxyActivities<ExecutionRunActivities>({
    taskQueue,
    summary: `${site}: run what is planned there`,
    startToCloseTimeout: '365 days',
    heartbeatTimeout: '6 seconds',
    ...(patched(detaches) ? { cancellationType: ActivityCancellationType.WAIT_CANCELLATION_COMPLETED } : {}),
    retry: { initialInterval: '100 milliseconds', backoffCoefficient: 1.5, maximumInterval: '5 seconds' },
  })
  const rest = (state: LiveSite['state']): void => {
    const { waits = [] } = run.statuses.get(site) ?? {}
    if (state === 'waiting') run.statuses.set(site, { paused: true, waits })
    else run.statuses.delete(site)
    entry.state = state
    show(run, () => patched(restIsShown))
    showDetails(run)
  }
  let reported = 0
  while (!run.abandoned.has(site)) {
    entry.state = 'in flight'
    const call = new CancellationScope()
    run.calls.delete(site)
    run.calls.set(site, call)
    let outcome
    try {
      outcome = await call.run(() => activities.runSite(run.id, run.generation, site, run.key))
    } catch (error) {
      // What runs there goes on; the next history's activity adopts it.
      if (run.detaching && !isGivenUp(error)) return
      // The executor gave the site up and has recorded that; the other sites find the record and
      // stop.
      const isAbandoned = run.abandoned.has(site)
      if (!(error instanceof ActivityFailure) || (isCancellation(error) && !isAbandoned)) throw error
      run.wakes += 1
      break
    }
    // A resting site may wait for tasks that ended here.
    if (outcome.settled || outcome.completed > reported) run.wakes += 1
    reported = outcome.completed
    Object.assign(entry, { completed: outcome.completed, running: 0 })
    const { settled, paused, woken } = outcome
    rest(settled ? 'settled' : paused === true ? 'waiting' : 'waiting for other sites')
    if (settled || run.detaching) return
    const seen = run.wakes
    const seconds = paused === true ? pausedRestSeconds : restSeconds
    if (woken !== true && !isWokenLate(run))
      await condition(() => run.wakes !== seen, `${String(seconds)} seconds`)
    if (renew()) return
  }
  rest('given up')
}

/**
 * Runs all sites of a run in parallel. True: the history is long, and the work goes on in a new
 * one.
 */
const execute = async (run: Run, sites: Opened['sites']): Promise<boolean> => {
  let renewing = false
  const renew = (): boolean => {
    if (renewing || workflowInfo().historyLength <= eventsBeforeNewHistory) return renewing
    renewing = true
    if (patched(detaches)) {
      run.wakes += 1
      run.detaching = true
      for (const call of run.calls.values()) call.cancel()
    }
    return true
  }
  run.renew = () => {
    if (patched(detaches)) renew()
  }
  run.live.phase = 'running'
  run.live.sites = sites.map(({ site }) => ({ site, state: 'in flight', completed: 0, running: 0 }))
  showDetails(run)
  await Promise.all(
    sites.map(({ taskQueue }, k) => runSite(run, run.live.sites[k] as LiveSite, taskQueue, renew)),
  )
  return renewing && run.live.sites.some(({ state }) => state === 'in flight' || state.startsWith('waiting'))
}

const simulate = async (run: Run): Promise<void> => {
  run.live.phase = 'simulating'
  showDetails(run)
  const scope = new CancellationScope()
  run.stopSimulation = () => {
    scope.cancel()
  }
  try {
    await scope.run(() => dispatched('simulate what the plan says').simulateRun(run.id, run.key))
  } catch (error) {
    if (!isCancellation(error) || !scope.consideredCancelled) throw error
  }
}

/** Opens the run; one that a person has to approve waits for the signal. */
const openOnceApproved = async (run: Run, near: typeof dispatched): Promise<Opened> => {
  for (;;) {
    const seen = run.wakes
    const opened = await near('open the run, once').openRun(run.id, run.generation, run.key)
    if (opened.state !== 'approval') {
      delete run.live.waitingFor
      return opened
    }
    run.live.waitingFor = 'approval'
    setCurrentDetails(
      sentence(run.headline, 'waits for the approval of its predicted cost, which is above its budget'),
    )
    const woken = (): boolean => run.wakes !== seen
    // A wake-up can be lost with its sender.
    await (patched('a run that waits for approval looks again')
      ? condition(woken, '1 hour')
      : condition(woken))
  }
}

/** Has the workers of a host finish the run's files there. A host that is away keeps them. */
const finishFiles = async ({ id }: Run, taskQueue: string): Promise<FilesAtEnd> => {
  const there = proxyActivities<ExecutionRunActivities>({
    taskQueue,
    summary: 'bring outputs to their storage, remove what is not kept',
    scheduleToStartTimeout: '10 minutes',
    startToCloseTimeout: '365 days',
    heartbeatTimeout: '15 seconds',
    retry,
  })
  try {
    await there.finishFiles(id)
    return 'finished'
  } catch (error) {
    if (!(error instanceof ActivityFailure) || isCancellation(error)) throw error
    return 'left'
  }
}

/** Closes the run, after its files are finished. */
const close = async (run: Run, near: typeof dispatched) => {
  const { closeRun } = near('sum up and close the run')
  for (let files: FilesAtEnd = 'to finish'; ;) {
    const closed = await closeRun(run.id, run.generation, files, run.key)
    if (!('filesAt' in closed)) return closed
    files = await finishFiles(run, closed.filesAt)
  }
}

/**
 * Opens, executes or simulates, closes; returns how the record ended, undefined where a new history
 * goes on.
 */
const work = async (run: Run): Promise<End | undefined> => {
  const { live } = run
  const near = patched('open and close alongside') ? alongside : dispatched
  const opened = await openOnceApproved(run, near)
  live.total = opened.total
  if (opened.state === 'over') return opened.end ?? {}
  run.shown = { state: 'running', waitsFor: undefined }
  upsertSearchAttributes([
    { key: runState, value: 'running' },
    { key: runMode, value: opened.state === 'simulate' ? 'simulation' : 'real' },
  ])
  if (opened.state === 'simulate') await simulate(run)
  else if (await execute(run, opened.sites)) return undefined
  live.phase = 'closing'
  const closed = await close(run, near)
  upsertSearchAttributes([
    { key: runState, value: closed.status },
    { key: waitsForKey, value: null },
  ])
  upsertMemo({ status: closed.status, completed: closed.completed, total: opened.total })
  setCurrentDetails(
    runDetails(
      run.headline,
      { phase: closed.status, completed: closed.completed, total: opened.total, sites: [] },
      [...run.statuses.values()],
    ),
  )
  return closed
}

/**
 * One run in one generation: open, execute at every site (or simulate), close. It only orders these
 * steps; the site's activity decides and records which tasks are ready, started and finished. A
 * loss of this history loses no record. Temporal's cancel becomes the record's; the workflow ends
 * as its record.
 */
export async function executionRun(
  runId: string,
  generation: number,
  headline?: Headline,
  key?: string,
): Promise<void> {
  const run: Run = {
    id: runId,
    generation,
    key,
    headline,
    live: { phase: 'opening', sites: [], completed: 0, total: 0 },
    statuses: new Map(),
    wakes: 0,
    wokenAt: -Infinity,
    shown: { state: '', waitsFor: undefined },
    stopSimulation: () => undefined,
    renew: () => undefined,
    detaching: false,
    calls: new Map(),
    abandoned: new Set(),
  }
  listen(run)
  await outOfReach(
    async (cancel) => {
      const end = await work(run)
      if (end === undefined) await continueAsNew<typeof executionRun>(runId, generation, headline, key)
      else await endAsRecord(cancel, 'RunFailed', end)
    },
    async () => {
      wake(run)
      await alongside("make the cancel the record's").cancelRun(runId, generation, key)
      run.stopSimulation()
    },
  )
}
