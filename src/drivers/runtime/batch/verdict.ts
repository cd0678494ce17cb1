import type { EndReason, TaskState } from '../contract/driver.ts'
import type { EndedSight, RemoteSight } from '../remote/record.ts'

/**
 * An end that the scheduler caused. `lost`: trouble of the site, in its own message. `never`: the
 * same before the task had started; it counts once the name is buried, and means nothing if the
 * task started before that. `cancelled`: the service asked for it, and the task ended before it
 * could record that.
 */
export interface Verdict {
  end: 'lost' | 'never' | 'walltime' | 'memory' | 'cancelled'
  cause: string
  /** Seconds since epoch. */
  at: number
}

/** An end from the task's own record, with this reason. */
export const endedState = (sight: EndedSight, externalId: string, reason: EndReason): TaskState => ({
  state: 'ended',
  externalId,
  startedAt: sight.startedAt,
  finishedAt: sight.finishedAt,
  exitCode: sight.exitCode,
  signal: sight.signal,
  reason,
})

/** A name that was cancelled before its start. */
export const buriedEnd = (at: number, externalId: string): TaskState => ({
  state: 'ended',
  externalId,
  startedAt: at,
  finishedAt: at,
  exitCode: null,
  signal: null,
  reason: 'cancelled',
})

/** The state that a written verdict means for `find`, for ever. */
export const stateOfVerdict = (verdict: Verdict, sight: RemoteSight, externalId: string): TaskState => {
  const startedAt = sight.form === 'started' || sight.form === 'ended' ? sight.startedAt : verdict.at
  if (verdict.end === 'lost' || verdict.end === 'never')
    return { state: 'lost', externalId, startedAt, cause: verdict.cause }
  if (sight.form === 'ended') return endedState(sight, externalId, verdict.end)
  const finishedAt = Math.max(startedAt, verdict.at)
  return {
    state: 'ended',
    externalId,
    startedAt,
    finishedAt,
    exitCode: null,
    signal: 'SIGKILL',
    reason: verdict.end,
  }
}

export const isTaskOver = (state: TaskState | undefined): boolean =>
  state?.state === 'ended' || state?.state === 'lost'
