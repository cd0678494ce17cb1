import { z } from 'zod'
import type { Db } from '../../db/sql.ts'
import type { Peer } from '../../http/peer.ts'
import { append } from '../../lists.ts'
import { Refusal } from '../../refusal.ts'
import type { ConsoleKeeper } from './keeper.ts'
import type { ShownPart } from './served.ts'
import { outputTail } from './sessions.ts'

const historyBytes = 1024 * 1024
const mostBehindBytes = 1024 * 1024
/** Codes of RFC 6455 that are an application's own. */
const takenOver = 4001
const taken = 4002
const tooSlow = 4008

const Resize = z.strictObject({
  type: z.literal('resize'),
  rows: z.int().min(1).max(1_000),
  columns: z.int().min(1).max(1_000),
})

/** A frame that resizes; undefined for input. @throws Refusal for a size that no terminal has */
const resizeOf = (message: string | Buffer): z.output<typeof Resize> | undefined => {
  if (typeof message !== 'string' || !message.startsWith('{')) return undefined
  let frame: unknown
  try {
    frame = JSON.parse(message)
  } catch {
    return undefined
  }
  if (typeof frame !== 'object' || frame === null || !('type' in frame) || frame.type !== 'resize')
    return undefined
  const { data } = Resize.safeParse(frame)
  if (data === undefined)
    throw new Refusal('invalid', 'rows and columns of a resize must be whole numbers from 1 to 1000')
  return data
}

type Served = NonNullable<ReturnType<ConsoleKeeper['find']>>

/**
 * Sends the recorded output, then the new output. Ends with the session, or when the reader is too
 * slow. `brakes`: the terminal waits a while for this reader.
 */
const show = async (
  db: Pick<Db, 'many'>,
  { id, session, peer, brakes }: { id: string; session: Served; peer: Peer; brakes: boolean },
): Promise<() => void> => {
  let behind = 0
  let queue: ShownPart[] | undefined = session.unrecorded
  const send = (bytes: Buffer): void => {
    behind += bytes.length
    if (behind > mostBehindBytes) return peer.close(tooSlow, 'the reader is more than 1 MiB behind')
    peer.send(bytes).then(
      () => (behind -= bytes.length),
      () => undefined,
    )
  }
  const watcher = {
    output: (parts: readonly ShownPart[]) =>
      queue === undefined ? send(Buffer.concat(parts.map(({ bytes }) => bytes))) : append(queue, parts),
    ended: () => peer.close(1000, 'the session is over'),
    isSlow: () => brakes && behind > mostBehindBytes / 2 && !peer.signal.aborted,
  }
  const hide = (): void => void session.watchers.delete(watcher)
  session.watchers.add(watcher)
  const { bytes, taken } = await outputTail(db, id, historyBytes).catch((error: unknown) => {
    hide()
    throw error
  })
  // The record may hold a part of what was shown at once.
  const later = queue.filter(({ end }) => end > taken).map(({ bytes }) => bytes)
  // Output from before the connection does not count as the delay of a slow reader.
  const history = Buffer.concat([bytes, ...later]).subarray(-historyBytes)
  if (history.length > 0) peer.send(history).catch(() => undefined)
  queue = undefined
  if (session.hasEnded) watcher.ended()
  return hide
}

/** Serves one connection of a session. A writer's input goes to the terminal. */
export const attendSession = async (
  { db, keeper }: { db: Pick<Db, 'many'>; keeper: Pick<ConsoleKeeper, 'input' | 'resize'> },
  {
    id,
    session,
    peer,
    writes,
    takesOver,
  }: { id: string; session: Served; peer: Peer; writes: boolean; takesOver: boolean },
): Promise<void> => {
  const leave = (): void => peer.close(takenOver, 'another connection has taken over')
  // The upgrade lies between check and attachment, so two simultaneous requests may both pass the
  // check.
  if (writes && session.writer !== undefined && !takesOver)
    return peer.close(taken, 'another connection writes to this session; watch it, or take over')
  if (writes) {
    session.writer?.()
    session.writer = leave
  }
  let hide = (): void => undefined
  try {
    hide = await show(db, { id, session, peer, brakes: writes })
    for await (const message of peer.messages) {
      if (!writes) throw new Refusal('forbidden', 'this connection watches; it cannot write')
      if (session.writer !== leave) return
      const size = resizeOf(message)
      const sent = await (size === undefined
        ? keeper.input(session, Buffer.from(message as string))
        : keeper.resize(session, size.rows, size.columns))
      if (!sent) throw new Refusal('unavailable', 'the terminal cannot be reached now; connect again')
    }
  } finally {
    hide()
    if (session.writer === leave) session.writer = undefined
  }
}
