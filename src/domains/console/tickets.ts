import { createHash, randomBytes } from 'node:crypto'
import { z } from 'zod'
import { countUpTo } from '../../db/rows.ts'
import { sql, type Db } from '../../db/sql.ts'
import { Refusal } from '../../refusal.ts'

/** A page asks for a ticket and opens the stream at once, so 30 seconds are enough. */
const lifeSeconds = 30
/** The limit of tickets of one session at a time. Each ticket is good for one connection. */
const mostTickets = 100

export type TicketMode = 'write' | 'watch'

const SpentRow = z.object({ mode: z.enum(['write', 'watch']), actorId: z.string() })

const digestOf = (secret: string): Buffer => createHash('sha256').update(secret).digest()

/**
 * A secret that opens the stream of a session once, within 30 seconds.
 * @throws Refusal 409 while too many tickets are unused
 */
export const issueTicket = (
  db: Db,
  { sessionId, mode, actorId }: { sessionId: string; mode: TicketMode; actorId: string },
): Promise<{ secret: string; expiresAt: string }> =>
  db.transaction(async (tx) => {
    await tx.run(sql`delete from console_tickets where expires_at < clock_timestamp()`)
    const waiting = sql`console_tickets where session_id = ${sessionId}`
    if ((await countUpTo(tx, waiting, mostTickets)) >= mostTickets)
      throw new Refusal(
        'conflict',
        `${String(mostTickets)} tickets of this session wait to be used; use one, or wait 30 s`,
      )
    const secret = randomBytes(32).toString('base64url')
    const expiresAt = await tx.only(
      z.string(),
      sql`insert into console_tickets (digest, session_id, mode, actor_id, expires_at)
        values (${digestOf(secret)}, ${sessionId}, ${mode}, ${actorId},
          clock_timestamp() + make_interval(secs => ${lifeSeconds})) returning expires_at`,
    )
    return { secret, expiresAt }
  })

/**
 * Spends a ticket of the session. @returns undefined where it is spent, late or of another session
 */
export const redeemTicket = (
  db: Db,
  sessionId: string,
  secret: string,
): Promise<{ mode: TicketMode; actorId: string } | undefined> =>
  db.maybe(
    SpentRow,
    sql`delete from console_tickets where digest = ${digestOf(secret)} and session_id = ${sessionId}
      and expires_at > clock_timestamp() returning mode, actor_id`,
  )
