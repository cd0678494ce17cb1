import { Connection, type ConnectionOptions } from '@temporalio/client'
import { msToTs, optionalTsToMs } from '@temporalio/common/lib/time.js'
import { mkdirSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Log } from '../observability/log.ts'
import { leash } from './leash.ts'
import type { Leashed } from './leash.ts'
import { choosePorts } from './ports.ts'
import { endProcesses, processesGiven } from './processes.ts'
import type { ProcessIdentity } from './processes.ts'
import { logTail, rotate } from './server-log.ts'
import { supervise } from './supervise.ts'
import { findTemporalProgram } from './temporal-program.ts'
import { ensureSearchAttributes } from './search-attributes.ts'
import { readTemporalSettings } from './temporal-settings.ts'
import type { TemporalSettings } from './temporal-settings.ts'

export interface TemporalOptions {
  dataDir: string
  cacheDir: string
  namespace: string
  /** SERVICE_TEMPORAL_BINARY. */
  program: string | undefined
  environment: Readonly<Record<string, string>>
  log: Log
  onProgress: (message: string) => void
  /** Where the page has payloads decoded; undefined: it shows them as they are. */
  codecEndpoint?: string | undefined
  /** Called when the server runs again after it ended by itself. */
  onRestart?: () => void
}

export interface EmbeddedTemporal {
  /** `127.0.0.1:PORT` of the gRPC frontend. */
  readonly address: string
  /** Temporal's own page. */
  readonly uiUrl: string
  /** Prometheus metrics of the server. */
  readonly metricsUrl: string
  process(): ProcessIdentity | undefined
  stop(): Promise<void>
  kill(): void
}

const readyWithinMs = 60_000

export const temporalFiles = (dataDir: string) => ({
  folder: join(dataDir, 'temporal'),
  data: join(dataDir, 'temporal', 'temporal.db'),
  log: join(dataDir, 'logs', 'temporal.log'),
  ports: join(dataDir, 'temporal.ports.json'),
})

/**
 * Starts Temporal's development server on a file in the data folder and keeps it running on the same ports. The namespace has the
 * retention and the search attributes of `temporal-config/`. The caller holds the folder.
 * @throws Error with the reason, the remedy and the end of the server's log
 */
export const openTemporal = async (options: TemporalOptions): Promise<EmbeddedTemporal> => {
  const files = temporalFiles(options.dataDir)
  const settings = readTemporalSettings()
  mkdirSync(files.folder, { recursive: true, mode: 0o700 })
  mkdirSync(join(options.dataDir, 'logs'), { recursive: true, mode: 0o700 })
  const program = await findTemporalProgram({ named: options.program, ...options })
  const ports = await choosePorts(files.ports, ['temporal', 'temporalUi', 'temporalMetrics'])
  const server = await supervise(
    'Temporal',
    (stopping) => start(options, program, settings, ports, stopping),
    options.log,
    options.onRestart ?? (() => undefined),
  )
  const address = `127.0.0.1:${ports.temporal}`
  try {
    await asking(address, (connection) => prepareNamespace(connection, options.namespace, settings))
  } catch (error) {
    await server.stop()
    throw error
  }
  return {
    address,
    uiUrl: `http://127.0.0.1:${ports.temporalUi}`,
    metricsUrl: `http://127.0.0.1:${ports.temporalMetrics}/metrics`,
    process: () => server.process(),
    stop: () => server.stop(),
    kill: () => {
      server.kill()
    },
  }
}

interface Ports {
  temporal: number
  temporalUi: number
  temporalMetrics: number
}

