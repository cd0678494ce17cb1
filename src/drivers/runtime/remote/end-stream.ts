/** How long the first submit waits for the stream, which saves one look. */
const patienceMs = 500
/**
 * A stream without awaited tasks is closed after this time: it takes one of the few channels of its
 * login, and drivers outlive their runs.
 */
const idleMs = 2_000

interface Stream {
  state: 'opening' | 'standing'
  stop?: () => void
}

/**
 * A driver's only stream of ends: closed, opening or standing. It is open while tasks are awaited.
 * @param follow opens a stream, which comes back by itself when it breaks; returns its stop
 * @param changed whether the stream stands now
 * @param isIdle whether no task is awaited
 */
export function openEndStream({
  follow,
  ended,
  changed,
  isIdle,
}: {
  follow: (ended: (name: string) => void, stands: (now: boolean) => void) => () => void
  ended: (name: string) => void
  changed: (stands: boolean) => void
  isIdle: () => boolean
}) {
  let stream: Stream | 'closed' = 'closed'
  let isOver = false
  let idle: NodeJS.Timeout | undefined
  const waiting = new Set<() => void>()
  const release = (): void => {
    for (const resolve of waiting) resolve()
  }

  const open = (): void => {
    if (isOver || stream !== 'closed') return
    const own: Stream = { state: 'opening' }
    stream = own
    own.stop = follow(ended, (now) => {
      // A closed stream reports that later, when another may stand.
      if (stream !== own) return
      own.state = now ? 'standing' : 'opening'
      if (now) release()
      changed(now)
    })
  }
  const shut = (): void => {
    if (stream === 'closed') return
    const { stop } = stream
    stream = 'closed'
    changed(false)
    stop?.()
  }
  const closeWhenIdle = (): void => {
    clearTimeout(idle)
    if (!isIdle() || stream === 'closed') return
    idle = setTimeout(() => {
      if (isIdle()) shut()
    }, idleMs)
    idle.unref()
  }

  return {
    /** Whether every end from now on will be reported. */
    isStanding: (): boolean => stream !== 'closed' && stream.state === 'standing',
    /** Opens the stream, if it is closed. */
    open,
    /** Opens it too; resolves when it stands, or will not stand soon. */
    async ready(): Promise<void> {
      open()
      if (stream !== 'closed' && stream.state === 'opening')
        await new Promise<void>((resolve) => {
          const done = (): void => {
            clearTimeout(timer)
            waiting.delete(done)
            resolve()
          }
          const timer = setTimeout(done, patienceMs)
          waiting.add(done)
        })
      closeWhenIdle()
    },
    closeWhenIdle,
    /** For ever. */
    close(): void {
      isOver = true
      clearTimeout(idle)
      shut()
      release()
    },
  }
}
