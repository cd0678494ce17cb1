import type { Readable } from 'node:stream'
import type { z } from 'zod'
import type { Problem } from '../refusal.ts'

export type Method = 'GET' | 'POST' | 'PUT' | 'DELETE'
type Shape = z.ZodType
type Output<T> = T extends Shape ? z.output<T> : undefined

/** Names in braces of a literal path: `/a/{x}/b/{y}/` gives `'x' | 'y'`. */
type PathNames<P extends string> = P extends `${string}{${infer Name}}${infer Rest}` ? Name | PathNames<Rest> : never

/** What a handler gets. It never sees `req` or `res`. */
export interface Call<P extends string, Query, Body> {
  /** Percent-decoded, 1–255 characters each. */
  params: Record<PathNames<P>, string>
  query: Query
  body: Body
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

export interface RouteSpec<P extends string, Q extends Shape | undefined, B extends Shape | undefined, R extends Shape | undefined> {
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
  handle: (call: Call<P, Output<Q>, Output<B>>) => Promise<Output<R> | Reply> | Output<R> | Reply
}

/** A route with its types forgotten: what the kernel, OpenAPI and the tests read. */
export type Route = Omit<RouteSpec<string, Shape | undefined, Shape | undefined, Shape | undefined>, 'handle'> & {
  handle: (call: Call<string, unknown, unknown>) => unknown
}

/** Checks handler against schemas at compile time and forgets the types. */
export const route = <
  const P extends string,
  Q extends Shape | undefined = undefined,
  B extends Shape | undefined = undefined,
  R extends Shape | undefined = undefined,
>(
  spec: RouteSpec<P, Q, B, R>,
): Route => spec as unknown as Route
