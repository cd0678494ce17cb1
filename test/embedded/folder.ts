import { chmodSync, mkdtempSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { configFromEnvironment } from '../../src/config.ts'
import { runFolder } from '../support/run-folder.ts'

/** An empty data folder that the user postgres may pass through, removed by `[Symbol.dispose]`. */
export const temporaryFolder = (): { path: string; [Symbol.dispose](): void } => {
  const path = mkdtempSync(join(runFolder(), 'orrery-embedded-'))
  chmodSync(path, 0o711)
  return {
    path,
    [Symbol.dispose]: () => {
      rmSync(path, { recursive: true, force: true, maxRetries: 20, retryDelay: 100 })
    },
  }
}

/** The cache of this machine, so that the Temporal server is built once and not once per test. */
export const { cacheDir, childEnvironment } = configFromEnvironment()

/** Waits until `done` gives something other than false, undefined or null. */
export const until = async <T>(
  done: () => T | Promise<T>,
  what: string,
  withinMs = 120_000,
): Promise<NonNullable<T>> => {
  const deadline = Date.now() + withinMs
  for (;;) {
    const value = await done()
    if (value !== false && value !== undefined && value !== null) return value
    if (Date.now() > deadline) throw new Error(`not within ${withinMs / 1000} s: ${what}`)
    await new Promise((resolve) => setTimeout(resolve, 50))
  }
}
