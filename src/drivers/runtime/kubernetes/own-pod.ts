import type { KubernetesCluster } from '../../../clients/kubernetes-cluster.ts'
import { KubernetesError } from '../../../clients/kubernetes.ts'
import { keyOf, labels } from './job.ts'
import type { ApiPod } from './pods.ts'
import type { KubernetesSettings } from './settings.ts'

/** A Pod of a runtime that only waits for commands. Part, annotations, spec and container differ. */
export const waitingPod = (
  name: string,
  { namespace, runtime, settings }: { namespace: string; runtime: string; settings: KubernetesSettings },
  own: {
    part: 'keeper' | 'console'
    annotations: Record<string, string> | undefined
    spec: object
    /** Its name, image and mounts. */
    container: object
  },
): object => ({
  apiVersion: 'v1',
  kind: 'Pod',
  metadata: {
    name,
    namespace,
    labels: {
      ...settings.labels,
      'app.kubernetes.io/managed-by': 'orrery',
      [labels.runtime]: keyOf(runtime),
      [labels.part]: own.part,
    },
    annotations: own.annotations,
  },
  spec: {
    ...own.spec,
    containers: [
      {
        // The first process of a container receives only the signals that it catches, and reaps
        // orphans.
        command: ['/bin/sh', '-c', "trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done"],
        // It mostly waits: a share of a processor would keep a task from a node that is planned
        // full. Quotas need the explicit value.
        resources: { requests: { cpu: '0', memory: '32Mi' } },
        ...own.container,
      },
    ],
  },
})

/** Why a Pod does not run, in the cluster's message; '' where it gives no reason. */
export const podReason = ({ metadata = {}, status = {} }: ApiPod): string => {
  const condition = (type: string, value: string) =>
    status.conditions?.find((one) => one.type === type && one.status === value)
  const { waiting, terminated } = status.containerStatuses?.[0]?.state ?? {}
  const sources = [
    status,
    condition('DisruptionTarget', 'True'),
    waiting,
    terminated,
    condition('PodScheduled', 'False'),
  ]
  const because = sources
    .flatMap((source) => [source?.reason, source?.message])
    .filter((text) => text !== undefined && text !== '')
    .join(': ')
  return because === '' && metadata.deletionTimestamp !== undefined ? 'it is being deleted' : because
}

/** Looks a Pod of the service up by its name, creates and removes it. Calls reject with `KubernetesError`. */
export const openOwnPod = (cluster: Pick<KubernetesCluster, 'request'>, namespace: string, name: string) => {
  const folder = `/api/v1/namespaces/${namespace}/pods`
  const path = `${folder}/${name}`
  const unless =
    (...statuses: number[]) =>
    (error: unknown): undefined => {
      if (error instanceof KubernetesError && error.status !== undefined && statuses.includes(error.status))
        return undefined
      throw error
    }
  return {
    look: (): Promise<ApiPod | undefined> => cluster.request<ApiPod>({ path }).catch(unless(404)),
    /** One that is there already stays. */
    create: (body: object): Promise<unknown> =>
      cluster.request({ verb: 'create', path: folder, body }).catch(unless(409)),
    /** Deletes the Pod at once; where a uid is given, only that Pod. @returns whether there was one */
    remove: async (uid?: string): Promise<boolean> => {
      const preconditions = uid === undefined ? {} : { preconditions: { uid } }
      const body = { apiVersion: 'v1', kind: 'DeleteOptions', gracePeriodSeconds: 0, ...preconditions }
      const missing = uid === undefined ? [404] : [404, 409]
      const done = cluster.request({ verb: 'delete', path, body }).then(() => true)
      return (await done.catch(unless(...missing))) ?? false
    },
  }
}
