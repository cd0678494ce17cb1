import { eachRecord } from '../../db/each-record.ts'
import type { Log } from '../../observability/log.ts'
import { everyRound } from '../../pacing/every-round.ts'
import { poll } from '../../pacing/poll.ts'
import { openClearings } from './clearing.ts'
import { frameOf, sizeContent } from './frames.ts'
import { Served } from './served.ts'
import { serveSession, type ServingParts } from './serving.ts'
import { openSessions, removeOldSessions, type ConsoleSessionRow } from './sessions.ts'
import { removeOldCommands } from './store.ts'

export interface KeeperParts extends ServingParts {
  log: Log
  enabled: boolean
  idleSeconds: number
  retentionDays: number
}

/** Retention is counted in days. */
const removeEveryMs = 3_600_000

/**
 * Keeps every open session: starts its terminal, stores its recording and attaches again after a
 * lost link. The terminal and its recording stay with the resource. After a kill the service
 * continues with the first byte that is not stored.
 */
export const openConsoleKeeper = (parts: KeeperParts) => {
  const { db, log } = parts
  const served = new Map<string, Served>()
  const stopped = new AbortController()

  const begin = (row: ConsoleSessionRow): Served => {
    const known = served.get(row.id)
    if (known !== undefined) return known
    const session = new Served()
    served.set(row.id, session)
    void serveSession(parts, row, session, stopped.signal)
      .catch((error: unknown) =>
        log.warn(
          { err: error, sessionId: row.id },
          'a console session could not be kept; it is taken up again',
        ),
      )
      .finally(() => {
        served.delete(row.id)
        for (const watcher of session.watchers) watcher.ended()
      })
    return session
  }

  const keep = async (row: ConsoleSessionRow): Promise<void> => {
    if (row.place.host !== undefined && row.place.host !== parts.hostId) return
    const session = begin(row)
    const idle = performance.now() - session.usedAt > parts.idleSeconds * 1_000
    if (idle || row.closeRequestedAt !== undefined) await session.send(frameOf('c'))
  }
  const rounds = everyRound(
    1_000,
    async () => {
      if (!parts.enabled) return
      await eachRecord(await openSessions(db), keep, (error, { id }) =>
        log.warn({ err: error, sessionId: id }, 'a console session could not be kept; it is taken up again'),
      )
    },
    (error) =>
      log.warn({ err: error }, 'console sessions could not be looked for; they are looked for again'),
  )
  const clearings = openClearings(parts)
  const removals = everyRound(
    removeEveryMs,
    async () => {
      if (!parts.enabled) return
      await removeOldSessions(db, parts.retentionDays)
      await removeOldCommands(db, parts.retentionDays)
    },
    (error) => log.warn({ err: error }, 'old console sessions could not be removed; it is tried again'),
  )

  return {
    /** Begins to serve a session; no effect where the session is served already. */
    begin,
    /** A session that is served by this process. */
    find: (id: string): Served | undefined => served.get(id),
    input: (session: Served, bytes: Uint8Array): Promise<boolean> => session.send(frameOf('i', bytes)),
    resize: (session: Served, rows: number, columns: number): Promise<boolean> =>
      session.send(frameOf('r', sizeContent(rows, columns))),
    close: (session: Served): Promise<boolean> => session.send(frameOf('c')),
    /** Detaches from every terminal. The terminals go on. */
    async stop(): Promise<void> {
      stopped.abort()
      await Promise.all([rounds.stop(), clearings.stop(), removals.stop()])
      await poll(() => served.size === 0 || undefined, { everyMs: 50, deadlineMs: 2_500 })
    },
  }
}

export type ConsoleKeeper = ReturnType<typeof openConsoleKeeper>
