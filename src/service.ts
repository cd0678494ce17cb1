import type { IncomingHttpHeaders } from 'node:http'
import { hostname } from 'node:os'
import { reachedHere } from './config.ts'
import type { Service, StartService } from './daemon.ts'
import { refusalOf } from './constraints.ts'
import { openDispatcher } from './dispatcher.ts'
import { openSealer } from './domains/audit-events/sealer.ts'
import { recordAudit } from './domains/audit-events/store.ts'
import { recordsWithSecrets } from './domains/environments/store.ts'
import { ensureInstance } from './domains/instance/store.ts'
import type { StartWorker } from './fleet.ts'
import { listen } from './listen.ts'
import { createApp } from './http/app.ts'
import type { AppOptions } from './http/options.ts'
import { createHttpServer } from './http/server.ts'
import { openIdempotency } from './db/idempotency.ts'
import { openParts } from './parts.ts'
import { openSweeper } from './sweeper.ts'
import { unbuiltPairs } from './not-built.ts'
import { dispatchedKinds, routesOf } from './routes.ts'
import { openTaskWorkers, type TaskWorkersOptions } from './task-workers.ts'
import { version } from './version.ts'

/** Requests under way get this long at a stop. */
const drainMs = 5_000

/** What tests pass: a look at every answer, and workflows that are bundled once for many services. */
type Watch = Pick<AppOptions, 'onAnswer' | 'validateResponses'> & Pick<TaskWorkersOptions, 'workflowBundle'>

/** Headers that are given once, as the tracing library reads them. */
const flat = (headers: IncomingHttpHeaders): Record<string, string | undefined> =>
  Object.fromEntries(Object.entries(headers).map(([name, value]) => [name, typeof value === 'string' ? value : undefined]))

const taskWorkersOptions = ({ config, log, endpoints, traces }: Parameters<StartService>[0]): TaskWorkersOptions => ({
  address: endpoints.temporalAddress,
  named: config.temporalAddress !== undefined,
  namespace: config.temporalNamespace,
  log,
  traces,
})

/**
 * The API, the dispatcher and a worker in one process: what the embedded default runs.
 */
export const startService = async (
  surroundings: Parameters<StartService>[0],
  { workflowBundle, ...watch }: Watch = {},
): Promise<Service> => {
  const { config, log, traces, metrics } = surroundings
  const parts = await openParts(surroundings)
  await ensureInstance(parts.db, hostname())
  for (const { record, paths } of await recordsWithSecrets(parts.db))
    log.warn(
      { record, paths },
      'a configuration holds a secret; store it in the vault, give its credentialRef, and save the record without it',
    )
  const { db, engine } = parts
  const app = createApp({
    config: { ...config, listenHost: config.listenAddress.host },
    routes: routesOf(parts),
    unbuilt: unbuiltPairs,
    log,
    version,
    activated: () => false,
    audit: (record) => recordAudit(db, record),
    idempotency: openIdempotency(db),
    translate: refusalOf,
    observe: (method, route, status, seconds) => metrics.request(method, route, status, seconds),
    ...(config.tracesEndpoint === undefined
      ? {}
      : { span: (name, attributes, work, headers) => traces.span(name, attributes, work, flat(headers)) }),
    ...watch,
  })
  const server = createHttpServer(app, { tokenNeeded: config.apiToken !== undefined, version })
  const address = await listen(server, 'SERVICE_LISTEN_ADDRESS', config.listenAddress)
  parts.api.url = `http://${reachedHere(address)}${config.apiPrefix}`
  const workers = openTaskWorkers(parts, {
    ...taskWorkersOptions(surroundings),
    ...(workflowBundle === undefined ? {} : { workflowBundle }),
  })
  const dispatcher = openDispatcher({ db, engine, metrics }, dispatchedKinds, log)
  const sweeper = openSweeper(parts, log)
  const sealer = openSealer(parts, log)
  return {
    address,
    checks: {
      database: () => db.prepared('ready', 'select 1', []).then(() => true),
      temporal: () => engine.ready(),
      workers: () => Promise.resolve(workers.ready()),
    },
    payloads: parts.payloads && { codec: parts.payloads, audit: (event) => recordAudit(db, event) },
    workers: () => [process.pid],
    async stop() {
      const closed = new Promise<void>((resolve) => {
        server.close(() => {
          resolve()
        })
      })
      server.closeIdleConnections()
      app.endSockets()
      setTimeout(() => {
        server.closeAllConnections()
      }, drainMs).unref()
      await dispatcher.stop()
      await sweeper.stop()
      await sealer.stop()
      await workers.stop()
      await closed
      await parts[Symbol.asyncDispose]()
    },
  }
}

/** One more worker of a fleet. */
export const startWorker: StartWorker = async (surroundings) => {
  const { log } = surroundings
  const parts = await openParts(surroundings)
  const workers = openTaskWorkers(parts, taskWorkersOptions(surroundings))
  const sweeper = openSweeper(parts, log)
  return {
    checks: {
      database: () => parts.db.prepared('ready', 'select 1', []).then(() => true),
      temporal: () => parts.engine.ready(),
      workers: () => Promise.resolve(workers.ready()),
    },
    async stop() {
      await sweeper.stop()
      await workers.stop()
      await parts[Symbol.asyncDispose]()
    },
  }
}
