import { openBackoff } from '../../../pacing/backoff.ts'
import type { TaskState } from '../contract/driver.ts'
import { endingUntil, pauseUntil } from '../contract/ending.ts'
import { findMarked, isAlive, processOf, signal, wakeStopped } from './processes.ts'
import {
  externalId,
  recordedState,
  settledRecord,
  type ControlFolder,
  type LocalTaskRecord,
} from './records.ts'

/**
 * The state from records and processes together. `orphaned`: the task runs, and no process is left
 * that could record its end.
 */
export interface LocalTaskState {
  state: TaskState
  orphaned: boolean
}

export interface Site {
  control: ControlFolder
  /** Boot id of the running system: process ids of another boot mean nothing. */
  boot: string
  /** Environment variable that marks the processes of a task with its name. */
  taskVariable: string
  /** Tasks whose runners ended before them while this process watched. */
  runnerless: ReadonlySet<string>
}

/** A record without its first lines has no living writer at this age. */
const incompleteSeconds = 5

function whileAlive(record: LocalTaskRecord, boot: string): LocalTaskState | undefined {
  if (record.form === 'tombstone') return undefined
  const since = record.form === 'incomplete' ? record.changedAt : record.startedAt
  const state: TaskState = { state: 'running', externalId: externalId(record), startedAt: since }
  if (record.form === 'incomplete')
    return Date.now() / 1000 - since < incompleteSeconds ? { state, orphaned: false } : undefined
  if (record.boot !== boot) return undefined
  const task = record.task !== undefined && isAlive(record.task)
  const runner = isAlive(record.runner)
  if (runner) wakeStopped(record.runner.pid)
  return task || runner ? { state, orphaned: !runner } : undefined
}

/** Lost with its machine, with all processes of the service, or with its runner alone. */
const lostState = (externalId: string, startedAt: number, isRunnerless: boolean): TaskState => ({
  ...{ state: 'lost', externalId, startedAt },
  ...(isRunnerless
    ? {
        cause: 'its runner was ended (the process that watches over it), maybe by the task itself',
        suspect: true,
      }
    : {}),
})

/**
 * The state of each name. A name without records is unknown; one whose processes are all gone
 * without an exit record is lost.
 */
export function see(
  { control, boot, taskVariable, runnerless }: Site,
  names: readonly string[],
): Map<string, LocalTaskState> {
  const states = new Map<string, LocalTaskState>()
  const silent = new Map<string, LocalTaskRecord>()
  for (const name of names) {
    const record = control.record(name)
    const state = recordedState(record)
    const found = state === undefined && record !== undefined ? whileAlive(record, boot) : undefined
    if (state !== undefined) states.set(name, { state, orphaned: false })
    else if (found !== undefined) states.set(name, found)
    else if (record !== undefined) silent.set(name, record)
  }
  if (silent.size === 0) return states
  const marked = findMarked(taskVariable, new Set(silent.keys()))
  for (const [name, record] of silent) {
    // The writer has ended, so a second read returns the final content of the record.
    const state = recordedState(control.record(name))
    const startedAt =
      record.form === 'started'
        ? record.startedAt
        : record.form === 'incomplete'
          ? record.changedAt
          : record.at
    const id = externalId(record)
    if (state !== undefined) states.set(name, { state, orphaned: false })
    else if (marked.has(name))
      states.set(name, { state: { state: 'running', externalId: id, startedAt }, orphaned: true })
    else states.set(name, { state: lostState(id, startedAt, runnerless.has(name)), orphaned: false })
  }
  return states
}

/**
 * Ends all processes that carry the marks of these names, by SIGTERM and after `graceSeconds` by
 * SIGKILL; for tasks whose runner is gone, and as a safeguard for the others. Resolves when none is
 * alive.
 */
export async function endMarked(
  { control, boot, taskVariable }: Site,
  names: ReadonlySet<string>,
  graceSeconds: number,
): Promise<void> {
  const forcedAt = performance.now() + graceSeconds * 1000
  const until = endingUntil(graceSeconds)
  const asked = new Set<number>()
  for (const backoff = openBackoff({ firstMs: 5, longestMs: 100 }); ;) {
    const alive = new Set([...findMarked(taskVariable, names).values()].flat())
    for (const name of names) {
      const record = control.record(name)
      if (
        record?.form === 'started' &&
        record.task !== undefined &&
        record.boot === boot &&
        isAlive(record.task)
      )
        alive.add(record.task.pid)
    }
    if (alive.size === 0) return
    const forced = performance.now() >= forcedAt
    for (const pid of alive) {
      if (!forced && asked.has(pid)) continue
      asked.add(pid)
      // Where it leads a group, the signal goes to the group: members may have cleared their
      // environment.
      signal(processOf(pid)?.group === pid ? -pid : pid, forced ? 'SIGKILL' : 'SIGTERM')
    }
    await pauseUntil(backoff, until)
  }
}

/**
 * Asks the runner of a task to end it and waits for the exit record; a task that was not started
 * will never start.
 */
export async function endByRunner(
  { control, boot }: Site,
  name: string,
  graceSeconds: number,
): Promise<void> {
  if (control.record(name) === undefined && control.bury(name)) return
  const record = await settledRecord(control, name)
  if (
    record === undefined ||
    record.form === 'tombstone' ||
    (record.form === 'started' && record.exit !== undefined)
  )
    return
  control.askToStop(name, graceSeconds)
  if (record.form === 'incomplete') return
  const until = endingUntil(graceSeconds)
  const hasEnded = (): boolean => {
    const now = control.record(name)
    return now?.form !== 'started' || now.exit !== undefined
  }
  for (
    const backoff = openBackoff({ firstMs: 5, longestMs: 100 });
    !hasEnded() && record.boot === boot && isAlive(record.runner);
  ) {
    signal(record.runner.pid, 'SIGTERM')
    wakeStopped(record.runner.pid)
    await pauseUntil(backoff, until)
  }
}
