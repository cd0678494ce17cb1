import { Context } from '@temporalio/activity'
import { beating } from './beating.ts'
import {
  cancelDiscovery,
  discoverConnection,
  failDiscovery,
  type DiscoveryEnd,
} from '../src/connections/discover.ts'
import { hostOfConnection, readDiscovery } from '../src/domains/environment-connections/discoveries.ts'
import type { Engine } from '../src/engine.ts'
import {
  monitorTurn,
  pauseBeforeCheck,
  recordUnchecked,
  type MonitorParts,
} from '../src/connections/monitor.ts'
import { queueOfHost, queueOfMonitors } from '../src/task-queues.ts'

export interface EnvironmentConnectionParts extends MonitorParts {
  engine: Pick<Engine, 'taskQueue'>
}

/** Tries of one discovery; the workflow's policy allows one more, for a worker that died. */
const discoveryTries = 4

/**
 * The next check of a connection: the seconds until then, with the queue of the host that it is about,
 * where only that can check it; null when the connection needs no more checks.
 */
export type NextCheck = number | { seconds: number; taskQueue: string } | null

const nextCheck = async (
  { db, engine }: EnvironmentConnectionParts,
  connectionId: string,
  seconds: number | undefined,
): Promise<NextCheck> => {
  const host = seconds === undefined ? undefined : await hostOfConnection(db, connectionId)
  if (seconds === undefined || host === undefined) return seconds ?? null
  return { seconds, taskQueue: queueOfMonitors(queueOfHost(engine.taskQueue, host)) }
}

export const environmentConnectionActivities = (parts: EnvironmentConnectionParts) => ({
  /** When a connection is checked next. */
  pauseBeforeCheck: async (connectionId: string): Promise<NextCheck> =>
    nextCheck(parts, connectionId, await pauseBeforeCheck(parts, connectionId)),

  /** Makes and records one check. */
  checkConnection: (connectionId: string): Promise<NextCheck> =>
    beating(async () => nextCheck(parts, connectionId, await monitorTurn(parts, connectionId))),

  /**
   * Records that the host with the queue `awaited` made no check. Where the connection has been moved
   * meanwhile, that is no finding: its check is due elsewhere, at once.
   */
  recordUnchecked: async (connectionId: string, awaited: string): Promise<NextCheck> => {
    const due = await nextCheck(parts, connectionId, 0)
    if (due === null || typeof due === 'number' || due.taskQueue !== awaited) return due
    await recordUnchecked(parts, connectionId)
    return nextCheck(parts, connectionId, await pauseBeforeCheck(parts, connectionId))
  },

  /** The queue of the host that a discovery describes; null where any worker reaches the other side. */
  placeDiscovery: async (connectionId: string, number: number): Promise<string | null> => {
    const host = (await readDiscovery(parts.db, connectionId, number))?.hostId
    return host === undefined ? null : queueOfHost(parts.engine.taskQueue, host)
  },

  /** Discovers what a connection offers and records it; repeats while the fault may pass. */
  discoverConnection: (connectionId: string, number: number, key?: string): Promise<DiscoveryEnd> =>
    beating(() =>
      discoverConnection(
        parts,
        { id: connectionId, generation: number, key },
        Context.current().info.attempt >= discoveryTries,
      ),
    ),

  /** Records that a discovery failed as a whole. */
  failDiscovery: (connectionId: string, number: number, problem: string, key?: string): Promise<void> =>
    failDiscovery(
      parts,
      { id: connectionId, generation: number, key },
      { problem, transient: true, reached: undefined },
    ),

  /**
   * Ends an open discovery after a cancel on Temporal's page; false when the discovery was over.
   */
  cancelDiscovery: (connectionId: string, number: number, key?: string): Promise<boolean> =>
    cancelDiscovery(parts.db, { id: connectionId, generation: number, key }),
})

export type EnvironmentConnectionActivities = ReturnType<typeof environmentConnectionActivities>
