import { once } from 'node:events'
import type { AddressInfo } from 'node:net'
import { refusalOf } from '../../src/constraints.ts'
import type { Database } from '../../src/db/pool.ts'
import { recordAudit } from '../../src/domains/audit-events/store.ts'
import { createApp } from '../../src/http/app.ts'
import type { AuditRecord } from '../../src/http/audit.ts'
import type { Answered, AppOptions } from '../../src/http/options.ts'
import type { Route } from '../../src/http/route.ts'
import { createHttpServer, type ServerTimeouts } from '../../src/http/server.ts'
import { openClient } from './client.ts'
import { recordConformance } from './conformance.ts'
import { cloneDatabase } from './database.ts'
import { tableCounts } from './table-counts.ts'

export interface RoutesOptions {
  config?: Partial<AppOptions['config']>
  /** Options of the kernel that replace or extend those set here. */
  kernel?: Partial<Omit<AppOptions, 'config' | 'routes' | 'log' | 'audit' | 'onAnswer' | 'validateResponses'>>
  host?: string
  timeouts?: ServerTimeouts
  /** Errors in the log belong to the test. Without this flag the next call throws them. */
  errorsExpected?: boolean
}

/**
 * Makes routes on a database. Parts that they open go onto the stack, which is disposed of before
 * the database.
 */
export type RoutesOf = (db: Database, atClose: AsyncDisposableStack, databaseUrl: string) => readonly Route[]

/**
 * A list of routes behind the real kernel, over HTTP, on a database of its own. Every answer is
 * compared with the API's document. A call whose answer the document does not allow throws; for
 * requests past the client `close` throws. Audit records go to the database, as in the service.
 */
export const openRoutes = async (routesOf: RoutesOf, options: RoutesOptions = {}) => {
  const atClose = new AsyncDisposableStack()
  const { db, url: databaseUrl, drop } = await cloneDatabase()
  atClose.defer(drop)
  const routes = routesOf(db, atClose, databaseUrl)
  const answers: Answered[] = []
  const audits: AuditRecord[] = []
  const logged: { level: string; fields: object; text: string }[] = []
  const errors: string[] = []
  const conformance = recordConformance()
  const note = (level: string) => (fields: object, text: string) => {
    logged.push({ level, fields, text })
    if (level === 'error' && options.errorsExpected !== true)
      errors.push(`${text}: ${String((fields as { err?: unknown }).err)}`)
  }
  const raise = (): void => {
    conformance.raise()
    if (errors.length > 0) throw new Error(errors.splice(0).join('\n'))
  }
  const config = {
    apiPrefix: '/api',
    apiToken: undefined,
    allowedOrigins: [],
    allowedHosts: [],
    listenHost: '127.0.0.1',
    bodyLimitBytes: 32 * 1024 * 1024,
    ...options.config,
  }
  const version = options.kernel?.version ?? 'test'
  const app = createApp({
    version,
    activated: () => false,
    translate: refusalOf,
    ...options.kernel,
    config,
    routes,
    log: { debug: note('debug'), info: note('info'), warn: note('warn'), error: note('error') },
    audit: async (record) => {
      audits.push(record)
      await recordAudit(db, record)
    },
    validateResponses: true,
    onAnswer: (answer) => {
      answers.push(answer)
      conformance.onAnswer(answer)
    },
  })
  conformance.begin(app.openapi())
  const { timeouts } = options
  const server = createHttpServer(app, {
    tokenNeeded: config.apiToken !== undefined,
    version,
    ...(timeouts === undefined ? {} : { timeouts }),
  })
  server.listen(0, options.host ?? '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address() as AddressInfo
  const url = `http://127.0.0.1:${String(port)}`
  const baseUrl = `${url}${config.apiPrefix}`

  return {
    ...openClient(baseUrl, { onAnswer: raise }),
    app,
    db,
    routes,
    /** The root of the server. */
    url,
    /** The base URL of the API. */
    baseUrl,
    port,
    /** All answers so far. */
    answers,
    audits,
    logged,
    counts: () => tableCounts(db),
    close: async (): Promise<void> => {
      app.endSockets()
      server.closeAllConnections()
      await new Promise((resolve) => server.close(resolve))
      await atClose.disposeAsync()
      raise()
    },
  }
}

export type OpenedRoutes = Awaited<ReturnType<typeof openRoutes>>
