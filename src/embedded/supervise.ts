import { openBackoff } from '../pacing/backoff.ts'
import type { Log } from '../observability/log.ts'
import type { Leashed } from './leash.ts'
import type { KnownProcess } from './processes.ts'

export interface Supervised {
  /** The running server, undefined while it is being restarted. */
  process(): KnownProcess | undefined
  /** Ends the server for good. */
  stop(): Promise<void>
  kill(): void
}

/**
 * Waits between restarts double from the first to the last; they begin again after a server that
 * ran longer than `steadyMs`.
 */
const firstWaitMs = 100
const lastWaitMs = 10_000
const steadyMs = 60_000

/**
 * Keeps a server running: after an unexpected end it is restarted without a limit of tries, since
 * callers answer 503 meanwhile and recover by themselves. `onRestart` is called when it runs again,
 * under another process id.
 * @throws the error of the first start; later failures are logged and tried again
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
    const backoff = openBackoff({ firstMs: firstWaitMs, longestMs: lastWaitMs })
    let startedAt = Date.now()
    while (!stopping.signal.aborted) {
      if (current !== undefined) {
        const code = await current.ended
        current = undefined
        if (stopping.signal.aborted) return
        log.error({ server: name, code }, `${name} ended by itself; it is started again`)
        if (Date.now() - startedAt > steadyMs) backoff.reset()
      }
      await backoff.pause(stopping.signal)
      if (stopping.signal.aborted) return
      try {
        startedAt = Date.now()
        current = await start(stopping.signal)
        log.info({ server: name, pid: current.process.pid }, `${name} runs again`)
      } catch (error) {
        log.error({ server: name, err: error }, `${name} could not be started; it is tried again`)
        continue
      }
      try {
        onRestart()
      } catch (error) {
        log.warn({ server: name, err: error }, 'the ready file could not be written')
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
      // A start that was under way at the stop has finished by now.
      await current?.release()
    },
    kill: () => {
      stopping.abort()
      current?.kill()
    },
  }
}
