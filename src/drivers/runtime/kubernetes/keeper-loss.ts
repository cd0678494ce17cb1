import type { BatchScheduler } from '../batch/scheduler.ts'
import type { Courier } from './courier/courier.ts'
import { annotations, type TaskJob } from './job.ts'
import { deletePods } from './jobs.ts'
import type { Namespace } from './namespace.ts'
import type { ApiJob } from './pods.ts'
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
   * The tasks of Jobs whose files were lost with an earlier keeper. Their Pods are deleted: their
   * results are of no use.
   */
  strays: NonNullable<BatchScheduler<never, never>['strays']>
}

const cause =
  'the Pod of the keeper is gone, and the files of the task with it; keeperVolume would have kept them'
const endGraceSeconds = 30

export function openKeeperLoss(at: Namespace, courier: Courier): KeeperLoss {
  const { cluster, paths, ours } = at
  /** Elements whose Pods were deleted. */
  const ended = new Set<string>()
  /** The token of the keeper that has the files of all existing Jobs: later Jobs are its too. */
  let onlyKeeper = ''

  return {
    marksOf: async ({ tasks }) => ({
      [annotations.keeper]: await courier.keeperToken(),
      [annotations.names]: tasks.join(' '),
    }),
    async strays(names) {
      const lost: Awaited<ReturnType<KeeperLoss['strays']>> = new Map()
      if (names.length === 0) return lost
      const token = await courier.keeperToken()
      if (token === onlyKeeper) return lost
      const { items } = await asked(cluster.list<ApiJob>(paths.jobs, { labelSelector: ours }))
      if (
        items.every(({ metadata }) =>
          [undefined, token].includes(metadata?.annotations?.[annotations.keeper]),
        )
      )
        onlyKeeper = token
      const wanted = new Set(names)
      const elements: { array: string; index: number }[] = []
      for (const { metadata: { name: job = '', annotations: marks = {} } = {} } of items) {
        if (marks[annotations.keeper] === undefined || marks[annotations.keeper] === token) continue
        for (const [index, name] of (marks[annotations.names] ?? '').split(' ').entries()) {
          if (!wanted.has(name)) continue
          const externalId = indexedName({ array: job, index, submittedAt: 0 })
          lost.set(name, { state: 'lost', externalId, startedAt: Date.now() / 1000, cause })
          if (!ended.has(externalId)) elements.push({ array: job, index })
        }
      }
      await deletePods(at, elements, endGraceSeconds)
      for (const { array, index } of elements) ended.add(`${array}-${index}`)
      return lost
    },
  }
}
