import type { Readable } from 'node:stream'
import type { z } from 'zod'
import type { Problem } from '../refusal.ts'
import type { Followed } from './followed-stream.ts'
import type { Attend } from './peer.ts'

export type Method = 'GET' | 'POST' | 'PUT' | 'DELETE'
type Shape = z.ZodType
type Output<T> = T extends Shape ? z.output<T> : undefined
/** The work of a handler whose route has no response. */
type Work<R> = R extends Shape ? never : Promise<void>

/** Names in braces of a literal path: `/a/{x}/b/{y}/` gives `'x' | 'y'`. */
type PathNames<P extends string> = P extends `${string}{${infer Name}}${infer Rest}`
  ? Name | PathNames<Rest>
  : never

/**
 * Bodies that a route takes as a stream. Where it has `body` too, it also takes documents, and the
 * request's media type decides.
 */
export interface UploadSpec {
  /**
   * Media types without parameters; `type/*` and `*\/*` stand for any. A missing one is
   * `application/octet-stream`, or a document.
   */
  types: readonly [string, ...string[]]
  /** The limit of one body. */
  limitBytes: number
  /** The field of a form that has the bytes as a file, for OpenAPI. */
  fileField?: string
}

/** A body while it arrives. */
export interface Upload {
  /** In lower case, without parameters. */
  type: string
  /** As the client wrote it, for the boundary of a form. */
  contentType: string
  /** The size that the client announces; undefined for a chunked body. */
  sizeBytes: number | undefined
  /**
   * The bytes, requested from the client as they are read. The stream fails with a refusal where
   * they are too many, too slow or do not match `Content-Digest`, so only a stream that was read to
   * its end may be kept. A refusal by the handler before the first read transfers no byte.
   */
  stream: Readable
}

/** The argument of a handler. A handler never gets `req` or `res`. */
export interface Call<P extends string, Query, Body, Streamed = undefined> {
  /** Percent-decoded, 1–1,024 characters each. */
  params: Record<PathNames<P>, string>
  query: Query
  body: Body
  upload: Streamed
  /** Lower-case header names. */
  headers: Readonly<Record<string, string | undefined>>
  requestId: string
  /** A UUID for the record that the call makes: the same in repetitions under an Idempotency-Key. */
  newId: string
  /** The request's path and query as sent, for links to further pages. */
  target: string
  /** The caller, for the audit record: the token's holder or the loopback peer. */
  actor: { id: string; type: 'token' | 'local' }
  /** The permission of the caller's ticket; absent for a caller with the API's token. */
  grant?: string | undefined
  /** Aborted when the client leaves. */
  signal: AbortSignal
}

/**
 * A handler's result in place of plain data, to set headers or another declared status, or to
 * stream. A `location` that starts with `/` is relative to base_url; the kernel puts the prefix
 * before it. A string body of a route with `raw` is sent unchanged, with the route's first media
 * type unless `content-type` is set.
 */
export class Reply<T = unknown> {
  readonly body: T | undefined
  readonly status: number | undefined
  readonly headers: Record<string, string>
  /** Bytes that are there, or a growing source, whose slow readers the kernel cuts. */
  readonly stream: Readable | Followed | undefined
  constructor(init: {
    body?: T
    status?: number
    headers?: Record<string, string>
    location?: string
    stream?: Readable | Followed
  }) {
    this.body = init.body
    this.status = init.status
    this.headers =
      init.location === undefined ? (init.headers ?? {}) : { location: init.location, ...init.headers }
    this.stream = init.stream
  }
}

/**
 * Fields of a mutation's audit record. The kernel writes a record for every mutation, and this adds
 * the facts that only the route has.
 */
export interface AuditFields {
  eventType: string
  /** A text stands for itself, with names in braces for members of the path or of the document. */
  summary: string | ((call: { params: Record<string, string>; body: unknown }) => string)
  /** The outcome, from the answer; absent: succeeded. */
  outcome?: (answer: unknown) => 'succeeded' | 'failed'
  environmentId?: (call: { params: Record<string, string>; body: unknown }) => string | undefined
  resourceId?: (call: { params: Record<string, string>; body: unknown }) => string | undefined
  connectionId?: (call: { params: Record<string, string>; body: unknown }) => string | undefined
  executionId?: (call: { params: Record<string, string>; body: unknown }) => string | undefined
}

/** The line of a request: `GET /a/{x}/`. */
export type RequestLine = `${Method} /${string}`
export type PathOf<Line> = Line extends `${Method} ${infer P}` ? P : never

/** The method and the path of a line. */
const placeOf = (line: RequestLine): { method: Method; path: string } => {
  const [method, path] = line.split(' ') as [Method, string]
  return { method, path }
}

