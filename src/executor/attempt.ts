import type { Collected, DriverError, StagedAmount } from '../drivers/runtime/driver.ts'
import type { LoadedTask, TaskEnd, TaskOutput, TaskRetry, TaskTransfer } from './journal.ts'
import { dataInstanceId, dataObjectId, dataTransferId, taskExecutionId } from './names.ts'
import type { RunRoute } from './network.ts'

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
  | 'siteQueueSeconds'
  | 'place'
  | 'externalId'
> & {
  /** The site ended it at its own time limit: the next attempt asks for more. */
  walltime?: boolean
  /** What was copied into its work directory at its own site, for each entry of the intent's `stage`. */
  staged?: readonly StagedAmount[]
}

const unmeasured = {
  runtimeSeconds: 0,
  cpuSeconds: null,
  peakMemoryBytes: null,
  measuredBy: 'none',
  exitCode: null,
  manifest: null,
  siteQueueSeconds: null,
  place: null,
  externalId: null,
}

/** An attempt that the site did not take, or did not give what it needs. What the site cannot say counts as its own trouble, not the activity's. */
export const notStarted = (task: LoadedTask, error: DriverError, now: number): AttemptEnd => ({
  ...unmeasured,
  status: 'failed',
  startedAt: task.started_at,
  finishedAt: now,
  overheadSeconds: now - (task.started_at ?? now),
  failureClass: error.trouble === 'unknown' ? 'infrastructure' : error.trouble,
  failureReason: `activity ${task.external_id} could not be run on ${task.resource_id}: ${error.message}`,
})

const whereOf = (task: LoadedTask): string => `activity ${task.external_id} on ${task.resource_id}, attempt ${String(task.attempt)}`

/** An attempt of which the site knows no end; `words` say why, after "activity … attempt …". */
const endless = (task: LoadedTask, status: 'failed' | 'cancelled', words: string, now: number): AttemptEnd => ({
  ...unmeasured,
  status,
  startedAt: task.started_at,
  finishedAt: Math.max(now, task.started_at ?? now),
  overheadSeconds: 0,
  failureClass: status === 'failed' ? 'infrastructure' : null,
  failureReason: `${whereOf(task)} ${words}`,
})

/** An attempt that is gone: killed with its machine, or taken out by the site, whose words are `cause`. */
export const lost = (task: LoadedTask, cause: string | undefined, now: number): AttemptEnd =>
  endless(
    task,
    'failed',
    cause === undefined
      ? 'was lost with its machine: it is not running and left no exit code'
      : `was lost at its site: ${cause}; it left no exit code`,
    now,
  )

/** An attempt whose site has not answered for as long as it is waited for. */
export const silent = (task: LoadedTask, site: string, silentSeconds: number, words: string, now: number): AttemptEnd =>
  endless(task, 'failed', `was given up: ${site} has not answered for ${String(Math.round(silentSeconds))} s: ${words}`, now)

/** An attempt that was to be ended, and whose site did not say that it is. */
export const unstopped = (task: LoadedTask, site: string, words: string, now: number): AttemptEnd =>
  endless(task, 'cancelled', `was cancelled and could not be stopped at ${site}, which is asked again until it is: ${words}`, now)

const mebibytes = (bytes: number | null): string =>
  bytes === null ? 'unknown' : bytes === 0 ? 'none' : `${(bytes / 1024 ** 2).toFixed(bytes < 10 * 1024 ** 2 ? 1 : 0)} MiB`

/** What programs say when they are given no memory: C and shells, Python, C++, Java, Node. */
const memoryWords = /cannot allocate memory|memory exhausted|memoryerror|bad_alloc|out ?of ?memory/i

/**
 * Whether a task that failed under RLIMIT_DATA did so for want of memory. The kernel refuses memory there and kills nothing, so what tells it is what
 * the program said, or that it had more than its limit.
 */
const ranOut = ({ detail, peakMemoryBytes, stderrTail }: Collected, memoryBytes: number): boolean =>
  detail?.limits === 'rlimit' && ((peakMemoryBytes ?? 0) > memoryBytes || memoryWords.test(stderrTail))

/** Members that a site leaves out are not kept as null. */
const placeOf = ({ node, detail }: Collected): Record<string, unknown> | null => {
  const place = { ...detail, ...(node === undefined ? {} : { node }) }
  return Object.keys(place).length === 0 ? null : place
}

