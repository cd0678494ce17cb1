import {
  coresOf,
  dropHeir,
  endWait,
  freeCores,
  isInFlight,
  isWaiting,
  nameAt,
  readyAt,
  setHeir,
  stages,
  taskAt,
  type SchedulingState,
} from './scheduling-state.ts'
import { completed } from './frontier.ts'

/**
 * Intents ahead of their turn. Where tasks are short, a commit between two of them would take most
 * of the time. So the next tasks of a lane are intended while those before them run: `none` →
 * `aheadOffered` → `ahead` → `submitted`. An intent that is taken back goes to `none`, by way of
 * `aheadRevoked` while its commit is under way.
 */

const isAhead = (state: SchedulingState, i: number): boolean =>
  state.stage[i] === stages.ahead ||
  state.stage[i] === stages.aheadOffered ||
  state.stage[i] === stages.aheadRevoked

/** Drops the task's intent; the task is queued if its turn has come. */
const forget = (state: SchedulingState, i: number): void => {
  state.ahead.delete(i)
  state.stage[i] = stages.none
  if ((state.heirFrom[i] as number) >= 0) dropHeir(state, state.heirFrom[i] as number)
  freeCores(state, i)
  if (state.turn[i] === 1 && isWaiting(state, i)) state.queue.push(i)
  state.turn[i] = 0
}

/** No task that is intended ahead will start on that intent. */
export const takeBack = (state: SchedulingState): void => {
  for (const i of state.ahead) {
    if (state.stage[i] === stages.aheadOffered) state.stage[i] = stages.aheadRevoked
    if (state.stage[i] !== stages.ahead) continue
    state.entry.takenBack.push(taskAt(state, i).id)
    forget(state, i)
  }
}

/**
 * Passes the lanes and cores of a completed task to the task that was committed ahead for them
 * (`heirTo`), or frees them where that task is not to have them.
 */
export const handOver = (state: SchedulingState, i: number): void => {
  const heir = state.heirTo[i] as number
  if (heir < 0 || !isAhead(state, heir) || state.contended) {
    takeBack(state)
    freeCores(state, i)
    return
  }
  const cores = state.heldCores.get(i)
  if (cores === undefined) return
  state.heldCores.delete(i)
  state.heldCores.set(heir, cores)
}

/**
 * Starts tasks that are committed ahead and whose turn has come, while the run's flags are recent
 * enough.
 */
export const startAhead = (state: SchedulingState): void => {
  if (state.stopping !== 'no' || state.paused || state.draining || state.ms > state.leaseUntil) return
  const positions: number[] = []
  for (const i of state.ahead) {
    if (state.turn[i] !== 1 || state.stage[i] !== stages.ahead || !isWaiting(state, i)) continue
    state.ahead.delete(i)
    state.turn[i] = 0
    state.stage[i] = stages.submitted
    state.submitted.add(i)
    state.frontier.take(i)
    endWait(state, i)
    const task = taskAt(state, i)
    task.status = 'preparing'
    task.ready_at = readyAt(state, i)
    task.started_at = state.at
    state.starts.set(i, {
      id: task.id,
      name: nameAt(state, i),
      readyAt: task.ready_at,
      startedAt: state.at,
      order: (state.order += 1),
    })
    positions.push(i)
  }
  if (positions.length > 0) state.effects.push({ type: 'start', positions })
}

/** These tasks may start: predecessors have completed and the lanes are theirs. */
export const opened = (state: SchedulingState, freed: readonly number[]): void => {
  for (const i of freed) {
    if (isAhead(state, i)) state.turn[i] = 1
    else state.queue.push(i)
  }
  if (state.ahead.size > 0) startAhead(state)
}

const mayBeAhead = (state: SchedulingState): boolean =>
  state.facts.aheadPerLane > 0 && state.brisk && state.stopping === 'no' && !state.paused && !state.contended

/** Heirs whose commands `chooseAhead` would need and does not have. */
export const unreadHeirs = (state: SchedulingState, chosen: readonly number[]): number[] => {
  if (!mayBeAhead(state)) return []
  const unread: number[] = []
  const look = (i: number): void => {
    const heir = state.frontier.heirOf(i)
    if (heir !== undefined && state.commands[heir] === undefined) unread.push(heir)
  }
  for (const i of state.submitted) look(i)
  for (const i of chosen) look(i)
  return unread
}

/**
 * It needs nothing beyond the tasks under way here: no end of another site, no time, no more cores
 * than it inherits.
 */
const mayInherit = (state: SchedulingState, heir: number, root: number): boolean => {
  const { facts, frontier } = state
  const command = state.commands[heir]
  if (command === undefined || isAhead(state, heir) || (taskAt(state, heir).not_before ?? 0) > 0) return false
  for (const p of frontier.predecessorsOf(heir))
    if (
      frontier.states[p] !== completed &&
      !(isInFlight(state, p) && state.mine[p] === true) &&
      !isAhead(state, p)
    )
      return false
  return (
    facts.hostCores === undefined || state.heldCores.get(root)?.length === coresOf(command, facts.hostCores)
  )
}

/**
 * Commits ahead the tasks that follow running tasks and `chosen` in their lanes, at most `most` of
 * them. The present step holds their intents.
 */
export const chooseAhead = (
  state: SchedulingState,
  chosen: readonly number[],
  most: number,
): readonly number[] => {
  const offered: number[] = []
  if (!mayBeAhead(state)) return offered
  const follow = (root: number): void => {
    if (!isInFlight(state, root)) return
    for (let last = root, depth = 0; depth < state.facts.aheadPerLane && offered.length < most; depth++) {
      let heir = state.heirTo[last] as number
      if (heir < 0) {
        heir = state.frontier.heirOf(last) ?? -1
        if (heir < 0 || !mayInherit(state, heir, root)) return
        setHeir(state, last, heir)
        state.stage[heir] = stages.aheadOffered
        state.ahead.add(heir)
        offered.push(heir)
        const { id } = taskAt(state, heir)
        const intent = {
          id,
          name: nameAt(state, heir),
          directory: null,
          host: state.facts.hostId,
          readyAt: 0,
          startedAt: 0,
        }
        state.entry.intents.push({ ...intent, lanes: [], ahead: true })
      }
      last = heir
    }
  }
  for (const i of state.submitted) follow(i)
  for (const i of chosen) follow(i)
  return offered
}

/**
 * The commit under way is answered: its intents ahead are committed, or dropped. Intents that it
 * did not acquire are taken back too: where the answer to a first try was lost, and the run was
 * paused before the second, they are on record.
 */
export const aheadAnswered = (state: SchedulingState, acquired: ReadonlySet<string>): void => {
  for (const i of state.offered) {
    const { id } = taskAt(state, i)
    if (acquired.has(id) && state.stage[i] === stages.aheadOffered) {
      state.stage[i] = stages.ahead
      continue
    }
    state.entry.takenBack.push(id)
    forget(state, i)
  }
  state.offered = []
}
