import express, { type Express } from 'express'
import { randomUUID } from 'node:crypto'
import type { IncomingMessage, ServerResponse } from 'node:http'
import { pipeline } from 'node:stream/promises'
import type { z } from 'zod'
import { notBuilt } from '../not-built.ts'
import { Refusal, unacceptable } from '../refusal.ts'
import { accepts, prefersProblem, wantsPage } from './accept.ts'
import { createAccess, type AccessRules, type Actor } from './access.ts'
import { auditRecord, type AuditRecord } from './audit.ts'
import { documentFormat, readBody, readDocument } from './body.ts'
import { HttpCall, pathParams, queryValues } from './call.ts'
import { checkDocument, checkQuery, Unfit } from './check.ts'
import { entityTag, isKnown, isOther } from './conditional.ts'
import { docsPage } from './docs.ts'
import { ClientGone, HttpRefusal, errorAnswer, errorBody, internalAnswer, type ErrorAnswer } from './errors.ts'
import { beginOnce, idempotencyFingerprint, idempotencyKey, type IdempotencyStore } from './idempotency.ts'
import { createShapes } from './keys.ts'
import type { Log } from './log.ts'
import { openApi, type OpenApi } from './openapi.ts'
import { Reply, route, type Method, type Route } from './route.ts'
import { createTable, type Entry } from './table.ts'
import { createYamlReader } from './yaml-reader.ts'

export interface AppOptions {
  config: AccessRules & {
    /** Starts with a slash and ends without one, or is empty. */
    apiPrefix: string
    bodyLimitBytes: number
  }
  routes: readonly Route[]
  /** Pairs of the specification that are not built yet: 503 before anything else is looked at, and not in the document. */
  unbuilt?: readonly { method: Method; path: string }[]
  log: Log
  version: string
  /** Whether a read-only snapshot is activated: mutations are 423 then. */
  activated: () => boolean
  /** Writes one record per mutation, before the answer goes out; its failure is logged and changes no answer. */
  audit?: (record: AuditRecord) => Promise<void>
  idempotency?: IdempotencyStore
  /** Puts errors of the database into the words of a refusal; undefined leaves them faults. */
  translate?: (error: unknown) => Refusal | undefined
  /** Throws a refusal while the root health check is to fail. */
  rootHealth?: () => Promise<void> | void
  /** Told of every answered request: the route's pattern, never the path. */
  observe?: (method: string, route: string, status: number, seconds: number) => void
  /** Puts a request inside a span of the trace that its headers continue. */
  span?: (name: string, attributes: Record<string, string>, work: () => Promise<void>, headers: IncomingMessage['headers']) => Promise<void>
  /** In tests: an answer that its schema does not accept is a fault. */
  validateResponses?: boolean
  /** In tests: sees every answer, of streams without the body; `template` is the path as the document has it, undefined for unknown paths. */
  onAnswer?: (answer: Answered) => void
}

export interface Answered {
  method: string
  template: string | undefined
  status: number
  contentType: string | undefined
  body: string | undefined
}

export interface App {
  /** Listener for a Node server: requests of the API skip Express, whose exchange of prototypes costs three quarters of a small answer. */
  listener: (req: IncomingMessage, res: ServerResponse) => void
  /** The same application for embedding in another Express one. */
  express: Express
  openapi: OpenApi
}

/** One request on its way: what is known of it so far, for the answer, the log and the audit record. */
interface Exchange {
  req: IncomingMessage
  res: ServerResponse
  requestId: string
  started: number
  /** Path without the query. */
  path: string
  search: string
  /** Flat names and values that every answer to this request carries. */
  headers: string[]
  entry: Entry | undefined
  call: HttpCall | undefined
}

interface Outgoing {
  status: number
  headers: Record<string, string>
  body: string | Buffer | undefined
}

const requestIdForm = /^[\w.:/+=-]{1,128}$/
/** What Node's streams and aborted work reject with when the other side has closed. */
const goneCodes = new Set<unknown>(['ERR_STREAM_PREMATURE_CLOSE', 'ABORT_ERR', 'ECONNRESET', 'EPIPE', DOMException.ABORT_ERR])
const documentTypes = ['application/json']
const readOnlyText = 'the selected instance is a read-only snapshot'

