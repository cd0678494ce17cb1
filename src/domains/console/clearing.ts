import type { Db } from '../../db/sql.ts'
import type { Log } from '../../observability/log.ts'
import { everyRound } from '../../pacing/every-round.ts'
import { clearSession, unclearedSessions, type ConsoleSessionRow } from './sessions.ts'
import { clearTerminal, type TerminalParts } from './terminal.ts'

const batch = 100

/**
 * Removes what ended sessions left at their resources, again and again until it is gone: a resource
 * may be out of reach when its session ends, or the service may be killed.
 */
export const openClearings = (
  parts: TerminalParts & { db: Db; log: Log; enabled: boolean },
): { stop(): Promise<void> } => {
  const { db, log } = parts
  /** Ended sessions whose resource could not be cleared, with the time of the next try. */
  const later = new Map<string, { at: number; waitMs: number }>()
  const clear = async (row: ConsoleSessionRow): Promise<void> => {
    const { at = 0, waitMs = 1_000 } = later.get(row.id) ?? {}
    if (performance.now() < at) return
    try {
      await clearTerminal(parts, row)
      await clearSession(db, row.id)
      later.delete(row.id)
    } catch (error) {
      log.debug({ err: error, sessionId: row.id }, 'what a console session left is removed later')
      later.set(row.id, { at: performance.now() + waitMs, waitMs: Math.min(waitMs * 2, 3_600_000) })
    }
  }
  return everyRound(
    1_000,
    async () => {
      if (!parts.enabled) return
      // Sessions that wait for their next try leave a whole batch of others.
      const rows = await unclearedSessions(db, parts.hostId, batch + later.size)
      const ids = new Set(rows.map(({ id }) => id))
      for (const id of later.keys()) if (!ids.has(id)) later.delete(id)
      await Promise.all(rows.map(clear))
    },
    (error) =>
      log.warn({ err: error }, 'ended console sessions could not be looked for; they are looked for again'),
  )
}
