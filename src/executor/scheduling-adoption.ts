import { recordInOrder } from './scheduling-ends.ts'
import {
  isInFlight,
  isWaiting,
  setHeir,
  stages,
  startLeaseMs,
  taskAt,
  type SchedulingState,
} from './scheduling-state.ts'
import { unread } from './scheduling-starts.ts'
import type { TaskTransfer } from './journal.ts'
import { dataTransferId } from './names.ts'

/**
 * A new holder takes over the commits of an earlier one. Its intents go on; intents ahead go on
 * where their task was started, and are taken back where it was not.
 */
export const begin = (state: SchedulingState): void => {
  const unsure = ownTasks(state, (i) => isWaiting(state, i) && taskAt(state, i).ahead)
  if (unsure.length === 0) readHolds(state)
  // The other holder may still start them until its lease is over; twice the lease, because it
  // counts from another moment.
  else state.effects.push({ type: 'findAhead', positions: unsure, afterMs: 2 * startLeaseMs })
}

/** `started`: the start of each task, by position; undefined: it was not started. */
export const aheadFound = (
  state: SchedulingState,
  started: ReadonlyMap<number, number | undefined>,
): void => {
  for (const [i, startedAt] of started) {
    const task = taskAt(state, i)
    if (startedAt === undefined) {
      state.entry.takenBack.push(task.id)
      continue
    }
    state.frontier.take(i)
    state.stage[i] = stages.unrecorded
    task.started_at = startedAt
    task.ready_at ??= startedAt
    state.unrecorded.set(i, { startedAt })
  }
  // They get their lanes with the ends of the tasks before them.
  for (const before of ownTasks(state, (i) => isInFlight(state, i))) {
    const heir = state.frontier.followerOf(before)
    if (heir !== undefined && state.unrecorded.has(heir)) setHeir(state, before, heir)
  }
  recordInOrder(state)
  readHolds(state)
}

const readHolds = (state: SchedulingState): void => {
  const positions = ownTasks(state, (i) => isInFlight(state, i))
  if (positions.length === 0) {
    state.phase = 'resting'
    return
  }
  state.effects.push(
    { type: 'readCommands', positions: unread(state, positions) },
    { type: 'readHolds', positions },
  )
}

/** What is on record for adopted attempts. */
export interface Holds {
  /** Cores of the host by position. */
  cores: ReadonlyMap<number, readonly number[]>
  transfers: readonly TaskTransfer[]
  /** The run was asked to end, or is over. */
  stopping: boolean
  /** What has not begun waits for the end of the pause. */
  paused: boolean
}

/** The earlier holder's attempts go on; where the run is being stopped they end, and none starts. */
export const holdsRead = (state: SchedulingState, { cores, transfers, stopping, paused }: Holds): void => {
  const positions = ownTasks(state, (i) => isInFlight(state, i))
  const consumers = new Map(transferIds(state, positions).map(({ id, i }) => [id, i]))
  for (const transfer of transfers) {
    const i = consumers.get(transfer.id)
    if (i === undefined) continue
    const known = state.brought.get(i) ?? new Map<string, TaskTransfer>()
    state.brought.set(i, known.set(transfer.id, transfer))
  }
  for (const [i, held] of cores) state.heldCores.set(i, held)
  for (const i of positions) {
    if (state.stage[i] === stages.none) state.stage[i] = stages.submitted
    state.submitted.add(i)
  }
  state.phase = 'resting'
  state.paused = paused
  if (stopping) {
    state.stopping = 'cancelled'
    state.effects.push({ type: 'stopAll' })
  }
  state.effects.push({ type: 'adopt', positions })
}

/** Ids of the possible transfers for the attempts of these tasks. */
export const transferIds = (
  state: SchedulingState,
  positions: readonly number[],
): { id: string; i: number }[] =>
  positions.flatMap((i) =>
    Array.from(state.frontier.predecessorsOf(i), (p) => {
      const { activity_id, attempt } = taskAt(state, i)
      return { id: dataTransferId(state.facts.runId, taskAt(state, p).activity_id, activity_id, attempt), i }
    }),
  )

const ownTasks = (state: SchedulingState, holds: (i: number) => boolean): number[] => {
  const found: number[] = []
  for (let i = 0; i < state.tasks.length; i++) if (state.mine[i] === true && holds(i)) found.push(i)
  return found
}
