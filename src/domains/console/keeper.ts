import { eachRecord } from '../../db/each-record.ts'
import type { Log } from '../../observability/log.ts'
import { everyRound } from '../../pacing/every-round.ts'
import { poll } from '../../pacing/poll.ts'
import { openClearings } from './clearing.ts'
import type { CommandSiteParts } from './command-site.ts'
import { frameOf, sizeContent } from './frames.ts'
import { Served } from './served.ts'
import { serveSession, type ServingParts } from './serving.ts'
import {
  claimSessions,
  endSession,
  openSessions,
  releaseSessions,
  removeOldSessions,
  requestClose,
  type ConsoleSessionRow,
} from './sessions.ts'
import { removeOldCommands } from './store.ts'

export interface KeeperParts extends ServingParts, CommandSiteParts {
  sites: ServingParts['sites'] & CommandSiteParts['sites']
  log: Log
  /** Names this process, and the next one with the same data folder, among those of one database. */
  server: string
  enabled: boolean
  idleSeconds: number
  retentionDays: number
}

/** A terminal that was asked to end and gives nothing for this long ends in the record alone. */
const closeMs = 10_000
/**
 * A terminal of another machine ends in the record alone this long after it was asked to end: the
 * service there, if there is one, ends it before.
 */
const elsewhereSeconds = 15
/** Retention is counted in days. */
const removeEveryMs = 3_600_000

/**
 * Keeps every open session: starts its terminal, stores its recording and attaches again after a
 * lost link. The terminal and its recording stay with the resource. After a kill the service
 * continues with the first byte that is not stored. While the console is off, sessions that are open
 * end. A session of another machine is served by the service there. Of several processes on this
 * machine's sessions one serves each.
 */
export const openConsoleKeeper = (parts: KeeperParts) => {
  const { db, log, server } = parts
  const served = new Map<string, Served>()
  const stopped = new AbortController()

  const begin = (row: ConsoleSessionRow): Served => {
    const known = served.get(row.id)
    if (known !== undefined) return known
    const session = new Served()
    served.set(row.id, session)
    const over = AbortSignal.any([stopped.signal, session.over.signal])
    void serveSession(parts, row, session, over)
      .catch((error: unknown) =>
        log.warn(
          { err: error, sessionId: row.id },
          'a console session could not be kept; it is taken up again',
        ),
      )
      .finally(() => {
        served.delete(row.id)
        session.end()
      })
    return session
  }

  const keep = async (row: ConsoleSessionRow): Promise<void> => {
    if (row.place.host !== undefined && row.place.host !== parts.hostId)
      return keepElsewhere(row, row.place.host)
    if (row.servedBy !== server) return served.get(row.id)?.over.abort()
    if (!parts.enabled) return endSession(db, row, 'the console was switched off')
    const session = begin(row)
    const idle = performance.now() - session.usedAt > parts.idleSeconds * 1_000
    if (row.closeRequestedAt !== undefined || (idle && session.stream !== undefined))
      await close(row, session)
    else session.closingAt = undefined
  }
  const keepElsewhere = async (row: ConsoleSessionRow, host: string): Promise<void> => {
    if (!parts.enabled && row.closeRequestedAt === undefined) await requestClose(db, row.id)
    if ((row.closingSeconds ?? 0) > elsewhereSeconds)
      await endSession(db, row, `the machine ${JSON.stringify(host)} did not answer`)
  }
  /** Ends a session's terminal; or its record, where there is no terminal yet or none that ends. */
  const close = async (row: ConsoleSessionRow, session: Served): Promise<void> => {
    session.close()
    const silentMs = performance.now() - Math.max(session.closingAt ?? 0, session.shownAt)
    if ((session.stream !== undefined || row.status === 'connected') && silentMs < closeMs) return
    await endSession(db, row)
    session.over.abort()
  }
  let claimedAt = Number.NEGATIVE_INFINITY
  /** The open sessions; those of this host are claimed first. */
  const claimed = async (): Promise<ConsoleSessionRow[]> => {
    // After an outage of the database no server has renewed its word, and each renews its own first.
    const takesOver = performance.now() - claimedAt < 10_000
    const isAnyOpen = (await openSessions(db)).length > 0
    if (isAnyOpen) await claimSessions(db, server, parts.hostId, { takesOver })
    claimedAt = performance.now()
    return isAnyOpen ? openSessions(db) : []
  }
  const rounds = everyRound(
    1_000,
    async () => {
      await eachRecord(await claimed(), keep, (error, { id }) =>
        log.warn({ err: error, sessionId: id }, 'a console session could not be kept; it is taken up again'),
      )
    },
    (error) =>
      log.warn({ err: error }, 'console sessions could not be looked for; they are looked for again'),
  )
  const clearings = openClearings({ ...parts, serves: (id) => served.has(id) })
  const removals = everyRound(
    removeEveryMs,
    async () => {
      await removeOldSessions(db, parts.retentionDays)
      await removeOldCommands(db, parts.retentionDays)
    },
    (error) => log.warn({ err: error }, 'old console sessions could not be removed; it is tried again'),
  )

  return {
    server,
    /** Begins to serve a session; no effect where the session is served already. */
    begin,
    /** A session that is served by this process. */
    find: (id: string): Served | undefined => served.get(id),
    input: (session: Served, bytes: Uint8Array): Promise<boolean> => session.send(frameOf('i', bytes)),
    resize: (session: Served, rows: number, columns: number): Promise<boolean> =>
      session.send(frameOf('r', sizeContent(rows, columns))),
    close,
    /** Detaches from every terminal. The terminals go on. */
    async stop(): Promise<void> {
      stopped.abort()
      await Promise.all([rounds.stop(), clearings.stop(), removals.stop()])
      await poll(() => served.size === 0 || undefined, { everyMs: 50, deadlineMs: 2_500 })
      // Where the database does not answer, others wait until this process counts as gone.
      await releaseSessions(db, server).catch(() => undefined)
    },
  }
}

export type ConsoleKeeper = ReturnType<typeof openConsoleKeeper>
