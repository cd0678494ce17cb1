import { existsSync } from 'node:fs'
import { kubernetesFolder } from './test/sites/kubernetes-build.ts'

export default {
  testEnvironment: 'node',
  testMatch: ['<rootDir>/test/**/*.test.ts'],
  extensionsToTreatAsEsm: ['.ts'],
  transform: {
    '\\.ts$': ['@swc/jest', { jsc: { target: 'es2023', parser: { syntax: 'typescript' } }, module: { type: 'es6' }, sourceMaps: 'inline' }],
  },
  resolver: '<rootDir>/test/support/resolver.js',
  globalSetup: '<rootDir>/test/support/global-setup.ts',
  globalTeardown: '<rootDir>/test/support/global-teardown.ts',
  testTimeout: 60_000,
  testSequencer: '<rootDir>/test/support/sequencer.js',
  // More than CI has processors: many of the slowest files wait most of their time. Three leave the two idle for a quarter of the run; but
  // while Kubernetes is built beside the tests, a fourth would only make the others late.
  maxWorkers: existsSync(kubernetesFolder()) ? 4 : 3,
  // Files leave some 100 MB each in a worker, and every process that it starts costs the copy of its page tables.
  workerIdleMemoryLimit: '700MB',
}
