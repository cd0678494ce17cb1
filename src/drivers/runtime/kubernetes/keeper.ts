import { setTimeout as sleep } from 'node:timers/promises'
import { openBackoff } from '../../../pacing/backoff.ts'
import { leftOf, within } from '../../../pacing/within.ts'
import type { KubernetesCluster } from '../../../clients/kubernetes-cluster.ts'
import type { ExecChannel } from '../../../clients/kubernetes-exec.ts'
import { isRefusal, KubernetesError } from '../../../clients/kubernetes.ts'
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
/** Time that the kubelet needs to report that a container is gone. */
const doubtedMs = 2000

/** A Pod that only waits; it ends at once, because all its commands may be repeated. */
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
      ...(volume === undefined
        ? { annotations: { 'cluster-autoscaler.kubernetes.io/safe-to-evict': 'false' } }
        : {}),
    },
    spec: {
      ...podSpec(settings, {}, volume),
      terminationGracePeriodSeconds: 0,
      // An unused Pod is gone after this time; a Pod in use is made again, but not the files that
      // it alone has.
      ...(volume === undefined ? {} : { activeDeadlineSeconds: keeperSeconds }),
      restartPolicy: 'Always',
      containers: [
        {
          name: containerName,
          image: settings.helperImage,
          // The first process of a container receives only the signals that it catches, and reaps
          // orphans.
          command: ['/bin/sh', '-c', "trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done"],
          // It only waits: a share of a processor would keep a task from a node that is planned
          // full. Quotas need the explicit value.
          resources: { requests: { cpu: '0', memory: '32Mi' } },
          ...containerSpec(settings, volume),
        },
      ],
    },
  }
}

/** Name of the Pod that keeps the files of a runtime. */
export const keeperName = (runtime: string): string => `orrery-keeper-${keyOf(runtime)}`

/** Why a Pod does not run, in the cluster's message. */
const stateText = ({ status = {} }: ApiPod): string => {
  const { waiting, terminated } = status.containerStatuses?.[0]?.state ?? {}
  const scheduled = status.conditions?.find(
    ({ type, status: now }) => type === 'PodScheduled' && now === 'False',
  )
  const reasons = [
    waiting?.reason,
    waiting?.message,
    terminated?.reason,
    terminated?.message,
    scheduled?.reason,
    scheduled?.message,
    status.reason,
    status.message,
  ]
  const text = reasons.filter((word) => word !== undefined && word !== '').join(': ')
  return text === '' ? (status.phase ?? 'no state') : text
}

const isReady = ({ metadata = {}, status = {} }: ApiPod): boolean =>
  metadata.deletionTimestamp === undefined &&
  status.phase === 'Running' &&
  status.containerStatuses?.[0]?.ready === true &&
  // A silent node leaves its Pods unchanged, except for this condition.
  status.conditions?.find(({ type }) => type === 'Ready')?.status !== 'False'

/**
 * The Pod through which the volume of a runtime is reached: one per runtime, under a name that
 * every worker derives, made at first use and made again when it is gone. All its commands may be
 * repeated, so its end costs only the wait for the next one; where it has neither `volume` nor
 * `keeperVolume`, its files go with it.
 *
 * @returns the function that opens a command in the present Pod. Rejects with `KubernetesError`.
 */
