import { firstTexts } from '../lists.ts'
import type { Collected, DriverError, StagedAmount } from '../drivers/runtime/contract/driver.ts'
import type { EdgeTransfer } from '../drivers/transfer/staging-driver.ts'
import type { LoadedTask, TaskEnd, TaskOutput, TaskRetry, TaskTransfer } from './journal.ts'
import { dataInstanceId, dataObjectId, dataTransferId, taskExecutionId } from './names.ts'
import type { RunRoute } from './network.ts'
import { encodedPath, pathBytes, pathOfShown, shownPath } from '../outside-path.ts'
import { outsideText, reasonText } from '../outside-text.ts'

/**
 * How an attempt ended, from the site; its cost and its moved bytes are added when it is recorded.
 */
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
  /** Maybe its own doing: it is repeated once at most. */
  suspect?: boolean
  /**
   * The amounts copied into its work directory at its own site, for each entry of the intent's
   * `stage`.
   */
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

/**
 * An attempt that the site refused, or for which it lacked something. Where the site gives no
 * class, the failure counts as its own trouble, not the activity's.
 */
export const notStarted = (task: LoadedTask, error: DriverError, now: number): AttemptEnd => ({
  ...unmeasured,
  status: 'failed',
  startedAt: task.started_at,
  finishedAt: now,
  overheadSeconds: now - (task.started_at ?? now),
  failureClass: error.trouble === 'unknown' ? 'infrastructure' : error.trouble,
  failureReason: `activity ${task.external_id} could not be run on ${task.resource_id}: ${reasonText(error.message)}`,
})

const whereOf = (task: LoadedTask): string =>
  `activity ${task.external_id} on ${task.resource_id}, attempt ${String(task.attempt)}`

/**
 * An attempt whose end the site does not know; `words` are the reason, after "activity … attempt
 * …".
 */
const endless = (
  task: LoadedTask,
  status: 'failed' | 'cancelled',
  words: string,
  now: number,
): AttemptEnd => ({
  ...unmeasured,
  status,
  startedAt: task.started_at,
  finishedAt: Math.max(now, task.started_at ?? now),
  overheadSeconds: 0,
  failureClass: status === 'failed' ? 'infrastructure' : null,
  failureReason: `${whereOf(task)} ${words}`,
})

/** A lost attempt: killed with its machine, or removed by the site, whose reason is `cause`. */
export const lost = (
  task: LoadedTask,
  { cause, suspect }: { cause?: string | undefined; suspect?: boolean | undefined },
  now: number,
): AttemptEnd => ({
  ...endless(
    task,
    'failed',
    cause === undefined
      ? 'was lost with its machine: it is not running and left no exit code'
      : `was lost at its site: ${reasonText(cause)}; it left no exit code`,
    now,
  ),
  // On record with the attempt: its activity is repeated once at most after such an end.
  ...(suspect === true ? { suspect, place: { suspect } } : {}),
})

/** An attempt whose site has not answered within the patience. */
export const silent = (
  task: LoadedTask,
  site: string,
  silentSeconds: number,
  words: string,
  now: number,
): AttemptEnd =>
  endless(
    task,
    'failed',
    `was given up: ${site} has not answered for ${String(Math.round(silentSeconds))} s: ${reasonText(words)}`,
    now,
  )

/** An attempt that had to be ended, and whose site did not confirm the end. */
export const unstopped = (task: LoadedTask, site: string, words: string, now: number): AttemptEnd =>
  endless(
    task,
    'cancelled',
    `was cancelled and could not be stopped at ${site}, which is asked again until it is: ${reasonText(words)}`,
    now,
  )

const mebibytes = (bytes: number | null): string =>
  bytes === null
    ? 'unknown'
    : bytes === 0
      ? 'none'
      : `${(bytes / 1024 ** 2).toFixed(bytes < 10 * 1024 ** 2 ? 1 : 0)} MiB`

/** Messages of programs that get no memory: C and shells, Python, C++, Java, Node. */
const memoryTexts = /cannot allocate memory|memory exhausted|memoryerror|bad_alloc|out ?of ?memory/i

/**
 * Whether a task that failed under RLIMIT_DATA ran out of memory. The kernel refuses memory there
 * and kills nothing, so the evidence is the program's message, or a peak above its limit.
 */
const ranOut = ({ detail, peakMemoryBytes, stderrTail }: Collected, memoryBytes: number): boolean =>
  detail?.limits === 'rlimit' && ((peakMemoryBytes ?? 0) > memoryBytes || memoryTexts.test(stderrTail))

