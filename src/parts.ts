import { mkdir } from 'node:fs/promises'
import { availableParallelism } from 'node:os'
import { join } from 'node:path'
import type { Config } from './config.ts'
import { migrate } from './db/migrate.ts'
import { openDatabase } from './db/pool.ts'
import { openHostCores } from './domains/execution-runs/host-cores.ts'
import { openLocalDriver } from './drivers/runtime/local.ts'
import { openNoneDriver } from './drivers/runtime/none.ts'
import type { Endpoints } from './embedded/embedded.ts'
import { openEngine } from './engine.ts'
import { openFailpoints } from './failpoints.ts'
import type { Surroundings } from './program.ts'
import { openCompute } from './schedulers/compute.ts'

/** Folder of work directories below the data folder, and of the local driver's own files. */
const workFolder = (config: Config): string => join(config.dataDir, 'work')
const taskFolder = (config: Config): string => join(config.dataDir, 'tasks')

/**
 * Opens once what both programs share, and brings the database to the newest schema. Closed in reverse; tasks that run on this
 * machine go on.
 */
export const openParts = async ({
  config,
  log,
  traces,
  endpoints,
}: Pick<Surroundings, 'config' | 'log' | 'traces'> & { endpoints: Endpoints }) => {
  const db = openDatabase(endpoints.databaseUrl, {
    max: 20,
    onError: (error) => {
      log.warn({ err: error }, 'an idle database connection was lost')
    },
  })
  try {
    await migrate(db)
  } catch (error) {
    await db[Symbol.asyncDispose]()
    throw error
  }
  // Passable, as the data folder is; what a task makes in it is 0700 by the driver.
  await mkdir(workFolder(config), { recursive: true, mode: 0o711 })
  await mkdir(taskFolder(config), { recursive: true, mode: 0o700 })
  const engine = openEngine({
    address: endpoints.temporalAddress,
    namespace: config.temporalNamespace,
    taskQueue: config.temporalTaskQueue,
    plugins: traces.temporalPlugins,
  })
  const compute = openCompute({ threads: Math.max(1, availableParallelism() - 1) })
  const drivers = {
    local: openLocalDriver({ controlDirectory: taskFolder(config), taskVariable: `${config.taskVariablePrefix}TASK` }),
    rehearsal: openNoneDriver(),
  }
  return {
    db,
    engine,
    compute,
    drivers,
    hostId: config.hostId,
    cores: openHostCores(availableParallelism()),
    workRoot: workFolder(config),
    seedRoot: config.seedRoot,
    variablePrefix: config.taskVariablePrefix,
    clock: () => Date.now() / 1_000,
    failpoint: openFailpoints(config.failpoints),
    async [Symbol.asyncDispose]() {
      await drivers.local.close()
      await drivers.rehearsal.close()
      await compute[Symbol.asyncDispose]()
      await engine[Symbol.asyncDispose]()
      await db[Symbol.asyncDispose]()
    },
  }
}

export type Parts = Awaited<ReturnType<typeof openParts>>
