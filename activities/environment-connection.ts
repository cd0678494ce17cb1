import { Context } from '@temporalio/activity'
import { beating } from './beating.ts'
import {
  cancelDiscovery,
  discoverConnection,
  failDiscovery,
  type DiscoveryEnd,
} from '../src/connections/discover.ts'
import { readDiscovery } from '../src/domains/environment-connections/discoveries.ts'
import type { Engine } from '../src/engine.ts'
import { monitorTurn, pauseBeforeCheck, type MonitorParts } from '../src/connections/monitor.ts'
import { queueOfHost } from '../src/task-queues.ts'

export interface EnvironmentConnectionParts extends MonitorParts {
  engine: Pick<Engine, 'taskQueue'>
}

/** Tries of one discovery; the workflow's policy allows one more, for a worker that died. */
const discoveryTries = 4

export const environmentConnectionActivities = (parts: EnvironmentConnectionParts) => ({
  /** Seconds until a connection's next check; null when the connection needs no more checks. */
  pauseBeforeCheck: async (connectionId: string): Promise<number | null> =>
    (await pauseBeforeCheck(parts, connectionId)) ?? null,

  /**
   * Makes and records one check; returns the seconds until the next, or null when no more are
   * needed.
   */
  checkConnection: (connectionId: string): Promise<number | null> =>
    beating(async () => (await monitorTurn(parts, connectionId)) ?? null),

  /** The queue of the host that a discovery describes; null where any worker reaches the other side. */
  placeDiscovery: async (connectionId: string, number: number): Promise<string | null> => {
    const host = (await readDiscovery(parts.db, connectionId, number))?.hostId
    return host === undefined ? null : queueOfHost(parts.engine.taskQueue, host)
  },

  /** Discovers what a connection offers and records it; repeats while the fault may pass. */
  discoverConnection: (connectionId: string, number: number): Promise<DiscoveryEnd> =>
    beating(() =>
      discoverConnection(parts, connectionId, number, Context.current().info.attempt >= discoveryTries),
    ),

  /** Records that a discovery failed as a whole. */
  failDiscovery: (connectionId: string, number: number, problem: string): Promise<void> =>
    failDiscovery(parts, connectionId, number, { problem, transient: true, reached: undefined }),

  /**
   * Ends an open discovery after a cancel on Temporal's page; false when the discovery was over.
   */
  cancelDiscovery: (connectionId: string, number: number): Promise<boolean> =>
    cancelDiscovery(parts.db, connectionId, number),
})

export type EnvironmentConnectionActivities = ReturnType<typeof environmentConnectionActivities>
