import { setTimeout as sleep } from 'node:timers/promises'

/**
 * Waits before something is looked at again: a tenth of the time since `began` (of `performance.now()`), from 20 ms to half a second. A look
 * over HTTP takes the service some 10 ms of a processor, which what is waited for needs too.
 */
export const beforeNextLook = async (began: number): Promise<void> => {
  await sleep(Math.min(500, Math.max(20, (performance.now() - began) / 10)))
}