/**
 * The kernel: everything that stands around a handler, once and in this order. Peer and Host, CORS, routing, token, not-built table, method,
 * read-only lock, Accept, path and query, body, schema, preconditions, idempotency, handler, answer, audit, log.
 */
export const createApp = (options: AppOptions): App => {
  const { config, log } = options
  const access = createAccess(config)
  const shapeOf = createShapes()
  const readYaml = createYamlReader()
  const translate = options.translate ?? (() => undefined)

  const rootRoutes: Route[] = [
    route({
      method: 'GET',
      path: '/',
      summary: 'Health check',
      tag: 'service',
      raw: ['text/plain'],
      refuses: [503],
      handle: async () => {
        await options.rootHealth?.()
        return new Reply({ body: 'ok' })
      },
    }),
    route({
      method: 'GET',
      path: '/openapi.json',
      summary: 'This document',
      tag: 'service',
      raw: ['application/json'],
      handle: () => new Reply({ body: documentText }),
    }),
  ]
  const table = createTable([
    ...options.routes.map((built) => ({ method: built.method, path: config.apiPrefix + built.path, route: built })),
    ...(options.unbuilt ?? []).map(({ method, path }) => ({ method, path: config.apiPrefix + path, route: undefined })),
    ...rootRoutes.map((built) => ({ method: built.method, path: built.path, route: built })),
  ])
  const openapi = openApi({
    routes: options.routes,
    rootRoutes,
    prefix: config.apiPrefix,
    version: options.version,
    tokenNeeded: config.apiToken !== undefined,
  })
  const documentText = JSON.stringify(openapi)
  /** What people type first: a browser is led from there to the page of the API's document. */
  const leadToDocs = new Set(['/', '/docs', `${config.apiPrefix}/`])
  const commonHeaders = [
    'AKOFLOW-SERVER',
    options.version,
    'Orrery-Version',
    options.version,
    'X-Content-Type-Options',
    'nosniff',
    'Cross-Origin-Resource-Policy',
    'same-origin',
  ]
  /** Changes of one record under If-Match, one after the other: two of them may not both find the version they name. */
  const changes = new Map<string, Promise<unknown>>()

  const write = (exchange: Exchange, outgoing: Outgoing): void => {
    const { req, res } = exchange
    if (res.headersSent || res.destroyed) return
    const { status, headers, body } = outgoing
    const flat = [...exchange.headers]
    for (const name in headers) flat.push(name, headers[name] ?? '')
    if (status !== 204 && status !== 304) flat.push('Content-Length', String(body === undefined ? 0 : Buffer.byteLength(body)))
    res.writeHead(status, flat)
    res.end(req.method === 'HEAD' || status === 204 || status === 304 ? undefined : body)
    options.onAnswer?.({
      method: req.method ?? '',
      template: exchange.entry?.route === undefined ? undefined : exchange.entry.route.path,
      status,
      contentType: headers['Content-Type'],
      body: req.method === 'HEAD' || body === undefined ? undefined : body.toString(),
    })
  }

  const stream = async (exchange: Exchange, reply: Reply, status: number, headers: Record<string, string>): Promise<void> => {
    const { req, res } = exchange
    const source = reply.stream
    if (source === undefined) return
    if (res.destroyed || req.method === 'HEAD') source.destroy()
    if (res.destroyed) return
    const flat = [...exchange.headers, 'X-Accel-Buffering', 'no']
    for (const name in headers) flat.push(name, headers[name] ?? '')
    res.writeHead(status, flat)
    options.onAnswer?.({
      method: req.method ?? '',
      template: exchange.entry?.route?.path,
      status,
      contentType: headers['Content-Type'],
      body: undefined,
    })
    if (req.method === 'HEAD') return void res.end()
    // An event stream may stay silent for long; its reader wants to see that it is open.
    res.flushHeaders()
    try {
      await pipeline(source, res)
    } catch (error) {
      if (!clientLeft(exchange, error))
        log.error({ err: error, requestId: exchange.requestId, path: exchange.path }, 'a stream failed after its answer had begun')
    }
  }

  const clientLeft = (exchange: Exchange, error: unknown): boolean =>
    error instanceof ClientGone || (exchange.res.destroyed && goneCodes.has((error as { code?: unknown } | undefined)?.code))

  const refuse = (exchange: Exchange, answer: ErrorAnswer): void => {
    const problem = prefersProblem(exchange.req.headers.accept)
    write(exchange, {
      status: answer.status,
      headers: {
        ...answer.headers,
        'Content-Type': problem ? 'application/problem+json' : 'application/json',
        'Cache-Control': 'no-store',
      },
      body: errorBody(answer, problem, exchange.path),
    })
  }

  /** The answer to an error; undefined when nobody is left to read one. */
  const answerOf = (exchange: Exchange, error: unknown): ErrorAnswer | undefined => {
    if (clientLeft(exchange, error)) return undefined
    const known = errorAnswer(error, translate)
    if (known !== undefined) return known
    log.error({ err: error, requestId: exchange.requestId, method: exchange.req.method, path: exchange.path }, 'a request failed')
    return internalAnswer(exchange.requestId)
  }

  const serializeChecked = (built: Route, body: unknown): string => {
    const text = JSON.stringify(body)
    if (options.validateResponses === true && built.response !== undefined) {
      const result = built.response.safeParse(JSON.parse(text ?? 'null'))
      if (!result.success) throw new Error(`the answer of ${built.method} ${built.path} does not fit its schema: ${result.error.message}`)
    }
    return text
  }

  /** A handler's result as status, headers and text; `body` stays undefined for streams and answers without content. */
  const outgoing = (built: Route, result: unknown): Outgoing => {
    const reply = result instanceof Reply ? result : undefined
    const body: unknown = reply === undefined ? result : reply.body
    const status = reply?.status ?? built.status ?? (built.response !== undefined || built.raw !== undefined ? 200 : 204)
    const headers: Record<string, string> = {}
    for (const [name, value] of Object.entries(reply?.headers ?? {})) headers[canonical(name)] = value
    if (headers['Location']?.startsWith('/') === true) headers['Location'] = config.apiPrefix + headers['Location']
    if (status === 202) headers['Retry-After'] ??= '1'
    if (reply?.stream !== undefined) {
      headers['Content-Type'] ??= built.raw?.[0] ?? 'application/octet-stream'
      return { status, headers, body: undefined }
    }
    if (body === undefined) {
      if (status !== 204 && built.response !== undefined)
        throw new Error(`${built.method} ${built.path} answered nothing where its schema has a body`)
      return { status, headers, body: undefined }
    }
    if (typeof body === 'string' && built.raw !== undefined) {
      const type = built.raw[0] ?? 'text/plain'
      headers['Content-Type'] ??= type.startsWith('text/') && !type.includes('charset') ? `${type}; charset=utf-8` : type
      return { status, headers, body }
    }
    headers['Content-Type'] ??= 'application/json'
    return { status, headers, body: serializeChecked(built, body) }
  }

  /** Reads: entity tag, 304 and 412. */
  const conditional = (exchange: Exchange, answer: Outgoing): Outgoing => {
    if (answer.status !== 200 || answer.body === undefined) return answer
    const tag = (answer.headers['ETag'] ??= entityTag(answer.body))
    answer.headers['Cache-Control'] ??= 'private, no-cache'
    const { headers } = exchange.req
    if (isOther(headers['if-match'], tag)) throw new HttpRefusal('precondition_failed', 'If-Match names another version of this record')
    if (!isKnown(headers['if-none-match'], tag)) return answer
    return { status: 304, headers: { ETag: tag, 'Cache-Control': answer.headers['Cache-Control'] }, body: undefined }
  }

  /** Changes: If-Match is compared with what a read of the same path gives now. */
  const guarded = async <T>(exchange: Exchange, call: HttpCall, work: () => Promise<T>): Promise<T> => {
    const ifMatch = exchange.req.headers['if-match']
    const reader = ifMatch === undefined ? undefined : table.match('GET', exchange.path)?.entry.route
    if (reader === undefined) return work()
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

  /** Runs the handler, under its Idempotency-Key if there is one. Only successes are kept: a refusal changed nothing and may be tried again. */
  const perform = async (
    exchange: Exchange,
    built: Route,
    call: HttpCall,
    bytes: Buffer,
    format: string,
  ): Promise<{ answer: Outgoing; reply: Reply | undefined }> => {
    const run = async (): Promise<{ answer: Outgoing; reply: Reply | undefined }> => {
      const result = await built.handle(call)
      return { answer: outgoing(built, result), reply: result instanceof Reply ? result : undefined }
    }
    const given = exchange.req.headers['idempotency-key']
    const store = options.idempotency
    if (built.method !== 'POST' || given === undefined || store === undefined)
      return built.method === 'PUT' || built.method === 'DELETE' ? guarded(exchange, call, run) : run()
    if (typeof given !== 'string') throw new Refusal('invalid', 'Idempotency-Key must be given once')
    const key = idempotencyKey(given, { method: built.method, path: exchange.path, caller: access.caller })
    const stored = await beginOnce(store, key, idempotencyFingerprint({ query: exchange.search, format, body: bytes }))
    if (stored !== undefined) {
      const { status, headers, body } = stored
      return {
        answer: { status, headers: { ...headers, 'Idempotency-Replayed': 'true' }, body: body === '' ? undefined : body },
        reply: undefined,
      }
    }
    let done: { answer: Outgoing; reply: Reply | undefined }
    try {
      done = await run()
    } catch (error) {
      await store
        .abandon(key)
        .catch((failure: unknown) => log.error({ err: failure, requestId: exchange.requestId }, 'an Idempotency-Key could not be released'))
      throw error
    }
    const { answer, reply } = done
    const kept =
      reply?.stream !== undefined || answer.status >= 400
        ? store.abandon(key)
        : store.complete(key, { status: answer.status, headers: answer.headers, body: answer.body?.toString() ?? '' })
    await kept.catch((failure: unknown) =>
      log.error({ err: failure, requestId: exchange.requestId }, 'an answer could not be kept under its Idempotency-Key'),
    )
    return done
  }

  const audit = async (exchange: Exchange, built: Route, call: HttpCall, answer: Parameters<typeof auditRecord>[2]): Promise<void> => {
    if (options.audit === undefined || built.method === 'GET' || built.audit === false) return
    try {
      await options.audit(auditRecord(built, call, answer))
    } catch (error) {
      log.error({ err: error, requestId: exchange.requestId }, 'an audit record could not be written')
    }
  }

  /** The document as its schema gives it; one that is refused gets the findings of the store with those of the schema, all in one answer. */
  const fitting = async (built: Route, schema: z.ZodType, document: unknown, params: Record<string, string>): Promise<unknown> => {
    try {
      return checkDocument(schema, shapeOf(schema), document)
    } catch (error) {
      if (!(error instanceof Unfit) || error.code !== 'unacceptable' || built.alsoCheck === undefined) throw error
      throw unacceptable([...error.details, ...(await built.alsoCheck({ document: error.document, params }))])
    }
  }

  const runRoute = async (exchange: Exchange, built: Route, call: HttpCall): Promise<void> => {
    const { req } = exchange
    const types = [...new Set([...(built.raw ?? []), ...(built.response === undefined ? [] : documentTypes)])]
    if (types.length > 0 && !accepts(req.headers.accept, types)) {
      throw new HttpRefusal('not_acceptable', `this route answers ${types.join(', ')}; the Accept header excludes that`)
    }
    await built.admit?.({ params: call.params, query: call.query })
    exchange.call = call
    let bytes: Buffer = Buffer.alloc(0)
    let format: 'json' | 'yaml' = 'json'
    if (built.body !== undefined) {
      format = documentFormat(req)
      bytes = await readBody(req, exchange.res, built.limitBytes ?? config.bodyLimitBytes)
      call.body = await fitting(built, built.body, await readDocument(bytes, format, readYaml), call.params)
    }
    const { answer, reply } = await perform(exchange, built, call, bytes, format)
    if (reply?.stream !== undefined) {
      await audit(exchange, built, call, { status: answer.status, code: undefined })
      return stream(exchange, reply, answer.status, answer.headers)
    }
    const final = built.method === 'GET' ? conditional(exchange, answer) : answer
    // Nothing happened when an earlier answer was given again.
    if (final.headers['Idempotency-Replayed'] === undefined)
      await audit(exchange, built, call, { status: final.status, code: undefined, body: final.body })
    write(exchange, final)
  }

  /** Everything up to the handler's own part; returns without an answer for paths of the docs page. A browser is led to that page. */
  const dispatch = async (exchange: Exchange, docs: (() => void) | undefined): Promise<void> => {
    const { req, path } = exchange
    access.admit(req)
    exchange.headers.push(...access.cors(req))
    const asked = req.method ?? ''
    if (asked === 'OPTIONS' && req.headers.origin !== undefined)
      return write(exchange, { status: 200, headers: pairs(access.preflight(req)), body: undefined })
    if (docs !== undefined && (asked === 'GET' || asked === 'HEAD')) {
      if (path.startsWith('/docs/')) return docs()
      if (leadToDocs.has(path) && wantsPage(req.headers.accept))
        return write(exchange, {
          status: 302,
          headers: { Location: '/docs/', 'Cache-Control': 'no-store', Vary: 'Accept' },
          body: undefined,
        })
    }
    const method = asked === 'HEAD' ? 'GET' : asked
    const match = path.startsWith('/') && isMethod(method) ? table.match(method, path) : undefined
    const built = match?.entry.route
    exchange.entry = match?.entry
    const open = built?.public === true || (built?.public === 'get' && asked === 'GET')
    const actor: Actor = open ? { id: 'anonymous', type: 'local' } : access.authenticate(req)
    if (match === undefined) return unmatched(exchange)
    if (built === undefined) throw notBuilt(`${method} ${match.entry.template}`)
    if (method !== 'GET' && built.whileActivated !== true && options.activated()) throw new Refusal('locked', readOnlyText)
    const params = pathParams(match)
    const call = new HttpCall(req, exchange.res, {
      params,
      query: readQuery(built, exchange.search),
      requestId: exchange.requestId,
      target: req.url ?? path,
      actor,
    })
    // A route that admits by itself leaves no audit record of those whom it does not: anybody could fill the trail.
    if (built.admit === undefined) exchange.call = call
    return runRoute(exchange, built, call)
  }

  const readQuery = (built: Route, search: string): unknown => {
    const values = queryValues(search)
    if (built.query !== undefined) return checkQuery(built.query, withoutBlanks(built.query, values))
    const names = Object.keys(values)
    if (names.length === 0) return undefined
    throw new Refusal('invalid', `query: ${names.map((name) => JSON.stringify(name)).join(', ')} is not a known parameter of this route`, {
      details: names.map((name) => ({ path: name, message: 'is not a known query parameter here; remove it' })),
    })
  }

  const unmatched = (exchange: Exchange): void => {
    const { path, req } = exchange
    const allowed = table.allowed(path)
    if (req.method === 'OPTIONS' && allowed.length > 0)
      return write(exchange, { status: 200, headers: { Allow: allowed.join(', ') }, body: undefined })
    if (allowed.length > 0) {
      throw new HttpRefusal('method_not_allowed', `this path has no ${(req.method ?? '').slice(0, 20)}; it has ${allowed.join(', ')}`, {
        Allow: allowed.join(', '),
      })
    }
    const slashed = table.allowed(`${path}/`).length > 0
    throw new Refusal('missing', slashed ? `Not Found: paths end with a slash here` : 'Not Found')
  }

  const settle = (exchange: Exchange): void => {
    const { req, res } = exchange
    const fields = {
      requestId: exchange.requestId,
      method: req.method,
      path: exchange.path,
      status: res.statusCode,
      ms: Math.round((performance.now() - exchange.started) * 10) / 10,
    }
    options.observe?.(
      req.method ?? '',
      exchange.entry?.template ?? 'unknown',
      res.statusCode,
      (performance.now() - exchange.started) / 1_000,
    )
    // A line for each read would cost more than the read; debug has it.
    if (res.statusCode < 400 && (req.method === 'GET' || req.method === 'HEAD')) log.debug(fields, 'request')
    else log.info(fields, 'request')
  }

  const serve = async (req: IncomingMessage, res: ServerResponse, docs: ((exchange: Exchange) => void) | undefined): Promise<void> => {
    const url = req.url ?? '/'
    const at = url.indexOf('?')
    const given = req.headers['x-request-id']
    const requestId = typeof given === 'string' && requestIdForm.test(given) ? given : randomUUID()
    const exchange: Exchange = {
      req,
      res,
      requestId,
      started: performance.now(),
      path: at === -1 ? url : url.slice(0, at),
      search: at === -1 ? '' : url.slice(at + 1),
      headers: [...commonHeaders, 'X-Request-Id', requestId],
      entry: undefined,
      call: undefined,
    }
    try {
      const work = (): Promise<void> => dispatch(exchange, docs === undefined ? undefined : () => docs(exchange))
      if (options.span === undefined) await work()
      else
        await options.span(
          `HTTP ${req.method ?? ''}`,
          { 'http.request.method': req.method ?? '', 'url.path': exchange.path },
          work,
          req.headers,
        )
    } catch (error) {
      const answer = answerOf(exchange, error)
      if (answer === undefined) return void res.destroy()
      if (exchange.call !== undefined && exchange.entry?.route !== undefined)
        await audit(exchange, exchange.entry.route, exchange.call, { status: answer.status, code: answer.code })
      refuse(exchange, answer)
    }
    settle(exchange)
  }

  const pages = express()
  pages.disable('x-powered-by')
  pages.set('etag', 'strong')
  pages.use(docsPage())

  const showDocs = (exchange: Exchange): void => {
    const { headers } = exchange
    for (let i = 0; i < headers.length; i += 2) exchange.res.setHeader(headers[i] ?? '', headers[i + 1] ?? '')
    // Express makes these its own by setting their prototypes.
    pages(exchange.req as express.Request, exchange.res as express.Response, (error: unknown) => {
      for (const name of exchange.res.getHeaderNames()) exchange.res.removeHeader(name)
      const answer = error === undefined ? errorAnswer(new Refusal('missing', 'Not Found'), translate) : answerOf(exchange, error)
      if (answer !== undefined) refuse(exchange, answer)
    })
  }

  const listener = (req: IncomingMessage, res: ServerResponse): void => {
    serve(req, res, showDocs).catch((error: unknown) => {
      log.error({ err: error }, 'the kernel failed')
      res.destroy()
    })
  }
  const app = express()
  app.disable('x-powered-by')
  app.use(listener)
  return { listener, express: app, openapi }
}

/** The query's values without blank ones of declared names: a blank filter is no filter. Unknown names stay, to be refused. */
const withoutBlanks = (schema: z.ZodType, values: Record<string, string>): Record<string, string> => {
  const declared: object = 'shape' in schema ? (schema.shape as object) : {}
  return Object.fromEntries(Object.entries(values).filter(([name, value]) => value.trim() !== '' || !Object.hasOwn(declared, name)))
}

const isMethod = (method: string): method is Method => method === 'GET' || method === 'POST' || method === 'PUT' || method === 'DELETE'

const pairs = (flat: readonly string[]): Record<string, string> => {
  const record: Record<string, string> = {}
  for (let i = 0; i < flat.length; i += 2) record[flat[i] ?? ''] = flat[i + 1] ?? ''
  return record
}

/** `content-type` as `Content-Type`, so that a handler's spelling does not send a header twice. */
const canonical = (name: string): string =>
  name.toLowerCase() === 'etag' ? 'ETag' : name.toLowerCase().replace(/(^|-)[a-z]/g, (letter) => letter.toUpperCase())
