import type { Db } from '../../db/sql.ts'
import type { Log } from '../../observability/log.ts'
import { everyRound } from '../../pacing/every-round.ts'
import { poll } from '../../pacing/poll.ts'
import { openRetries } from '../../pacing/retries.ts'
import { within } from '../../pacing/within.ts'
import { clearLeftCommand, type CommandSiteParts } from './command-site.ts'
import { clearSession, unclearedSessions } from './sessions.ts'
import { anyUncleared, clearCommand, unclearedCommands } from './store.ts'
import { clearTerminal, type TerminalParts } from './terminal.ts'

const batch = 100
/** More of them wait for a later round. */
const mostUnderWay = 200
/** A resource that gives no answer for this long is tried again later. */
const clearWithinMs = 60_000
/** A stop waits this long for what is under way. */
const stopWithinMs = 2_500

/**
 * Removes what ended sessions and commands left at their resources, again and again until it is
 * gone: a resource may be out of reach at the end, or the service may be killed.
 */
export const openClearings = (
  parts: TerminalParts & CommandSiteParts & { db: Db; log: Log; serves: (id: string) => boolean },
): { stop(): Promise<void> } => {
  const { db, log } = parts
  const retries = openRetries({ firstMs: 1_000, longestMs: 3_600_000 })
  const underWay = new Set<string>()
  const clear = async (id: string, work: () => Promise<unknown>): Promise<void> => {
    underWay.add(id)
    const late = () => new Error(`the resource gave no answer within ${String(clearWithinMs / 1_000)} s`)
    try {
      await within(work(), clearWithinMs, late)
      retries.succeeded(id)
    } catch (error) {
      log.debug({ err: error, id }, 'what a console session or command left is removed later')
      retries.failed(id)
    } finally {
      underWay.delete(id)
    }
  }
  /** Begins with those that are due. A resource that gives no answer keeps no other waiting. */
  const begin = <Row extends { id: string }>(
    rows: readonly Row[],
    work: (row: Row) => Promise<unknown>,
  ): void => {
    for (const row of retries.due(rows, ({ id }) => id)) {
      // The start of a terminal that is under way would come after its removal.
      if (underWay.has(row.id) || parts.serves(row.id)) continue
      if (underWay.size < mostUnderWay) void clear(row.id, () => work(row))
    }
  }
  const rounds = everyRound(
    1_000,
    async () => {
      if (!(await anyUncleared(db, parts.hostId))) return
      // Those that wait for their next try, or are under way, leave a whole batch of others.
      const limit = batch + retries.waiting + underWay.size
      const sessions = await unclearedSessions(db, parts.hostId, limit)
      const commands = await unclearedCommands(db, parts.hostId, limit)
      begin(sessions, async (row) => {
        await clearTerminal(parts, row)
        await clearSession(db, row.id)
      })
      begin(commands, async (row) => {
        await clearLeftCommand(parts, row)
        await clearCommand(db, row.id)
      })
    },
    (error) =>
      log.warn({ err: error }, 'ended console sessions could not be looked for; they are looked for again'),
  )
  return {
    async stop() {
      await rounds.stop()
      await poll(() => underWay.size === 0 || undefined, { everyMs: 50, deadlineMs: stopWithinMs })
    },
  }
}
