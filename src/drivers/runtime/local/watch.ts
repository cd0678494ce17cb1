export interface Watcher {
  watch: (names: readonly string[], onEnd: (name: string) => void) => () => void
  /** Tells everybody who waits for it; false: nobody does. */
  ended: (name: string) => boolean
  /** Looks at these now instead of at the next poll. */
  lookAt: (names: readonly string[]) => void
  close: () => Promise<void>
}

/**
 * Waits for many tasks with one timer. Ends that are announced (`ended`) are passed on at once; the others are found by `look`,
 * which answers those of the names that have ended: when a name is added, then every `pollMilliseconds`.
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
    let told = false
    for (const watch of watches) {
      if (!watch.names.delete(name)) continue
      if (watch.names.size === 0) watches.delete(watch)
      told = true
      watch.onEnd(name)
    }
    return told
  }

  const lookOnce = async (names: Iterable<string>): Promise<void> => {
    const silent = [...names].filter((name) => !isAnnounced(name))
    if (silent.length === 0) return
    try {
      for (const name of await look(silent)) ended(name)
    } catch {
      // Records that cannot be read tell nothing about the work; the next look asks again, and `find` shows the error.
    }
  }
  // One after the other, and never within the call that asks: a callback comes after `watch` has returned.
  const lookAt = (names: Iterable<string>): void => {
    looks = looks.then(() => lookOnce(names))
  }
  const poll = (): void => {
    timer = undefined
    lookAt(new Set([...watches].flatMap((watch) => [...watch.names])))
    looks = looks.then(pollLater)
  }
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
