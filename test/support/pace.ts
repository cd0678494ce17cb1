import { setTimeout as sleep } from 'node:timers/promises'

/**
 * Waits before the next poll: a tenth of the time since `began` (of `performance.now()`), from 20
 * ms to half a second. A poll over HTTP takes the service some 10 ms of a processor, which the
 * awaited work needs too.
 */
export const beforeNextLook = async (began: number): Promise<void> => {
  await sleep(Math.min(500, Math.max(20, (performance.now() - began) / 10)))
}
