import { append } from '../lists.ts'
import {
  endRecord,
  copiedTransfer,
  attemptEndOf,
  lost,
  nextAttempt,
  notStarted,
  outputsOf,
  silent,
  unstopped,
  type AttemptEnd,
  type Copied,
} from './attempt.ts'
import { handOver, opened, takeBack } from './scheduling-ahead.ts'
import {
  change,
  endWait,
  freeCores,
  isInFlight,
  nameAt,
  showWait,
  stages,
  taskAt,
  type SchedulingState,
} from './scheduling-state.ts'
import type { Outcome, Observation } from './attempts-in-flight.ts'
import type { TaskEnd, TaskRetry, TaskTransfer } from './journal.ts'

/** More tasks are intended ahead where the last one took less than this. */
const briskSeconds = 1
/**
 * For an attempt whose command was never read: it was adopted and has ended for another reason than
 * these.
 */
const noLimits = { timeoutSeconds: 0, memoryBytes: 0 }

/** An attempt has ended; while its start is not on record, the end is recorded after it. */
export const attemptEnded = (
  state: SchedulingState,
  i: number,
  outcome: Outcome,
  copied: readonly Copied[],
): void => {
  state.submitted.delete(i)
  const waits = state.unrecorded.get(i)
  if (waits === undefined) conclude(state, i, outcome, copied)
  else Object.assign(waits, { outcome, copied })
  recordInOrder(state)
}

/** Others may have the cores of the host from the program's end on; its lanes are its own to its end. */
export const programEnded = (state: SchedulingState, i: number): void => {
  if (state.stage[i] !== stages.submitted || !state.submitted.has(i) || !state.heldCores.has(i)) return
  // Its heirs would get cores that it has no more.
  takeBack(state)
  freeCores(state, i)
  change(state, { id: taskAt(state, i).id, atSite: true, freesCores: true })
}

/** What to show of a task that goes on. */
export const attemptObserved = (state: SchedulingState, i: number, observed: Observation): void => {
  const waits = state.unrecorded.get(i)
  if (waits !== undefined) {
    waits.observation = { ...waits.observation, ...observed }
    return
  }
  const { reason, ...observation } = observed
  noteWait(state, i, observed)
  change(state, {
    id: taskAt(state, i).id,
    atSite: true,
    ...observation,
    ...(reason === undefined ? {} : { reason: reason ?? '' }),
  })
}

/**
 * The reason for which a task waits at its site; the row is written with the other observations of
 * it.
 */
const noteWait = (state: SchedulingState, i: number, { reason, waitsFor }: Observation): void => {
  const known = state.waits.get(i)
  if (reason === undefined || (known !== undefined && known.kind === waitsFor)) return
  endWait(state, i)
  if (reason !== null && waitsFor !== undefined)
    state.waits.set(i, { kind: waitsFor, reason, since: state.at, foundAt: state.at })
}

/**
 * Records the starts of adopted tasks, each after the ends of those before it in its lanes and of
 * its predecessors.
 */
export const recordInOrder = (state: SchedulingState): void => {
  for (let again = state.unrecorded.size > 0; again;) {
    again = false
    for (const [i, { startedAt, observation, outcome, copied }] of state.unrecorded) {
      if (followsOpenAttempt(state, i)) continue
      state.unrecorded.delete(i)
      state.stage[i] = stages.submitted
      const { id, ready_at } = taskAt(state, i)
      state.starts.set(i, {
        id,
        name: nameAt(state, i),
        readyAt: ready_at ?? startedAt,
        startedAt,
        order: (state.order += 1),
      })
      if (outcome !== undefined) {
        conclude(state, i, outcome, copied ?? [])
        again = true
      } else if (observation !== undefined) attemptObserved(state, i, observation)
    }
  }
}

const followsOpenAttempt = (state: SchedulingState, i: number): boolean => {
  const before = state.heirFrom[i] as number
  if (before >= 0 && isInFlight(state, before)) return true
  for (const p of state.frontier.predecessorsOf(i)) if (isInFlight(state, p)) return true
  return false
}

const conclude = (state: SchedulingState, i: number, outcome: Outcome, copied: readonly Copied[]): void => {
  // The attempt that the site may hold, now or later, has to be ended there once the site answers
  // again.
  if (outcome.kind === 'silent' || outcome.kind === 'unstopped')
    state.entry.leftovers.push({ name: nameAt(state, i), words: outcome.words })
  const end = endAs(state, i, outcome)
  // An attempt that was lost while it was being ended counts as ended.
  const ended = end.failureClass === 'infrastructure' && state.stopping === 'cancelled'
  if (ended) end.status = 'cancelled'
  // Its site never had it: nothing else is ended after a failure.
  if (outcome.kind === 'collected' && end.status === 'cancelled' && state.stopping === 'failed')
    end.failureReason = 'not run: the run failed before'
  settle(state, i, end, copied)
}

