import { chmodSync, mkdtempSync, statfsSync } from 'node:fs'
import { tmpdir } from 'node:os'

/**
 * The folder below which tests create theirs. The end of the test run removes it, and ends every
 * process that names it.
 */
export const runFolder = (): string => process.env['ORRERY_TEST_ROOT'] ?? tmpdir()

/** The folder of what all rounds of a run use: bundles of workflows, built programs. */
export const sharedFolder = (): string => process.env['ORRERY_TEST_SHARED'] ?? runFolder()

/** The folder of the run's own servers: in memory, where the machine has room. */
export const serversFolder = (): string => process.env['ORRERY_TEST_MEMORY'] ?? runFolder()

/** What programs that tests start get beside their own environment: they share code that is compiled once. */
export const compiledOnce = () => ({
  NODE_COMPILE_CACHE: process.env['NODE_COMPILE_CACHE'] ?? `${serversFolder()}/compiled`,
})

const memory = '/dev/shm'
/** What the servers of a run, their rounds and Jest's cache may take. */
const roomBytes = 4 * 2 ** 30

/**
 * A folder in memory for a run: each database that a test file clones is 600 files, which a disk may
 * take half a second for. The caller removes it.
 * @returns undefined where there is no room
 */
export const makeMemoryFolder = (): string | undefined => {
  try {
    const { bavail, bsize } = statfsSync(memory)
    if (bavail * bsize < roomBytes) return undefined
    const folder = mkdtempSync(`${memory}/orrery-`)
    // PostgreSQL may work below it under another account.
    chmodSync(folder, 0o711)
    return folder
  } catch {
    return undefined
  }
}
