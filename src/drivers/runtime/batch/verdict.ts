import type { TaskState } from '../contract/driver.ts'
import { endedState } from '../contract/results.ts'
import type { RemoteSight } from '../remote/record.ts'

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

/** The state that a written verdict means for `find`, for ever. */
export const stateOfVerdict = (verdict: Verdict, sight: RemoteSight, externalId: string): TaskState => {
  const startedAt = sight.form === 'started' || sight.form === 'ended' ? sight.startedAt : verdict.at
  if (verdict.end === 'lost' || verdict.end === 'never')
    return { state: 'lost', externalId, startedAt, cause: verdict.cause }
  if (sight.form === 'ended') return endedState(sight, externalId, verdict.end)
  const finishedAt = Math.max(startedAt, verdict.at)
  return endedState({ startedAt, finishedAt, exitCode: null, signal: 'SIGKILL' }, externalId, verdict.end)
}

export const isTaskOver = (state: TaskState | undefined): boolean =>
  state?.state === 'ended' || state?.state === 'lost'
