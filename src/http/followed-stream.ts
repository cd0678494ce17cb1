import { Readable } from 'node:stream'

/** A comment at this interval keeps proxies from closing a silent stream. */
const usualKeepAliveMs = 15_000
/** A reader of a streamed answer that takes nothing for this time while bytes wait for it is cut. */
export const usualStallMs = 60_000
const usualMostBehind = 1_048_576
/** What a reader takes within this time does not make it slow, however much comes meanwhile. */
const patienceMs = 100
/** Of a longer piece the reader takes parts of this size: each begins the time of a stall anew. */
const partBytes = 65_536

/**
 * The result of a wait for a change: a possible change, none within the given time, or the end of
 * the reader.
 */
export type Change = 'changed' | 'quiet' | 'left'

/** Waits for changes of a source, until `leave`. */
export interface ChangeWatch {
  /** Waits up to `ms` milliseconds; `leave` ends the wait. */
  wait: (ms: number, signal: AbortSignal) => { over: Promise<Change>; leave: () => void }
  leave: () => void
}

/** Of a source that announces nothing. */
const silent: ChangeWatch = {
  wait(ms, signal) {
    const { promise, resolve } = Promise.withResolvers<Change>()
    const timer = setTimeout(resolve, ms, 'quiet')
    const left = (): void => resolve('left')
    signal.addEventListener('abort', left, { once: true })
    void promise.then(() => {
      clearTimeout(timer)
      signal.removeEventListener('abort', left)
    })
    if (signal.aborted) left()
    return { over: promise, leave: left }
  },
  leave: () => undefined,
}

/** Expects a change at this interval in milliseconds, beside those that a watcher announces. */
export const atInterval = (everyMs: number, watcher = silent): ChangeWatch => ({
  wait(ms, signal) {
    const { over, leave } = watcher.wait(Math.min(ms, everyMs), signal)
    return { over: over.then((change) => (change === 'quiet' && everyMs < ms ? 'changed' : change)), leave }
  },
  leave: () => watcher.leave(),
})

/** What follows a position, as it is sent. */
export interface FollowedPiece<Position> {
  bytes: Buffer
  /** The position behind it. */
  last: Position
  /** Whether more may follow at once. */
  full: boolean
}

/** Something that grows while it is read: events, a log. */
export interface FollowedSource<Position> {
  /** The reader has everything up to here. */
  from: Position
  /** What follows a position; undefined where nothing further will follow. */
  read: (after: Position) => Promise<FollowedPiece<Position> | undefined>
  /** The bytes behind a position; where it is absent, pieces are read and counted. */
  behind?: (position: Position) => Promise<number>
  /** Called once, when a reader begins. */
  watch: () => ChangeWatch
  /** Sent after fifteen seconds without anything else. */
  keepAlive?: Buffer | undefined
  /** Sent where nothing further will follow. */
  ending?: Buffer | undefined
}

export interface FollowedOptions {
  /**
   * Called when a stream begins. The function that it returns is called when the stream ends, with
   * whether the reader was too slow.
   */
  opened?: (() => (cut: boolean) => void) | undefined
  /** The time without anything else after which a comment is sent. */
  keepAliveMs?: number
  /** A reader that takes nothing for this time while bytes wait for it is cut. */
  stallMs?: number
  /** A reader for which more bytes than these wait is cut. */
  mostBehind?: number
}

/** A stream of a growing source; the kernel opens it when it sends the answer. */
export type Followed = (options: FollowedOptions) => Readable

/**
 * The bytes of a growing source as they come. A piece is read when the reader has taken the one
 * before, so a slow reader holds one piece in memory. What comes meanwhile is only counted: a
 * reader that is more than 1 MiB behind is cut, and one that takes nothing for a minute. It goes on
 * from its last position: an event's id or an offset. What was there before the reader had caught
 * up for the first time does not count: a reader that resumes may be as far behind as it is.
 */
export const follow =
  <Position>(source: FollowedSource<Position>): Followed =>
  (options) =>
    openFollowed(source, options)

