import { existsSync } from 'node:fs'
import { defineConfig } from 'vitest/config'
import { kubernetesFolder } from './test/sites/kubernetes-build.ts'
import SlowestFirst from './test/support/sequencer.js'

export default defineConfig({
  test: {
    include: ['test/**/*.test.ts'],
    globalSetup: 'test/support/global-setup.ts',
    testTimeout: 60_000,
    hookTimeout: 60_000,
    sequence: { sequencer: SlowestFirst, hooks: 'list' },
    // More than CI has processors: many of the slowest files wait most of their time. Three leave the two idle for a quarter of the run, four
    // for a twelfth, five for a fortieth; but while Kubernetes is built beside the tests, more than three would only make the others late.
    maxWorkers: existsSync(kubernetesFolder()) ? 5 : 3,
    // Files of a worker share its modules, which Node loads as it does in the service: with modules of its own for each file, what the API's
    // tests take of the processors is a quarter more.
    isolate: false,
    experimental: { viteModuleRunner: false, nodeLoader: false },
    // With room, most of what a file leaves is collected at once: a fifth less processor time.
    execArgv: [
      '--initial-old-space-size=1024',
      '--max-semi-space-size=64',
      `--import=${new URL('test/support/bundle-once.js', import.meta.url)}`,
      `--import=${new URL('test/support/quick-fork.js', import.meta.url)}`,
    ],
  },
})
