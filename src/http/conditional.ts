import { hash } from 'node:crypto'
import type { Answers } from './answer.ts'
import { HttpCall } from './call.ts'
import { Refusal } from '../refusal.ts'
import { checkQuery } from './check.ts'
import { Chunks } from './chunks.ts'
import { uncoded } from './coding.ts'
import { HttpRefusal } from './errors.ts'
import type { Body, Exchange, Outgoing } from './exchange.ts'
import type { Route } from './route.ts'
import type { Table } from './table.ts'

/** Strong entity tag of a body as it is sent. */
const entityTag = (body: string | Buffer): string => `"${hash('sha1', body, 'base64url')}"`

/** The digest of a longer body is made on a thread of Node's own: here it takes milliseconds. */
const longBody = 262_144

const digestOf = async (bytes: Buffer): Promise<Buffer> =>
  Buffer.from(await crypto.subtle.digest('SHA-1', bytes as Buffer<ArrayBuffer>))

/**
 * The body as bytes where it is long, with its entity tag. Chunks are digested one by one, because
 * each digest begins with a copy, and the tag is of their digests.
 */
const tagged = async (body: Body): Promise<{ body: Body; tag: string }> => {
  if (body instanceof Chunks) {
    const digests: Buffer[] = []
    for (const part of body.parts) digests.push(await digestOf(part))
    return { body, tag: entityTag(Buffer.concat(digests)) }
  }
  if (body.length < longBody) return { body, tag: entityTag(body) }
  const bytes = Buffer.from(body)
  return { body: bytes, tag: `"${(await digestOf(bytes)).toString('base64url')}"` }
}

/** The tag of an answer of `route`: `"AUTHORED.WHOLE"` where the route tells what is authored. */
const tagOf = async (
  { authored }: Pick<Route, 'authored'>,
  body: Body,
): Promise<{ body: Body; tag: string }> => {
  const whole = await tagged(body)
  if (authored === undefined || body instanceof Chunks) return whole
  const part = await tagged(authored(body.toString()))
  return { body: whole.body, tag: `${part.tag.slice(0, -1)}.${whole.tag.slice(1)}` }
}

/** The part of a tag that If-Match compares. */
const authoredPart = ({ authored }: Pick<Route, 'authored'>, tag: string): string =>
  authored === undefined ? tag : tag.replace(/\..*"$/, '"')

const opaque = (tag: string): string => (tag.startsWith('W/') ? tag.slice(2) : tag)
const tags = (header: string): string[] => header.split(',').map((tag) => tag.trim())

/**
 * The tag of If-None-Match that matches the current version, in any coding (weak comparison, RFC
 * 9110 13.1.2); undefined where none does.
 */
const knownTag = (ifNoneMatch: string | undefined, current: string): string | undefined => {
  if (ifNoneMatch === undefined) return undefined
  if (ifNoneMatch.trim() === '*') return current
  const known = tags(ifNoneMatch).find((tag) => uncoded(opaque(tag)) === opaque(current))
  return known === undefined ? undefined : opaque(known)
}

/**
 * Whether If-Match excludes the current version (strong comparison); `current` is undefined where
 * no version exists.
 */
const isOther = (
  route: Pick<Route, 'authored'>,
  ifMatch: string | undefined,
  current: string | undefined,
): boolean => {
  if (ifMatch === undefined) return false
  if (current === undefined) return true
  const part = (tag: string): string => authoredPart(route, uncoded(tag))
  return ifMatch.trim() !== '*' && !tags(ifMatch).map(part).includes(part(current))
}

/** Reads: entity tag, 304 and 412. */
export const conditional = async (
  exchange: Exchange,
  route: Pick<Route, 'authored'>,
  answer: Outgoing,
): Promise<Outgoing> => {
  if (answer.status !== 200 || answer.body === undefined) return answer
  const given = answer.headers['ETag']
  const { body, tag } =
    given === undefined ? await tagOf(route, answer.body) : { body: answer.body, tag: given }
  answer.headers['ETag'] = tag
  answer.headers['Cache-Control'] ??= 'private, no-cache'
  const { headers } = exchange.req
  if (isOther(route, headers['if-match'], tag))
    throw new HttpRefusal('precondition_failed', 'If-Match names another version of this record')
  const known = knownTag(headers['if-none-match'], tag)
  if (known === undefined) return { ...answer, body }
  return {
    status: 304,
    headers: { ETag: known, 'Cache-Control': answer.headers['Cache-Control'] },
    body: undefined,
  }
}

/** The tag of the present answer to a read. @throws Refusal of the read */
const presentTag = async (
  reader: Route,
  outgoing: Answers['outgoing'],
  { req, res }: Exchange,
  call: HttpCall,
): Promise<string | undefined> => {
  const query = reader.query === undefined ? undefined : checkQuery(reader.query, {})
  const current = outgoing(reader, await reader.handle(new HttpCall(req, res, { ...call, query })))
  return (
    current.headers['ETag'] ??
    (current.body === undefined ? undefined : (await tagOf(reader, current.body)).tag)
  )
}

/**
 * Makes the guard of changes. It compares If-Match and If-None-Match with the tag that the route
 * tells (`current`), else with the present answer to a read of the same path.
 */
export const createGuard = (table: Table, { outgoing }: Pick<Answers, 'outgoing'>) => {
  /**
   * Changes of one record under such a header run one after the other: of two concurrent ones only
   * the first may find its version.
   */
  const changes = new Map<string, Promise<unknown>>()

  return async <T>(
    exchange: Exchange,
    built: Pick<Route, 'creates' | 'current' | 'subject'>,
    call: HttpCall,
    work: () => Promise<T>,
  ): Promise<T> => {
    const ifMatch = exchange.req.headers['if-match']
    const ifNoneMatch = exchange.req.headers['if-none-match']
    if (ifMatch === undefined && ifNoneMatch === undefined) return work()
    const reader = built.current === undefined ? table.match('GET', exchange.path)?.entry.route : undefined
    if (built.current === undefined && (reader === undefined || reader.socket !== undefined)) return work()
    const record = built.subject === undefined ? exchange.path : `${exchange.path} ${built.subject(call)}`
    const turn = (changes.get(record) ?? Promise.resolve()).then(async () => {
      const tag = await (reader === undefined
        ? built.current?.(call)
        : presentTag(reader, outgoing, exchange, call).catch((error: unknown) => {
            if (built.creates === true && error instanceof Refusal && error.code === 'missing')
              return undefined
            throw error
          }))
      if (isOther(reader ?? {}, ifMatch, tag))
        throw new HttpRefusal(
          'precondition_failed',
          'If-Match names another version of this record; read it again before changing it',
        )
      if (tag !== undefined && knownTag(ifNoneMatch, tag) !== undefined)
        throw new HttpRefusal(
          'precondition_failed',
          'If-None-Match names the present version of this record; leave the header out to change it',
        )
      return work()
    })
    const settled = turn.then(
      () => undefined,
      () => undefined,
    )
    changes.set(record, settled)
    try {
      return await turn
    } finally {
      if (changes.get(record) === settled) changes.delete(record)
    }
  }
}

export type Guard = ReturnType<typeof createGuard>
