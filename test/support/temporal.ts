import { chmodSync, mkdtempSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { configFromEnvironment } from '../../src/config.ts'
import { openTemporal } from '../../src/embedded/temporal.ts'
import { openLog } from '../../src/observability/log.ts'
import { runFolder } from './run-folder.ts'

export interface TestTemporal {
  address: string
  namespace: string
  stop: () => Promise<void>
}

/**
 * A dedicated Temporal server with the product's settings, on a folder that is removed with it. The
 * program comes from this machine's cache.
 */
export const startTemporal = async (): Promise<TestTemporal> => {
  const { cacheDir, childEnvironment } = configFromEnvironment()
  const dataDir = mkdtempSync(join(runFolder(), 'orrery-temporal-'))
  chmodSync(dataDir, 0o711)
  const namespace = 'default'
  const server = await openTemporal({
    dataDir,
    cacheDir,
    namespace,
    program: undefined,
    environment: childEnvironment,
    log: openLog('silent'),
    onProgress: () => undefined,
  })
  return {
    address: server.address,
    namespace,
    stop: async () => {
      await server.stop()
      rmSync(dataDir, { recursive: true, force: true, maxRetries: 20, retryDelay: 100 })
    },
  }
}
