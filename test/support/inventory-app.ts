import { createHttpServer } from '../../src/http/server.ts'
import { createApp } from '../../src/http/app.ts'
import { refusalOf } from '../../src/db/errors.ts'
import type { Database } from '../../src/db/pool.ts'
import type { Route } from '../../src/http/route.ts'
import { auditEventRoutes } from '../../src/domains/audit-events/routes.ts'
import { recordAudit } from '../../src/domains/audit-events/store.ts'
import { environmentRoutes } from '../../src/domains/environments/routes.ts'
import { executionScopeRoutes } from '../../src/domains/execution-scopes/routes.ts'
import { instanceRoutes, type InstanceParts } from '../../src/domains/instance/routes.ts'
import { networkTopologyRoutes } from '../../src/domains/network-topologies/routes.ts'
import { openLocalShell } from '../../src/drivers/local-shell.ts'
import { resourceRoutes } from '../../src/domains/resources/routes.ts'
import { cloneDatabase } from './database.ts'
import { createConformance } from './conformance.ts'

export interface Answer {
  status: number
  headers: Headers
  text: string
  // Tests look into bodies of every shape.
  body: ReturnType<typeof JSON.parse>
}

export interface InventoryApp {
  db: Database
  call: (method: string, path: string, document?: unknown, headers?: Record<string, string>) => Promise<Answer>
  /** Rows of every table of the records. */
  counts: () => Promise<Record<string, number>>
  close: () => Promise<void>
}

const prefix = '/api'
const isJson = (response: Response): boolean => /[/+]json\b/.test(response.headers.get('content-type') ?? '')

/** The inventory's routes behind the real kernel on a database of its own; every answer is compared with the API's document. */
export const startInventory = async (
  parts: Partial<Omit<InstanceParts, 'db' | 'links'>> = {},
  more: (db: Database, url: string) => Route[] = () => [],
): Promise<InventoryApp> => {
  const { db, url, drop } = await cloneDatabase()
  const localShell = openLocalShell()
  const routes = [
    ...instanceRoutes({
      ...{ db, links: { localShell }, engineSockets: { docker: '/nowhere', podman: '/nowhere' }, buildkitSocket: '/nowhere' },
      ...parts,
    }),
    ...environmentRoutes({ db }),
    ...resourceRoutes({ db }),
    ...networkTopologyRoutes({ db }),
    ...executionScopeRoutes({ db }),
    ...auditEventRoutes({ db }),
    ...more(db, url),
  ]
  const faults: string[] = []
  const fault = (fields: object, text: string): void => void faults.push(`${text}: ${String((fields as { err?: unknown }).err)}`)
  const app = createApp({
    config: { apiPrefix: prefix, bodyLimitBytes: 32 * 1024 * 1024, allowedOrigins: [], allowedHosts: [], listenHost: '127.0.0.1' },
    routes,
    log: { debug: () => undefined, info: () => undefined, warn: () => undefined, error: fault },
    version: 'test',
    activated: () => false,
    audit: (record) => recordAudit(db, record),
    translate: refusalOf,
    validateResponses: true,
    onAnswer: (answer) => {
      try {
        conformance.check(answer.method, answer.template, answer.status, answer.contentType, answer.body)
      } catch (error) {
        faults.push((error as Error).message)
      }
    },
  })
  const conformance = createConformance(app.openapi)
  const server = createHttpServer(app, { tokenNeeded: false, version: 'test' })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as { port: number }

  return {
    db,
    call: async (method, path, document, headers = {}) => {
      const response = await fetch(`http://127.0.0.1:${String(port)}${prefix}${path}`, {
        method,
        headers: { ...(document === undefined ? {} : { 'content-type': 'application/json' }), ...headers },
        ...(document === undefined ? {} : { body: typeof document === 'string' ? document : JSON.stringify(document) }),
      })
      const text = await response.text()
      if (faults.length > 0) throw new Error(faults.splice(0).join('\n'))
      return {
        status: response.status,
        headers: response.headers,
        text,
        body: text === '' || !isJson(response) ? undefined : JSON.parse(text),
      }
    },
    counts: async () => {
      const client = await db.client()
      try {
        const { rows } = await client.query<{ name: string; rows: string }>(
          `select relname as name, (xpath('/row/c/text()', query_to_xml(format('select count(*) as c from %I', relname), false, true, '')))[1]::text as rows
           from pg_class where relkind = 'r' and relnamespace = 'public'::regnamespace and relname <> 'audit_events' order by 1`,
        )
        return Object.fromEntries(rows.map((row) => [row.name, Number(row.rows)]))
      } finally {
        client.release()
      }
    },
    close: async () => {
      server.closeAllConnections()
      await new Promise((resolve) => server.close(resolve))
      await localShell.close()
      await drop()
    },
  }
}
