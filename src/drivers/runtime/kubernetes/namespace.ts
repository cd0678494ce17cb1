import type { KubernetesCluster } from '../../../clients/kubernetes-cluster.ts'
import { keyOf, labels } from './job.ts'

/** A namespace of a cluster, and the selector of this runtime's objects. */
export interface Namespace {
  cluster: Pick<KubernetesCluster, 'request' | 'list' | 'watch' | 'exec' | 'log'>
  namespace: string
  /** Label selector of the runtime's Jobs and their Pods. */
  ours: string
  paths: { pods: string; jobs: string; events: string; claims: string }
}

export const namespaceOf = (
  cluster: Namespace['cluster'],
  namespace: string,
  runtime: string,
): Namespace => ({
  cluster,
  namespace,
  ours: `${labels.runtime}=${keyOf(runtime)},${labels.part}=task`,
  paths: {
    pods: `/api/v1/namespaces/${namespace}/pods`,
    jobs: `/apis/batch/v1/namespaces/${namespace}/jobs`,
    events: `/api/v1/namespaces/${namespace}/events`,
    claims: `/api/v1/namespaces/${namespace}/persistentvolumeclaims`,
  },
})
