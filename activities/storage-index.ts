import { ApplicationFailure, Context } from '@temporalio/activity'
import { beginWalk } from '../src/domains/storages/index-findings.ts'
import { rootsOfRules } from '../src/domains/storages/index-policy.ts'
import { recordIndex } from '../src/domains/storages/index-record.ts'
import { forgetFindings, readIndexWork, type IndexWork } from '../src/domains/storages/index-store.ts'
import { hashIndex, walkIndex } from '../src/domains/storages/index-walk.ts'
import { queueOfHost } from '../src/task-queues.ts'
import { beating } from './beating.ts'
import { lasting, type StorageWorkParts } from './storage-faults.ts'

/** An activity ends after this long, and the workflow asks for the next one. */
const sliceMs = 300_000

export const storageIndexActivities = ({ db, storages, engine, draining }: StorageWorkParts) => {
  const workOf = async (id: string): Promise<IndexWork> => {
    const work = await readIndexWork(db, id)
    if (work === undefined) throw ApplicationFailure.nonRetryable(`storage index run ${id} does not exist`)
    return work
  }
  const stopping = (): AbortSignal => AbortSignal.any([Context.current().cancellationSignal, draining])

  return {
    /** The queue of the workers that reach the storage. */
    placeStorageIndex: async (id: string): Promise<string> =>
      queueOfHost(engine.taskQueue, (await workOf(id)).hostId),

    /** Compares directories for some minutes. False: no directory is left. */
    walkStorageIndex: (id: string): Promise<boolean> =>
      beating(() =>
        lasting(async () => {
          const found = await workOf(id)
          if (found.isWalked) return false
          if (found.step === 0) await beginWalk(db, found, rootsOfRules(found.policy))
          const { driver } = await storages.open(found.storageId)
          return walkIndex(db, await workOf(id), driver, { signal: stopping(), forMs: sliceMs })
        }, stopping()),
      ),

    /** Computes digests for some minutes, where digests are wanted. False: no file is left. */
    hashStorageIndex: (id: string): Promise<boolean> =>
      beating(() =>
        lasting(async () => {
          const work = await workOf(id)
          if (!work.checksums || work.isRecorded) return false
          const { driver } = await storages.open(work.storageId)
          return hashIndex(db, work, driver, { signal: stopping(), forMs: sliceMs })
        }, stopping()),
      ),

    /** Writes the findings into the index, all of them or none. */
    recordStorageIndex: (id: string): Promise<void> =>
      beating(() => lasting(async () => recordIndex(db, await workOf(id)), stopping())),

    /** Removes the findings of a run that did not complete. */
    tidyStorageIndex: (id: string): Promise<void> => beating(() => forgetFindings(db, id)),
  }
}

export type StorageIndexActivities = ReturnType<typeof storageIndexActivities>
