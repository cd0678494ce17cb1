import type { Db } from '../db/sql.ts'
import { checkConnection, type CheckParts, type PinParts } from './check.ts'
import type { Links } from './links.ts'
import type { ConnectionCheck, ConnectionDocument } from '../domains/environment-connections/schemas.ts'
import type { ConnectionReports } from '../domains/environment-connections/changes.ts'
import { hostOfConnection } from '../domains/environment-connections/discoveries.ts'
import { pauseAfter } from '../domains/environment-connections/status.ts'
import {
  beginCheck,
  readConnection,
  recordCheck,
  successesInRow,
} from '../domains/environment-connections/store.ts'

export interface MonitorParts extends CheckParts, PinParts {
  db: Db
  links: Links
  reports: ConnectionReports
  /** Pause between two checks of a connection that has been unhealthy for long. */
  monitorIntervalSeconds: number
}

/** Checks a stored connection and records the result; undefined when it was deleted meanwhile. */
export const checkAndRecord = async (
  parts: Pick<MonitorParts, 'db' | 'links' | 'addressAllowed' | 'engineSockets' | 'api' | 'reports'>,
  connection: ConnectionDocument,
  actor?: string,
): Promise<ConnectionCheck | undefined> => {
  await beginCheck(parts.db, connection)
  const { healthy, message, latencyMs, stages, facts } = await checkConnection(
    parts,
    connection,
    actor === undefined ? {} : { actor },
  )
  const found = {
    status: healthy ? ('online' as const) : ('offline' as const),
    message,
    latencyMs,
    metadata: { endpoint: connection.endpoint, connectionType: connection.type, stages, ...facts },
  }
  // For a check that a person requested, the request is the audit record.
  const recorded = await recordCheck(parts.db, connection, found, { audited: actor !== undefined })
  if (recorded?.change !== undefined) parts.reports.connectionChanged(recorded.change)
  return recorded?.check
}

/**
 * Seconds until the connection's next check; undefined when the connection is gone; its session has
 * then ended.
 */
export const pauseBeforeCheck = async (
  { db, links, monitorIntervalSeconds }: MonitorParts,
  connectionId: string,
): Promise<number | undefined> => {
  const successes = await successesInRow(db, connectionId)
  if (successes !== undefined) return pauseAfter(successes, monitorIntervalSeconds)
  await links.forget(connectionId)
  return undefined
}

/** Records that no process of the host that a local connection is about made its check. */
export const recordUnchecked = async (
  { db, reports }: Pick<MonitorParts, 'db' | 'reports'>,
  connectionId: string,
): Promise<void> => {
  const connection = await readConnection(db, connectionId)
  if (connection === undefined) return
  const host = JSON.stringify((await hostOfConnection(db, connectionId)) ?? '')
  const recorded = await recordCheck(db, connection, {
    status: 'offline',
    message:
      `no worker of the host ${host}, which the connection is about, took the check: start that host, or ` +
      'discover through the API of another one',
    latencyMs: 0,
    metadata: { endpoint: connection.endpoint, connectionType: connection.type },
  })
  if (recorded?.change !== undefined) reports.connectionChanged(recorded.change)
}

/** One step of the monitor: one check, and the pause after it. */
export const monitorTurn = async (parts: MonitorParts, connectionId: string): Promise<number | undefined> => {
  const connection =
    (await successesInRow(parts.db, connectionId)) === undefined
      ? undefined
      : await readConnection(parts.db, connectionId)
  if (connection !== undefined) await checkAndRecord(parts, connection)
  return pauseBeforeCheck(parts, connectionId)
}
