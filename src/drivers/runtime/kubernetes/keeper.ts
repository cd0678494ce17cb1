import { setTimeout as sleep } from 'node:timers/promises'
import { openBackoff } from '../../../pacing/backoff.ts'
import type { KubernetesCluster } from '../../../clients/kubernetes-cluster.ts'
import type { ExecChannel } from '../../../clients/kubernetes-exec.ts'
import { KubernetesError } from '../../../clients/kubernetes.ts'
import { containerSpec, keyOf, labels, podSpec } from './job.ts'
import type { ApiPod } from './pods.ts'
import type { KubernetesSettings } from './settings.ts'

export interface KeeperOptions {
  cluster: Pick<KubernetesCluster, 'request' | 'exec'>
  namespace: string
  runtime: string
  settings: KubernetesSettings
}

const containerName = 'keeper'
const keeperSeconds = 86_400
const patienceMs = 180_000
/** What the kubelet needs to say that the container it runs is gone. */
const doubtedMs = 2000

/** A Pod that only waits; its end is immediate, as whatever it runs may be run again. */
const manifest = (name: string, { namespace, runtime, settings }: KeeperOptions): object => {
  const volume = settings.volume ?? settings.keeperVolume
  return {
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: {
      name,
      namespace,
      labels: {
        ...settings.labels,
        'app.kubernetes.io/managed-by': 'orrery',
        [labels.runtime]: keyOf(runtime),
        [labels.part]: 'keeper',
      },
      ...(volume === undefined ? { annotations: { 'cluster-autoscaler.kubernetes.io/safe-to-evict': 'false' } } : {}),
    },
    spec: {
      ...podSpec(settings, {}, volume),
      terminationGracePeriodSeconds: 0,
      // One that nobody needs any more is gone after this; one that is needed is made again, but not what it alone has.
      ...(volume === undefined ? {} : { activeDeadlineSeconds: keeperSeconds }),
      restartPolicy: 'Always',
      containers: [
        {
          name: containerName,
          image: settings.helperImage,
          // The first process of a container has no signals but those it catches, and reaps what others leave.
          command: ['/bin/sh', '-c', "trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done"],
          // It only waits: a share of a processor would keep a task from a node that is planned full. Quotas want it said.
          resources: { requests: { cpu: '0', memory: '32Mi' } },
          ...containerSpec(settings, volume),
        },
      ],
    },
  }
}

/** Name of the Pod that keeps the files of a runtime. */
export const keeperName = (runtime: string): string => `orrery-keeper-${keyOf(runtime)}`

/** Why a Pod does not run, in the cluster's words. */
const words = ({ status = {} }: ApiPod): string => {
  const { waiting, terminated } = status.containerStatuses?.[0]?.state ?? {}
  const scheduled = status.conditions?.find(({ type, status: now }) => type === 'PodScheduled' && now === 'False')
  const told = [
    waiting?.reason,
    waiting?.message,
    terminated?.reason,
    terminated?.message,
    scheduled?.reason,
    scheduled?.message,
    status.reason,
    status.message,
  ]
  const said = told.filter((word) => word !== undefined && word !== '').join(': ')
  return said === '' ? (status.phase ?? 'no state') : said
}

const isReady = ({ metadata = {}, status = {} }: ApiPod): boolean =>
  metadata.deletionTimestamp === undefined &&
  status.phase === 'Running' &&
  status.containerStatuses?.[0]?.ready === true &&
  // A node that is silent leaves its Pods as they were, but for this.
  status.conditions?.find(({ type }) => type === 'Ready')?.status !== 'False'

/**
 * The Pod through which the volume of a runtime is reached: one per runtime, under a name that every worker knows, made at first use and made
 * again when it is gone. What it runs can be run again, so that its end costs nothing but the wait for the next one; where it has neither `volume`
 * nor `keeperVolume`, its files go with it.
 *
 * @returns opens a command in it, wherever it is now. Rejects with `KubernetesError`.
 */
