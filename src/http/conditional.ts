import { hash } from 'node:crypto'
import type { Answers } from './answer.ts'
import { HttpCall } from './call.ts'
import { checkQuery } from './check.ts'
import { HttpRefusal } from './errors.ts'
import type { Exchange, Outgoing } from './exchange.ts'
import type { Table } from './table.ts'

/** Strong entity tag of a body as it is sent. */
const entityTag = (body: string | Buffer): string => `"${hash('sha1', body, 'base64url')}"`

const opaque = (tag: string): string => (tag.startsWith('W/') ? tag.slice(2) : tag)
const tags = (header: string): string[] => header.split(',').map((tag) => tag.trim())

/** Whether If-None-Match names the current version (weak comparison, RFC 9110 13.1.2): the client has it already. */
const isKnown = (ifNoneMatch: string | undefined, current: string): boolean =>
  ifNoneMatch !== undefined && (ifNoneMatch.trim() === '*' || tags(ifNoneMatch).some((tag) => opaque(tag) === opaque(current)))

/** Whether If-Match excludes the current version (strong comparison); undefined: there is no current one. */
const isOther = (ifMatch: string | undefined, current: string | undefined): boolean =>
  ifMatch !== undefined && (current === undefined || (ifMatch.trim() !== '*' && !tags(ifMatch).includes(current)))

/** Reads: entity tag, 304 and 412. */
export const conditional = (exchange: Exchange, answer: Outgoing): Outgoing => {
  if (answer.status !== 200 || answer.body === undefined) return answer
  const tag = (answer.headers['ETag'] ??= entityTag(answer.body))
  answer.headers['Cache-Control'] ??= 'private, no-cache'
  const { headers } = exchange.req
  if (isOther(headers['if-match'], tag)) throw new HttpRefusal('precondition_failed', 'If-Match names another version of this record')
  if (!isKnown(headers['if-none-match'], tag)) return answer
  return { status: 304, headers: { ETag: tag, 'Cache-Control': answer.headers['Cache-Control'] }, body: undefined }
}

/** Makes the guard of changes: If-Match is compared with what a read of the same path gives now. */
export const createGuard = (table: Table, { outgoing }: Pick<Answers, 'outgoing'>) => {
  /** Changes of one record under If-Match, one after the other: two of them may not both find the version they name. */
  const changes = new Map<string, Promise<unknown>>()

  return async <T>(exchange: Exchange, call: HttpCall, work: () => Promise<T>): Promise<T> => {
    const ifMatch = exchange.req.headers['if-match']
    const reader = ifMatch === undefined ? undefined : table.match('GET', exchange.path)?.entry.route
    if (reader === undefined || reader.socket !== undefined) return work()
    const turn = (changes.get(exchange.path) ?? Promise.resolve()).then(async () => {
      const query = reader.query === undefined ? undefined : checkQuery(reader.query, {})
      const current = outgoing(reader, await reader.handle(new HttpCall(exchange.req, exchange.res, { ...call, query })))
      const tag = current.headers['ETag'] ?? (current.body === undefined ? undefined : entityTag(current.body))
      if (isOther(ifMatch, tag))
        throw new HttpRefusal('precondition_failed', 'If-Match names another version of this record; read it again before changing it')
      return work()
    })
    const settled = turn.then(
      () => undefined,
      () => undefined,
    )
    changes.set(exchange.path, settled)
    try {
      return await turn
    } finally {
      if (changes.get(exchange.path) === settled) changes.delete(exchange.path)
    }
  }
}

export type Guard = ReturnType<typeof createGuard>
