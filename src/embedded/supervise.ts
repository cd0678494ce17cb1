import { setTimeout as sleep } from 'node:timers/promises'
import type { Log } from '../observability/log.ts'
import type { Leashed } from './leash.ts'
import type { ProcessIdentity } from './processes.ts'

export interface Supervised {
  /** The server that runs now, undefined while it is being started again. */
  process(): ProcessIdentity | undefined
  /** Ends the server for good. */
  stop(): Promise<void>
  kill(): void
}

/** Waits between restarts double from the first to the last; a server that ran longer than `steadyMs` starts over. */
const firstWaitMs = 100
const lastWaitMs = 10_000
const steadyMs = 60_000

/**
 * Keeps a server running: what ends without our will is started again, for as long as it takes, since callers answer 503 meanwhile and
 * recover by themselves. `onRestart` is called when it runs again, under another process id.
 * @throws what the first start throws; later failures are logged and tried again
 */
export const supervise = async (
  name: string,
  start: (stopping: AbortSignal) => Promise<Leashed>,
  log: Log,
  onRestart: () => void,
): Promise<Supervised> => {
  const stopping = new AbortController()
  let current: Leashed | undefined = await start(stopping.signal)

  const keepRunning = async (): Promise<void> => {
    let waitMs = firstWaitMs
    let startedAt = Date.now()
    while (!stopping.signal.aborted) {
      if (current !== undefined) {
        const code = await current.ended
        current = undefined
        if (stopping.signal.aborted) return
        log.error({ server: name, code }, `${name} ended by itself; it is started again`)
        if (Date.now() - startedAt > steadyMs) waitMs = firstWaitMs
      }
      await sleep(waitMs, undefined, { signal: stopping.signal }).catch(() => undefined)
      waitMs = Math.min(waitMs * 2, lastWaitMs)
      if (stopping.signal.aborted) return
      try {
        startedAt = Date.now()
        current = await start(stopping.signal)
        log.info({ server: name, pid: current.process.pid }, `${name} runs again`)
        onRestart()
      } catch (error) {
        log.error({ server: name, err: error }, `${name} could not be started; it is tried again`)
      }
    }
  }
  const kept = keepRunning()

  return {
    process: () => current?.process,
    stop: async () => {
      stopping.abort()
      await current?.release()
      await kept
      // A start that was under way when we stopped has finished by now.
      await current?.release()
    },
    kill: () => {
      stopping.abort()
      current?.kill()
    },
  }
}