/** When the image was at the host, and how long that took for this task. */
const preparedAt = (detail: Collected['detail'], state: Collected['state']): Record<string, number> => {
  const { pullSeconds, coldStartSeconds = 0 } = detail ?? {}
  if (pullSeconds === undefined || state.state !== 'ended') return {}
  return {
    preparationFinishedAt: state.startedAt - coldStartSeconds,
    ...(pullSeconds > 0 ? { preparationSeconds: pullSeconds } : {}),
  }
}

/** With paths as people see them; the bytes of what is no text stand beside it. */
const shownManifest = (manifest: Collected['manifest']): Collected['manifest'] => ({
  ...manifest,
  files: manifest.files.map((file) => ({
    ...file,
    // A sparse file may have any size.
    sizeBytes: Math.min(file.sizeBytes, Number.MAX_SAFE_INTEGER),
    path: shownPath(file.path),
    ...pathBytes(file.path),
  })),
})

/** The most names in one reason. */
const mostNamed = 20

/** Names for a reason; of many the first. */
const named = (names: readonly string[]): string => firstTexts(names, mostNamed, outsideText).join(', ')

/** What an attempt did not make of its expected outputs, or made as links to elsewhere. */
const withoutOutputs = ({ missingOutputs, strayOutputs = [] }: Collected): string => {
  const stray = new Map(strayOutputs.map(({ path, why }) => [path, why]))
  const absent = missingOutputs.filter((path) => !stray.has(path))
  const faults = [
    ...(absent.length === 0 ? [] : [`did not make ${named(absent)}`]),
    ...(stray.size === 0
      ? []
      : [
          `made ${named([...stray].map(([path, why]) => `${path}: ${why}`))}; put copies of the files in their place`,
        ]),
  ]
  return `ended with exit code 0 but ${faults.join(', and ')}`
}

/** Members that a site omits are not kept as null. */
const placeOf = ({ node, detail, state, manifest }: Collected): Record<string, unknown> | null => {
  const { warnings } = manifest
  const place = {
    ...detail,
    ...(node === undefined ? {} : { node }),
    ...preparedAt(detail, state),
    ...(warnings === undefined ? {} : { warnings }),
  }
  return Object.keys(place).length === 0 ? null : place
}

/**
 * The end of an attempt from its results. A reason names the activity, the site, the attempt, and
 * the end of its standard error. `startedAt` is the time of the intent: from there to the program's
 * start it waited in the site's own queue (`siteQueueSeconds`), the rest is overhead.
 */
export const attemptEndOf = (
  task: LoadedTask,
  outcome: Collected,
  allowed: { timeoutSeconds: number; memoryBytes: number },
  now: number,
): AttemptEnd => {
  const { state } = outcome
  if (state.state !== 'ended') return lost(task, state.state === 'lost' ? state : {}, now)
  const where = whereOf(task)
  const startedAt = task.started_at ?? outcome.submittedAt
  // A site's clock may be ahead of ours: an end in the future would overlap with the next task of
  // the lane.
  const finishedAt = Math.max(Math.min(state.finishedAt, now), startedAt)
  const before = Math.max(0, Math.min(state.startedAt, finishedAt) - startedAt)
  const siteQueueSeconds =
    outcome.queueSeconds === undefined ? null : Math.max(0, Math.min(outcome.queueSeconds, before))
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
    manifest: shownManifest(outcome.manifest),
    place: placeOf(outcome),
    externalId: state.externalId,
    ...(outcome.staged === undefined ? {} : { staged: outcome.staged }),
  }
  if (state.reason === 'cancelled')
    return { ...facts, status: 'cancelled', failureClass: null, failureReason: 'cancelled' }
  const tail = reasonText(outcome.stderrTail)
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
    if (state.reason === 'timeout')
      return `ran longer than its timeoutSeconds of ${String(allowed.timeoutSeconds)}`
    const how = state.signal === null ? `exit code ${String(state.exitCode)}` : `signal ${state.signal}`
    const used = `limit ${mebibytes(allowed.memoryBytes)}, peak ${mebibytes(outcome.peakMemoryBytes)}`
    if (state.reason === 'memory') return `was killed for using more memory than allowed (${used})`
    if (state.exitCode !== 0 && ranOut(outcome, allowed.memoryBytes))
      return (
        `ended with ${how} for want of memory (${used}; RLIMIT_DATA gives each process twice the ` +
        'limit and 256 MiB)'
      )
    if (state.exitCode !== 0) return `ended with ${how}`
    return outcome.missingOutputs.length === 0 ? undefined : withoutOutputs(outcome)
  })()
  if (fault === undefined) return { ...facts, status: 'completed', failureClass: null, failureReason: null }
  return { ...facts, status: 'failed', failureClass: 'user', failureReason: withTail(fault) }
}

