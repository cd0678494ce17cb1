import { setTimeout as sleep } from 'node:timers/promises'
import { openBackoff } from '../../../pacing/backoff.ts'
import { leftOf, within } from '../../../pacing/within.ts'
import type { KubernetesCluster } from '../../../clients/kubernetes-cluster.ts'
import type { ExecChannel } from '../../../clients/kubernetes-exec.ts'
import { isRefusal, KubernetesError } from '../../../clients/kubernetes.ts'
import { containerSpec, keyOf, podSpec } from './job.ts'
import { openOwnPod, podReason, waitingPod } from './own-pod.ts'
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

/** The Pod ends at once, because all its commands may be repeated. */
const manifest = (name: string, options: KeeperOptions): object => {
  const { settings } = options
  const volume = settings.volume ?? settings.keeperVolume
  return waitingPod(name, options, {
    part: 'keeper',
    annotations:
      volume === undefined ? { 'cluster-autoscaler.kubernetes.io/safe-to-evict': 'false' } : undefined,
    spec: {
      ...podSpec(settings, {}, volume),
      terminationGracePeriodSeconds: 0,
      // An unused Pod is gone after this time; a Pod in use is made again, but not the files that
      // it alone has.
      ...(volume === undefined ? {} : { activeDeadlineSeconds: keeperSeconds }),
      restartPolicy: 'Always',
    },
    container: { name: containerName, image: settings.helperImage, ...containerSpec(settings, volume) },
  })
}

/** Name of the Pod that keeps the files of a runtime. */
export const keeperName = (runtime: string): string => `orrery-keeper-${keyOf(runtime)}`

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
  const own = openOwnPod(cluster, namespace, name)
  let ready: Promise<void> | undefined

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
      const pod = await own.look()
      if (pod !== undefined && isReady(pod)) return
      const { phase } = pod?.status ?? {}
      if (pod === undefined) {
        // The error names a namespace that does not exist.
        await own.create(manifest(name, options)).catch(forGood)
      } else if (
        pod.metadata?.deletionTimestamp !== undefined ||
        phase === 'Failed' ||
        phase === 'Succeeded'
      ) {
        // Another worker may have made the next one already.
        await own.remove(pod.metadata?.uid)
      } else if (phase === 'Running') {
        // Its node is silent, or its container is restarting.
        notReadySince ??= performance.now()
        if (performance.now() - notReadySince > patience) await own.remove(pod.metadata?.uid)
      }
      if (performance.now() > until)
        throw new KubernetesError(
          'login',
          `the keeper, Pod ${name} in namespace ${namespace}, does not run: ` +
            (pod === undefined ? 'it was not made' : podReason(pod) || (phase ?? 'no state')),
        )
      await backoff.pause()
    }
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
  const own = openOwnPod(cluster, namespace, keeperName(runtime))
  return {
    isThere: async (): Promise<boolean> => (await own.look()) !== undefined,
    /** A later use makes it again. */
    remove: (): Promise<boolean> => own.remove(),
  }
}
