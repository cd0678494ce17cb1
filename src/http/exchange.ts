import { randomUUID } from 'node:crypto'
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import type { HttpCall } from './call.ts'
import type { Chunks } from './chunks.ts'
import { ClientGone } from './errors.ts'
import type { TableEntry } from './table.ts'

/** One request in progress, with the facts for the answer, the log and the audit record. */
export interface Exchange {
  readonly req: IncomingMessage
  readonly res: ServerResponse
  readonly requestId: string
  readonly started: number
  /** Path without the query. */
  readonly path: string
  readonly search: string
  /** Flat names and values that every answer to this request carries. */
  readonly headers: string[]
  /** The connection of a request for a WebSocket, where the route serves one. */
  readonly upgrade: Upgrade | undefined
  /** The id of the instance that the request selects; undefined where only one exists. */
  instance: string | undefined
  entry: TableEntry | undefined
  call: HttpCall | undefined
}

export interface Upgrade {
  socket: Socket
  /** Bytes that arrived directly after the request's headers. */
  head: Buffer
}

/** An answer's body as it is sent. */
export type Body = string | Buffer | Chunks

export interface Outgoing {
  status: number
  headers: Record<string, string>
  body: Body | undefined
}

const requestIdForm = /^[\w.:/+=-]{1,128}$/

export const openExchange = (
  req: IncomingMessage,
  res: ServerResponse,
  commonHeaders: readonly string[],
  upgrade: Upgrade | undefined,
): Exchange => {
  const url = req.url ?? '/'
  const at = url.indexOf('?')
  const given = req.headers['x-request-id']
  const requestId = typeof given === 'string' && requestIdForm.test(given) ? given : randomUUID()
  return {
    req,
    res,
    requestId,
    started: performance.now(),
    path: at === -1 ? url : url.slice(0, at),
    search: at === -1 ? '' : url.slice(at + 1),
    headers: [...commonHeaders, 'X-Request-Id', requestId],
    upgrade,
    instance: undefined,
    entry: undefined,
    call: undefined,
  }
}

/** Codes of errors from Node's streams and aborted work after the other side has closed. */
const goneCodes = new Set<unknown>([
  'ERR_STREAM_PREMATURE_CLOSE',
  'ABORT_ERR',
  'ECONNRESET',
  'EPIPE',
  DOMException.ABORT_ERR,
])

/** Whether an error only means that the client has left, so that no answer is read. */
export const clientLeft = (exchange: Exchange, error: unknown): boolean =>
  error instanceof ClientGone ||
  (exchange.res.destroyed && goneCodes.has((error as { code?: unknown } | undefined)?.code))

/** Flat names and values as a record. */
export const pairs = (flat: readonly string[]): Record<string, string> => {
  const record: Record<string, string> = {}
  for (let i = 0; i < flat.length; i += 2) record[flat[i] ?? ''] = flat[i + 1] ?? ''
  return record
}
