import { once } from 'node:events'
import type { AddressInfo } from 'node:net'
import { z } from 'zod'
import { refusalOf } from '../../src/constraints.ts'
import { sql } from '../../src/db/sql.ts'
import { workflowDefinitionRoutes } from '../../src/domains/workflow-definitions/routes.ts'
import { createApp } from '../../src/http/app.ts'
import type { AuditRecord } from '../../src/http/audit.ts'
import { createHttpServer } from '../../src/http/server.ts'
import { createConformance } from '../support/conformance.ts'
import { cloneDatabase, type TestDatabase } from '../support/database.ts'
import { uses } from '../../src/uses.ts'

export interface Answer<T = Record<string, unknown>> {
  status: number
  headers: Headers
  text: string
  json: T
}

/** The workflow routes on a real database behind the real HTTP kernel; every answer is compared with the API's document. */
export interface WorkflowService {
  db: TestDatabase['db']
  audits: AuditRecord[]
  call: <T = Record<string, unknown>>(
    method: string,
    path: string,
    body?: unknown,
    contentType?: string,
    accept?: string,
  ) => Promise<Answer<T>>
  /** Rows of every table of workflows. */
  counts: () => Promise<Record<string, number>>
  close: () => Promise<void>
}

export const startWorkflowService = async ({ validate = true } = {}): Promise<WorkflowService> => {
  const database = await cloneDatabase()
  const { db } = database
  const audits: AuditRecord[] = []
  const faults: unknown[] = []
  const app = createApp({
    config: {
      apiPrefix: '/api',
      apiToken: undefined,
      allowedOrigins: [],
      allowedHosts: [],
      listenHost: '127.0.0.1',
      bodyLimitBytes: 32 * 1024 * 1024,
    },
    routes: workflowDefinitionRoutes({ db, uses }),
    log: { debug: () => undefined, info: () => undefined, warn: () => undefined, error: (fields) => void faults.push(fields) },
    version: '0.0.0',
    activated: () => false,
    audit: async (record) => void audits.push(record),
    translate: refusalOf,
    validateResponses: validate,
    onAnswer: (answer) => {
      if (!validate || (answer.body?.length ?? 0) > 2_000_000) return
      try {
        conformance.check(answer.method, answer.template, answer.status, answer.contentType, answer.body)
      } catch (error) {
        faults.push(error)
      }
    },
  })
  const conformance = createConformance(app.openapi)
  const server = createHttpServer(app, { tokenNeeded: false, version: '0.0.0' })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/api`
  return {
    db,
    audits,
    call: async <T>(method: string, path: string, body?: unknown, contentType?: string, accept = '*/*'): Promise<Answer<T>> => {
      const text = typeof body === 'string' ? body : JSON.stringify(body)
      const headers = { accept, 'content-type': contentType ?? (typeof body === 'string' ? 'application/yaml' : 'application/json') }
      const answer = await fetch(url + path, body === undefined ? { method, headers: { accept } } : { method, headers, body: text })
      const content = await answer.text()
      const json = (answer.headers.get('content-type')?.includes('json') === true && content !== '' ? JSON.parse(content) : {}) as T
      return { status: answer.status, headers: answer.headers, text: content, json }
    },
    counts: async () => {
      const tables = [
        'workflow_definitions',
        'workflow_versions',
        'activity_types',
        'activity_definitions',
        'activity_dependencies',
        'workflow_data_dependencies',
      ]
      const rows = await db.many(
        z.object({ name: z.string(), count: z.number() }),
        sql`select 'workflow_definitions' as name, count(*) from workflow_definitions union all select 'workflow_versions', count(*) from workflow_versions
          union all select 'activity_types', count(*) from activity_types union all select 'activity_definitions', count(*) from activity_definitions
          union all select 'activity_dependencies', count(*) from activity_dependencies union all select 'workflow_data_dependencies', count(*) from workflow_data_dependencies`,
      )
      const found = Object.fromEntries(rows.map(({ name, count }) => [name, count]))
      return Object.fromEntries(tables.map((table) => [table, found[table] ?? -1]))
    },
    close: async () => {
      server.closeAllConnections()
      await new Promise((resolve) => server.close(resolve))
      await database.drop()
      if (faults.length > 0) throw faults[0]
    },
  }
}
