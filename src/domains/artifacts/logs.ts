import { z } from 'zod'
import { sql, type Db } from '../../db/sql.ts'
import type { ArtifactStore } from '../../drivers/build/store.ts'
import { atInterval, type Followed } from '../../http/followed-stream.ts'
import { logLimitBytes } from '../../http/paging.ts'
import { Reply } from '../../http/route.ts'
import { followLog, sliceReply, type GrowingLog } from '../../operations/logs.ts'
import { stillHere } from '../../operations/streams.ts'
import { Refusal, existing } from '../../refusal.ts'

/** The whole log of a build run; the run's record keeps the end of it. */

export interface LogParts {
  db: Db
  artifactStore: ArtifactStore
  hostId: string
}

const StateRow = z.object({ open: z.boolean(), hostId: z.string() })
const stateOf = async (db: Db, id: string) =>
  existing(
    await db.maybe(
      StateRow,
      sql`select status in ('queued', 'running') as open, host_id from build_runs where id = ${id}`,
    ),
    'build run',
    id,
  )

const everyMs = 300

export interface LogQuery {
  offset?: number | undefined
  limit?: number | undefined
  tail?: number | undefined
  follow: boolean
  /** Server-sent events instead of text. */
  events: boolean
  /** `Last-Event-ID`: the offset behind the last event that the reader has. */
  after?: number | undefined
}

/** The number of bytes up to the end of the last character that is complete. */
const wholeCharacters = (bytes: Buffer): number => {
  let at = bytes.length - 1
  while (at > 0 && at > bytes.length - 4 && ((bytes[at] ?? 0) & 0xc0) === 0x80) at -= 1
  const lead = bytes[at] ?? 0
  const length = lead < 0xc0 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4
  return at >= 0 && at + length > bytes.length ? at : bytes.length
}

/** An event for bytes, whose lines are lines of data; its id is the offset behind them. */
const eventOf: NonNullable<GrowingLog['encode']> = (read, offset, mayGoOn) => {
  // The rest of a character comes with the next piece, but for a log that ends within one.
  const bytes = mayGoOn ? read.subarray(0, wholeCharacters(read)) : read
  const last = offset + bytes.length
  if (bytes.length === 0) return { bytes, last }
  const lines = bytes
    .toString('utf8')
    .replace(/\n$/, '')
    .split(/\r?\n|\r/)
  const data = lines.map((line) => `data: ${line}\n`).join('')
  return { bytes: Buffer.from(`id: ${String(last)}\n${data}\n`), last }
}

/** What is written from an offset on, until the run has ended. */
const followed = ({ db, artifactStore }: LogParts, id: string, from: number, events: boolean): Followed =>
  followLog({
    from,
    read: (range) => artifactStore.readLog(id, range),
    isOver: async () => !(await stateOf(db, id)).open,
    watch: () => atInterval(everyMs),
    ...(events
      ? { encode: eventOf, keepAlive: stillHere, ending: Buffer.from('event: end\ndata: \n\n') }
      : {}),
  })

/** A slice of the log, or a stream that goes on until the run has ended. */
export const readRunLog = async (parts: LogParts, id: string, query: LogQuery): Promise<Reply<never>> => {
  const { hostId } = await stateOf(parts.db, id)
  if (hostId !== parts.hostId)
    throw new Refusal('unavailable', `the log lies on the host ${hostId}; ask the service there`)
  const limit = Math.min(query.tail ?? query.limit ?? logLimitBytes, logLimitBytes)
  const given = query.after ?? (query.tail === undefined ? (query.offset ?? 0) : undefined)
  const read = () =>
    parts.artifactStore.readLog(id, given === undefined ? { tail: limit } : { offset: given, limit })
  if (!query.follow && !query.events) return sliceReply(await read())
  const offset = given ?? (await read()).offset
  return new Reply({
    stream: followed(parts, id, offset, query.events),
    headers: {
      'content-type': query.events ? 'text/event-stream' : 'text/plain; charset=utf-8',
      'cache-control': 'no-store',
      'orrery-offset': String(offset),
    },
  })
}
