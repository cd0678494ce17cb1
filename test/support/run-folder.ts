import { tmpdir } from 'node:os'

/**
 * The folder below which tests create theirs. The end of the test run removes it, and ends every
 * process that names it.
 */
export const runFolder = (): string => process.env['ORRERY_TEST_ROOT'] ?? tmpdir()
