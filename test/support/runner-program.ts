import { configFromEnvironment } from '../../src/config.ts'
import { findRunnerProgram } from '../../src/embedded/runner-program.ts'
import { openLog } from '../../src/observability/log.ts'

/** The runner of local tasks from the cache. The set-up of the tests built it. */
export const runnerProgram = (): Promise<string> => {
  const { cacheDir, childEnvironment } = configFromEnvironment()
  return findRunnerProgram({
    cacheDir,
    environment: childEnvironment,
    log: openLog('warn'),
    onProgress: () => {},
  })
}