export interface RouteSpec<
  P extends string,
  Q extends Shape | undefined,
  B extends Shape | undefined,
  R extends Shape | undefined,
  U extends UploadSpec | undefined = undefined,
> {
  summary: string
  /** By default the first segment of the path; `routes.ts` puts the domain's folder in its place. */
  tag?: string
  /** Strict object of string-coerced values. Unknown query names are 400. */
  query?: Q
  /**
   * The document that a client sends (JSON or YAML); optional where the schema accepts undefined.
   * Where it is absent, the body is ignored.
   */
  body?: B
  /** The body as a stream. */
  upload?: U
  /** Success body. Absent: no content, or a stream when `raw` is set. */
  response?: R
  /** Success status; default 200, 204 without a response. */
  status?: 200 | 201 | 202 | 204
  /** Further success statuses a `Reply` may give (e.g. 200 beside 206). */
  alsoStatus?: number[]
  /**
   * Refusals beyond those that follow from the other fields, for OpenAPI: a body brings 413, 415
   * and 422, a name in the path 404, a POST (by its Idempotency-Key) 409 and 422, several media
   * types 406.
   */
  refuses?: number[]
  /** Headers that the handler reads, with what they do, for OpenAPI. */
  requestHeaders?: Record<string, string>
  /** The route answers with streams. They have no ETag, so 304 and 412 never occur. For OpenAPI. */
  streams?: boolean
  /**
   * The body without what the service itself measures, on a GET whose path can be changed. If-Match
   * compares this part alone; If-None-Match compares the whole body.
   */
  authored?: (body: string) => string
  /**
   * The tag of what a change concerns, where the query names it: If-Match and If-None-Match are
   * compared with it. Undefined where there is nothing yet. @throws Refusal
   */
  current?: (call: Call<P, Output<Q>, BodyOf<B, U>>) => Promise<string | undefined>
  /** What `current` is the tag of, equal for equal subjects: their changes run one after the other. */
  subject?: (call: Call<P, Output<Q>, BodyOf<B, U>>) => string
  /** A PUT makes what is missing, so that a read of its path that finds nothing is no refusal. */
  creates?: true
  /** Needs no token (the two bootstrap reads); `'get'` keeps the token for HEAD. */
  public?: boolean | 'get'
  /** Allowed while a read-only snapshot is activated. */
  whileActivated?: boolean
  /** A POST that changes nothing: it reads the instance that is activated, as a GET does. */
  reads?: boolean
  /**
   * Media types of a non-JSON success body; the handler answers a `Reply` with a stream or text.
   */
  raw?: string[]
  /** The record or the query decides which of the media types is sent, and Accept does not. */
  fixedType?: true
  /** Checks a request before its body is read. @throws Refusal */
  admit?: (call: { params: Record<string, string>; query: unknown }) => Promise<unknown>
  /** The limit of the body, in place of the configured one. */
  limitBytes?: number
  /** `false`: the route changes no record although it is no GET, and leaves no audit record. */
  audit?: AuditFields | false
  /**
   * Problems that only the store finds in a document that its schema has refused (taken ids,
   * references to missing records), so that one answer holds all problems.
   */
  alsoCheck?: (refused: { document: unknown; params: Record<string, string> }) => Promise<Problem[]>
  /**
   * What a text is that is no document of the route's: a file of another system, with the remedy. It
   * comes before the fault in the refusal.
   */
  foreignText?: (text: string) => string | undefined
  /**
   * For an answer with members that open something or end soon. `kept` is what is stored of it under
   * an Idempotency-Key; `again` makes the answer to a repeated request from that.
   */
  renewed?: {
    kept: (answer: Output<R>) => unknown
    again: (kept: unknown, call: Call<P, Output<Q>, BodyOf<B, U>>) => Promise<Output<R>>
  }
  /**
   * For a POST that gives its record an id: what an earlier try of the request has made under
   * `newId`, whose answer was lost. @throws Refusal `missing` where it made nothing, and for no other
   * reason: the handler would run again
   */
  made?: (call: Call<P, Output<Q>, BodyOf<B, U>>) => Promise<Made<Output<R>>>
  handle: (
    call: Call<P, Output<Q>, BodyOf<B, U>, UploadOf<B, U>>,
  ) => Promise<Output<R> | Reply> | Output<R> | Reply | Work<R>
}

/** The answer of a record, and the time when it was made (ISO 8601). */
export interface Made<Answer> {
  createdAt: string
  answer: Answer | Reply
}

/** The document for a handler: none where the body is a stream. */
type BodyOf<B, U> = U extends UploadSpec ? Output<B> | undefined : Output<B>
type UploadOf<B, U> = U extends UploadSpec ? (B extends Shape ? Upload | undefined : Upload) : undefined

