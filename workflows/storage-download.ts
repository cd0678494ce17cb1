import {
  ActivityCancellationType,
  ParentClosePolicy,
  proxyActivities,
  startChild,
  workflowInfo,
} from '@temporalio/workflow'
import type { StorageDownloadActivities } from '../activities/storage-download.ts'
import type { Headline } from '../src/page-details.ts'
import { durably, placed, takenAt, takenPatiently } from './operation.ts'

const patient = {
  initialInterval: '200 milliseconds',
  backoffCoefficient: 2,
  maximumInterval: '30 seconds',
} as const
const { placeStorageDownload } = proxyActivities<StorageDownloadActivities>({
  summary: 'which workers reach both storages',
  startToCloseTimeout: '1 minute',
  retry: patient,
})

/** One copy between storages, of a file or of a tree, or one archive of a directory. */
export async function storageDownload(
  id: string,
  generation: number,
  headline?: Headline,
  key?: string,
): Promise<void> {
  const live = { phase: 'placing' }
  let taskQueue: string | undefined
  const there = (summary: string, more: object = {}) =>
    proxyActivities<StorageDownloadActivities>({
      ...{ summary, startToCloseTimeout: '30 days', heartbeatTimeout: '10 seconds', ...takenPatiently },
      // A storage that does not answer is retried for about an hour.
      retry: { ...patient, maximumAttempts: 120 },
      // The activity removes the unfinished file before the end is recorded.
      cancellationType: ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
      ...(taskQueue === undefined ? {} : { taskQueue }),
      ...more,
    })
  await durably({
    ...{ kind: 'storage-download', failure: 'StorageDownloadFailed', id, generation, key, headline, live },
    steps: async (report) => {
      const queue = await placeStorageDownload(id)
      taskQueue = queue
      const taken = <T>(act: () => Promise<T>): Promise<T> =>
        takenAt(queue, act, (options) =>
          proxyActivities<StorageDownloadActivities>(options).placeStorageDownload(id),
        )
      live.phase = 'listing'
      report('lists the entries')
      await taken(() => there('list the entries').listStorageDownload(id))
      live.phase = 'sending'
      report('sends the entries')
      while (await taken(() => there('send entries').sendStorageDownload(id)));
    },
    leave: async () => {
      taskQueue = await placed(taskQueue, () => placeStorageDownload(id))
      if (taskQueue === undefined) return
      try {
        await there('remove what is unfinished', {
          scheduleToCloseTimeout: '30 seconds',
        }).tidyStorageDownload(id)
      } catch {
        // The record ends now; the destination may answer days later.
        await startChild(storageTidy, {
          // The id of a long record is cut there already.
          workflowId: workflowInfo().workflowId.replace(/^storage-download/, 'storage-tidy'),
          args: [id, generation, taskQueue, key],
          parentClosePolicy: ParentClosePolicy.ABANDON,
        })
      }
    },
  })
}

/** Removes what an ended copy has left at a destination that did not answer at its end. */
export async function storageTidy(
  id: string,
  generation: number,
  taskQueue: string,
  key?: string,
): Promise<void> {
  await proxyActivities<StorageDownloadActivities>({
    ...{ summary: 'remove what is unfinished', taskQueue, startToCloseTimeout: '1 day' },
    ...{ heartbeatTimeout: '10 seconds', scheduleToCloseTimeout: '30 days' },
    retry: { initialInterval: '2 seconds', backoffCoefficient: 2, maximumInterval: '10 minutes' },
  }).tidyStorageDownload(id, generation, key)
}
