export interface RemoteWatch {
  watch: (names: readonly string[], onEnd: (name: string) => void) => () => void
  /** Opens the stream of ends, if it is not open yet; resolves when it stands, or will not soon. */
  ready: () => Promise<void>
  /** Names whose start we saw while the stream stood: their end comes by it. */
  expect: (names: readonly string[]) => void
  /** Nobody will ask for these again. */
  forget: (name: string) => void
  close: () => void
}

/** How long a submit waits for the stream of ends at the first time: what it saves is one look. */
const streamPatienceMs = 500
/** Without a stream the looks are what is prompt. */
const withoutStreamMs = 1000
const silentMostMs = 30_000
/** A stream without tasks to wait for is closed after this: it takes one of the few channels of its login, and drivers outlive their runs. */
const idleMs = 2_000
/** Ends that nobody waited for when they were told; the oldest are forgotten. */
const toldKept = 50_000

/**
 * Waits for many tasks: a stream tells ends as they come, a look at all names every `pollMilliseconds` is the truth, and a look at new
 * names whose end the stream could have told before. A site that does not answer is asked less and less often, and nothing is made of it.
 */
export function openRemoteWatch(options: {
  /** Those of the names that are over. */
  look: (names: readonly string[]) => Promise<readonly string[]>
  follow: (ended: (name: string) => void, stands: (now: boolean) => void) => () => void
  pollMilliseconds: number
}): RemoteWatch {
  const waiting = new Map<string, Set<(name: string) => void>>()
  const expected = new Set<string>()
  const told = new Set<string>()
  let standing = false
  /** The stream that is open. */
  let stream: { stop?: () => void } | undefined
  let idle: NodeJS.Timeout | undefined
  const stood: (() => void)[] = []
  let closed = false
  let poll: NodeJS.Timeout | undefined
  let looking = false
  let silent = 0

  const end = (name: string): void => {
    const callbacks = waiting.get(name)
    expected.delete(name)
    if (callbacks === undefined) {
      told.add(name)
      const [oldest] = told
      if (told.size > toldKept && oldest !== undefined) told.delete(oldest)
      return
    }
    waiting.delete(name)
    for (const callback of callbacks) callback(name)
    closeWhenIdle()
  }

  const lookAt = async (names: readonly string[]): Promise<void> => {
    if (names.length === 0) return
    try {
      for (const name of await options.look(names)) if (waiting.has(name)) end(name)
      silent = 0
    } catch {
      silent++
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
  const pollLater = (): void => {
    if (closed || waiting.size === 0 || looking) return
    const every = standing ? options.pollMilliseconds : Math.min(options.pollMilliseconds, withoutStreamMs)
    poll ??= setTimeout(
      () => void lookAtAll(),
      Math.max(every, Math.min(silentMostMs, every * 2 ** Math.min(silent, 10)) * Number(silent > 0)),
    )
  }
  const open = (): void => {
    if (closed || stream !== undefined) return
    const own: { stop?: () => void } = {}
    stream = own
    own.stop = options.follow(end, (now) => {
      // A stream that was closed says so later, when another may stand.
      if (stream !== own) return
      standing = now
      if (now) for (const resolve of stood.splice(0)) resolve()
      else expected.clear()
      // What ended while no stream stood.
      void lookAt([...waiting.keys()])
    })
  }
  const shut = (): void => {
    const open = stream
    stream = undefined
    standing = false
    expected.clear()
    open?.stop?.()
  }
  function closeWhenIdle(): void {
    clearTimeout(idle)
    if (waiting.size > 0 || stream === undefined) return
    idle = setTimeout(() => {
      if (waiting.size === 0) shut()
    }, idleMs)
    idle.unref()
  }

  return {
    async ready() {
      open()
      if (standing) {
        closeWhenIdle()
        return
      }
      await new Promise<void>((resolve) => {
        stood.push(resolve)
        setTimeout(resolve, streamPatienceMs)
      })
      closeWhenIdle()
    },
    expect(names) {
      if (standing) for (const name of names) expected.add(name)
    },
    forget(name) {
      told.delete(name)
      expected.delete(name)
    },
    watch(names, onEnd) {
      open()
      const callback = (name: string): void => onEnd(name)
      const over = names.filter((name) => told.delete(name))
      for (const name of names) {
        const callbacks = waiting.get(name)
        if (callbacks === undefined) waiting.set(name, new Set([callback]))
        else callbacks.add(callback)
      }
      // Never within the call that asks.
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
        closeWhenIdle()
      }
    },
    close() {
      closed = true
      shut()
      clearTimeout(poll)
      clearTimeout(idle)
      waiting.clear()
      for (const resolve of stood.splice(0)) resolve()
    },
  }
}
