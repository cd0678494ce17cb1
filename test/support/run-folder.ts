import { tmpdir } from 'node:os'

/**
 * The folder below which tests create theirs. The end of the test run removes it, and ends every
 * process that names it.
 */
export const runFolder = (): string => process.env['ORRERY_TEST_ROOT'] ?? tmpdir()

/** The folder of what all rounds of a run use: bundles of workflows, built programs. */
export const sharedFolder = (): string => process.env['ORRERY_TEST_SHARED'] ?? runFolder()