/**
 * Files of a predecessor that were copied from one resource of a site to another, with the route
 * between the two.
 */
export interface Copied extends StagedAmount {
  producer: LoadedTask
  route: RunRoute
}

/** The bytes that were brought from another site for a task, as far as its record has them. */
export type TransferFacts = Pick<
  EdgeTransfer,
  | ('producer' | 'fromSite' | 'toSite' | 'strategy' | 'reason')
  | ('bytes' | 'networkBytes' | 'files' | 'startedAt' | 'finishedAt')
>

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
 * The row of an ended attempt: its wait lasts from ready to its intent; its cost counts the time in
 * its lane (without the site's own queue) and the bytes moved for it.
 */
export const endRecord = (
  task: LoadedTask,
  end: AttemptEnd,
  transfers: readonly TaskTransfer[],
  pricePerSecond: number,
): Omit<TaskEnd, 'final' | 'order' | 'heir'> => {
  const { staged: _staged, walltime: _walltime, suspect: _suspect, ...shown } = end
  const readyAt = task.ready_at ?? end.startedAt ?? end.finishedAt
  const held = end.startedAt === null ? 0 : end.finishedAt - end.startedAt - (end.siteQueueSeconds ?? 0)
  return {
    ...shown,
    id: task.id,
    activityId: task.activity_id,
    attempt: task.attempt,
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

/**
 * The record of a transfer from another site. `route` is that between the two resources: each moved
 * byte is charged its price.
 */
export const broughtTransfer = (
  runId: string,
  task: LoadedTask,
  producer: LoadedTask,
  facts: TransferFacts,
  route: RunRoute,
): TaskTransfer => {
  const {
    bytes,
    networkBytes,
    files,
    strategy,
    reason,
    fromSite: from,
    toSite: to,
    startedAt,
    finishedAt,
  } = facts
  return {
    ...edgeOf(runId, task, producer),
    ...{ bytes, networkBytes, filesTransferred: files, strategy, startedAt },
    route: { links: route.links, strategy, reason, from, to },
    finishedAt: Math.max(startedAt, finishedAt),
    cost: bytes * route.pricePerByte,
  }
}

/**
 * The record of a copy inside a site for an attempt, in the time between its intent and its start.
 */
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
    route: {
      links: route.links,
      strategy,
      reason: 'both resources are at one site: copied there',
      from: site,
      to: site,
    },
    finishedAt: startedAt + end.overheadSeconds,
    cost: bytes * route.pricePerByte,
  }
}

/** Files that an attempt created or changed, with their digests and places. */
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
    .map(({ path, pathBytes: bytes, sizeBytes, checksum }) => ({
      id: dataInstanceId(runId, task.activity_id, task.attempt, path),
      objectId: dataObjectId(contentVersionId, task.activity_id, path),
      versionId: contentVersionId,
      declared: expected.includes(path),
      activityId: task.activity_id,
      attempt: task.attempt,
      path,
      pathBytes: bytes ?? null,
      sizeBytes,
      checksum: checksum ?? null,
      uri: `file://${encodeURIComponent(hostId)}${encodedPath(`${manifest?.root ?? ''}/${pathOfShown(path)}`)}`,
      resourceId: task.resource_id,
    }))

/** How long to wait through trouble of a site, apart from the activity's own attempts. */
export interface Patience {
  /** A silent site is queried for this long; then the attempts in question count as lost. */
  silentSeconds: number
  /** Pauses between attempts after trouble of the site: the first, doubled up to the longest. */
  firstPauseSeconds: number
  longestPauseSeconds: number
  /** Attempts of one activity that may end by trouble of the site. */
  attempts: number
}

/** A day of silence; 100 losses, which is an hour and a half of pauses. */
export const usualPatience: Patience = {
  silentSeconds: 86_400,
  firstPauseSeconds: 2,
  longestPauseSeconds: 60,
  attempts: 100,
}

/**
 * The attempt after a failed one, or undefined when there is none. Two budgets: the activity's own
 * failures spend `maxAttempts`, trouble of the site has its own patience; a permanent refusal of a
 * site is not retried.
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
  const troubles = task.attempt - task.first_attempt + 1 - task.user_attempts
  if (
    end.failureClass === 'refused' ||
    (own
      ? task.user_attempts >= (policy?.maxAttempts ?? 1)
      : troubles >= patience.attempts || (end.suspect === true && task.suspects > 0))
  )
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
