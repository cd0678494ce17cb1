import type { BatchJudgement, QueuedElement } from '../batch/scheduler.ts'
import { stateOfVerdict, type Verdict } from '../batch/verdict.ts'
import type { TaskState } from '../contract/driver.ts'
import { buriedEnd, endedState } from '../contract/results.ts'
import type { RemoteSight } from '../remote/tasks.ts'
import { indexIn, isPodOver, type ApiJob, type TaskPod } from './pods.ts'

/** All facts about a task that was put into a Job. */
export interface KubernetesEvidence {
  /** The task's own record: it has priority wherever it records an end. */
  sight: RemoteSight
  place: QueuedElement
  /** Its files are brought to its Pod, so that its record is there alone at first. */
  carried: boolean
  cancelAsked: boolean
  /**
   * `absent`: the server's list has none. `silent`: it does not answer, or was not queried.
   */
  pod: TaskPod | 'absent' | 'silent'
  /** `absent`: the server has none of its name. */
  job: ApiJob | 'absent' | 'silent'
  /** Why the Job makes no Pod, in its controller's message. */
  jobWords?: string
  /** For how long all sources have reported it as over, in seconds; 0: for the first time. */
  overSeconds: number
  /** For how long the Pod has been in deletion. */
  deletingSeconds: number
  /** For how long the image could not be pulled, or its container not be made. */
  pullSeconds: number
}

export interface KubernetesPatience {
  /** A record may appear late on a shared file system. */
  settleSeconds: number
  /** Patience with an image or a secret that does not exist: it may be on its way. */
  pullPatienceSeconds: number
}

/** Externally a task is the index of a Job, whatever its Pod is called. */
export const indexedName = ({ array, index }: QueuedElement): string => `${array}-${index}`

/**
 * Whether the record alone does not explain the end: the task was stopped from outside, or killed
 * in the way that the kernel kills for memory.
 */
export const isUnsure = (sight: RemoteSight): boolean =>
  sight.form === 'ended' &&
  (sight.reason === 'stopped' ||
    (sight.reason === 'exited' && (sight.exitCode === 137 || sight.signal === 'SIGKILL')))

const cannotPull =
  /^(ErrImagePull|ImagePullBackOff|InvalidImageName|ErrImageNeverPull|ImageInspectError|RegistryUnavailable)$/
const noSuchImage = new RegExp(
  [
    'not found|manifest unknown|does not exist|repository .* not found|name unknown',
    'invalid reference format|failed to resolve reference.*(404|403 Forbidden)',
  ].join('|'),
  'i',
)
/** The container's first process never ran: the exit code is not the task's. */
const notRun =
  /^(StartError|ContainerCannotRun|CreateContainerError|ContainerStatusUnknown|PreStartHookError)$/

/** No node can make the container as it is described: a secret is missing, a user is not allowed. */
const cannotMake = /^CreateContainerConfigError$/
/** This node cannot make it now: its runtime hangs, its disk is full. Another one may. */
const nodeCannotMake = /^(CreateContainerError|RunContainerError)$/

/** Whether the awaited image exists nowhere, or its container cannot be made, here or anywhere. */
export const isHopeless = ({ waiting }: TaskPod): boolean =>
  waiting?.reason === 'InvalidImageName' ||
  cannotMake.test(waiting?.reason ?? '') ||
  nodeCannotMake.test(waiting?.reason ?? '') ||
  waiting?.reason === 'ErrImageNeverPull' ||
  (waiting !== undefined && cannotPull.test(waiting.reason) && noSuchImage.test(waiting.message))

const short = (text: string): string => [...text.replaceAll(/\s+/g, ' ').trim()].slice(0, 700).join('')
const reasonText = (reason: string, message: string | undefined): string =>
  message === undefined || message === '' ? reason : `${reason}: ${short(message)}`

/** Why the cluster deleted the Pod, in its message; undefined where it did not. */
function takenAway(pod: TaskPod): string | undefined {
  const where = pod.node === undefined ? '' : ` (Pod ${pod.name} on node ${pod.node})`
  if (pod.reason !== undefined && pod.reason !== 'DeadlineExceeded')
    return `${reasonText(pod.reason, pod.message)}${where}`
  if (pod.disruption !== undefined)
    return `${reasonText(pod.disruption.reason, pod.disruption.message)}${where}`
  if (pod.deleting !== undefined)
    return `Pod ${pod.name} was deleted by others${pod.node === undefined ? '' : `, on node ${pod.node}`}`
  return undefined
}