/**
 * The end of an attempt from what it left behind. A reason says which activity, where, which attempt, and the end of its standard error.
 * `startedAt` is the intent: from there to the program's start it waited in the site's own queue (`siteQueueSeconds`), the rest is overhead.
 */
export const endOf = (
  task: LoadedTask,
  outcome: Collected,
  allowed: { timeoutSeconds: number; memoryBytes: number },
  now: number,
): AttemptEnd => {
  const { state } = outcome
  if (state.state !== 'ended') return lost(task, state.state === 'lost' ? state.cause : undefined, now)
  const where = whereOf(task)
  const startedAt = task.started_at ?? outcome.submittedAt
  // A site's clock may run ahead of ours: an end in the future would overlap with the next task of the lane.
  const finishedAt = Math.max(Math.min(state.finishedAt, now), startedAt)
  const before = Math.max(0, Math.min(state.startedAt, finishedAt) - startedAt)
  const siteQueueSeconds = outcome.queueSeconds === undefined ? null : Math.max(0, Math.min(outcome.queueSeconds, before))
  const facts = {
    startedAt,
    finishedAt,
    siteQueueSeconds,
    overheadSeconds: before - (siteQueueSeconds ?? 0),
    runtimeSeconds: finishedAt - startedAt - before,
    cpuSeconds: outcome.cpuSeconds,
    peakMemoryBytes: outcome.peakMemoryBytes,
    measuredBy: outcome.measuredBy,
    exitCode: state.exitCode,
    manifest: outcome.manifest,
    place: placeOf(outcome),
    externalId: state.externalId,
    ...(outcome.staged === undefined ? {} : { staged: outcome.staged }),
  }
  if (state.reason === 'cancelled') return { ...facts, status: 'cancelled', failureClass: null, failureReason: 'cancelled' }
  const tail = outcome.stderrTail.trim()
  const withTail = (words: string): string => `${where} ${words}${tail === '' ? '' : `: ${tail}`}`
  if (state.reason === 'walltime')
    return {
      ...facts,
      status: 'failed',
      failureClass: 'infrastructure',
      failureReason: withTail('was ended by the site at its own time limit'),
      walltime: true,
    }
  const fault = ((): string | undefined => {
    if (state.reason === 'timeout') return `ran longer than its timeoutSeconds of ${String(allowed.timeoutSeconds)}`
    const how = state.signal === null ? `exit code ${String(state.exitCode)}` : `signal ${state.signal}`
    const used = `limit ${mebibytes(allowed.memoryBytes)}, peak ${mebibytes(outcome.peakMemoryBytes)}`
    if (state.reason === 'memory') return `was killed for using more memory than allowed (${used})`
    if (state.exitCode !== 0 && ranOut(outcome, allowed.memoryBytes))
      return `ended with ${how} for want of memory (${used}; RLIMIT_DATA gives each process twice the limit and 256 MiB)`
    if (state.exitCode !== 0) return `ended with ${how}`
    if (outcome.missingOutputs.length > 0) return `ended with exit code 0 but did not make ${outcome.missingOutputs.join(', ')}`
    return undefined
  })()
  if (fault === undefined) return { ...facts, status: 'completed', failureClass: null, failureReason: null }
  return { ...facts, status: 'failed', failureClass: 'user', failureReason: withTail(fault) }
}

/** Files of a predecessor that were copied from one resource of a site to another, with the route between the two. */
export interface Copied extends StagedAmount {
  producer: LoadedTask
  route: RunRoute
}

/** What was really brought from another site for a task, as whoever brought it saw it; `label` is that of the `Stage`. Seconds since epoch. */
export interface TransferFacts {
  label: string
  fromSite: string
  toSite: string
  strategy: string
  /** Why this strategy. */
  reason: string
  /** Content that moved; `networkBytes` is what left the source. */
  bytes: number
  networkBytes: number
  files: number
  startedAt: number
  finishedAt: number
}

/** Seconds in which at least one of the transfers was under way. */
const spanOf = (transfers: readonly TaskTransfer[]): number => {
  let seconds = 0
  let until = -Infinity
  for (const { startedAt, finishedAt } of transfers.toSorted((a, b) => a.startedAt - b.startedAt)) {
    seconds += Math.max(0, finishedAt - Math.max(startedAt, until))
    until = Math.max(until, finishedAt)
  }
  return seconds
}

