import type { IncomingHttpHeaders } from 'node:http'
import { hostname } from 'node:os'
import { reachedHere } from './config.ts'
import type { Service, StartService } from './programs/daemon.ts'
import { refusalOf } from './constraints.ts'
import { openConsoleKeeper } from './domains/console/keeper.ts'
import { openSealer } from './domains/audit-events/sealer.ts'
import type { Activities } from '../activities/index.ts'
import { recordAudit } from './domains/audit-events/store.ts'
import { recordsWithSecrets } from './domains/environments/store.ts'
import { sweepSpool } from './domains/instance/archives/files.ts'
import { finishResets } from './domains/instance/archives/reset.ts'
import { ensureInstance } from './domains/instance/store.ts'
import type { StartWorker } from './programs/fleet.ts'
import { listen } from './listen.ts'
import { createApp } from './http/app.ts'
import type { AppOptions } from './http/options.ts'
import type { Route } from './http/route.ts'
import { createHttpServer } from './http/server.ts'
import { openIdempotency } from './db/idempotency.ts'
import type { OperationKind } from './operations/kind.ts'
import { openParts, type Parts } from './parts.ts'
import { openMachineKeeper } from './machine-keeper.ts'
import { openSweeper } from './sweeper.ts'
import { dispatchedOperation, openDispatcher } from './operations/dispatcher.ts'
import { pathParameterOf } from './path-parameters.ts'
import { openRequestExamples } from './http/request-examples.ts'
import { routesOf } from './routes.ts'
import { dispatchedKinds, durableKinds } from './kinds.ts'
import { openTaskWorkers, type TaskWorkersOptions } from './task-workers.ts'
import { orAfter } from './pacing/within.ts'
import { version } from './version.ts'

/** At a stop, requests in progress get this long. */
const drainMs = 5_000
/**
 * At a stop, a round that waits for a site or a provider gets as long as the workers. Another process
 * takes its work up.
 */
const roundMs = 10_000

/**
 * Options for tests: a callback for every answer, workflows bundled once for many services, and
 * another interval between the checks of open records.
 */
type Watch = Pick<AppOptions, 'onAnswer' | 'validateResponses'> &
  Pick<TaskWorkersOptions, 'workflowBundle'> & { further?: Further; lookEverySeconds?: number }

/**
 * Kinds of operations beside those of this version, with their routes and activities.
 * `workflowBundle` holds their workflows.
 */
export interface Further {
  kinds: readonly OperationKind[]
  routes: (parts: Parts) => Route[]
  activities: (parts: Parts) => Activities
}

/** Headers that occur once, in the form that the tracing library reads. */
const flat = (headers: IncomingHttpHeaders): Record<string, string | undefined> =>
  Object.fromEntries(
    Object.entries(headers).map(([name, value]) => [name, typeof value === 'string' ? value : undefined]),
  )

const taskWorkersOptions = ({
  config,
  log,
  endpoints,
  traces,
}: Parameters<StartService>[0]): TaskWorkersOptions => ({
  address: endpoints.temporalAddress,
  named: config.temporalAddress !== undefined,
  namespace: config.temporalNamespace,
  log,
  traces,
  kinds: durableKinds,
})

/** The API, the dispatcher and a worker in one process: the embedded default. */
export const startService = async (
  surroundings: Parameters<StartService>[0],
  { workflowBundle, further, lookEverySeconds, ...watch }: Watch = {},
): Promise<Service> => {
  const { config, log, traces, metrics } = surroundings
  const parts = await openParts(surroundings)
  const { rest } = await finishResets(parts)
  rest.catch((error: unknown) => {
    log.warn({ err: error }, 'what a factory reset removes is not all gone; the next start goes on')
  })
  await sweepSpool(parts.ownDb, parts.instanceSpool)
  await ensureInstance(parts.db, hostname())
  for (const { record, paths } of await recordsWithSecrets(parts.db))
    log.warn(
      { record, paths },
      'a record holds a secret; store it in the vault, give its credentialRef, and save the record without it',
    )
  const { db, engine } = parts
  const consoleKeeper = openConsoleKeeper({
    ...parts,
    log,
    server: `${config.hostId}:${config.dataDir}`,
    enabled: config.consoleEnabled,
    idleSeconds: config.consoleIdleSeconds,
    retentionDays: config.consoleRetentionDays,
  })
  const app = createApp({
    pathParameter: pathParameterOf,
    example: openRequestExamples(),
    config: { ...config, listenHost: config.listenAddress.host },
    routes: [...routesOf({ ...parts, consoleKeeper }), ...(further?.routes(parts) ?? [])],
    log,
    version,
    activated: () => parts.selection.activated(),
    select: () => parts.selection.select(),
    audit: (record) => recordAudit(parts.ownDb, record),
    idempotency: openIdempotency(parts.ownDb),
    translate: refusalOf,
    observe: (method, route, status, seconds) => metrics.request(method, route, status, seconds),
    streamOpened: parts.reports.streamOpened,
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
    ...(further === undefined
      ? {}
      : { kinds: [...durableKinds, ...further.kinds], furtherActivities: further.activities(parts) }),
  })
  const dispatcher = openDispatcher(
    { db, engine, metrics },
    [...dispatchedKinds, ...(further?.kinds ?? []).map(dispatchedOperation)].map((kind) => ({
      ...kind,
      lookEverySeconds: lookEverySeconds ?? kind.lookEverySeconds,
    })),
    log,
  )
  const sweeper = openSweeper(parts, log)
  const machineKeeper = openMachineKeeper(parts, log)
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
      await Promise.all([
        ...[workers.stop(), consoleKeeper.stop(), dispatcher.stop(), sealer.stop(), closed],
        ...[sweeper, machineKeeper].map((each) => orAfter(each.stop(), roundMs, undefined)),
      ])
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
  const machineKeeper = openMachineKeeper(parts, log)
  return {
    checks: {
      database: () => parts.db.prepared('ready', 'select 1', []).then(() => true),
      temporal: () => parts.engine.ready(),
      workers: () => Promise.resolve(workers.ready()),
    },
    async stop() {
      await Promise.all([
        workers.stop(),
        ...[sweeper, machineKeeper].map((each) => orAfter(each.stop(), roundMs, undefined)),
      ])
      await parts[Symbol.asyncDispose]()
    },
  }
}
