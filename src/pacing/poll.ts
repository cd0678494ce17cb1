import { setTimeout as sleep } from 'node:timers/promises'
import type { Backoff } from './backoff.ts'

/**
 * Asks at once, or after the first pause, and then again after each pause, until there is an answer.
 * It asks the last time at the deadline, and never after `signal` is aborted. A rejection of the
 * question ends the poll. `everyMs`: the pauses in milliseconds, or what gives their lengths, as a
 * backoff does; the deadline cuts the last one.
 * @returns the answer; undefined when there was none until the deadline or the abort
 */
export async function poll<T>(
  ask: () => T | undefined | Promise<T | undefined>,
  {
    everyMs,
    deadlineMs = Infinity,
    pausesFirst = false,
    signal,
  }: {
    everyMs: number | Pick<Backoff, 'next'>
    deadlineMs?: number
    pausesFirst?: boolean
    signal?: AbortSignal
  },
): Promise<T | undefined> {
  const until = performance.now() + deadlineMs
  for (let isLast = deadlineMs <= 0, asks = !pausesFirst || isLast; ; asks = true) {
    const answer = asks ? await ask() : undefined
    if (answer !== undefined || isLast || isAborted(signal)) return answer
    const pause = typeof everyMs === 'number' ? everyMs : everyMs.next()
    const left = Math.max(0, until - performance.now())
    isLast = pause >= left
    await sleep(Math.min(pause, left), undefined, signal === undefined ? {} : { signal }).catch(
      () => undefined,
    )
    if (isAborted(signal)) return undefined
  }
}

const isAborted = (signal: AbortSignal | undefined): boolean => signal?.aborted === true
