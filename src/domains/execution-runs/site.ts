import type { Db } from '../../db/sql.ts'
import { DriverError, type Collected, type Intent, type RuntimeDriver } from '../../drivers/runtime/driver.ts'
import { bookedEnd, endOf, nextAttempt, notStarted, outputsOf, transfersOf, type AttemptEnd, type Moved } from './attempt.ts'
import { completed as done, createFrontier, dead, inFlight, waiting } from './frontier.ts'
import type { HostCores } from './host-cores.ts'
import { claimSite, commitSite, LeasePassedOn, loadRun, outlastingOutage, type Entry, type LoadedTask, type TaskIntent } from './journal.ts'
import { intentName } from './names.ts'

/** What an activity is, as far as its execution needs it; read from the run's content version when the task is about to start. */
export interface Command {
  argv: string[]
  environment: Record<string, string>
  workingDirectory?: string
  cpu: number
  memoryBytes: number
  timeoutSeconds: number
  maxAttempts: number
  retryDelaySeconds: number
  expectedOutputs: string[]
}

/** Decides, for one task, everything its driver needs; pure apart from the paths it is given. */
export interface SitePlan {
  contentVersionId: string
  onFailure: 'stop' | 'finish-independent'
  /** Site of each runtime id: tasks of other sites are waited for, not run. */
  siteOfRuntime: ReadonlyMap<string, string>
  pricePerSecond: ReadonlyMap<string, number>
  commandsOf: (positions: readonly number[]) => Promise<Map<number, Command>>
  intentOf: (task: LoadedTask, command: Command, name: string, predecessors: readonly LoadedTask[]) => Intent
  transfersOf: (task: LoadedTask, predecessors: readonly LoadedTask[]) => Moved[]
}

export interface SiteParts {
  db: Db
  driver: RuntimeDriver
  hostId: string
  /** Real cores of this host, shared by all runs of this worker; undefined for a runtime that starts no process. */
  cores: HostCores | undefined
  /** Seconds since the epoch. */
  clock: () => number
  failpoint: (name: string) => void
}

export interface SiteOutcome {
  /** Nothing is in flight here and nothing will be: all tasks of the site are over, or the run is being stopped. */
  settled: boolean
  /** Tasks of the site so far, over all its holders. */
  completed: number
  failed: number
}

/** Tasks committed as intents in one step; more only make the step slow (500 take about 25 ms). */
const intentsPerCommit = 500
/** Looks at flags, renews the lease and looks for predecessors elsewhere this often, in milliseconds. */
const tickMs = 400
/** Leaves the worker slot to others after this long without anything to do. */
const idleMs = 2_000
/** A task still alive after this long is shown as `running`; shorter ones go from `preparing` to their end in one write. */
const showRunningMs = 150
/** Lanes held by another run, or cores by another worker, are asked for again after this long. */
const laneRetryMs = 150
const cancelGraceSeconds = 5

/**
 * Runs every task of one site of a run: the only writer of their rows while it holds the site's lease.
 *
 * In memory it knows which tasks may start (`createFrontier`); each step commits the ends since the last one together with the next
 * intents, and only committed intents take effect. After a crash the next holder finds the intents and asks the driver, by their
 * deterministic names, what became of them: adopted, started for the first time, or lost with their machine, never started twice.
 *
 * Resolves when the site is settled or has been idle for a while; rejects with `LeasePassedOn` when another worker took over, and
 * with the signal's reason when this worker is being drained (what runs goes on and is adopted later).
 */
