import express, { type Express } from 'express'
import { ServerResponse, type IncomingMessage } from 'node:http'
import type { Socket } from 'node:net'
import { Refusal } from '../refusal.ts'
import { createAccess } from './access.ts'
import { createAnswers } from './answer.ts'
import { dropRest } from './body.ts'
import { createGuard } from './conditional.ts'
import { createDispatch } from './dispatch.ts'
import { docsPage } from './docs.ts'
import { errorAnswer } from './errors.ts'
import { openExchange, type Exchange, type Upgrade } from './exchange.ts'
import { openApi, type OpenApi } from './openapi.ts'
import type { AppOptions } from './options.ts'
import { usualBodyPace } from './pace.ts'
import { createAudit, createPerform } from './perform.ts'
import { Reply, route, type Route } from './route.ts'
import { createSockets } from './sockets.ts'
import { createTable } from './table.ts'

export interface App {
  /**
   * Listener for a Node server. Requests of the API skip Express, because its exchange of
   * prototypes costs three quarters of a small answer.
   */
  listener: (req: IncomingMessage, res: ServerResponse) => void
  /**
   * Whether a request for another protocol gets it. Any other request is answered without a switch
   * of protocol.
   */
  upgrades: (req: IncomingMessage) => boolean
  /** Listener for a Node server's upgrades. */
  upgrade: (req: IncomingMessage, socket: Socket, head: Buffer) => void
  /** Ends the WebSockets, at a stop. */
  endSockets: () => void
  /** The same application for embedding in another Express one, without WebSockets. */
  express: Express
  /** The API's document. Its first reader waits for it: a start does not take the time to make it. */
  openapi: () => OpenApi
}

/** The routes outside of the prefix. */
const rootRoutesOf = (documentText: () => string): Route[] => [
  route('checkHealth', 'GET /', {
    summary: 'Health check',
    tag: 'service',
    raw: ['text/plain'],
    handle: () => new Reply({ body: 'ok' }),
  }),
  route('getDocument', 'GET /openapi.json', {
    summary: 'This document',
    tag: 'service',
    raw: ['application/json'],
    handle: () => new Reply({ body: documentText() }),
  }),
]

/** Writes the log line and the measurement of an answered request. */
const settle = ({ log, observe }: Pick<AppOptions, 'log' | 'observe'>, exchange: Exchange): void => {
  const { req, res } = exchange
  const ms = performance.now() - exchange.started
  const fields = {
    requestId: exchange.requestId,
    method: req.method,
    path: exchange.path,
    status: res.statusCode,
    ms: Math.round(ms * 10) / 10,
  }
  observe?.(req.method ?? '', exchange.entry?.template ?? 'unknown', res.statusCode, ms / 1_000)
  // A line for each read would cost more than the read, so reads are logged at level debug.
  if (res.statusCode < 400 && (req.method === 'GET' || req.method === 'HEAD')) log.debug(fields, 'request')
  else log.info(fields, 'request')
}

/** The same value for every caller, made for the first one. */
const once = <T>(make: () => T): (() => T) => {
  let made: { value: T } | undefined
  return () => (made ??= { value: make() }).value
}

/**
 * The kernel: the steps around a handler, once and in one order (`dispatch.ts`, then `perform.ts`),
 * for requests and WebSockets alike.
 */
