import { present } from '../../../json-object.ts'
import { containerName, courierName, labels } from './job.ts'

/**
 * The facts of one of our Pods on which its task's state depends. Times are seconds since epoch, by
 * the cluster's clocks.
 */
export interface TaskPod {
  name: string
  job: string
  index: number
  node?: string
  phase: string
  /** The Pod's own reason: `Evicted`, `NodeLost`, `DeadlineExceeded` … */
  reason?: string
  message?: string
  /** It is being deleted, with this grace on its node. */
  deleting?: { graceSeconds: number }
  /**
   * Why it was deleted: `EvictionByEvictionAPI`, `DeletionByTaintManager`, `PreemptionByScheduler`
   * …
   */
  disruption?: { reason: string; message: string }
  /** The scheduler's message while it has found no node. */
  unscheduled?: string
  waiting?: { reason: string; message: string }
  startedAt?: number
  terminated?: { exitCode: number; reason: string; message: string; startedAt?: number; finishedAt?: number }
  /** State of the courier container; absent where the Pod has none, or it has not started. */
  courier?: 'running' | 'over'
  image?: string
  /** `sha256:…` of the running image. */
  digest?: string
  engine?: string
}

/** The API's form of a Pod; only the fields that are read. */
export interface ApiPod {
  metadata?: {
    name?: string
    uid?: string
    resourceVersion?: string
    labels?: Record<string, string>
    deletionTimestamp?: string
    deletionGracePeriodSeconds?: number
  }
  spec?: { nodeName?: string }
  status?: {
    phase?: string
    reason?: string
    message?: string
    conditions?: { type: string; status: string; reason?: string; message?: string }[]
    containerStatuses?: ApiContainerStatus[]
  }
}

export interface ApiContainerStatus {
  name?: string
  ready?: boolean
  image?: string
  imageID?: string
  containerID?: string
  state?: {
    waiting?: { reason?: string; message?: string }
    running?: { startedAt?: string }
    terminated?: {
      exitCode?: number
      reason?: string
      message?: string
      startedAt?: string
      finishedAt?: string
    }
  }
}

/** The API's form of a Job; only the fields that are read. */
export interface ApiJob {
  metadata?: { name?: string; annotations?: Record<string, string> }
  status?: {
    completedIndexes?: string
    failedIndexes?: string
    conditions?: { type: string; status: string; reason?: string; message?: string }[]
  }
}

const secondsOf = (time: string | undefined): number | undefined => {
  const milliseconds = time === undefined ? Number.NaN : Date.parse(time)
  return Number.isNaN(milliseconds) || milliseconds <= 0 ? undefined : milliseconds / 1000
}

/** Undefined for a Pod that is no index of one of our Jobs. */
export function taskPodOf({ metadata = {}, spec = {}, status = {} }: ApiPod): TaskPod | undefined {
  const job = metadata.labels?.[labels.job]
  const index = metadata.labels?.[labels.index]
  if (metadata.name === undefined || job === undefined || index === undefined || !/^\d+$/.test(index))
    return undefined
  const condition = (type: string): { status: string; reason?: string; message?: string } | undefined =>
    status.conditions?.find((one) => one.type === type)
  const disruption = condition('DisruptionTarget')
  const scheduled = condition('PodScheduled')
  const own = status.containerStatuses?.find(({ name }) => name === containerName)
  const { waiting, running, terminated } = own?.state ?? {}
  const side = status.containerStatuses?.find(({ name }) => name === courierName)?.state
  const digest = /sha256:[0-9a-f]{64}/.exec(own?.imageID ?? '')?.[0]
  const engine = /^([a-z-]+):\/\//.exec(own?.containerID ?? '')?.[1]
  return present({
    name: metadata.name,
    job,
    index: Number(index),
    phase: status.phase ?? 'Pending',
    node: spec.nodeName,
    reason: status.reason,
    message: status.message,
    deleting:
      metadata.deletionTimestamp === undefined
        ? undefined
        : { graceSeconds: metadata.deletionGracePeriodSeconds ?? 30 },
    disruption:
      disruption?.status === 'True'
        ? { reason: disruption.reason ?? 'DisruptionTarget', message: disruption.message ?? '' }
        : undefined,
    unscheduled:
      scheduled?.status === 'False'
        ? `${scheduled.reason ?? 'Unschedulable'}: ${scheduled.message ?? ''}`
        : undefined,
    waiting:
      waiting?.reason === undefined ? undefined : { reason: waiting.reason, message: waiting.message ?? '' },
    startedAt: secondsOf(running?.startedAt ?? terminated?.startedAt),
    terminated:
      terminated?.exitCode === undefined
        ? undefined
        : present({
            exitCode: terminated.exitCode,
            reason: terminated.reason ?? '',
            message: terminated.message ?? '',
            startedAt: secondsOf(terminated.startedAt),
            finishedAt: secondsOf(terminated.finishedAt),
          }),
    courier: side?.running !== undefined ? ('running' as const) : side?.terminated && ('over' as const),
    image: own?.image,
    digest,
    engine,
  })
}

export const podKey = (job: string, index: number): string => `${job}/${index}`

/** Whether its containers have ended, according to the API. */
export const isPodOver = ({ phase, terminated }: TaskPod): boolean =>
  phase === 'Succeeded' || phase === 'Failed' || terminated !== undefined

/** `3`, `1,3-5`: the list format in the status of an Indexed Job. */
export const indexIn = (list: string | undefined, index: number): boolean =>
  (list ?? '').split(',').some((part) => {
    const [first = '', last = first] = part.split('-')
    return first !== '' && Number(first) <= index && index <= Number(last)
  })

/** Notes a Pod at its element. One that is over does not replace another that still runs. */
export const notePod = (pods: Map<string, TaskPod>, pod: TaskPod): void => {
  const place = podKey(pod.job, pod.index)
  const known = pods.get(place)
  if (known === undefined || known.name === pod.name || isPodOver(known) || !isPodOver(pod))
    pods.set(place, pod)
}

/** Listed Pods by their elements. */
export const podsOf = (items: readonly ApiPod[]): Map<string, TaskPod> => {
  const pods = new Map<string, TaskPod>()
  for (const item of items) {
    const pod = taskPodOf(item)
    if (pod !== undefined) notePod(pods, pod)
  }
  return pods
}
