import { openBackoff } from '../../../pacing/backoff.ts'
import { RecentMap } from '../../../pacing/recent.ts'
import { openEndStream } from './end-stream.ts'

/** Without a stream the looks have to be prompt. */
const withoutStreamMs = 1000
const silentMostMs = 30_000
/** Ends that were reported before a caller waited for them; the oldest are forgotten. */
const toldKept = 50_000

/**
 * Waits for many tasks. A stream reports ends as they come. A look at all names every
 * `pollMilliseconds` is the truth. A look at new names finds ends that the stream reported before.
 * A site that does not answer is queried less and less often, and its silence has no effect.
 */
export function openRemoteWatch(options: {
  /** Returns the names that are over. */
  look: (names: readonly string[]) => Promise<readonly string[]>
  follow: (ended: (name: string) => void, stands: (now: boolean) => void) => () => void
  pollMilliseconds: number
}) {
  const waiting = new Map<string, Set<(name: string) => void>>()
  const expected = new Set<string>()
  const announced = new RecentMap<string, true>(toldKept)
  let closed = false
  let poll: NodeJS.Timeout | undefined
  let looking = false
  const silences = openBackoff({ firstMs: 2 * withoutStreamMs, longestMs: silentMostMs })
  /** The least pause before the next look, while the site does not answer. */
  let silentMs = 0

  const end = (name: string): void => {
    const callbacks = waiting.get(name)
    expected.delete(name)
    if (callbacks === undefined) {
      announced.set(name, true)
      return
    }
    waiting.delete(name)
    for (const callback of callbacks) callback(name)
    stream.closeWhenIdle()
  }

  const lookAt = async (names: readonly string[]): Promise<void> => {
    if (names.length === 0) return
    try {
      for (const name of await options.look(names)) if (waiting.has(name)) end(name)
      silences.reset()
      silentMs = 0
    } catch {
      silentMs = silences.next()
    }
  }
  const lookAtAll = async (): Promise<void> => {
    poll = undefined
    if (looking) return
    looking = true
    await lookAt([...waiting.keys()])
    looking = false
    pollLater()
  }
  // A timer by hand: it stands only while names are awaited, and a stream that stands or falls
  // changes its length.
  const pollLater = (): void => {
    if (closed || waiting.size === 0 || looking) return
    const every = stream.isStanding()
      ? options.pollMilliseconds
      : Math.min(options.pollMilliseconds, withoutStreamMs)
    poll ??= setTimeout(() => void lookAtAll(), Math.max(every, silentMs))
  }
  const stream = openEndStream({
    follow: options.follow,
    ended: end,
    changed: (stands) => {
      if (!stands) expected.clear()
      // Finds tasks that ended while no stream stood.
      void lookAt([...waiting.keys()])
    },
    isIdle: () => waiting.size === 0,
  })

  return {
    /**
     * Opens the stream of ends, if it is not open yet; resolves when it stands, or will not stand
     * soon.
     */
    ready: () => stream.ready(),
    /** Names that started while the stream stood: it will report their end. */
    expect(names: readonly string[]): void {
      if (stream.isStanding()) for (const name of names) expected.add(name)
    },
    /** The name is not awaited any more. */
    forget(name: string): void {
      announced.delete(name)
      expected.delete(name)
    },
    /** As `RuntimeDriver.watch`. */
    watch(names: readonly string[], onEnd: (name: string) => void): () => void {
      stream.open()
      const callback = (name: string): void => onEnd(name)
      const over = names.filter((name) => announced.delete(name))
      for (const name of names) {
        const callbacks = waiting.get(name)
        if (callbacks === undefined) waiting.set(name, new Set([callback]))
        else callbacks.add(callback)
      }
      // Never within the adding call.
      setImmediate(() => {
        for (const name of over) end(name)
        void lookAt(names.filter((name) => waiting.has(name) && !expected.has(name)))
      })
      pollLater()
      return () => {
        for (const name of names) {
          const callbacks = waiting.get(name)
          callbacks?.delete(callback)
          if (callbacks?.size === 0) waiting.delete(name)
        }
        stream.closeWhenIdle()
      }
    },
    close(): void {
      closed = true
      clearTimeout(poll)
      waiting.clear()
      stream.close()
    },
  }
}
