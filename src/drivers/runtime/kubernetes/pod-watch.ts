import type { QueuedElement } from '../batch/scheduler.ts'
import { RecentMap } from '../../../pacing/recent.ts'
import type { Courier } from './courier/courier.ts'
import { kept } from '../../../pacing/kept.ts'
import type { Namespace } from './namespace.ts'
import {
  isPodOver,
  notePod,
  podsOf,
  podKey,
  taskPodOf,
  type ApiJob,
  type ApiPod,
  type TaskPod,
} from './pods.ts'
import { isHopeless } from './state.ts'

/** The server's answer to a query, made where the watch knows no Pod: it may be late. */
export interface ClusterAnswer {
  pods: Map<string, TaskPod>
  jobs: Map<string, ApiJob>
  /** Why a Job makes no Pod, by its name. */
  words: Map<string, string>
  /**
   * When it was requested, milliseconds of `performance.now()`: it does not contain later objects.
   */
  at: number
}

export interface ApiEvent {
  involvedObject?: { name?: string; fieldPath?: string }
  reason?: string
  message?: string
}

/** All Pods of a runtime's tasks, by one watch. */
export interface PodWatch {
  /** Begins the watch, once. */
  follow(): void
  /** Whether changes arrive now. */
  standing(): boolean
  /** From the watch; the last state where the Pod is gone. */
  seen(place: QueuedElement): TaskPod | undefined
  /** From the watch, while the Pod exists. */
  here(place: QueuedElement): TaskPod | undefined
  /**
   * Seconds for which a Pod has been in deletion, and for which its image could not be pulled; 0
   * while the watch does not stand.
   */
  spent(pod: TaskPod): { deleting: number; pulling: number }
  /** At most one interval old. */
  ask(): Promise<ClusterAnswer>
  /** The task of an element, whose end has to be reported. */
  expect(place: QueuedElement, name: string): void
  /** Its end was reported. */
  settled(place: QueuedElement): void
  forget(place: QueuedElement): void
  /** Reports tasks whose Pods are over or gone; the returned function stops it. */
  onEnds(ended: (name: string) => void): () => void
  close(): void
}

const remembered = 20_000
const namesKept = 200_000

export function openPodWatch(
  at: Namespace,
  courier: Courier | undefined,
  pollMilliseconds: number,
): PodWatch {
  const { cluster, paths, ours } = at
  const pods = new Map<string, TaskPod>()
  /** The last state of Pods that are gone. */
  const gone = new RecentMap<string, TaskPod>(remembered)
  /** By name of Pod, milliseconds of `performance.now()`. */
  const deletingSince = new Map<string, number>()
  const hopelessSince = new Map<string, number>()
  const namesAt = new RecentMap<string, string>(namesKept)
  const listeners = new Set<(name: string) => void>()
  let standing = false
  let stop: (() => void) | undefined
  let closed = false

  const since = (times: Map<string, number>, name: string, holds: boolean): void => {
    if (!holds) times.delete(name)
    else if (!times.has(name)) times.set(name, performance.now())
  }
  const notify = (place: string): void => {
    const name = namesAt.get(place)
    if (name !== undefined) for (const listener of listeners) listener(name)
  }
  const note = (api: ApiPod): void => {
    const pod = taskPodOf(api)
    if (pod === undefined) return
    const place = podKey(pod.job, pod.index)
    notePod(pods, pod)
    since(deletingSince, pod.name, pod.deleting !== undefined)
    if (isHopeless(pod) || pod.waiting === undefined) since(hopelessSince, pod.name, isHopeless(pod))
    courier?.see(pod)
    if (isPodOver(pod)) notify(place)
  }
  const listed = (items: readonly ApiPod[]): void => {
    pods.clear()
    const names = new Set(items.flatMap(({ metadata: { name } = {} }) => name ?? []))
    courier?.keep(names)
    // Pods that disappeared while no change arrived.
    for (const times of [deletingSince, hopelessSince])
      for (const name of times.keys()) if (!names.has(name)) times.delete(name)
    for (const item of items) note(item)
  }
  const deleted = (api: ApiPod): void => {
    const { name } = api.metadata ?? {}
    if (name !== undefined) for (const times of [deletingSince, hopelessSince]) times.delete(name)
    const pod = taskPodOf(api)
    if (pod === undefined) return
    courier?.drop(pod.name)
    const place = podKey(pod.job, pod.index)
    if (pods.get(place)?.name === pod.name) pods.delete(place)
    // Its last state: the leaving Pod holds the eviction.
    if (isPodOver(pod) || pod.disruption !== undefined)
      gone.set(place, pod.courier === undefined ? pod : { ...pod, courier: 'over' })
    notify(place)
  }

  const ask = kept(Math.max(1000, pollMilliseconds * 0.9), async (): Promise<ClusterAnswer> => {
    const asked = performance.now()
    const [found, jobs, events] = await Promise.all([
      cluster.list<ApiPod>(paths.pods, { labelSelector: ours }),
      cluster.list<ApiJob>(paths.jobs, { labelSelector: ours }),
      cluster
        .list<ApiEvent>(paths.events, { fieldSelector: 'involvedObject.kind=Job,reason=FailedCreate' })
        .catch(() => ({ items: [] as ApiEvent[] })),
    ])
    return {
      pods: podsOf(found.items),
      jobs: new Map(jobs.items.map((job) => [job.metadata?.name ?? '', job])),
      words: new Map(
        events.items.map(({ involvedObject, message = '' }) => [involvedObject?.name ?? '', message]),
      ),
      at: asked,
    }
  })

  return {
    follow() {
      if (closed) return
      stop ??= cluster.watch<ApiPod>(
        paths.pods,
        { labelSelector: ours },
        {
          listed,
          changed: (how, api) => (how === 'DELETED' ? deleted(api) : note(api)),
          standing: (now) => (standing = now),
        },
      )
    },
    standing: () => standing,
    seen: ({ array, index }) => pods.get(podKey(array, index)) ?? gone.get(podKey(array, index)),
    here: ({ array, index }) => pods.get(podKey(array, index)),
    spent({ name }) {
      const seconds = (times: Map<string, number>): number => {
        const from = standing ? times.get(name) : undefined
        return from === undefined ? 0 : (performance.now() - from) / 1000
      }
      return { deleting: seconds(deletingSince), pulling: seconds(hopelessSince) }
    },
    ask,
    expect: ({ array, index }, name) => void namesAt.set(podKey(array, index), name),
    settled: ({ array, index }) => void namesAt.delete(podKey(array, index)),
    forget({ array, index }) {
      for (const memory of [namesAt, gone]) memory.delete(podKey(array, index))
    },
    onEnds(ended) {
      listeners.add(ended)
      return () => void listeners.delete(ended)
    },
    close() {
      closed = true
      stop?.()
    },
  }
}
