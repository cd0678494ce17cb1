import { Context } from '@temporalio/activity'
import { beating } from './beating.ts'
import { cancelDiscovery, discoverConnection, failDiscovery, type DiscoveryEnd } from '../src/domains/environment-connections/discover.ts'
import { monitorTurn, pauseBeforeCheck, type MonitorParts } from '../src/domains/environment-connections/monitor.ts'

export type EnvironmentConnectionParts = MonitorParts

/** Tries of one discovery; the workflow's policy allows one more, for a worker that died. */
const discoveryTries = 4

export const environmentConnectionActivities = (parts: EnvironmentConnectionParts) => ({
  /** Seconds until a connection's next check; null when there is nothing to watch any more. */
  pauseBeforeCheck: async (connectionId: string): Promise<number | null> => (await pauseBeforeCheck(parts, connectionId)) ?? null,

  /** One check with its record, and the seconds until the next; null when there is nothing to watch any more. */
  checkConnection: (connectionId: string): Promise<number | null> => beating(async () => (await monitorTurn(parts, connectionId)) ?? null),

  /** Asks what is behind a connection and records it; repeated while the trouble may pass. */
  discoverConnection: (connectionId: string, number: number): Promise<DiscoveryEnd> =>
    beating(() => discoverConnection(parts, connectionId, number, Context.current().info.attempt >= discoveryTries)),

  /** Records that a discovery could not be made at all. */
  failDiscovery: (connectionId: string, number: number, problem: string): Promise<void> =>
    failDiscovery(parts.db, connectionId, number, { problem, transient: true, reached: true }),

  /** Ends an open discovery for a cancel that came from Temporal's page; false when it was over. */
  cancelDiscovery: (connectionId: string, number: number): Promise<boolean> => cancelDiscovery(parts.db, connectionId, number),
})

export type EnvironmentConnectionActivities = ReturnType<typeof environmentConnectionActivities>
