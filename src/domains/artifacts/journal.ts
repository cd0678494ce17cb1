import type { Db } from '../../db/sql.ts'
import type { ArtifactStore } from '../../drivers/build/store.ts'
import { outsideText } from '../../outside-text.ts'
import { keptLog, readLogs, recordStep } from './runs.ts'

const recordEveryMs = 1_000

/** Collects the lines of a step. Records its end, and its progress once a second. */
export const openJournal = async (
  { db, artifactStore }: { db: Db; artifactStore: Pick<ArtifactStore, 'appendLog'> },
  id: string,
  step: string,
) => {
  let logs = await readLogs(db, id)
  let [bytes, said, line] = [0, 0, '']
  let imageId: string | undefined
  let unwritten = ''
  let dirty = true
  let writing = Promise.resolve()
  const record = (): Promise<void> =>
    (writing = writing.then(async () => {
      if (!dirty) return
      dirty = false
      const text = unwritten
      unwritten = ''
      if (text !== '') await artifactStore.appendLog(id, text)
      const live = { step, ...(bytes === 0 ? {} : { bytes }), ...(line === '' ? {} : { line }) }
      await recordStep(db, id, { step, live, logs, imageId })
    }))
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
    [Symbol.asyncDispose]: async () => {
      clearInterval(timer)
      await record()
    },
  }
}
export type Journal = Awaited<ReturnType<typeof openJournal>>
