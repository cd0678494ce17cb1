import type { Db } from '../../db/sql.ts'
import type { ArtifactStore } from '../../drivers/build/store.ts'
import { beginOperation, endOperation } from '../../operations/records.ts'
import { buildRunKind } from './build-kind.ts'
import { isPinned } from './pulls.ts'
import { holdBytes } from './store.ts'
import {
  acceptRun,
  earlierOutput,
  publishOutput,
  readWork,
  recordStep,
  reuseText,
  type WantedRun,
} from './runs.ts'

interface RepeatParts {
  db: Db
  artifactStore: ArtifactStore
  hostId: string
}

/**
 * Completes a new run whose output an earlier run has made, where the content of the build is
 * pinned and the bytes are in the store of this host. @returns its log; undefined: it did not
 */
const completeAgain = async (
  tx: Db,
  { artifactStore, hostId }: RepeatParts,
  id: string,
): Promise<string | undefined> => {
  const work = await readWork(tx, id)
  if (work === undefined || work.hostId !== hostId) return undefined
  if (work.sourceType === 'docker-image' && !isPinned(work.image ?? '')) return undefined
  const earlier = await earlierOutput(tx, work)
  if (earlier === undefined) return undefined
  await holdBytes(tx, earlier.digest)
  if ((await artifactStore.sizeOf('images', earlier.digest)) === undefined) return undefined
  const of = { id, generation: work.generation }
  const logs = `${reuseText(earlier.digest)}\n`
  const step = 'publishing'
  await beginOperation(tx, buildRunKind, of)
  await recordStep(tx, id, { step, live: { step }, logs })
  await publishOutput({ db: tx, artifactStore }, work, earlier)
  await endOperation(tx, buildRunKind, of, { status: 'completed' })
  return logs
}

/**
 * Accepts a run of a build, or returns the open one. A run that would only find what an earlier one
 * has made is completed in the same transaction, and needs no workflow.
 */
export const startRun = async (
  parts: RepeatParts,
  wanted: WantedRun,
): Promise<{ id: string; needsWorkflow: boolean }> => {
  const { id, isNew, logs } = await parts.db.transaction(async (tx) => {
    const run = await acceptRun(tx, { ...wanted, hostId: parts.hostId })
    return { ...run, logs: run.isNew && !wanted.fresh ? await completeAgain(tx, parts, run.id) : undefined }
  })
  // A run that is not stored leaves no file.
  if (logs !== undefined) await parts.artifactStore.appendLog(id, logs)
  return { id, needsWorkflow: isNew && logs === undefined }
}