export const runSite = async (
  parts: SiteParts,
  runId: string,
  site: string,
  plan: SitePlan,
  holder: string,
  signal: AbortSignal,
  beat: (facts: { completed: number; running: number }) => void,
): Promise<SiteOutcome> => {
  const { db, driver, clock } = parts
  const epoch = await outlastingOutage(() => claimSite(db, runId, site, holder), signal)
  const loaded = await outlastingOutage(() => loadRun(db, runId, plan.contentVersionId), signal)
  const { tasks } = loaded
  const n = tasks.length
  const at = (i: number): LoadedTask => tasks[i] as LoadedTask
  const mine = tasks.map((task) => plan.siteOfRuntime.get(task.runtime_id) === site)

  const states = new Uint8Array(n)
  for (const [i, task] of tasks.entries()) {
    states[i] =
      task.status === 'completed'
        ? done
        : task.status === 'failed' || task.status === 'cancelled'
          ? dead
          : task.status === 'preparing' || task.status === 'running'
            ? inFlight
            : waiting
  }
  const frontier = createFrontier({
    states,
    from: loaded.from,
    to: loaded.to,
    lanes: tasks.map((task) =>
      (task.core_ids.length === 0 ? [''] : task.core_ids).map((core) => JSON.stringify([task.resource_id, core, task.slot_id])),
    ),
    orders: tasks.map((task) => task.order_on_resource),
    mine,
  })

  let entry: Entry = { ends: [], retries: [], states: [], intents: [], outputs: [], transfers: [] }
  const commands = new Map<number, Command>()
  const byName = new Map<string, number>()
  const shown = new Map<number, number>()
  const heldCores = new Map<number, number[]>()
  const collecting = new Set<number>()
  const readyAt = new Map<number, number>()
  const retryAt = new Map<number, number>()
  const queueReasons = new Map<number, string>()
  const externalIds = new Map<number, string>()
  // First ready, first started; what has to wait for a time, a lane of another run or a core is looked at again later.
  // After a take-over a retry still waits for its time.
  const ready = frontier.ready()
  const loadedAt = clock()
  const early = (i: number): boolean => (at(i).not_before ?? 0) > loadedAt
  const queue: number[] = ready.filter((i) => !early(i))
  let deferred: number[] = ready.filter(early)
  let running = 0
  let finished = states.reduce((sum, state, i) => sum + (state === done && mine[i] === true ? 1 : 0), 0)
  let failed = tasks.filter((task, i) => task.status === 'failed' && mine[i] === true).length
  let stopping: 'cancelled' | 'failed' | undefined =
    plan.onFailure === 'stop' && tasks.some((task) => task.status === 'failed') ? 'failed' : undefined
  let cancelSent = false
  let trouble: unknown
  let wake: () => void = () => undefined
  let woken = false
  /** The task whose turn it is needs more cores than are free: what is behind it waits too, else it would starve. */
  let coresShort = false
  const nudge = (): void => {
    woken = true
    wake()
  }
  const fail = (error: unknown): void => {
    trouble ??= error
    nudge()
  }
  signal.addEventListener('abort', nudge)

  const commandOf = async (positions: number[]): Promise<void> => {
    const unknown = positions.filter((i) => !commands.has(i))
    if (unknown.length === 0) return
    // The tasks just behind them are about to be asked for as well: one read for a thousand instead of one per hop.
    const ahead: number[] = []
    for (let i = unknown[0] as number; i < n && ahead.length < 1_000; i++)
      if (mine[i] === true && !commands.has(i) && (states[i] as number) < done) ahead.push(i)
    for (const [position, command] of await outlastingOutage(() => plan.commandsOf([...new Set([...unknown, ...ahead])]), signal))
      commands.set(position, command)
  }

  const lastFinish = (i: number): number => {
    let latest = 0
    for (const p of frontier.predecessorsOf(i)) latest = Math.max(latest, at(p).finished_at ?? 0)
    return latest
  }

  const freeCores = (i: number): void => {
    const held = heldCores.get(i)
    if (held !== undefined) parts.cores?.give(held)
    heldCores.delete(i)
  }

  const opened = (freed: number[]): void => {
    queue.push(...freed)
  }

  /** Books the end of an attempt: success, another attempt, or the end of the activity. */
  const settle = (i: number, end: AttemptEnd): void => {
    const task = at(i)
    const command = commands.get(i)
    freeCores(i)
    running -= 1
    shown.delete(i)
    externalIds.delete(i)
    byName.delete(intentName(runId, task.position, task.attempt))
    const moved = end.status === 'completed' ? plan.transfersOf(task, [...frontier.predecessorsOf(i)].map(at)) : []
    const booked = bookedEnd(task, end, moved, plan.pricePerSecond.get(task.resource_id) ?? 0)
    task.finished_at = end.finishedAt
    if (end.status === 'completed') {
      entry.ends.push({ ...booked, final: false })
      entry.transfers.push(...transfersOf(runId, task, end, moved))
      entry.outputs.push(...outputsOf(runId, plan.contentVersionId, task, end.manifest, parts.hostId, command?.expectedOutputs ?? []))
      finished += 1
      opened(frontier.complete(i))
    } else if (end.status === 'cancelled' || stopping === 'cancelled') {
      entry.ends.push({ ...booked, final: false })
      opened(frontier.kill(i))
    } else {
      const next = stopping === undefined ? nextAttempt(runId, task, end, command, clock()) : undefined
      entry.ends.push({ ...booked, final: next === undefined })
      if (next === undefined) {
        failed += 1
        if (plan.onFailure === 'stop') stopping ??= 'failed'
        opened(frontier.kill(i))
      } else {
        entry.retries.push(next)
        const { id, attempt, userAttempts, notBefore } = next
        Object.assign(task, { id, attempt, user_attempts: userAttempts, status: 'ready', ready_at: next.readyAt, not_before: notBefore })
        Object.assign(task, { queued_at: null, started_at: null, finished_at: null })
        readyAt.set(i, next.readyAt)
        frontier.putBack(i)
        deferred.push(i)
      }
    }
    nudge()
  }

  /** What an ended task left behind; undefined when it was lost: not alive, and nothing tells how it ended. */
  const collected = async (name: string): Promise<Collected | undefined> => {
    try {
      return await driver.collect(name)
    } catch (error) {
      if (error instanceof DriverError && error.trouble === 'unknown' && (await driver.find([name])).get(name)?.state === 'lost')
        return undefined
      throw error
    }
  }

  const collect = async (i: number, name: string): Promise<void> => {
    if (collecting.has(i)) return
    collecting.add(i)
    try {
      const outcome = await collected(name)
      parts.failpoint('ended-not-recorded')
      const end = endOf(at(i), outcome, commands.get(i)?.timeoutSeconds ?? 0, clock())
      // What was lost while it was being ended is ended.
      settle(i, end.failureClass === 'infrastructure' && stopping === 'cancelled' ? { ...end, status: 'cancelled' } : end)
    } catch (error) {
      fail(error)
    } finally {
      collecting.delete(i)
    }
  }

  const stops: (() => void)[] = []
  const watch = (names: string[]): void => {
    stops.push(
      driver.watch(names, (name) => {
        const i = byName.get(name)
        if (i !== undefined) void collect(i, name)
      }),
    )
  }

  const submit = async (intents: Intent[]): Promise<void> => {
    try {
      parts.failpoint('intended-not-started')
      const outcomes = await driver.submit(intents)
      parts.failpoint('started-not-watched')
      watch(outcomes.filter((outcome) => outcome.ok).map((outcome) => outcome.name))
      for (const outcome of outcomes) {
        const i = byName.get(outcome.name)
        if (i === undefined) continue
        if (!outcome.ok) settle(i, notStarted(at(i), outcome.error, clock()))
        else externalIds.set(i, outcome.externalId)
      }
    } catch (error) {
      const trouble = error instanceof DriverError ? error : new DriverError('infrastructure', (error as Error).message, { cause: error })
      for (const intent of intents) {
        const i = byName.get(intent.name)
        if (i !== undefined) settle(i, notStarted(at(i), trouble, clock()))
      }
    }
  }
  /** Those without files to stage go together; a long staging must not keep the ends of the others from being seen. */
  const launch = (intents: Intent[]): void => {
    const together = (intent: Intent): boolean => driver.capabilities.batch && intent.stage.length === 0
    const batch = intents.filter(together)
    if (batch.length > 0) void submit(batch)
    for (const intent of intents) if (!together(intent)) void submit([intent])
  }

  const intentFor = (i: number): Intent => {
    const task = at(i)
    return plan.intentOf(
      task,
      commands.get(i) as Command,
      intentName(runId, task.position, task.attempt),
      [...frontier.predecessorsOf(i)].map(at),
    )
  }

  // What an earlier holder intended: ask by name, adopt what lives, start what never started.
  const adopt = async (): Promise<void> => {
    const intended = [...states.keys()].filter((i) => mine[i] === true && states[i] === inFlight)
    if (intended.length === 0) return
    await commandOf(intended)
    for (const i of intended) byName.set(intentName(runId, at(i).position, at(i).attempt), i)
    running += intended.length
    if (parts.cores !== undefined) for (const i of intended) heldCores.set(i, parts.cores.hold(await coresHeld(db, parts.hostId, at(i).id)))
    const found = await driver.find([...byName.keys()])
    const fresh: Intent[] = []
    for (const [name, i] of [...byName]) {
      const state = found.get(name)?.state ?? 'unknown'
      shown.set(i, clock())
      if (state === 'unknown') fresh.push(intentFor(i))
      else if (state === 'running') {
        externalIds.set(i, (found.get(name) as { externalId: string }).externalId)
        watch([name])
      } else void collect(i, name)
    }
    if (fresh.length > 0) launch(fresh)
  }

  const choose = async (): Promise<{ intents: TaskIntent[]; launches: Intent[] }> => {
    const intents: TaskIntent[] = []
    const launches: Intent[] = []
    if (stopping !== undefined) return { intents, launches }
    coresShort = false
    const now = clock()
    const due = (i: number): boolean => (retryAt.get(i) ?? 0) <= now && (at(i).not_before ?? 0) <= now
    queue.unshift(...deferred.filter(due))
    deferred = deferred.filter((i) => !due(i))
    const room = Math.min(intentsPerCommit, parts.cores?.free ?? intentsPerCommit)
    const chosen = queue.splice(0, room).filter((i) => states[i] === waiting)
    // What stays behind is shown as ready once, so that a poller can tell waiting for a core from waiting for data.
    for (const i of queue.slice(0, intentsPerCommit)) {
      if (at(i).status !== 'blocked' || states[i] !== waiting) continue
      at(i).status = 'ready'
      readyAt.set(i, lastFinish(i) || now)
      entry.states.push({ id: at(i).id, status: 'ready', readyAt: readyAt.get(i) as number })
    }
    if (chosen.length === 0) return { intents, launches }
    await commandOf(chosen)
    for (const i of chosen) {
      const task = at(i)
      const command = commands.get(i) as Command
      if (!readyAt.has(i)) readyAt.set(i, task.ready_at ?? (lastFinish(i) || now))
      let cores: number[] | undefined = []
      if (parts.cores !== undefined) {
        cores = parts.cores.take(Math.max(1, Math.ceil(command.cpu)))
        if (cores === undefined) {
          coresShort = true
          if (task.status !== 'queued')
            entry.states.push({
              id: task.id,
              status: 'queued',
              readyAt: readyAt.get(i) as number,
              queuedAt: now,
              reason: `waiting for a free core of host ${parts.hostId}`,
            })
          task.status = 'queued'
          deferred.push(i)
          continue
        }
        heldCores.set(i, cores)
      }
      const name = intentName(runId, task.position, task.attempt)
      const intent = intentFor(i)
      intents.push({
        id: task.id,
        name,
        directory: intent.directory,
        host: parts.hostId,
        readyAt: readyAt.get(i) as number,
        startedAt: now,
        lanes: [
          ...(task.core_ids.length === 0 ? [''] : task.core_ids).map((core) => [task.resource_id, core, task.slot_id] as const),
          ...cores.map((core) => [`@host/${parts.hostId}`, `core-${String(core)}`, ''] as const),
        ],
      })
      launches.push(intent)
      byName.set(name, i)
      frontier.take(i)
      task.started_at = now
      task.ready_at = readyAt.get(i) as number
    }
    return { intents, launches }
  }

  const foreign = [...states.keys()].some((i) => mine[i] !== true && (states[i] as number) < done)
  const lookElsewhere = async (): Promise<void> => {
    const rows = await db.prepared<{ position: number; status: string; finished_at: number | null }>(
      'foreign_ends',
      `select activity_position as position, status, finished_at from task_executions where execution_run_id = $1 and latest and status in ('completed', 'failed', 'cancelled')`,
      [runId],
    )
    for (const row of rows) {
      if (mine[row.position] === true || (states[row.position] as number) >= done) continue
      at(row.position).finished_at = row.finished_at
      opened(row.status === 'completed' ? frontier.complete(row.position) : frontier.kill(row.position))
    }
  }

  let idleSince = clock()
  try {
    await adopt()
    for (;;) {
      if (trouble !== undefined) throw trouble as Error
      if (signal.aborted && entry.ends.length === 0) throw signal.reason as Error
      woken = false
      const { intents, launches } = signal.aborted ? { intents: [], launches: [] } : await choose()
      const now = clock()
      for (const [i, since] of shown) {
        if ((now - since) * 1_000 < showRunningMs || states[i] !== inFlight) continue
        const externalId = externalIds.get(i)
        if (externalId === undefined) continue
        entry.states.push({ id: at(i).id, status: 'running', externalId })
        shown.delete(i)
        externalIds.delete(i)
      }
      const step: Entry = { ...entry, intents }
      entry = { ends: [], retries: [], states: [], intents: [], outputs: [], transfers: [] }
      parts.failpoint('before-commit')
      let tries = 0
      const result = await outlastingOutage(() => {
        // After an outage the lanes may have been had only now.
        if ((tries += 1) > 1) for (const intent of intents) intent.startedAt = clock()
        return commitSite(db, runId, site, epoch, step)
      }, signal)
      // Once the lanes are held, so that no task begins on the record before the one that had its lane has ended.
      const startedAt = clock()
      parts.failpoint('committed')

      const acquired = new Set(result.acquired)
      const go: Intent[] = []
      for (const [k, intent] of intents.entries()) {
        const launched = launches[k] as Intent
        const i = byName.get(intent.name) as number
        if (acquired.has(intent.id)) {
          at(i).status = 'preparing'
          at(i).started_at = startedAt
          queueReasons.delete(i)
          running += 1
          shown.set(i, clock())
          go.push(launched)
          continue
        }
        freeCores(i)
        frontier.putBack(i)
        byName.delete(intent.name)
        at(i).started_at = null
        deferred.push(i)
        retryAt.set(i, clock() + laneRetryMs / 1_000)
        const by = result.holders?.[intent.id]
        if (by !== undefined && queueReasons.get(i) !== by) {
          queueReasons.set(i, by)
          at(i).status = 'queued'
          entry.states.push({
            id: intent.id,
            status: 'queued',
            readyAt: intent.readyAt,
            queuedAt: clock(),
            reason: `its lane is held by ${by}`,
          })
        }
      }
      if (go.length > 0) launch(go)
      if (result.run_status !== 'running') stopping ??= 'cancelled'
      if (result.cancelled) stopping = 'cancelled'
      if (result.failed > 0 && plan.onFailure === 'stop') stopping ??= 'failed'
      if (stopping === 'cancelled' && running > 0 && !cancelSent) {
        cancelSent = true
        void driver.cancel([...byName.keys()], cancelGraceSeconds).catch(fail)
      }
      beat({ completed: finished, running })

      const over = stopping !== undefined || frontier.open === 0
      if (running === 0 && over && entry.ends.length === 0 && entry.states.length === 0)
        return { settled: true, completed: finished, failed }
      const busy = running > 0 || queue.length > 0 || deferred.length > 0 || entry.ends.length > 0
      if (busy) idleSince = clock()
      else if ((clock() - idleSince) * 1_000 > idleMs) return { settled: false, completed: finished, failed }

      const startable = stopping === undefined && !result.paused && queue.length > 0 && !coresShort && parts.cores?.free !== 0
      if (!woken && !startable) {
        if (queue.length > 0 || coresShort) parts.cores?.whenFree(nudge)
        const pause = shown.size > 0 ? showRunningMs : deferred.length > 0 || queue.length > 0 ? laneRetryMs : tickMs
        await new Promise<void>((resolve) => {
          const timer = setTimeout(resolve, pause)
          wake = () => {
            clearTimeout(timer)
            resolve()
          }
        })
        wake = () => undefined
      }
      if (foreign) await outlastingOutage(lookElsewhere, signal)
    }
  } catch (error) {
    if (error instanceof LeasePassedOn) beat({ completed: finished, running: 0 })
    throw error
  } finally {
    signal.removeEventListener('abort', nudge)
    for (const stop of stops) stop()
    for (const i of [...heldCores.keys()]) freeCores(i)
  }
}

/** Cores of this host that a task's intent has leased, as numbers. */
const coresHeld = async (db: Db, hostId: string, taskId: string): Promise<number[]> => {
  const rows = await db.prepared<{ core_id: string }>(
    'cores_held',
    'select core_id from lane_leases where task_execution_id = $1 and resource_id = $2',
    [taskId, `@host/${hostId}`],
  )
  return rows.map((row) => Number(row.core_id.replace('core-', '')))
}