/**
 * The row of an ended attempt: waiting from ready to its intent, cost by the time it held its lane (not by that in the site's own queue)
 * and by what was moved for it.
 */
export const bookedEnd = (
  task: LoadedTask,
  end: AttemptEnd,
  transfers: readonly TaskTransfer[],
  pricePerSecond: number,
): Omit<TaskEnd, 'final' | 'order' | 'heir'> => {
  const { staged: _staged, walltime: _walltime, ...told } = end
  const readyAt = task.ready_at ?? end.startedAt ?? end.finishedAt
  const held = end.startedAt === null ? 0 : end.finishedAt - end.startedAt - (end.siteQueueSeconds ?? 0)
  return {
    ...told,
    id: task.id,
    readyAt,
    queueSeconds: Math.max(0, (end.startedAt ?? end.finishedAt) - readyAt),
    transferSeconds: spanOf(transfers),
    transferBytes: transfers.reduce((sum, { bytes }) => sum + bytes, 0),
    cost: held * pricePerSecond + transfers.reduce((sum, { cost }) => sum + cost, 0),
  }
}

const edgeOf = (runId: string, task: LoadedTask, producer: LoadedTask) => ({
  id: dataTransferId(runId, producer.activity_id, task.activity_id, task.attempt),
  producer: producer.activity_id,
  consumer: task.activity_id,
  source: producer.resource_id,
  target: task.resource_id,
})

/** The record of what came from another site. `route` is that between the two resources: each byte that moved is charged its price. */
export const broughtTransfer = (
  runId: string,
  task: LoadedTask,
  producer: LoadedTask,
  facts: TransferFacts,
  route: RunRoute,
): TaskTransfer => {
  const { bytes, networkBytes, files, strategy, reason, fromSite: from, toSite: to, startedAt, finishedAt } = facts
  return {
    ...edgeOf(runId, task, producer),
    ...{ bytes, networkBytes, filesTransferred: files, strategy, startedAt },
    route: { links: route.links, strategy, reason, from, to },
    finishedAt: Math.max(startedAt, finishedAt),
    cost: bytes * route.pricePerByte,
  }
}

/** The record of what was copied inside a site for an attempt, in the time between its intent and its start. */
export const copiedTransfer = (
  runId: string,
  site: string,
  task: LoadedTask,
  end: AttemptEnd,
  { producer, bytes, files, route }: Copied,
): TaskTransfer => {
  const strategy = 'runtime-local'
  const startedAt = end.startedAt ?? end.finishedAt
  return {
    ...edgeOf(runId, task, producer),
    ...{ bytes, networkBytes: 0, filesTransferred: files, strategy, startedAt },
    route: { links: route.links, strategy, reason: 'both resources are at one site: copied there', from: site, to: site },
    finishedAt: startedAt + end.overheadSeconds,
    cost: bytes * route.pricePerByte,
  }
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

/** How trouble of a site is waited out, apart from the activity's own attempts. */
export interface Patience {
  /** A site that does not answer is asked again for this long before what it was asked about counts as lost. */
  silentSeconds: number
  /** Between attempts after trouble of the site: the first pause, doubled up to the longest. */
  firstPauseSeconds: number
  longestPauseSeconds: number
  /** Attempts of one activity that may end by trouble of the site. */
  attempts: number
}

/** A day of silence; 100 losses, which is an hour and a half of pauses. */
export const usualPatience: Patience = { silentSeconds: 86_400, firstPauseSeconds: 2, longestPauseSeconds: 60, attempts: 100 }

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
  patience: Patience = usualPatience,
): TaskRetry | undefined => {
  const own = end.failureClass === 'user'
  const troubles = task.attempt - task.user_attempts
  if (end.failureClass === 'refused' || (own ? task.user_attempts >= (policy?.maxAttempts ?? 1) : troubles >= patience.attempts))
    return undefined
  const attempt = task.attempt + 1
  const pause = own
    ? (policy?.retryDelaySeconds ?? 0)
    : Math.min(patience.longestPauseSeconds, patience.firstPauseSeconds * 2 ** Math.min(troubles, 30))
  return {
    id: taskExecutionId(runId, task.activity_id, attempt),
    after: task.id,
    attempt,
    userAttempts: task.user_attempts + (own ? 1 : 0),
    walltimeExtensions: task.walltime_extensions + (end.walltime === true ? 1 : 0),
    readyAt: end.finishedAt,
    notBefore: now + pause,
  }
}
