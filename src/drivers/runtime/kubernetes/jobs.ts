import type { KubernetesError } from '../../../clients/kubernetes.ts'
import type { BatchElement } from '../batch/scheduler.ts'
import { labels } from './job.ts'
import type { Namespace } from './namespace.ts'
import type { ApiJob } from './pods.ts'
import { asked, isStatus, kubernetesTrouble } from './trouble.ts'

/** Indexes in one deletion: they are part of its URL. */
const indexesAtOnce = 300

/**
 * Creates a Job; an existing one is the same, because its name is a hash of its tasks. Rejects with
 * `KubernetesError`.
 */
export async function createJob({ cluster, paths }: Namespace, body: object): Promise<void> {
  try {
    await cluster.request({ verb: 'create', path: paths.jobs, body })
  } catch (error) {
    if (!isStatus(error, 409) || (error as KubernetesError).reason !== 'AlreadyExists') throw error
  }
}

/** Undefined: the server has none of this name. Rejects with `DriverError`. */
export async function jobNamed({ cluster, paths }: Namespace, job: string): Promise<ApiJob | undefined> {
  try {
    return await cluster.request<ApiJob>({ path: `${paths.jobs}/${job}` })
  } catch (error) {
    if (isStatus(error, 404)) return undefined
    throw kubernetesTrouble(error)
  }
}

/** An index whose Pod is deleted has failed, and is not tried again. */
export async function deletePods(
  { cluster, paths }: Namespace,
  elements: readonly Pick<BatchElement, 'array' | 'index'>[],
  graceSeconds: number,
): Promise<void> {
  for (const [job, own] of Map.groupBy(elements, ({ array }) => array))
    for (let from = 0; from < own.length; from += indexesAtOnce) {
      const indexes = own.slice(from, from + indexesAtOnce).map(({ index }) => index)
      await asked(
        cluster.request({
          verb: 'delete',
          path: paths.pods,
          query: { labelSelector: `${labels.job}=${job},${labels.index} in (${indexes.join(',')})` },
          body: { apiVersion: 'v1', kind: 'DeleteOptions', gracePeriodSeconds: Math.ceil(graceSeconds) },
        }),
      )
    }
}

export async function deleteJobs({ cluster, paths }: Namespace, jobs: Iterable<string>): Promise<void> {
  const body = { apiVersion: 'v1', kind: 'DeleteOptions', propagationPolicy: 'Background' }
  for (const job of jobs)
    await asked(
      cluster.request({ verb: 'delete', path: `${paths.jobs}/${job}`, body }).catch((error: unknown) => {
        if (!isStatus(error, 404)) throw error
      }),
    )
}