export function openKeeper(
  options: KeeperOptions,
): (command: readonly string[], deadlineMs: number) => Promise<ExecChannel> {
  const { cluster, namespace, runtime, settings } = options
  // Files in its own folder are lost with it: the wait for its node is as long as the cluster's.
  const patience =
    settings.volume === undefined && settings.keeperVolume === undefined
      ? settings.nodeLostSeconds * 1000
      : 20_000
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
      if (error instanceof KubernetesError && error.status !== undefined && statuses.includes(error.status))
        return undefined
      throw error
    }

  /** What the server refuses to make it will refuse again; a command in a Pod may find another Pod. */
  const forGood = (error: unknown): never => {
    if (!(error instanceof KubernetesError) || !isRefusal(error.status)) throw error
    const { status, stage, message } = error
    const words = `the keeper, Pod ${name} in namespace ${namespace}, cannot be made: ${message}`
    throw new KubernetesError(stage, words, {
      cause: error,
      permanent: true,
      ...(status === undefined ? {} : { status }),
    })
  }

  const ensure = async (): Promise<void> => {
    const until = performance.now() + patienceMs
    let notReadySince: number | undefined
    for (const backoff = openBackoff({ firstMs: 100, longestMs: 1000, growth: 1.5 }); ;) {
      const pod = await look()
      if (pod !== undefined && isReady(pod)) return
      const { phase } = pod?.status ?? {}
      if (pod === undefined) {
        // The error names a namespace that does not exist.
        await cluster
          .request({ verb: 'create', path: folder, body: manifest(name, options) })
          .catch(unless(409))
          .catch(forGood)
      } else if (
        pod.metadata?.deletionTimestamp !== undefined ||
        phase === 'Failed' ||
        phase === 'Succeeded'
      ) {
        await forget(pod)
      } else if (phase === 'Running') {
        // Its node is silent, or its container is restarting.
        notReadySince ??= performance.now()
        if (performance.now() - notReadySince > patience) await forget(pod)
      }
      if (performance.now() > until)
        throw new KubernetesError(
          'login',
          `the keeper, Pod ${name} in namespace ${namespace}, does not run: ` +
            (pod === undefined ? 'it was not made' : stateText(pod)),
        )
      await backoff.pause()
    }
  }
  /** Deletes only this Pod: another worker may have made the next one already. */
  const forget = async ({ metadata = {} }: ApiPod): Promise<void> => {
    const preconditions = metadata.uid === undefined ? {} : { preconditions: { uid: metadata.uid } }
    await cluster
      .request({
        verb: 'delete',
        path,
        body: { apiVersion: 'v1', kind: 'DeleteOptions', gracePeriodSeconds: 0, ...preconditions },
      })
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
    for (const backoff = openBackoff({ firstMs: 200, longestMs: doubtedMs }); ;) {
      const left = until - performance.now()
      const asked = whenReady()
      let pause: number
      const late = () =>
        new KubernetesError(
          'login',
          `the keeper, Pod ${name} in namespace ${namespace}, was not ready within ` +
            `${Math.round(deadlineMs / 1000)} s`,
        )
      try {
        await within(asked, leftOf(until), late)
        return await cluster.exec({
          namespace,
          pod: name,
          container: containerName,
          command,
          deadlineMs: Math.min(15_000, Math.max(1000, left)),
        })
      } catch (error) {
        // It may be gone: the next call looks it up again.
        if (ready === asked) ready = undefined
        const useless =
          error instanceof KubernetesError &&
          (error.permanent || error.status === 401 || error.status === 403 || error.status === 422)
        pause = backoff.next()
        if (useless || performance.now() + pause > until) throw error
      }
      await sleep(pause)
    }
  }
}

/** Removes a keeper that may be unused. */
export const openKeeperEnd = ({
  cluster,
  namespace,
  runtime,
}: Pick<KeeperOptions, 'namespace' | 'runtime'> & { cluster: Pick<KubernetesCluster, 'request'> }) => {
  const path = `/api/v1/namespaces/${namespace}/pods/${keeperName(runtime)}`
  const unlessGone = async (work: Promise<unknown>): Promise<boolean> => {
    try {
      await work
      return true
    } catch (error) {
      if (error instanceof KubernetesError && error.status === 404) return false
      throw error
    }
  }
  return {
    isThere: (): Promise<boolean> => unlessGone(cluster.request({ path })),
    /** A later use makes it again. */
    remove: (): Promise<boolean> =>
      unlessGone(
        cluster.request({
          ...{ verb: 'delete', path },
          body: { apiVersion: 'v1', kind: 'DeleteOptions', gracePeriodSeconds: 0 },
        }),
      ),
  }
}
