import type { KubernetesCluster } from '../../../clients/kubernetes-cluster.ts'
import { openPodShell } from '../../../clients/kubernetes-shell.ts'
import type { SiteShell } from '../../../shell/site-shell.ts'
import { openBatchDriver } from '../batch/driver.ts'
import { openBatchSite } from '../batch/site.ts'
import type { RootedDriver } from '../contract/rooted.ts'
import { outputPatienceIn } from '../remote/context.ts'
import { kubernetesAdapter } from './adapter.ts'
import { openCourier } from './courier/courier.ts'
import { deletePods } from './jobs.ts'
import { openKeeper } from './keeper.ts'
import { namespaceOf } from './namespace.ts'
import type { TaskPod } from './pods.ts'
import { settingsOf, type KubernetesSettings } from './settings.ts'

export interface ClusterAccess {
  cluster: Pick<KubernetesCluster, 'request' | 'list' | 'watch' | 'exec' | 'log'>
  namespace: string
  /**
   * Id of the runtime: it names the keeper, labels our objects, and appears in messages and
   * manifests.
   */
  runtime: string
  /**
   * volume ({persistentVolumeClaim} | {hostPath} | {nfs}, with mountPath), or none: files are then
   * carried between the keeper and the Pods of tasks, and the keeper has them on keeperVolume (of
   * the same form; ReadWriteOnce is enough). Without keeperVolume they are in the keeper's Pod and
   * lost with it, with all tasks that were not over and the outputs of those that were. root
   * (default /orrery), helperImage, image, toolsPath, nodeSelector, tolerations, priorityClassName,
   * imagePullSecrets, runtimeClassName, affinity, imagePullPolicy, podLabels, podAnnotations,
   * runAsUser, runAsGroup, fsGroup, confined, gpuResource, overcommit (default 1),
   * pullPatienceSeconds (300), settleSeconds (10), claimSeconds (60), nodeLostSeconds (300),
   * outputPatienceSeconds (60),
   * ttlSecondsAfterFinished (86,400).
   */
  configuration: Readonly<Record<string, unknown>>
}

/** Nothing of a buried task runs in its Pod, whose containers end at the request. */
const buriedGraceSeconds = 30

export interface KubernetesDriverOptions extends ClusterAccess {
  /** The keeper's shell: `openKubernetesShell`. Transfers share it; its opener closes it. */
  shell: SiteShell
  taskVariable: string
  /** Pause between two looks at everything, default 5 s. */
  pollMilliseconds?: number
}

/**
 * The site's shell: a Pod with the runtime's volume, made at the first script. Rejects with
 * `DriverError` `refused` for a wrong configuration.
 */
export function openKubernetesShell({
  cluster,
  namespace,
  runtime,
  configuration,
}: ClusterAccess): SiteShell {
  let keeper: ReturnType<typeof openKeeper> | undefined
  return openPodShell({
    exec: async (command, deadlineMs) => {
      keeper ??= openKeeper({ cluster, namespace, runtime, settings: settingsOf(configuration) })
      return keeper(command, deadlineMs)
    },
  })
}

/**
 * Tasks as indexes of Kubernetes' Jobs: `batch/driver.ts` over a namespace. The tasks record what
 * they do on the runtime's volume, or their records are carried there. Their Pods, which one watch
 * follows, show why the cluster ended a task.
 *
 * A Job has a name of its own, an index is tried once, and the task's own record refuses a second
 * start.
 */
export function openKubernetesDriver(options: KubernetesDriverOptions): RootedDriver {
  const { cluster, namespace, runtime, configuration, shell, taskVariable, pollMilliseconds = 5000 } = options
  let read: KubernetesSettings | undefined
  const settings = (): KubernetesSettings => (read ??= settingsOf(configuration))
  const root = typeof configuration['root'] === 'string' ? configuration['root'] : '/orrery'
  const site = openBatchSite({
    ...{ shell, runtime, taskVariable, root, inImage: true },
    ...outputPatienceIn(configuration),
  })
  // The first call rejects with the fault of the configuration.
  const carried = configuration['volume'] === undefined
  const at = namespaceOf(cluster, namespace, runtime)
  const end = ({ job, index }: TaskPod): Promise<void> =>
    deletePods(at, [{ array: job, index }], buriedGraceSeconds)
  const courier = carried
    ? openCourier({ cluster, namespace, shell: site.shell, root: site.root, end })
    : undefined
  const adapter = kubernetesAdapter({
    site,
    at,
    settings,
    courier,
    pollMilliseconds,
  })
  return openBatchDriver(site, adapter, { pollMilliseconds })
}