export const createApp = (options: AppOptions): App => {
  const { config, log } = options
  const access = createAccess(config)
  const rootRoutes = rootRoutesOf(() => documentText())
  const table = createTable([
    ...options.routes.map((built) => ({
      method: built.method,
      path: config.apiPrefix + built.path,
      route: built,
    })),
    ...rootRoutes.map((built) => ({ method: built.method, path: built.path, route: built })),
  ])
  const document = once(() =>
    openApi({
      routes: options.routes,
      rootRoutes,
      prefix: config.apiPrefix,
      version: options.version,
      tokenNeeded: config.apiToken !== undefined,
      ...(options.pathParameter === undefined ? {} : { pathParameter: options.pathParameter }),
      ...(options.example === undefined ? {} : { example: options.example }),
    }),
  )
  const documentText = once(() => JSON.stringify(document()))
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
  const answers = createAnswers(options)
  const audit = createAudit(options)
  const sockets = createSockets({ log, pace: options.peerPace })
  const guarded = createGuard(table, answers)
  const perform = createPerform({ options, answers, audit, guarded, sockets, caller: access.caller })
  const dispatch = createDispatch({ options, access, table, answers, perform })

  const serve = async (
    exchange: Exchange,
    docs: ((exchange: Exchange) => void) | undefined,
  ): Promise<void> => {
    const { req, res } = exchange
    try {
      const selection = await options.select?.()
      exchange.instance = selection?.id
      if (selection !== undefined) exchange.headers.push('Orrery-Instance', selection.id)
      const work = (): Promise<void> =>
        dispatch(exchange, docs === undefined ? undefined : () => docs(exchange), selection)
      if (options.span === undefined) await work()
      else
        await options.span(
          `HTTP ${req.method ?? ''}`,
          { 'http.request.method': req.method ?? '', 'url.path': exchange.path },
          work,
          req.headers,
        )
    } catch (error) {
      const answer = answers.answerTo(exchange, error)
      if (answer === undefined) return void res.destroy()
      if (exchange.call !== undefined && exchange.entry !== undefined)
        await audit(exchange, exchange.entry.route, exchange.call, {
          status: answer.status,
          code: answer.code,
        })
      answers.refuse(exchange, answer)
    }
    settle(options, exchange)
    if (exchange.upgrade === undefined) dropRest(req, (options.bodyPace ?? usualBodyPace).wholeMs)
  }

  const pages = express()
  pages.disable('x-powered-by')
  pages.set('etag', 'strong')
  pages.use(docsPage())

  const showDocs = (exchange: Exchange): void => {
    const { headers } = exchange
    for (let i = 0; i < headers.length; i += 2) exchange.res.setHeader(headers[i] ?? '', headers[i + 1] ?? '')
    // Express sets the prototypes of these objects to its own.
    pages(exchange.req as express.Request, exchange.res as express.Response, (error: unknown) => {
      for (const name of exchange.res.getHeaderNames()) exchange.res.removeHeader(name)
      const answer =
        error === undefined
          ? errorAnswer(new Refusal('missing', 'Not Found'), () => undefined)
          : answers.answerTo(exchange, error)
      if (answer !== undefined) answers.refuse(exchange, answer)
    })
  }

  const begin = (req: IncomingMessage, res: ServerResponse, upgrade: Upgrade | undefined): void => {
    const exchange = openExchange(req, res, commonHeaders, upgrade)
    serve(exchange, upgrade === undefined ? showDocs : undefined).catch((error: unknown) => {
      log.error({ err: error }, 'the kernel failed')
      res.destroy()
    })
  }
  const listener = (req: IncomingMessage, res: ServerResponse): void => begin(req, res, undefined)

  const upgrades = (req: IncomingMessage): boolean => {
    if (req.method !== 'GET' || req.headers.upgrade?.toLowerCase() !== 'websocket') return false
    const path = (req.url ?? '/').split('?', 1)[0] ?? '/'
    return table.match('GET', path)?.entry.route.socket !== undefined
  }

  const upgrade = (req: IncomingMessage, socket: Socket, head: Buffer): void => {
    // Node has removed its own listeners from the connection.
    socket.on('error', () => socket.destroy())
    const res = new ServerResponse(req)
    res.shouldKeepAlive = false
    res.assignSocket(socket)
    res.once('finish', () => socket.destroySoon())
    begin(req, res, { socket, head })
  }

  const app = express()
  app.disable('x-powered-by')
  app.use(listener)
  return { listener, upgrades, upgrade, endSockets: () => sockets.end(), express: app, openapi: document }
}
