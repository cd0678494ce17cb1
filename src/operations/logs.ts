import { PassThrough } from 'node:stream'
import type { LogRange, LogSlice } from '../drivers/runtime/contract/driver.ts'
import { follow, type ChangeWatch, type Followed, type FollowedPiece } from '../http/followed-stream.ts'
import { logLimitBytes } from '../http/paging.ts'
import { Reply } from '../http/route.ts'

/** A part of a log; 206 where it is not the whole log. */
export const sliceReply = (slice: LogSlice, named: Record<string, string> = {}): Reply<never> => {
  const whole = slice.offset === 0 && slice.bytes.length === slice.totalBytes
  const last = slice.offset + slice.bytes.length - 1
  const stream = new PassThrough()
  stream.end(slice.bytes)
  return new Reply({
    status: whole ? 200 : 206,
    stream,
    headers: {
      ...named,
      'content-type': 'text/plain; charset=utf-8',
      'content-length': String(slice.bytes.length),
      'content-range':
        slice.bytes.length === 0
          ? `bytes */${String(slice.totalBytes)}`
          : `bytes ${String(slice.offset)}-${String(last)}/${String(slice.totalBytes)}`,
    },
  })
}

/** A log that grows while it is read. */
export interface GrowingLog {
  /** The offset of the first byte that is sent. */
  from: number
  /** Bytes from there on that were read before; they are sent unchanged. */
  first?: Buffer
  read: (range: LogRange) => Promise<LogSlice>
  /** Whether nothing more will be written. */
  isOver: () => Promise<boolean>
  watch: () => ChangeWatch
  /**
   * Returns the bytes behind an offset as they are sent; by default they are unchanged. Without
   * `mayGoOn` no others follow them.
   */
  encode?: (bytes: Buffer, offset: number, mayGoOn: boolean) => Omit<FollowedPiece<number>, 'full'>
  keepAlive?: Buffer
  ending?: Buffer
}

const unchanged = (bytes: Buffer, offset: number) => ({ bytes, last: offset + bytes.length })

/**
 * A log from an offset on, until nothing more will be written. A lost site ends the
 * stream; the reader asks again by `offset`, as one that was cut does.
 */
export const followLog = ({
  from,
  first = Buffer.alloc(0),
  read,
  isOver,
  watch,
  encode = unchanged,
  keepAlive,
  ending,
}: GrowingLog): Followed =>
  follow({
    from,
    async read(after) {
      if (after === from && first.length > 0) return { ...unchanged(first, from), full: true }
      // This is asked before the read: a log that is over is complete.
      const over = await isOver()
      const { bytes } = await read({ offset: after, limit: logLimitBytes })
      if (over && bytes.length === 0) return undefined
      const full = bytes.length === logLimitBytes
      return { ...encode(bytes, after, full || !over), full }
    },
    behind: async (position) => (await read({ offset: position, limit: 0 })).totalBytes - position,
    watch,
    keepAlive,
    ending,
  })