/** Why the driver waits for a Pod whose node does not end it, and what a person can do. */
const nodeSilent = ({ name, node = 'unknown', disruption }: TaskPod): string =>
  `node ${node} does not answer that Pod ${name} ended: it may still run there, so it is waited for; if the ` +
  `node is gone, delete it (kubectl delete node ${node}) or taint it node.kubernetes.io/out-of-service` +
  (disruption === undefined ? '' : `; ${reasonText(disruption.reason, disruption.message)}`)

const deletion = ({ array }: QueuedElement): string =>
  `if it is gone, delete the Job, which ends its other tasks too (kubectl delete job ${array})`

/** Why the driver waits for a task whose Pod no answer lists. */
const unlisted = (place: QueuedElement): string =>
  `the cluster lists no Pod of ${indexedName(place)}, and its Job has no end of it: it may still run, so it ` +
  `is waited for; ${deletion(place)}`

/** Why the driver waits where the Job has made another Pod for a task that had begun. */
const replaced = (own: string, other: string, place: QueuedElement): string =>
  `Pod ${own} began the task, and its Job has made Pod ${other}, which starts nothing: the first may still ` +
  `run, so it is waited for; ${deletion(place)}`

/**
 * The task's state from its record, its Pod and its Job, in whatever order and state they arrive.
 *
 * - An end in the task's own record is its end; only where it was killed or stopped from outside
 *   does the cluster's reason count.
 * - Silence ends nothing: neither that of the API server nor that of a node. A list without the Pod
 *   ends nothing: the Job's record of the index does, or that there is no Job of its name. Nor does
 *   the end of another Pod than the one that began the task.
 * - Where only the cluster reports it as over, that becomes a verdict: at once if the cluster
 *   gives the reason, after `settleSeconds` if the container ended by itself (its record may be
 *   late) or the Pod is gone.
 */
