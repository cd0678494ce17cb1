import { ApplicationFailure, Context } from '@temporalio/activity'
import { promotedData } from '../src/domains/execution-runs/promoted-data.ts'
import { writeArchive } from '../src/domains/storages/archive.ts'
import { listCopy, sendEntries, tidyCopy } from '../src/domains/storages/copy.ts'
import { endReplaced } from '../src/domains/storages/replaced.ts'
import { openDirect, type Direct } from '../src/domains/storages/direct.ts'
import { reachOf } from '../src/connections/reach.ts'
import { readStorageJob, sendingEntries, type StorageJob } from '../src/domains/storages/job-store.ts'
import type { OpenedStorage } from '../src/domains/storages/open.ts'
import type { Ends } from '../src/domains/storages/send.ts'
import { withRate } from '../src/drivers/storage/measured.ts'
import type { Reach } from '../src/drivers/transfer/transfer.ts'
import { queueOfHost } from '../src/task-queues.ts'
import { beating } from './beating.ts'
import { lasting, type StorageWorkParts } from './storage-faults.ts'

/** An activity ends after this long, and the workflow asks for the next one. */
const sliceMs = 300_000

export const storageDownloadActivities = ({ db, storages, engine, draining }: StorageWorkParts) => {
  const jobOf = async (id: string, key?: string): Promise<StorageJob> => {
    const job = await readStorageJob(db, { id, key })
    if (job === undefined) throw ApplicationFailure.nonRetryable(`storage download ${id} does not exist`)
    return job
  }
  const stopping = (): AbortSignal => AbortSignal.any([Context.current().cancellationSignal, draining])
  /** The ways between two ends that are behind logins of their own. */
  const directOf = async (
    { bytesPerSecond }: StorageJob,
    { driver: source, place: { link: from } }: OpenedStorage,
    { driver: target, place: { link: to } }: OpenedStorage,
  ): Promise<Direct | undefined> => {
    if (from === undefined || to === undefined || from === to) return undefined
    const doorTo = (reach: readonly Reach[], link: string) => reach.find(({ site }) => site === `ssh/${link}`)
    const obstacle =
      bytesPerSecond == null
        ? source.fileAtSite === undefined || target.writeFrom === undefined
          ? 'one of the accounts gives SFTP and no shell'
          : undefined
        : 'the rate that the copy asks for is kept here'
    return openDirect({
      push: doorTo(await reachOf(db, from), to),
      pull: doorTo(await reachOf(db, to), from),
      obstacle,
    })
  }
  const endsOf = async (job: StorageJob): Promise<Ends> => {
    const [source, target] = await Promise.all([
      storages.open(job.storageId),
      storages.open(job.destinationStorageId),
    ])
    const isOnePlace = source.place.at === target.place.at && target.driver.copyWithin !== undefined
    return {
      source: job.bytesPerSecond == null ? source.driver : withRate(source.driver, job.bytesPerSecond),
      target: target.driver,
      promoted: promotedData,
      direct: await directOf(job, source, target),
      links: [source, target].flatMap(({ place }) => place.link ?? []),
      ...(isOnePlace && job.bytesPerSecond == null ? { within: source.place.base } : {}),
    }
  }

  return {
    /** The queue of the workers that reach both ends. */
    placeStorageDownload: async (id: string): Promise<string> =>
      queueOfHost(engine.taskQueue, (await jobOf(id)).hostId),

    /** Records all entries that a copy or an archive takes, once. */
    listStorageDownload: (id: string): Promise<void> =>
      beating(() =>
        lasting(async () => {
          const job = await jobOf(id)
          if (!job.isListed) await listCopy(db, job, await endsOf(job), stopping())
        }, stopping()),
      ),

    /** Sends entries for some minutes, or writes an archive. False: no entry is left. */
    sendStorageDownload: (id: string): Promise<boolean> =>
      beating(() =>
        lasting(async () => {
          const job = await jobOf(id)
          const ends = await endsOf(job)
          if (job.strategy !== 'archive')
            return sendEntries(db, job, ends, { signal: stopping(), forMs: sliceMs })
          await writeArchive(db, job, ends, stopping())
          return false
        }, stopping()),
      ),

    /**
     * Removes the unfinished files that a job without success has left at the destination; with
     * `ended` only those of a generation that is over and was not retried. That may be tried for weeks:
     * `key` names the record among all that have had its id by then.
     */
    tidyStorageDownload: (id: string, ended?: number, key?: string): Promise<void> =>
      beating(async () => {
        const tidy = async (): Promise<void> => {
          // They are read before the check, so that no upload of a retry is among them.
          const left = await sendingEntries(db, id)
          const job = await jobOf(id, key)
          if (ended !== undefined) {
            if (job.generation !== ended) return
            // The workflow that asks for this records the end of its job afterwards.
            if (job.isOpen) throw new Error(`storage download ${id} has not ended yet; this is tried again`)
          }
          const target = (await storages.open(job.destinationStorageId)).driver
          await endReplaced(db, job, { target, promoted: promotedData }, stopping())
          // A retry, or the next job of the id, may go on with the upload of an earlier attempt.
          const isOver = async (): Promise<boolean> => {
            if ((await readStorageJob(db, { id })) === undefined) return true
            return (await readStorageJob(db, { id, key }))?.generation === job.generation
          }
          await tidyCopy(job, left, { target }, isOver)
        }
        // The record of an open job does not wait for what people must change; an ended one may.
        return ended === undefined ? lasting(tidy, stopping()) : tidy()
      }),
  }
}

export type StorageDownloadActivities = ReturnType<typeof storageDownloadActivities>
