import type { Db } from '../../db/sql.ts'
import type { Log } from '../../observability/log.ts'
import { everyRound } from '../../pacing/every-round.ts'
import { clearLeftCommand, type CommandSiteParts } from './command-site.ts'
import { clearSession, unclearedSessions } from './sessions.ts'
import { clearCommand, unclearedCommands } from './store.ts'
import { clearTerminal, type TerminalParts } from './terminal.ts'

const batch = 100

/**
 * Removes what ended sessions and commands left at their resources, again and again until it is
 * gone: a resource may be out of reach at the end, or the service may be killed.
 */
export const openClearings = (
  parts: TerminalParts & CommandSiteParts & { db: Db; log: Log; serves: (id: string) => boolean },
): { stop(): Promise<void> } => {
  const { db, log } = parts
  /** Those whose resource could not be cleared, by id, with the time of the next try. */
  const later = new Map<string, { at: number; waitMs: number }>()
  const clear = async ({ id }: { id: string }, work: () => Promise<unknown>): Promise<void> => {
    const { at = 0, waitMs = 1_000 } = later.get(id) ?? {}
    if (performance.now() < at) return
    try {
      await work()
      later.delete(id)
    } catch (error) {
      log.debug({ err: error, id }, 'what a console session or command left is removed later')
      later.set(id, { at: performance.now() + waitMs, waitMs: Math.min(waitMs * 2, 3_600_000) })
    }
  }
  // The start of a terminal that is under way would come after its removal.
  const isDue = ({ id }: { id: string }): boolean => !parts.serves(id)
  return everyRound(
    1_000,
    async () => {
      // Those that wait for their next try leave a whole batch of others.
      const limit = batch + later.size
      const sessions = await unclearedSessions(db, parts.hostId, limit)
      const commands = await unclearedCommands(db, parts.hostId, limit)
      const left = new Set([...sessions, ...commands].map(({ id }) => id))
      for (const id of later.keys()) if (!left.has(id)) later.delete(id)
      await Promise.all([
        ...sessions.filter(isDue).map((row) =>
          clear(row, async () => {
            await clearTerminal(parts, row)
            await clearSession(db, row.id)
          }),
        ),
        ...commands.filter(isDue).map((row) =>
          clear(row, async () => {
            await clearLeftCommand(parts, row)
            await clearCommand(db, row.id)
          }),
        ),
      ])
    },
    (error) =>
      log.warn({ err: error }, 'ended console sessions could not be looked for; they are looked for again'),
  )
}
