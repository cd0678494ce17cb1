import type { BatchScheduler } from '../batch/scheduler.ts'
import type { Courier } from './courier/courier.ts'
import { annotations, type TaskJob } from './job.ts'
import { deletePods } from './jobs.ts'
import type { Namespace } from './namespace.ts'
import { isPodOver, podKey, podsOf, type ApiJob, type ApiPod, type TaskPod } from './pods.ts'
import { indexedName } from './state.ts'
import { asked } from './trouble.ts'

/**
 * Where the keeper has the files in a folder of its Pod, they are lost with it: a Job's annotations
 * are then all that is left of its tasks.
 */
export interface KeeperLoss {
  /** Annotations of a Job that distinguish its tasks from those of a lost keeper. */
  marksOf(job: TaskJob): Promise<Readonly<Record<string, string>>>
  /**
   * The tasks of Jobs whose files were lost with an earlier keeper. Their Pods are deleted, as their
   * results are of no use; a task is lost once its Pod has ended.
   */
  strays: NonNullable<BatchScheduler<never, never>['strays']>
}

const cause =
  'the Pod of the keeper is gone, and the files of the task with it; keeperVolume would have kept them'
const endGraceSeconds = 30
const ending = ({ name, node = 'unknown' }: TaskPod): string =>
  `Pod ${name} on node ${node} has to end first: while the node does not answer, it may still run`

export function openKeeperLoss(at: Namespace, courier: Courier): KeeperLoss {
  const { cluster, paths, ours } = at
  /** The token of the keeper that has the files of all existing Jobs: later Jobs are its too. */
  let onlyKeeper = ''

  return {
    marksOf: async ({ tasks }) => ({
      [annotations.keeper]: await courier.keeperToken(),
      [annotations.names]: tasks.join(' '),
    }),
    async strays(names) {
      const found: Awaited<ReturnType<KeeperLoss['strays']>> = new Map()
      if (names.length === 0) return found
      const token = await courier.keeperToken()
      if (token === onlyKeeper) return found
      const { items } = await asked(cluster.list<ApiJob>(paths.jobs, { labelSelector: ours }))
      if (
        items.every(({ metadata }) =>
          [undefined, token].includes(metadata?.annotations?.[annotations.keeper]),
        )
      )
        onlyKeeper = token
      const wanted = new Set(names)
      const strayed = items.flatMap(({ metadata: { name: array = '', annotations: marks = {} } = {} }) =>
        [undefined, token].includes(marks[annotations.keeper])
          ? []
          : (marks[annotations.names] ?? '')
              .split(' ')
              .flatMap((name, index) => (wanted.has(name) ? [{ name, array, index }] : [])),
      )
      if (strayed.length === 0) return found
      const pods = podsOf((await asked(cluster.list<ApiPod>(paths.pods, { labelSelector: ours }))).items)
      const elements: { array: string; index: number }[] = []
      for (const { name, array, index } of strayed) {
        const externalId = indexedName({ array, index, submittedAt: 0 })
        const pod = pods.get(podKey(array, index))
        const startedAt = Date.now() / 1000
        found.set(
          name,
          pod === undefined || isPodOver(pod)
            ? { state: 'lost', externalId, startedAt, cause }
            : { state: 'running', externalId, startedAt, cause: `${cause}; ${ending(pod)}` },
        )
        if (pod !== undefined && pod.deleting === undefined) elements.push({ array, index })
      }
      await deletePods(at, elements, endGraceSeconds)
      return found
    },
  }
}
