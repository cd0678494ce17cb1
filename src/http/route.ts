import type { Readable } from 'node:stream'
import type { z } from 'zod'
import type { Problem } from '../refusal.ts'
import type { Attend } from './peer.ts'

export type Method = 'GET' | 'POST' | 'PUT' | 'DELETE'
type Shape = z.ZodType
type Output<T> = T extends Shape ? z.output<T> : undefined

/** Names in braces of a literal path: `/a/{x}/b/{y}/` gives `'x' | 'y'`. */
type PathNames<P extends string> = P extends `${string}{${infer Name}}${infer Rest}` ? Name | PathNames<Rest> : never

/** Bodies that a route takes as a stream; beside documents where it has `body` too: the request's media type decides then. */
export interface UploadSpec {
  /** Media types without parameters; `type/*` and `*\/*` stand for any. A missing one is `application/octet-stream`, or a document. */
  types: readonly [string, ...string[]]
  /** Bytes of one body. */
  limitBytes: number
}

/** A body as it comes. */
export interface Upload {
  /** In lower case, without parameters. */
  type: string
  /** As the client wrote it, for the boundary of a form. */
  contentType: string
  /** What the client announces; undefined where it sends chunks. */
  sizeBytes: number | undefined
  /**
   * The bytes, asked of the client as they are read. It fails with a refusal where they are too many, too slow or not those of
   * `Content-Digest`: only what was read to its end may be kept. A refusal of the handler before the first read costs no byte.
   */
  stream: Readable
}

/** What a handler gets. It never sees `req` or `res`. */
export interface Call<P extends string, Query, Body, Streamed = undefined> {
  /** Percent-decoded, 1–255 characters each. */
  params: Record<PathNames<P>, string>
  query: Query
  body: Body
  upload: Streamed
  /** Lower-case header names. */
  headers: Readonly<Record<string, string | undefined>>
  requestId: string
  /** The request's path and query as they came, for links to further pages. */
  target: string
  /** Who asks, for the audit record: the token's holder or the loopback peer. */
  actor: { id: string; type: 'token' | 'local' }
  /** Aborted when the client goes away. */
  signal: AbortSignal
}

/**
 * What a handler may give back instead of plain data, to set headers, another declared status, or to stream.
 * A `location` that starts with `/` is relative to base_url; the kernel puts the prefix before it.
 * A string body of a route with `raw` is sent as it is, with the route's first media type unless `content-type` is set.
 */
export class Reply<T = unknown> {
  readonly body: T | undefined
  readonly status: number | undefined
  readonly headers: Record<string, string>
  readonly stream: Readable | undefined
  constructor(init: { body?: T; status?: number; headers?: Record<string, string>; stream?: Readable }) {
    this.body = init.body
    this.status = init.status
    this.headers = init.headers ?? {}
    this.stream = init.stream
  }
}

/** A document's audit record; the kernel writes one for every mutation, this adds what only the route knows. */
export interface AuditFields {
  eventType: string
  summary: (call: { params: Record<string, string>; body: unknown }) => string
  /** Of a request that was answered, from its answer; absent: succeeded. */
  outcome?: (answer: unknown) => 'succeeded' | 'failed'
  environmentId?: (call: { params: Record<string, string>; body: unknown }) => string | undefined
  resourceId?: (call: { params: Record<string, string>; body: unknown }) => string | undefined
  connectionId?: (call: { params: Record<string, string>; body: unknown }) => string | undefined
  executionId?: (call: { params: Record<string, string>; body: unknown }) => string | undefined
}

export interface RouteSpec<
  P extends string,
  Q extends Shape | undefined,
  B extends Shape | undefined,
  R extends Shape | undefined,
  U extends UploadSpec | undefined = undefined,
