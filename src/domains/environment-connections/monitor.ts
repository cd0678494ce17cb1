import type { Db } from '../../db/sql.ts'
import { checkConnection, type CheckParts, type PinParts } from './check.ts'
import type { Links } from './links.ts'
import type { ConnectionCheck, ConnectionDocument } from './schemas.ts'
import { pauseAfter } from './status.ts'
import { beginCheck, readConnection, recordCheck, successesInRow } from './store.ts'

export interface MonitorParts extends CheckParts, PinParts {
  db: Db
  links: Links
  /** Pause between two checks of a connection that has not been well for long. */
  monitorIntervalSeconds: number
}

/** Checks a stored connection and records what was found; undefined when it was deleted meanwhile. */
export const checkAndRecord = async (
  parts: Pick<MonitorParts, 'db' | 'links' | 'addressAllowed' | 'engineSockets' | 'api'>,
  connection: ConnectionDocument,
  actor?: string,
): Promise<ConnectionCheck | undefined> => {
  await beginCheck(parts.db, connection)
  const { healthy, message, latencyMs, stages, facts } = await checkConnection(parts, connection, actor === undefined ? {} : { actor })
  const found = {
    status: healthy ? ('online' as const) : ('offline' as const),
    message,
    latencyMs,
    metadata: { endpoint: connection.endpoint, connectionType: connection.type, stages, ...facts },
  }
  // Of a check that a person asked for, the request is the audit record.
  return recordCheck(parts.db, connection, found, { audited: actor !== undefined })
}

/** Seconds until the connection's next check; undefined when there is none any more to look at, and its session has ended. */
export const pauseBeforeCheck = async (
  { db, links, monitorIntervalSeconds }: MonitorParts,
  connectionId: string,
): Promise<number | undefined> => {
  const successes = await successesInRow(db, connectionId)
  if (successes !== undefined) return pauseAfter(successes, monitorIntervalSeconds)
  await links.forget(connectionId)
  return undefined
}

/** The monitor's turn: one check, and the pause after it. */
export const monitorTurn = async (parts: MonitorParts, connectionId: string): Promise<number | undefined> => {
  const connection = (await successesInRow(parts.db, connectionId)) === undefined ? undefined : await readConnection(parts.db, connectionId)
  if (connection !== undefined) await checkAndRecord(parts, connection)
  return pauseBeforeCheck(parts, connectionId)
}
