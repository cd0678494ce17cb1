import type { Db } from '../../db/sql.ts'
import { recordLive } from './job-store.ts'
import type { LiveJob } from './schemas.ts'

const recordEveryMs = 2_000

/** The progress of a job, recorded every few seconds while the job runs. */
export const openJobProgress = <Live extends LiveJob>(
  db: Db,
  id: string,
  live: Live,
  write: (db: Db, id: string, live: LiveJob) => Promise<unknown> = recordLive,
) => {
  let seen = live.bytes
  let seenAt = performance.now()
  const record = async (): Promise<void> => {
    const seconds = (performance.now() - seenAt) / 1_000
    const rate = seconds > 0 ? Math.max(0, Math.round((live.bytes - seen) / seconds)) : 0
    seen = live.bytes
    seenAt = performance.now()
    live.bytesPerSecond = rate
    if (live.totalBytes !== undefined && rate > 0)
      live.estimatedSeconds = Math.ceil(Math.max(0, live.totalBytes - live.bytes) / rate)
    await write(db, id, live)
  }
  // After a failed write the next interval writes again.
  const timer = setInterval(() => void record().catch(() => undefined), recordEveryMs)
  return { live, [Symbol.dispose]: () => clearInterval(timer) }
}
