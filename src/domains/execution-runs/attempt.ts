import type { Collected, DriverError } from '../../drivers/runtime/driver.ts'
import type { LoadedTask, TaskEnd, TaskOutput, TaskRetry, TaskTransfer } from './journal.ts'
import { dataInstanceId, dataObjectId, dataTransferId, taskExecutionId } from './names.ts'

/** How an attempt ended, as the site tells it; what it cost and moved is added when it is booked. */
export type AttemptEnd = Pick<
  TaskEnd,
  | 'status'
  | 'startedAt'
  | 'finishedAt'
  | 'runtimeSeconds'
  | 'overheadSeconds'
  | 'cpuSeconds'
  | 'peakMemoryBytes'
  | 'measuredBy'
  | 'exitCode'
  | 'failureClass'
  | 'failureReason'
  | 'manifest'
>

const unmeasured = { runtimeSeconds: 0, cpuSeconds: null, peakMemoryBytes: null, measuredBy: 'none', exitCode: null, manifest: null }

/** An attempt that the site did not take. What the site cannot say counts as its own trouble, not the activity's. */
export const notStarted = (task: LoadedTask, error: DriverError, now: number): AttemptEnd => ({
  ...unmeasured,
  status: 'failed',
  startedAt: task.started_at,
  finishedAt: now,
  overheadSeconds: now - (task.started_at ?? now),
  failureClass: error.trouble === 'unknown' ? 'infrastructure' : error.trouble,
  failureReason: `activity ${task.external_id} could not be started on ${task.resource_id}: ${error.message}`,
})

/**
 * The end of an attempt from what it left behind; `undefined` or not ended: it was lost with its machine. A reason says which activity,
 * where, which attempt, and the end of its standard error. `startedAt` is the intent: overhead is from there to the program's start.
 */
export const endOf = (task: LoadedTask, outcome: Collected | undefined, timeoutSeconds: number, now: number): AttemptEnd => {
  const where = `activity ${task.external_id} on ${task.resource_id}, attempt ${String(task.attempt)}`
  if (outcome?.state.state !== 'ended') {
    return {
      ...unmeasured,
      status: 'failed',
      startedAt: task.started_at,
      finishedAt: now,
      overheadSeconds: 0,
      failureClass: 'infrastructure',
      failureReason: `${where} was lost with its machine: it is not running and left no exit code`,
    }
  }
  const { state } = outcome
  const startedAt = task.started_at ?? outcome.submittedAt
  const finishedAt = Math.max(state.finishedAt, startedAt)
  const overheadSeconds = Math.max(0, Math.min(state.startedAt, finishedAt) - startedAt)
  const facts = {
    startedAt,
    finishedAt,
    overheadSeconds,
    runtimeSeconds: finishedAt - startedAt - overheadSeconds,
    cpuSeconds: outcome.cpuSeconds,
    peakMemoryBytes: outcome.peakMemoryBytes,
    measuredBy: outcome.measuredBy,
    exitCode: state.exitCode,
    manifest: outcome.manifest,
  }
  if (state.reason === 'cancelled') return { ...facts, status: 'cancelled', failureClass: null, failureReason: 'cancelled' }
  const fault = ((): string | undefined => {
    if (state.reason === 'timeout') return `ran longer than its timeoutSeconds of ${String(timeoutSeconds)}`
    if (state.reason === 'memory') return 'was killed for using more memory than allowed'
    if (state.exitCode !== 0)
      return `ended with ${state.signal === null ? `exit code ${String(state.exitCode)}` : `signal ${state.signal}`}`
    if (outcome.missingOutputs.length > 0) return `ended with exit code 0 but did not make ${outcome.missingOutputs.join(', ')}`
    return undefined
  })()
  if (fault === undefined) return { ...facts, status: 'completed', failureClass: null, failureReason: null }
  const tail = outcome.stderrTail.trim()
  return { ...facts, status: 'failed', failureClass: 'user', failureReason: `${where} ${fault}${tail === '' ? '' : `: ${tail}`}` }
}