> {
  method: Method
  /**
   * Relative to base_url, exact trailing slash, names in braces. A name that ends the path (no slash after it) takes all the
   * remaining segments, so `/a/{x}/outputs/{file}` matches `/a/1/outputs/b/c.png`.
   */
  path: P
  summary: string
  /** OpenAPI tag; the domain's folder name. */
  tag: string
  /** Strict object of string-coerced values. Unknown query names are 400. */
  query?: Q
  /** The document a client sends (JSON or YAML); optional where the schema accepts undefined. Absent: the body is ignored. */
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
   * Refusals beyond those that follow from the other fields, for OpenAPI: a body brings 413, 415 and 422, a name in the path 404, a POST
   * (by its Idempotency-Key) 409 and 422, an answer with content 406.
   */
  refuses?: number[]
  /** Answers streams, which have no ETag: 304 and 412 never come. For OpenAPI. */
  streams?: boolean
  /** Needs no token (the two bootstrap reads); `'get'` keeps the token for HEAD. */
  public?: boolean | 'get'
  /** Allowed while a read-only snapshot is activated. */
  whileActivated?: boolean
  /** Media types of a non-JSON success body; the handler answers a `Reply` with a stream or text. */
  raw?: string[]
  /** Looks at a request before its body is read. @throws Refusal */
  admit?: (call: { params: Record<string, string>; query: unknown }) => Promise<unknown>
  /** Bytes of body allowed instead of the configured limit. */
  limitBytes?: number
  /** `false`: it changes nothing although it is no GET, and leaves no record. */
  audit?: AuditFields | false
  /** What only the store knows of a document that its schema has refused (ids taken, references to nothing), for one answer with everything. */
  alsoCheck?: (refused: { document: unknown; params: Record<string, string> }) => Promise<Problem[]>
  handle: (call: Call<P, Output<Q>, BodyOf<B, U>, UploadOf<B, U>>) => Promise<Output<R> | Reply> | Output<R> | Reply
}

/** The document that a handler gets: none where the body came as a stream. */
type BodyOf<B, U> = U extends UploadSpec ? Output<B> | undefined : Output<B>
type UploadOf<B, U> = U extends UploadSpec ? (B extends Shape ? Upload | undefined : Upload) : undefined

/** A route with its types forgotten: what the kernel, OpenAPI and the tests read. */
export type Route = Omit<RouteSpec<string, Shape | undefined, Shape | undefined, Shape | undefined, UploadSpec | undefined>, 'handle'> & {
  /** Present: a GET that becomes a WebSocket, and whose `handle` gives an `Attend`. Bytes of one message of the client. */
  socket?: { limitBytes: number }
  handle: (call: Call<string, unknown, unknown, Upload | undefined>) => unknown
}

/** Checks handler against schemas at compile time and forgets the types. */
export const route = <
  const P extends string,
  Q extends Shape | undefined = undefined,
  B extends Shape | undefined = undefined,
  R extends Shape | undefined = undefined,
  U extends UploadSpec | undefined = undefined,
>(
  spec: RouteSpec<P, Q, B, R, U>,
): Route => spec as unknown as Route

/** A WebSocket beside the routes: everything that stands before a handler stands before `open`, too. */
export interface SocketSpec<P extends string, Q extends Shape | undefined> {
  path: P
  summary: string
  tag: string
  query?: Q
  /** Refusals beyond those that follow from the path, for OpenAPI. */
  refuses?: number[]
  /** Allowed while a read-only snapshot is activated. */
  whileActivated?: boolean
  admit?: (call: { params: Record<string, string>; query: unknown }) => Promise<unknown>
  /** Opening one is audited like a change: what a client sends through it may change something. */
  audit: AuditFields
  /** Bytes of one message of the client; a longer one ends the connection with 1009. */
  limitBytes: number
  /** Before the upgrade. @returns what goes on with the connection once it is a WebSocket. @throws Refusal */
  open: (call: Call<P, Output<Q>, undefined>) => Promise<Attend> | Attend
}

export const socketRoute = <const P extends string, Q extends Shape | undefined = undefined>({
  open,
  limitBytes,
  ...spec
}: SocketSpec<P, Q>): Route => ({ ...spec, method: 'GET', socket: { limitBytes }, handle: open }) as unknown as Route