/** A route without its type parameters, for the kernel, OpenAPI and the tests. */
export type Route = Omit<
  RouteSpec<string, Shape | undefined, Shape | undefined, Shape | undefined, UploadSpec | undefined>,
  'tag' | 'handle' | 'renewed' | 'made' | 'current' | 'subject'
> & {
  /** The id of the operation in the API's document. */
  id: string
  method: Method
  /** Relative to base_url. */
  path: string
  tag: string
  /**
   * Present on a GET that becomes a WebSocket and whose `handle` returns an `Attend`. `limitBytes`
   * limits one message of the client.
   */
  socket?: { limitBytes: number; protocol?: string | undefined; redeem?: Redeem | undefined }
  renewed?: {
    kept: (answer: unknown) => unknown
    again: (kept: unknown, call: Call<string, unknown, unknown, Upload | undefined>) => Promise<unknown>
  }
  made?: (call: Call<string, unknown, unknown, Upload | undefined>) => Promise<Made<unknown>>
  current?: (call: Call<string, unknown, unknown, Upload | undefined>) => Promise<string | undefined>
  subject?: (call: Call<string, unknown, unknown, Upload | undefined>) => string
  handle: (call: Call<string, unknown, unknown, Upload | undefined>) => unknown
}

/**
 * The media types among which Accept decides. None where the route has a single form of its answer:
 * that form is sent whatever the client accepts (RFC 9110, 12.4.1).
 */
export const typesToChooseFrom = ({
  raw = [],
  response,
  fixedType,
}: Pick<Route, 'raw' | 'response' | 'fixedType'>): string[] => {
  const types = new Set([...raw, ...(response === undefined ? [] : ['application/json'])])
  return types.size > 1 && fixedType !== true ? [...types] : []
}

/**
 * A route. The compiler checks the handler against the schemas; then the type parameters are dropped.
 * @param id the id of the operation in the API's document; generated clients use it as the name of a
 *   method, so a published one stays
 * @param line the path is relative to base_url, with exact trailing slash and names in braces. A name
 *   that ends the path (no slash after it) takes all the remaining segments, so
 *   `/a/{x}/outputs/{file}` matches `/a/1/outputs/b/c.png`
 */
export function route<
  const Line extends RequestLine,
  Q extends Shape | undefined = undefined,
  B extends Shape | undefined = undefined,
  R extends Shape | undefined = undefined,
  U extends UploadSpec | undefined = undefined,
>(id: string, line: Line, spec: RouteSpec<PathOf<Line>, Q, B, R, U>): Route {
  const place = placeOf(line)
  return { tag: place.path.split('/')[1] ?? '', id, ...place, ...spec } as unknown as Route
}

/**
 * The holder of a ticket, and its permission. The call spends the ticket. @returns undefined for an
 * invalid one
 */
export type Redeem = (
  secret: string,
  params: Record<string, string>,
) => Promise<{ actor: { id: string; type: 'token' | 'local' }; grant: string } | undefined>

/** A WebSocket beside the routes. All checks before a handler also run before `open`. */
export interface SocketSpec<P extends string, Q extends Shape | undefined> {
  summary: string
  query?: Q
  /** Refusals beyond those that follow from the path, for OpenAPI. */
  refuses?: number[]
  /** Allowed while a read-only snapshot is activated. */
  whileActivated?: boolean
  admit?: (call: { params: Record<string, string>; query: unknown }) => Promise<unknown>
  /**
   * Opening a WebSocket is audited like a change, because the client's messages may change records.
   */
  audit: AuditFields
  /** Bytes of one message of the client; a longer one ends the connection with 1009. */
  limitBytes: number
  /** The subprotocol for clients that name it. A browser needs one for a ticket. */
  protocol?: string
  /**
   * Accepts tickets instead of the API's token, because a page cannot send the token with a
   * handshake.
   */
  redeem?: Redeem
  /**
   * Runs before the upgrade, also for a request that asks for none.
   * @returns the work on the connection once it is a WebSocket
   * @throws Refusal
   */
  open: (call: Call<P, Output<Q>, undefined>) => Promise<Attend> | Attend
}

export const socketRoute = <const Line extends RequestLine, Q extends Shape | undefined = undefined>(
  id: string,
  line: Line,
  { open, limitBytes, protocol, redeem, ...spec }: SocketSpec<PathOf<Line>, Q>,
): Route =>
  ({
    ...{ id, ...placeOf(line), tag: line.split('/')[1], ...spec },
    socket: { limitBytes, protocol, redeem },
    handle: open,
  }) as unknown as Route
