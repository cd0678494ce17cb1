import { totalmem } from 'node:os'

/** How Jest runs the tests; `test/support/run-files.ts` starts it and judges its report. */
export default {
  testEnvironment: '<rootDir>/test/support/environment.ts',
  testMatch: ['<rootDir>/test/**/*.test.ts'],
  // Node strips the types.
  transform: {},
  extensionsToTreatAsEsm: ['.ts'],
  globalSetup: '<rootDir>/test/support/global-setup.ts',
  globalTeardown: '<rootDir>/test/support/global-teardown.ts',
  testSequencer: '<rootDir>/test/support/sequencer.ts',
  reporters: ['default', '<rootDir>/test/support/reporter.ts'],
  // No test fails because the machine was slow for a minute.
  testTimeout: 300_000,
  // More than CI has processors: many files wait for servers most of their time.
  maxWorkers: 3,
  // Each file loads its modules anew and leaves some 100 MB of them in its worker. A new worker takes
  // 15 s of a processor for its first file, where the next ones take 5 s.
  workerIdleMemoryLimit: totalmem() > 12 * 2 ** 30 ? '2.5GB' : '1GB',
}