const start = async (
  options: TemporalOptions,
  program: string,
  settings: TemporalSettings,
  ports: Ports,
  stopping: AbortSignal,
): Promise<Leashed> => {
  const files = temporalFiles(options.dataDir)
  await endProcesses(() => processesGiven('temporal', files.data), 'SIGTERM', 5)
  rotate(files.log)
  const each = (flag: string, values: Readonly<Record<string, unknown>>): string[] =>
    Object.entries(values).flatMap(([key, value]) => [flag, `${key}=${typeof value === 'string' ? value : JSON.stringify(value)}`])
  const server = await leash({
    command: [
      program,
      ...['server', 'start-dev', '--ip', '127.0.0.1', '--port', String(ports.temporal), '--ui-port', String(ports.temporalUi)],
      ...['--metrics-port', String(ports.temporalMetrics), '--namespace', options.namespace, '--db-filename', files.data],
      // Write-ahead log without a sync per commit: nothing is lost when the server is killed, the last moments may be in a power cut.
      // PostgreSQL, which holds the records, syncs; what Temporal forgot is started again from there.
      ...['--sqlite-pragma', 'journal_mode=wal', '--sqlite-pragma', 'synchronous=1'],
      ...['--log-format', 'json', '--log-level', 'error'],
      ...each('--dynamic-config-value', settings.dynamic),
      ...each('--search-attribute', settings.searchAttributes),
      ...(options.codecEndpoint === undefined ? [] : ['--ui-codec-endpoint', options.codecEndpoint]),
      // The page would ask a host of the vendor for news.
      '--ui-disable-news-fetch',
      // It would otherwise read profiles and TEMPORAL_* variables that are meant for another server.
      ...['--disable-config-file', '--disable-config-env'],
    ],
    environment: { PATH: '/usr/bin:/bin', HOME: files.folder, TZ: 'UTC' },
    directory: files.folder,
    logFile: files.log,
    softSignal: 'TERM',
    patienceSeconds: 8,
  })
  const ended = server.ended.then((code) => ({ code }))
  const deadline = Date.now() + readyWithinMs
  const ready = async (connection: Connection): Promise<boolean> => {
    for (;;) {
      const early = await Promise.race([ended, isServing(connection)])
      if (typeof early === 'object')
        throw new Error(`Temporal ended at its start with code ${early.code}; the end of ${files.log}:\n${logTail(files.log)}`)
      if (early || stopping.aborted || Date.now() > deadline) return early
      await sleep(10)
    }
  }
  // Refused is the answer of the first moments; who asks asks again.
  if (await asking(`127.0.0.1:${ports.temporal}`, ready, { interceptors: [] })) return server
  await server.release()
  throw new Error(
    stopping.aborted
      ? 'Temporal was stopped at its start'
      : `Temporal was not ready within ${readyWithinMs / 1000} s; the end of ${files.log}:\n${logTail(files.log)}`,
  )
}

/** A connection for as long as `work` takes. It looks for a young server anew in milliseconds, where the library's first wait is a second. */
const asking = async <T>(address: string, work: (connection: Connection) => Promise<T>, options: ConnectionOptions = {}): Promise<T> => {
  const channelArgs = { 'grpc.initial_reconnect_backoff_ms': 10, 'grpc.min_reconnect_backoff_ms': 10, 'grpc.max_reconnect_backoff_ms': 50 }
  const connection = Connection.lazy({ address, channelArgs, ...options })
  try {
    return await work(connection)
  } finally {
    await connection.close()
  }
}

/** grpc.health.v1: HealthCheckResponse.ServingStatus. */
const serving = 1

const isServing = async (connection: Connection): Promise<boolean> => {
  const check = (): Promise<{ status?: number | null }> =>
    connection.healthService.check({ service: 'temporal.api.workflowservice.v1.WorkflowService' })
  return connection.withDeadline(Date.now() + 2000, check).then(
    ({ status }) => status === serving,
    () => false,
  )
}

/** Sets the retention, which the development server fixes at a day, and makes the search attributes whole. */
const prepareNamespace = (connection: Connection, namespace: string, settings: TemporalSettings): Promise<void> =>
  connection.withDeadline(Date.now() + 15_000, async () => {
    // Attributes that a data folder of the version before lacks: the server ignores new ones in its flags.
    const [{ config }, wrong] = await Promise.all([
      connection.workflowService.describeNamespace({ namespace }),
      ensureSearchAttributes(connection, namespace, settings.searchAttributes),
    ])
    const retentionMs = Number.parseInt(settings.retention, 10) * 3600_000
    if (optionalTsToMs(config?.workflowExecutionRetentionTtl) !== retentionMs)
      await connection.workflowService.updateNamespace({ namespace, config: { workflowExecutionRetentionTtl: msToTs(retentionMs) } })
    if (wrong.length > 0)
      throw new Error(
        `the embedded Temporal server keeps search attributes with other types than temporal-config/namespace.yaml names: ${wrong.join(', ')}. With the service stopped, move the folder temporal out of the data folder; runs that wait are started again from PostgreSQL`,
      )
  })
