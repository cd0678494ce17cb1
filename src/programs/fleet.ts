import { openAdmin, type Checks } from './admin.ts'
import type { Endpoints } from '../embedded/embedded.ts'
import { findEndpoints } from '../embedded/ready-file.ts'
import type { Stoppable, Surroundings } from './program.ts'

/** One worker of a fleet, on external servers. */
export interface FleetWorker {
  checks: Checks
  /** Takes no new tasks, lets those under way end or returns them, closes what it opened. */
  stop(): Promise<void>
}

export type StartWorker = (surroundings: Surroundings & { endpoints: Endpoints }) => Promise<FleetWorker>

/**
 * A worker and its admin listener. The servers are those of the configuration, or of the daemon on
 * the same data folder.
 */
export const openFleetWorker = async (
  surroundings: Surroundings,
  startWorker: StartWorker,
): Promise<Stoppable> => {
  const { config, log, metrics } = surroundings
  const endpoints = findEndpoints(config)
  let worker: FleetWorker | undefined
  const admin = await openAdmin({ address: config.adminAddress, metrics, checks: () => worker?.checks })
  const opened = await startWorker({ ...surroundings, endpoints })
  worker = opened
  log.info(
    {
      adminUrl: admin.url,
      temporalAddress: endpoints.temporalAddress,
      taskQueue: config.temporalTaskQueue,
      hostId: config.hostId,
    },
    'ready',
  )
  return {
    stop: async () => {
      worker = undefined
      await opened.stop()
      await admin.close()
    },
    kill: () => undefined,
  }
}