export function openKeeper(options: KeeperOptions): (command: readonly string[], deadlineMs: number) => Promise<ExecChannel> {
  const { cluster, namespace, runtime, settings } = options
  // What is in its own folder goes with it: its node is waited for as long as the cluster does.
  const patience = settings.volume === undefined && settings.keeperVolume === undefined ? settings.nodeLostSeconds * 1000 : 20_000
  const name = keeperName(runtime)
  const folder = `/api/v1/namespaces/${namespace}/pods`
  const path = `${folder}/${name}`
  let ready: Promise<void> | undefined

  const look = (): Promise<ApiPod | undefined> =>
    cluster.request<ApiPod>({ path }).catch((error: unknown) => {
      if (error instanceof KubernetesError && error.status === 404) return undefined
      throw error
    })
  const unless =
    (...statuses: number[]) =>
    (error: unknown): undefined => {
      if (error instanceof KubernetesError && error.status !== undefined && statuses.includes(error.status)) return undefined
      throw error
    }

  const ensure = async (): Promise<void> => {
    const until = performance.now() + patienceMs
    let notReadySince: number | undefined
    for (const backoff = openBackoff({ firstMs: 100, longestMs: 1000, growth: 1.5 }); ;) {
      const pod = await look()
      if (pod !== undefined && isReady(pod)) return
      const { phase } = pod?.status ?? {}
      if (pod === undefined) {
        // A namespace that is not there is told with its name.
        await cluster.request({ verb: 'create', path: folder, body: manifest(name, options) }).catch(unless(409))
      } else if (pod.metadata?.deletionTimestamp !== undefined || phase === 'Failed' || phase === 'Succeeded') {
        await forget(pod)
      } else if (phase === 'Running') {
        // Its node is silent, or its container starts again.
        notReadySince ??= performance.now()
        if (performance.now() - notReadySince > patience) await forget(pod)
      }
      if (performance.now() > until)
        throw new KubernetesError(
          'login',
          `the keeper, Pod ${name} in namespace ${namespace}, does not run: ${pod === undefined ? 'it was not made' : words(pod)}`,
        )
      await backoff.pause()
    }
  }
  /** Only this very one: another worker may have made the next already. */
  const forget = async ({ metadata = {} }: ApiPod): Promise<void> => {
    const preconditions = metadata.uid === undefined ? {} : { preconditions: { uid: metadata.uid } }
    await cluster
      .request({ verb: 'delete', path, body: { apiVersion: 'v1', kind: 'DeleteOptions', gracePeriodSeconds: 0, ...preconditions } })
      .catch(unless(404, 409))
  }
  const whenReady = (): Promise<void> => {
    if (ready === undefined) {
      const asked = ensure()
      ready = asked
      asked.catch(() => ready === asked && (ready = undefined))
    }
    return ready
  }

  return async (command, deadlineMs) => {
    const until = performance.now() + Math.max(deadlineMs, doubtedMs)
    for (let wait = 200; ; wait = Math.min(wait * 2, doubtedMs)) {
      const left = until - performance.now()
      const asked = whenReady()
      const timer = new AbortController()
      const late = sleep(Math.max(1, left), undefined, { signal: timer.signal }).then(
        () => {
          throw new KubernetesError(
            'login',
            `the keeper, Pod ${name} in namespace ${namespace}, was not ready within ${Math.round(deadlineMs / 1000)} s`,
          )
        },
        () => undefined,
      )
      try {
        await Promise.race([asked, late])
        return await cluster.exec({
          namespace,
          pod: name,
          container: containerName,
          command,
          deadlineMs: Math.min(15_000, Math.max(1000, left)),
        })
      } catch (error) {
        // It may be gone: it is looked for again.
        if (ready === asked) ready = undefined
        const useless =
          error instanceof KubernetesError && (error.permanent || error.status === 401 || error.status === 403 || error.status === 422)
        if (useless || performance.now() + wait > until) throw error
      } finally {
        timer.abort()
      }
      await sleep(wait)
    }
  }
}