/** Data that came over a control edge from another resource. */
export interface Moved {
  producer: LoadedTask
  bytes: number
  cost: number
}

/** The row of an ended attempt: waiting from ready to its intent, cost by the time it held its lane and by what was moved for it. */
export const bookedEnd = (task: LoadedTask, end: AttemptEnd, moved: readonly Moved[], pricePerSecond: number): Omit<TaskEnd, 'final'> => {
  const readyAt = task.ready_at ?? end.startedAt ?? end.finishedAt
  const held = end.startedAt === null ? 0 : end.finishedAt - end.startedAt
  return {
    ...end,
    id: task.id,
    readyAt,
    queueSeconds: Math.max(0, (end.startedAt ?? end.finishedAt) - readyAt),
    transferSeconds: moved.length === 0 ? 0 : end.overheadSeconds,
    transferBytes: moved.reduce((sum, { bytes }) => sum + bytes, 0),
    cost: held * pricePerSecond + moved.reduce((sum, { cost }) => sum + cost, 0),
  }
}

/** On one host data between resources is copied while the task is staged, not sent. */
export const transfersOf = (runId: string, task: LoadedTask, end: AttemptEnd, moved: readonly Moved[]): TaskTransfer[] => {
  const startedAt = end.startedAt ?? end.finishedAt
  return moved.map(({ producer, bytes, cost }) => ({
    id: dataTransferId(runId, producer.activity_id, task.activity_id, task.attempt),
    producer: producer.activity_id,
    consumer: task.activity_id,
    source: producer.resource_id,
    target: task.resource_id,
    bytes,
    strategy: 'runtime-local',
    startedAt,
    finishedAt: startedAt + end.overheadSeconds,
    cost,
  }))
}

/** Files that an attempt created or changed, with their digests and where they are. */
export const outputsOf = (
  runId: string,
  contentVersionId: string,
  task: LoadedTask,
  manifest: Collected['manifest'] | null,
  hostId: string,
  expected: readonly string[],
): TaskOutput[] =>
  (manifest?.files ?? [])
    .filter(({ change }) => change !== 'deleted')
    .map(({ path, sizeBytes, checksum }) => ({
      id: dataInstanceId(runId, task.activity_id, task.attempt, path),
      objectId: dataObjectId(contentVersionId, task.activity_id, path),
      versionId: contentVersionId,
      declared: expected.includes(path),
      activityId: task.activity_id,
      attempt: task.attempt,
      path,
      sizeBytes,
      checksum: checksum ?? null,
      uri: `file://${encodeURIComponent(hostId)}${encodeURI(`${manifest?.root ?? ''}/${path}`)}`,
      resourceId: task.resource_id,
    }))

/** Patience with a site's own trouble, apart from the activity's attempts: 2 s doubled to 60 s, given up after this many in a row. */
const infrastructureAttempts = 20

/**
 * The attempt after a failed one, or undefined when there is none. Two budgets: the activity's own failures spend `maxAttempts`, trouble
 * of the site has its own patience; what a site refuses for good is not tried again.
 */
export const nextAttempt = (
  runId: string,
  task: LoadedTask,
  end: AttemptEnd,
  policy: { maxAttempts: number; retryDelaySeconds: number } | undefined,
  now: number,
): TaskRetry | undefined => {
  const own = end.failureClass === 'user'
  const troubles = task.attempt - task.user_attempts
  if (end.failureClass === 'refused' || (own ? task.user_attempts >= (policy?.maxAttempts ?? 1) : troubles >= infrastructureAttempts))
    return undefined
  const attempt = task.attempt + 1
  return {
    id: taskExecutionId(runId, task.activity_id, attempt),
    after: task.id,
    attempt,
    userAttempts: task.user_attempts + (own ? 1 : 0),
    readyAt: end.finishedAt,
    notBefore: now + (own ? (policy?.retryDelaySeconds ?? 0) : Math.min(60, 2 ** (1 + troubles))),
  }
}