const endAs = (state: SchedulingState, i: number, outcome: Outcome): AttemptEnd => {
  const task = taskAt(state, i)
  const { site, patience } = state.facts
  if (outcome.kind === 'collected')
    return attemptEndOf(task, outcome.collected, state.commands[i] ?? noLimits, state.at)
  if (outcome.kind === 'lost') return lost(task, outcome, state.at)
  if (outcome.kind === 'refused') return notStarted(task, outcome.error, state.at)
  if (outcome.kind === 'silent') return silent(task, site, patience.silentSeconds, outcome.words, state.at)
  return unstopped(task, site, outcome.words, state.at)
}

/** Takes the end of an attempt: success, another attempt, or the end of the activity. */
const settle = (state: SchedulingState, i: number, end: AttemptEnd, copied: readonly Copied[]): void => {
  const task = taskAt(state, i)
  const row = endRow(state, i, end, copied)
  state.changes.delete(task.id)
  state.starts.delete(i)
  state.brought.delete(i)
  state.stage[i] = stages.none
  endWait(state, i)
  task.finished_at = end.finishedAt
  if (end.status === 'completed') complete(state, i, row, end)
  else if (end.status === 'cancelled' || state.stopping === 'cancelled') {
    record(state, i, row)
    takeBack(state)
    freeCores(state, i)
    opened(state, state.frontier.kill(i))
  } else fail(state, i, row, end)
}

/** The row of an end; it includes the start of a task that has begun since the last commit. */
const endRow = (state: SchedulingState, i: number, end: AttemptEnd, copies: readonly Copied[]): TaskEnd => {
  const { facts } = state
  const task = taskAt(state, i)
  const copied =
    end.staged === undefined || end.staged.length === 0
      ? []
      : copies.map((copy) => copiedTransfer(facts.runId, facts.site, task, end, copy))
  append(state.entry.transfers, copied)
  const brought: Iterable<TaskTransfer> = state.brought.get(i)?.values() ?? []
  const ended = endRecord(task, end, [...brought, ...copied], facts.prices.get(task.resource_id) ?? 0)
  const start = state.starts.get(i)
  return {
    ...ended,
    final: false,
    order: 0,
    heir: null,
    ...(start === undefined ? {} : { startOrder: start.order, name: start.name }),
  }
}

const record = (state: SchedulingState, i: number, row: TaskEnd): void => {
  row.order = state.order += 1
  state.ends.set(i, row)
}

/**
 * Where the files of an attempt are from its end on: at its site, or where copies of them are kept.
 */
const filesOf = (
  { manifest, place }: AttemptEnd,
  hostId: string,
): { manifest: AttemptEnd['manifest']; host: string } => {
  const { keptOn: host, keptAt: root } = place ?? {}
  return typeof host === 'string' && typeof root === 'string' && manifest !== null
    ? { manifest: { ...manifest, root }, host }
    : { manifest, host: hostId }
}

const complete = (state: SchedulingState, i: number, row: TaskEnd, end: AttemptEnd): void => {
  const { runId, contentVersionId, hostId } = state.facts
  record(state, i, row)
  const { manifest, host } = filesOf(end, hostId)
  const expected = state.commands[i]?.expectedOutputs ?? []
  append(state.entry.outputs, outputsOf(runId, contentVersionId, taskAt(state, i), manifest, host, expected))
  state.completed += 1
  state.brisk = end.finishedAt - (end.startedAt ?? 0) < briskSeconds
  handOver(state, i)
  opened(state, state.frontier.complete(i))
}

const fail = (state: SchedulingState, i: number, row: TaskEnd, end: AttemptEnd): void => {
  const { facts } = state
  // Another run may get its lanes before its next attempt: the tasks behind it hold none meanwhile.
  takeBack(state)
  freeCores(state, i)
  const task = taskAt(state, i)
  const next =
    state.stopping === 'no'
      ? nextAttempt(facts.runId, task, end, state.commands[i], state.at, facts.patience)
      : undefined
  row.final = next === undefined
  record(state, i, row)
  if (next !== undefined) {
    if (end.suspect === true) task.suspects += 1
    tryAgain(state, i, next)
    return
  }
  state.failed += 1
  if (facts.onFailure === 'stop' && state.stopping === 'no') state.stopping = 'failed'
  opened(state, state.frontier.kill(i))
}

const tryAgain = (state: SchedulingState, i: number, next: TaskRetry): void => {
  state.entry.retries.push(next)
  const task = taskAt(state, i)
  task.id = next.id
  task.attempt = next.attempt
  state.names[i] = undefined
  task.user_attempts = next.userAttempts
  task.walltime_extensions = next.walltimeExtensions
  task.status = 'ready'
  task.ready_at = next.readyAt
  task.not_before = next.notBefore
  task.silent_since = null
  task.silent_for = null
  task.host_id = null
  task.queued_at = null
  task.started_at = null
  task.finished_at = null
  state.readyAt[i] = next.readyAt
  if (next.notBefore > state.at)
    showWait(
      state,
      i,
      'retry',
      `waiting for its next attempt, ${String(Math.ceil(next.notBefore - state.at))} s after the last`,
    )
  state.frontier.putBack(i)
  state.deferred.push(i)
}
