import { setTimeout as sleep } from 'node:timers/promises'

/**
 * Runs `round` again and again, with a pause of `ms` milliseconds after each, until it is stopped.
 * The error of a round goes to `failed`, and the next round follows all the same. A stop aborts the
 * signal of a round: a long round checks it between its steps.
 * @returns `stop`, which begins no further round, ends a pause at once, and resolves when the
 * present round is over
 */
export const everyRound = (
  ms: number,
  round: (signal: AbortSignal) => Promise<void>,
  failed: (error: unknown) => void,
): { stop(): Promise<void> } => {
  const stopping = new AbortController()
  const { signal } = stopping
  const run = async (): Promise<void> => {
    while (!signal.aborted) {
      try {
        await round(signal)
      } catch (error) {
        failed(error)
      }
      // Rejects at once when the stop came during the round.
      await sleep(ms, undefined, { signal }).catch(() => undefined)
    }
  }
  const running = run()
  return {
    async stop() {
      stopping.abort()
      await running
    },
  }
}
