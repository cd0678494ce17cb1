import type { Db } from '../../db/sql.ts'
import type { ArtifactStore } from '../../drivers/build/store.ts'
import { outsideText } from '../../outside-text.ts'
import { keptLog, readLogs, recordStep } from './runs.ts'
import type { BuildBase } from './schemas.ts'

const recordEveryMs = 1_000
/** A run records so many images that its build took. */
export const mostBases = 100

/** Collects the lines of a step. Records its end, and its progress once a second. */
export const openJournal = async (
  { db, artifactStore }: { db: Db; artifactStore: Pick<ArtifactStore, 'appendLog'> },
  id: string,
  step: string,
) => {
  let logs = await readLogs(db, id)
  let [bytes, said, line] = [0, 0, '']
  let imageId: string | undefined
  const bases = new Map<string, BuildBase>()
  let unwritten = ''
  let dirty = true
  let writing = Promise.resolve()
  const write = async (): Promise<void> => {
    if (!dirty) return
    dirty = false
    try {
      const text = unwritten
      if (text !== '') await artifactStore.appendLog(id, text)
      unwritten = unwritten.slice(text.length)
      const live = { step, ...(bytes === 0 ? {} : { bytes }), ...(line === '' ? {} : { line }) }
      const taken = bases.size === 0 ? undefined : [...bases.values()]
      await recordStep(db, id, { step, live, logs, imageId, bases: taken })
    } catch (error) {
      dirty = true
      throw error
    }
  }
  // A write follows one that failed, and has what that one did not record.
  const record = (): Promise<void> => (writing = writing.catch(() => undefined).then(write))
  await record()
  const timer = setInterval(() => void record().catch(() => undefined), recordEveryMs)
  return {
    say: (given: string): void => {
      const text = outsideText(given)
      line = text.slice(text.lastIndexOf('\n') + 1).slice(-4_000)
      said += text.length
      logs = `${logs}${text}\n`.slice(-keptLog)
      unwritten += `${text}\n`
      dirty = true
    },
    said: (): number => said,
    counted: (more: number): void => {
      bytes += more
      dirty = true
    },
    found: (id_: string): void => {
      imageId = id_
      dirty = true
    },
    /** The build took this image. */
    took: (base: BuildBase): void => {
      if (bases.size === mostBases) return
      bases.set(`${base.image}@${base.digest}`, base)
      dirty = true
    },
    [Symbol.asyncDispose]: async () => {
      clearInterval(timer)
      await record()
    },
  }
}
export type Journal = Awaited<ReturnType<typeof openJournal>>
