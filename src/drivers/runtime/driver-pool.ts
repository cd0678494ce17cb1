import type { RuntimeDriver } from './contract/driver.ts'
import type { ShellStream, SiteShell, TerminalSize } from '../../shell/site-shell.ts'
import type { OpenedDriver } from './contract/kind.ts'

export interface DriverPool {
  /**
   * The driver of a key, and its shell, both usable at any time. The driver beneath is opened on
   * use, shared by all callers of the same key, and closed and forgotten after a while without use.
   * `open` contacts nothing.
   */
  of(key: string, open: () => OpenedDriver): Omit<OpenedDriver, 'close'>
  /** Number of open drivers. */
  count(): number
  close(): Promise<void>
}

interface Entry {
  opened: OpenedDriver
  /** Calls under way, awaited names, open streams. */
  uses: number
  timer: NodeJS.Timeout | undefined
}

/**
 * A run that goes on within this time finds the driver open: opening a new one costs a few round
 * trips to its site.
 */
const usualIdleMs = 60_000

/**
 * Keeps drivers open while they are used. A runtime with a changed configuration gets another
 * driver, because a run goes on with the configuration with which it was accepted. The driver
 * before is closed when the last run that uses it makes no more calls.
 */
export function openDriverPool({ idleMs = usualIdleMs }: { idleMs?: number } = {}): DriverPool {
  const entries = new Map<string, Entry>()
  const closing = new Set<Promise<void>>()
  let closed = false

  const shut = (key: string, { opened }: Entry): void => {
    entries.delete(key)
    const over = opened.close().catch(() => undefined)
    closing.add(over)
    void over.finally(() => closing.delete(over))
  }
  const idle = (key: string, entry: Entry): void => {
    clearTimeout(entry.timer)
    entry.timer = setTimeout(() => {
      if (entry.uses > 0 || entries.get(key) !== entry) return
      // Its background work would break off.
      if (entry.opened.driver.isBusy?.() === true) idle(key, entry)
      else shut(key, entry)
    }, idleMs)
    entry.timer.unref()
  }
  const enter = (key: string, open: () => OpenedDriver): { opened: OpenedDriver; leave: () => void } => {
    if (closed) throw new Error('the drivers of this process are closed')
    let entry = entries.get(key)
    if (entry === undefined) {
      entry = { opened: open(), uses: 0, timer: undefined }
      entries.set(key, entry)
    }
    const own = entry
    own.uses++
    let left = false
    return {
      opened: own.opened,
      leave() {
        if (left) return
        left = true
        own.uses--
        if (own.uses === 0) idle(key, own)
      },
    }
  }

  return {
    of(key, open) {
      const using = async <T>(work: (opened: OpenedDriver) => Promise<T>): Promise<T> => {
        const { opened, leave } = enter(key, open)
        try {
          return await work(opened)
        } finally {
          leave()
        }
      }
      const streaming = async (begin: (shell: SiteShell) => Promise<ShellStream>): Promise<ShellStream> => {
        const { opened, leave } = enter(key, open)
        try {
          const stream = await begin(opened.shell)
          stream.done.then(leave, leave)
          return stream
        } catch (error) {
          leave()
          throw error
        }
      }
      const first = enter(key, open)
      const hasTerminals = first.opened.shell.terminal !== undefined
      const { kind, capabilities, closeScope } = first.opened.driver
      first.leave()
      return {
        driver: {
          ...{ kind, capabilities },
          root: () => using(({ driver }) => driver.root()),
          submit: (intents) => using(({ driver }) => driver.submit(intents)),
          find: (names) => using(({ driver }) => driver.find(names)),
          watch: (names, onEnd) => watchWhileWaited(enter(key, open), names, onEnd),
          cancel: (names, graceSeconds) => using(({ driver }) => driver.cancel(names, graceSeconds)),
          collect: (name, onWait) => using(({ driver }) => driver.collect(name, onWait)),
          logs: (name, stream, range) => using(({ driver }) => driver.logs(name, stream, range)),
          remove: (name) => using(({ driver }) => driver.remove(name)),
          // Other callers share it: it is closed after the last use.
          close: () => Promise.resolve(),
          ...(closeScope === undefined
            ? {}
            : {
                closeScope: (scope: string) =>
                  using(({ driver }) => driver.closeScope?.(scope) ?? Promise.resolve()),
              }),
        },
        shell: {
          run: (script, options) => using(({ shell }) => shell.run(script, options)),
          open: (script, options) => streaming((shell) => shell.open(script, options)),
          ...(hasTerminals
            ? {
                terminal: (script: string, size: TerminalSize) =>
                  streaming(
                    (shell) => shell.terminal?.(script, size) ?? Promise.reject(new Error('no terminal')),
                  ),
              }
            : {}),
          close: () => Promise.resolve(),
        },
      }
    },
    count: () => entries.size,
    async close() {
      closed = true
      for (const [key, entry] of entries) {
        clearTimeout(entry.timer)
        shut(key, entry)
      }
      await Promise.all(closing)
    },
  }
}

/** The driver stays in use until all names have ended, or the watch is stopped. */
function watchWhileWaited(
  { opened, leave }: { opened: OpenedDriver; leave: () => void },
  names: readonly string[],
  onEnd: (name: string) => void,
): ReturnType<RuntimeDriver['watch']> {
  const waiting = new Set(names)
  const stop = opened.driver.watch(names, (name) => {
    onEnd(name)
    waiting.delete(name)
    if (waiting.size === 0) leave()
  })
  if (waiting.size === 0) leave()
  return () => {
    stop()
    leave()
  }
}