export function judgePod(
  evidence: KubernetesEvidence,
  { settleSeconds, pullPatienceSeconds }: KubernetesPatience,
): BatchJudgement {
  const { sight, place, carried, cancelAsked, pod, job, jobWords } = evidence
  const { overSeconds, deletingSeconds, pullSeconds } = evidence
  const externalId = indexedName(place)
  const settled = overSeconds >= settleSeconds
  if (sight.form === 'buried') return { state: buriedEnd(sight.at, externalId), over: false }
  const begun = sight.form === 'started' || sight.form === 'ended' ? sight : undefined
  const fallbackAt = sight.form === 'ended' ? sight.finishedAt : (begun?.startedAt ?? place.submittedAt)
  const at = (typeof pod === 'object' ? pod.terminated?.finishedAt : undefined) ?? fallbackAt
  const decide = (end: Verdict['end'], cause: string): BatchJudgement => {
    const verdict: Verdict = {
      end: end === 'lost' && sight.form === 'none' ? 'never' : end,
      cause: short(cause),
      at,
    }
    return { state: stateOfVerdict(verdict, sight, externalId), over: true, verdict }
  }

  const meanwhile = (words?: string): TaskState => {
    const podAt = typeof pod === 'object' ? pod.startedAt : undefined
    const startedAt =
      begun?.startedAt ?? (podAt === undefined ? undefined : Math.max(place.submittedAt, podAt))
    const waitsFor =
      typeof pod !== 'object'
        ? jobWords
        : pod.waiting !== undefined
          ? reasonText(pod.waiting.reason, pod.waiting.message)
          : pod.unscheduled
    const cause = words ?? (startedAt === undefined ? waitsFor : undefined)
    const why = cause === undefined ? {} : { cause: short(cause) }
    return startedAt === undefined
      ? { state: 'queued', externalId, submittedAt: place.submittedAt, ...why }
      : { state: 'running', externalId, startedAt, ...why }
  }
  const later: BatchJudgement = { state: meanwhile(), over: true }

  if (sight.form === 'ended') {
    const killed = isUnsure(sight) && sight.reason === 'exited'
    const terminated = typeof pod === 'object' ? pod.terminated : undefined
    if (sight.reason === 'stopped') {
      if (cancelAsked) return { state: endedState(sight, externalId, 'cancelled'), over: false }
      if (pod === 'silent') return { state: meanwhile(), over: false }
      if (typeof pod === 'object' && pod.reason === 'DeadlineExceeded')
        return decide('walltime', reasonText(pod.reason, pod.message))
      const why = typeof pod === 'object' ? takenAway(pod) : undefined
      if (why !== undefined) return decide('lost', why)
      return settled
        ? decide(
            'lost',
            pod === 'absent' ? 'its Pod was deleted by others' : 'stopped by a signal from outside',
          )
        : later
    }
    if (!killed) return { state: endedState(sight, externalId, sight.reason), over: false }
    // The kernel counts its kills for memory by node: the Pod shows whether one was in this
    // container.
    if (terminated?.reason === 'OOMKilled')
      return decide('memory', reasonText('OOMKilled', terminated.message))
    if (terminated !== undefined) return { state: endedState(sight, externalId, sight.reason), over: false }
    if (pod === 'absent' || settled)
      return { state: endedState(sight, externalId, sight.reason), over: false }
    return later
  }

  if (pod === 'silent') return { state: meanwhile(), over: false }
  if (pod === 'absent') {
    if (job === 'silent') return { state: meanwhile(), over: false }
    const isEnded =
      job === 'absent' ||
      indexIn(job.status?.failedIndexes, place.index) ||
      indexIn(job.status?.completedIndexes, place.index)
    const failed =
      job === 'absent'
        ? undefined
        : job.status?.conditions?.find(({ type, status }) => type === 'Failed' && status === 'True')
    // Its Pod may not be made yet, or be one that lists do not contain.
    if (!isEnded && failed === undefined)
      return { state: meanwhile(begun === undefined ? undefined : unlisted(place)), over: false }
    if (begun !== undefined && cancelAsked) return decide('cancelled', 'its Pod was deleted on request')
    if (!settled) return later
    if (failed !== undefined) return decide('lost', reasonText(failed.reason ?? 'Failed', failed.message))
    return decide(
      'lost',
      job === 'absent'
        ? `Job ${place.array} was deleted by others`
        : `the Pod of ${externalId} was deleted by others`,
    )
  }

  // A Pod is named after its index, with letters of its own behind it.
  if (begun !== undefined && begun.node !== pod.name && begun.node.startsWith(`${externalId}-`))
    return { state: meanwhile(replaced(begun.node, pod.name, place)), over: false }
  const { terminated } = pod
  if (!isPodOver(pod)) {
    // A node that answers ends a Pod within its grace.
    if (pod.deleting !== undefined && deletingSeconds > pod.deleting.graceSeconds + settleSeconds)
      // A record that all nodes see is made unusable before the next attempt: a late start starts
      // nothing.
      return sight.form === 'none' && pod.startedAt === undefined && !carried
        ? decide('lost', nodeSilent(pod))
        : { state: meanwhile(nodeSilent(pod)), over: false }
    const { reason = '', message } = pod.waiting ?? {}
    if (!isHopeless(pod) || (reason !== 'InvalidImageName' && pullSeconds < pullPatienceSeconds))
      return { state: meanwhile(), over: false }
    const words = reasonText(reason, message)
    return {
      state: meanwhile(),
      over: false,
      ...(nodeCannotMake.test(reason) ? { held: words } : { impossible: words }),
    }
  }
  if (begun !== undefined && cancelAsked) return decide('cancelled', 'its Pod was deleted on request')
  if (terminated?.reason === 'OOMKilled') return decide('memory', reasonText('OOMKilled', terminated.message))
  if (pod.reason === 'DeadlineExceeded')
    return decide('walltime', reasonText('DeadlineExceeded', pod.message))
  const taken = takenAway(pod)
  if (taken !== undefined && (terminated === undefined || terminated.exitCode !== 0))
    return decide('lost', taken)
  if (terminated === undefined)
    return settled
      ? decide('lost', `Pod ${pod.name} is ${pod.phase} without a word about its container`)
      : later
  if (notRun.test(terminated.reason)) return decide('lost', reasonText(terminated.reason, terminated.message))
  // The creator of a record writes it a moment later.
  if (!settled || (sight.form === 'claimed' && sight.ageSeconds < settleSeconds)) return later
  const how =
    `${reasonText(terminated.reason === '' ? 'terminated' : terminated.reason, terminated.message)}, ` +
    `exit code ${terminated.exitCode}`
  if (begun !== undefined || sight.form === 'claimed')
    return decide('lost', `${how}, without a record of the task's end`)
  // Every container runs our script, and the supervisor writes a record before it starts the task.
  return decide(
    'lost',
    carried
      ? `${how}, before the files of the task were in Pod ${pod.name}`
      : `${how}, before the task was started: is the volume visible on node ${pod.node ?? ''}, has it ` +
          'room, and has the image a /bin/sh?',
  )
}
