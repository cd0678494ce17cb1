export interface Watcher {
  watch: (names: readonly string[], onEnd: (name: string) => void) => () => void
  /** Wakes all callers that wait for the name; false: none does. */
  ended: (name: string) => boolean
  /** Looks at these now instead of at the next poll. */
  lookAt: (names: readonly string[]) => void
  close: () => Promise<void>
}

/**
 * Waits for many tasks with one timer. Announced ends (`ended`) are passed on at once. `look` finds
 * the others and returns the names that have ended: when a name is added, then every
 * `pollMilliseconds`.
 */
export function openWatcher(
  look: (names: string[]) => Promise<string[]>,
  isAnnounced: (name: string) => boolean,
  pollMilliseconds: number,
): Watcher {
  const watches = new Set<{ names: Set<string>; onEnd: (name: string) => void }>()
  let looks = Promise.resolve()
  let timer: NodeJS.Timeout | undefined

  const ended = (name: string): boolean => {
    let any = false
    for (const watch of watches) {
      if (!watch.names.delete(name)) continue
      if (watch.names.size === 0) watches.delete(watch)
      any = true
      watch.onEnd(name)
    }
    return any
  }

  const lookOnce = async (names: Iterable<string>): Promise<void> => {
    const silent = [...names].filter((name) => !isAnnounced(name))
    if (silent.length === 0) return
    try {
      for (const name of await look(silent)) ended(name)
    } catch {
      // Unreadable records give no information about the task; the next look reads them again, and
      // `find` shows the error.
    }
  }
  // One after the other, and never within the adding call: a callback comes after `watch` has
  // returned.
  const lookAt = (names: Iterable<string>): void => {
    looks = looks.then(() => lookOnce(names))
  }
  const poll = (): void => {
    timer = undefined
    lookAt(new Set([...watches].flatMap((watch) => [...watch.names])))
    looks = looks.then(pollLater)
  }
  // A timer by hand: it stands only while tasks are awaited, and rounds would begin and stop with
  // each of thousands of short tasks.
  const pollLater = (): void => {
    if (watches.size > 0) timer ??= setTimeout(poll, pollMilliseconds)
  }

  return {
    ended,
    lookAt,
    watch(names, onEnd) {
      const watch = { names: new Set(names), onEnd }
      watches.add(watch)
      lookAt(names)
      pollLater()
      return () => watches.delete(watch)
    },
    async close() {
      watches.clear()
      await looks
      clearTimeout(timer)
    },
  }
}
