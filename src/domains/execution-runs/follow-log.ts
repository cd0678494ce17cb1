import type { LogSlice } from '../../drivers/runtime/contract/driver.ts'
import { atInterval, follow, type Followed } from '../../http/followed-stream.ts'
import { watchFeed, type Feed } from '../../operations/feed.ts'
import { runKind } from './operation.ts'

/** The most bytes of one read of a log. */
const mostAtOnce = 1024 * 1024

export type LogRange = { offset: number; limit: number } | { tail: number }

export interface FollowParts {
  feed: Feed
  runId: string
  read: (range: LogRange) => Promise<LogSlice>
  isOver: () => Promise<boolean>
  /** The interval between reads of the log; an event of the run triggers a read at once. */
  everyMs: number
}

/**
 * The output of an attempt from `first` on, until the attempt has ended. A lost site ends the
 * stream; the reader asks again by `offset`, as one that was cut does.
 */
export const followLog = (
  { feed, runId, read, isOver, everyMs }: FollowParts,
  { bytes: firstBytes, offset: from }: LogSlice,
): Followed =>
  follow({
    from,
    async read(after) {
      if (after === from && firstBytes.length > 0)
        return { bytes: firstBytes, last: from + firstBytes.length, full: true }
      // This is asked before the read: the log of an attempt that is over is complete.
      const over = await isOver()
      const { bytes } = await read({ offset: after, limit: mostAtOnce })
      if (over && bytes.length === 0) return undefined
      return { bytes, last: after + bytes.length, full: bytes.length === mostAtOnce }
    },
    behind: async (position) => (await read({ offset: position, limit: 0 })).totalBytes - position,
    watch: () => atInterval(everyMs, watchFeed(feed, { kind: runKind.name, id: runId })),
  })
