import { tmpdir } from 'node:os'

/** The folder below which tests make theirs. It ends with the test run, and so does every process that names it. */
export const runFolder = (): string => process.env['ORRERY_TEST_ROOT'] ?? tmpdir()
