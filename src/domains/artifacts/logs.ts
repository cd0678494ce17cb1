import { Readable } from 'node:stream'
import { z } from 'zod'
import { sql, type Db } from '../../db/sql.ts'
import type { ArtifactStore } from '../../drivers/build/store.ts'
import { atInterval, follow, type Followed } from '../../http/followed-stream.ts'
import { logLimitBytes } from '../../http/paging.ts'
import { Reply } from '../../http/route.ts'
import { stillHere } from '../../operations/streams.ts'
import { Refusal, existing } from '../../refusal.ts'

/** The whole log of a build run; the run's record keeps the end of it. */

export interface LogParts {
  db: Db
  artifactStore: ArtifactStore
  hostId: string
}

const StateRow = z.object({ open: z.boolean(), hostId: z.string() })
const stateOf = async (db: Db, id: string) => {
  return existing(
    await db.maybe(
      StateRow,
      sql`select status in ('queued', 'running') as open, host_id from build_runs where id = ${id}`,
    ),
    'build run',
    id,
  )
}

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

/** An event for the bytes up to `end`, whose lines are lines of data. */
const eventOf = (bytes: Buffer, end: number): string =>
  `id: ${String(end)}\n${bytes
    .toString('utf8')
    .replace(/\n$/, '')
    .split(/\r?\n|\r/)
    .map((line) => `data: ${line}\n`)
    .join('')}\n`

/** The number of bytes up to the end of the last character that is complete. */
const wholeCharacters = (bytes: Buffer): number => {
  let at = bytes.length - 1
  while (at > 0 && at > bytes.length - 4 && ((bytes[at] ?? 0) & 0xc0) === 0x80) at -= 1
  const lead = bytes[at] ?? 0
  const length = lead < 0xc0 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4
  return at >= 0 && at + length > bytes.length ? at : bytes.length
}

/** What is written from an offset on, until the run has ended. */
const followed = ({ db, artifactStore }: LogParts, id: string, from: number, events: boolean): Followed =>
  follow({
    from,
    async read(offset) {
      // Asked before the read: the log of a run that is over is complete.
      const { open } = await stateOf(db, id)
      const { bytes: read } = await artifactStore.readLog(id, { offset, limit: logLimitBytes })
      if (!open && read.length === 0) return undefined
      // The rest of a character comes with the next piece, but for a log that ends within one.
      const mayGoOn = events && (open || read.length === logLimitBytes)
      const bytes = mayGoOn ? read.subarray(0, wholeCharacters(read)) : read
      const last = offset + bytes.length
      return {
        bytes: events && bytes.length > 0 ? Buffer.from(eventOf(bytes, last)) : bytes,
        last,
        full: read.length === logLimitBytes,
      }
    },
    behind: async (offset) => (await artifactStore.readLog(id, { offset, limit: 0 })).totalBytes - offset,
    watch: () => atInterval(everyMs),
    ...(events ? { keepAlive: stillHere, ending: Buffer.from('event: end\ndata: \n\n') } : {}),
  })

/** A slice of the log, or a stream that goes on until the run has ended. */
export const readRunLog = async (parts: LogParts, id: string, query: LogQuery): Promise<Reply<never>> => {
  const { hostId } = await stateOf(parts.db, id)
  if (hostId !== parts.hostId)
    throw new Refusal('unavailable', `the log lies on the host ${hostId}; ask the service there`)
  const { artifactStore } = parts
  const { totalBytes } = await artifactStore.readLog(id, { offset: 0, limit: 0 })
  const limit = Math.min(query.tail ?? query.limit ?? logLimitBytes, logLimitBytes)
  const offset =
    query.after ?? (query.tail === undefined ? (query.offset ?? 0) : Math.max(0, totalBytes - limit))
  if (query.follow || query.events) {
    return new Reply({
      stream: followed(parts, id, offset, query.events),
      headers: {
        'content-type': query.events ? 'text/event-stream' : 'text/plain; charset=utf-8',
        'cache-control': 'no-store',
        'orrery-offset': String(offset),
      },
    })
  }
  const { bytes } = await artifactStore.readLog(id, { offset, limit })
  return new Reply({
    stream: Readable.from([bytes], { objectMode: false }),
    status: bytes.length === totalBytes ? 200 : 206,
    headers: {
      'content-type': 'text/plain; charset=utf-8',
      'content-length': String(bytes.length),
      'content-range':
        bytes.length === 0
          ? `bytes */${String(totalBytes)}`
          : `bytes ${String(offset)}-${String(offset + bytes.length - 1)}/${String(totalBytes)}`,
    },
  })
}