const openFollowed = <Position>(
  { from, read, behind, watch, keepAlive, ending }: FollowedSource<Position>,
  {
    opened,
    keepAliveMs = usualKeepAliveMs,
    stallMs = usualStallMs,
    mostBehind = usualMostBehind,
  }: FollowedOptions,
): Readable => {
  const watcher = watch()
  const closed = opened?.()
  const left = new AbortController()
  let cut = false
  let begun = false
  let taken: (() => void) | undefined
  const stream = new Readable({
    highWaterMark: 1,
    read: () => {
      if (begun) return taken?.()
      begun = true
      produce().catch((error: unknown) => stream.destroy(error as Error))
    },
    destroy: (error, done) => {
      left.abort()
      taken?.()
      watcher.leave()
      closed?.(cut)
      done(error)
    },
  })
  const cutOff = (): void => {
    cut = true
    stream.destroy()
  }

  let cursor = from
  /** Pieces are counted up to here, `ahead` bytes of which the reader's cursor has not reached. */
  let counted = from
  let ahead = 0
  let caughtUp = false

  /** @returns whether the reader is too far behind, which has yet to take `pending` bytes */
  const isFarBehind = async (pending: number): Promise<boolean> => {
    if (behind !== undefined) return (await behind(cursor)) + pending > mostBehind
    for (;;) {
      const piece = await read(counted)
      if (piece === undefined) return false
      counted = piece.last
      ahead += piece.bytes.length
      if (ahead + pending > mostBehind) return true
      if (!piece.full) return false
    }
  }

  /** Resolves when the reader has taken the bytes, or is cut; `after` bytes wait behind them. */
  const handOverPart = async (bytes: Buffer, after: number): Promise<void> => {
    const { promise, resolve } = Promise.withResolvers<'taken'>()
    taken = () => resolve('taken')
    if (stream.push(bytes)) return
    const stalled = setTimeout(cutOff, stallMs)
    try {
      while (!stream.destroyed) {
        const change = watcher.wait(keepAliveMs, left.signal)
        const first = await Promise.race([promise, change.over])
        change.leave()
        if (first === 'taken') return
        if (!caughtUp || first !== 'changed') continue
        const patience = silent.wait(patienceMs, left.signal)
        const second = await Promise.race([promise, patience.over])
        patience.leave()
        if (second === 'taken') return
        if (await isFarBehind(bytes.length + after)) return cutOff()
      }
    } finally {
      clearTimeout(stalled)
    }
  }

  const handOver = async (bytes: Buffer): Promise<void> => {
    for (let at = 0; at < bytes.length && !stream.destroyed; at += partBytes) {
      const part = bytes.subarray(at, at + partBytes)
      await handOverPart(part, bytes.length - at - part.length)
    }
  }

  const produce = async (): Promise<void> => {
    let sentAt = performance.now()
    const untilKeepAlive = (): number => Math.max(1, keepAliveMs - (performance.now() - sentAt))
    // The wait begins before the read, so that a change between the two is not missed.
    let change = watcher.wait(untilKeepAlive(), left.signal)
    while (!left.signal.aborted) {
      const piece = await read(cursor)
      if (piece === undefined) {
        if (ending !== undefined) await handOver(ending)
        break
      }
      const { bytes, last, full } = piece
      cursor = last
      ahead = full ? Math.max(0, ahead - bytes.length) : 0
      if (ahead === 0) counted = cursor
      caughtUp ||= !full
      if (bytes.length > 0) {
        await handOver(bytes)
        sentAt = performance.now()
      }
      // Without a change nothing is read: a thousand silent readers would ask 130 times a second.
      else
        while ((await change.over) === 'quiet') {
          sentAt = performance.now()
          // The wait begins before the comment is taken, so that a change meanwhile is not missed.
          change = watcher.wait(untilKeepAlive(), left.signal)
          if (keepAlive !== undefined) await handOver(keepAlive)
        }
      change.leave()
      change = watcher.wait(untilKeepAlive(), left.signal)
    }
    change.leave()
    if (!stream.destroyed) stream.push(null)
  }
  return stream
}
