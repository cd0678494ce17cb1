import { ActivityCancellationType, proxyActivities, workflowInfo } from '@temporalio/workflow'
import type { StorageIndexActivities } from '../activities/storage-index.ts'
import type { Headline } from '../src/page-details.ts'
import { durably, takenAt, takenPatiently } from './operation.ts'

const patient = {
  initialInterval: '200 milliseconds',
  backoffCoefficient: 2,
  maximumInterval: '30 seconds',
} as const
const { placeStorageIndex } = proxyActivities<StorageIndexActivities>({
  summary: 'which workers reach the storage',
  startToCloseTimeout: '1 minute',
  retry: patient,
})

/** One index run of a storage: its directories are compared, then the differences recorded. */
export async function storageIndex(
  id: string,
  generation: number,
  headline?: Headline,
  key?: string,
): Promise<void> {
  const live = { phase: 'placing' }
  let taskQueue: string | undefined
  const there = (summary: string, more: object = {}) =>
    proxyActivities<StorageIndexActivities>({
      ...{ summary, startToCloseTimeout: '1 day', heartbeatTimeout: '10 seconds', ...takenPatiently },
      // A storage that does not answer is retried for about an hour.
      retry: { ...patient, maximumAttempts: 120 },
      cancellationType: ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
      ...(taskQueue === undefined ? {} : { taskQueue }),
      ...more,
    })
  await durably({
    ...{ kind: 'storage-index', failure: 'StorageIndexFailed', id, generation, key, headline, live },
    steps: async (report) => {
      const queue = await placeStorageIndex(id)
      taskQueue = queue
      const taken = <T>(act: () => Promise<T>): Promise<T> =>
        takenAt(queue, act, (options) =>
          proxyActivities<StorageIndexActivities>(options).placeStorageIndex(id),
        )
      live.phase = 'indexing'
      report('compares the directories with the index')
      while (await taken(() => there('compare directories').walkStorageIndex(id)));
      live.phase = 'hashing'
      while (await taken(() => there('compute digests').hashStorageIndex(id)));
      live.phase = 'recording'
      report('records the differences')
      await taken(() => there('record the differences').recordStorageIndex(id))
    },
    // Any worker has the database, also where the host of the storage is gone.
    leave: () =>
      there('forget what was found', {
        ...{ scheduleToCloseTimeout: '10 minutes', taskQueue: workflowInfo().taskQueue },
      })
        .tidyStorageIndex(id)
        .catch(() => undefined),
  })
}
