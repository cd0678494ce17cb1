import { Connection, type ConnectionOptions } from '@temporalio/client'
import { msToTs, optionalTsToMs } from '@temporalio/common/lib/time.js'
import { mkdirSync } from 'node:fs'
import { join } from 'node:path'
import { poll } from '../pacing/poll.ts'
import type { ProgramOptions } from './go-build.ts'
import { leash, type Leashed } from './leash.ts'
import { choosePorts } from './ports.ts'
import { endProcesses, processesGiven, type KnownProcess } from './processes.ts'
import { logTail, rotate } from './server-log.ts'
import { supervise } from './supervise.ts'
import { findTemporalProgram } from './temporal-program.ts'
import { ensureSearchAttributes } from './search-attributes.ts'
import { readTemporalSettings, type TemporalSettings } from './temporal-settings.ts'

export interface TemporalOptions extends ProgramOptions {
  dataDir: string
  namespace: string
  /** SERVICE_TEMPORAL_BINARY. */
  program: string | undefined
  /** The endpoint with which the page decodes payloads; undefined: it shows them encoded. */
  codecEndpoint?: string | undefined
  /** Called when the server runs again after it ended by itself. */
  onRestart?: () => void
  /** How long the server may take to serve after its start; a minute by default. */
  readyWithinMs?: number
}

export interface EmbeddedTemporal {
  /** `127.0.0.1:PORT` of the gRPC frontend. */
  readonly address: string
  /** Temporal's own page. */
  readonly uiUrl: string
  /** Prometheus metrics of the server. */
  readonly metricsUrl: string
  process(): KnownProcess | undefined
  stop(): Promise<void>
  kill(): void
}

const defaultReadyWithinMs = 60_000

export const temporalFiles = (dataDir: string) => ({
  folder: join(dataDir, 'temporal'),
  data: join(dataDir, 'temporal', 'temporal.db'),
  log: join(dataDir, 'logs', 'temporal.log'),
  ports: join(dataDir, 'temporal.ports.json'),
})

/**
 * Starts Temporal's development server on a file in the data folder and keeps it running on the
 * same ports. The namespace has the retention and the search attributes of `temporal-config/`. The
 * caller holds the folder.
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
  const { readyWithinMs = defaultReadyWithinMs } = options
  await endProcesses(() => processesGiven('temporal', files.data), 'SIGTERM', 5)
  rotate(files.log)
  const each = (flag: string, values: Readonly<Record<string, unknown>>): string[] =>
    Object.entries(values).flatMap(([key, value]) => [
      flag,
      `${key}=${typeof value === 'string' ? value : JSON.stringify(value)}`,
    ])
  const server = await leash({
    command: [
      program,
      ...[
        'server',
        'start-dev',
        '--ip',
        '127.0.0.1',
        '--port',
        String(ports.temporal),
        '--ui-port',
        String(ports.temporalUi),
      ],
      ...[
        '--metrics-port',
        String(ports.temporalMetrics),
        '--namespace',
        options.namespace,
        '--db-filename',
        files.data,
      ],
      // Write-ahead log without a sync per commit: a kill of the server loses nothing, a power cut
      // may lose the last moments. PostgreSQL, which holds the records, syncs; workflows that
      // Temporal lost are started again from there.
      ...['--sqlite-pragma', 'journal_mode=wal', '--sqlite-pragma', 'synchronous=1'],
      ...['--log-format', 'json', '--log-level', 'error'],
      ...each('--dynamic-config-value', settings.dynamic),
      ...each('--search-attribute', settings.searchAttributes),
      ...(options.codecEndpoint === undefined ? [] : ['--ui-codec-endpoint', options.codecEndpoint]),
      // The page would request news from a host of the vendor.
      '--ui-disable-news-fetch',
      // Otherwise it would read profiles and TEMPORAL_* variables that are meant for another
      // server.
      ...['--disable-config-file', '--disable-config-env'],
    ],
    environment: { PATH: '/usr/bin:/bin', HOME: files.folder, TZ: 'UTC' },
    directory: files.folder,
    logFile: files.log,
    softSignal: 'TERM',
    patienceSeconds: 8,
  })
  const ended = server.ended.then((code) => ({ code }))
  const ready = async (connection: Connection): Promise<boolean> => {
    const seen = await poll(
      async () => {
        const early = await Promise.race([ended, isServing(connection)])
        return early === false ? undefined : early
      },
      { everyMs: 10, deadlineMs: readyWithinMs, signal: stopping },
    )
    if (typeof seen === 'object')
      throw new Error(
        `Temporal ended at its start with code ${seen.code}; the end of ${files.log}:\n${logTail(files.log)}`,
      )
    return seen ?? false
  }
  // The server refuses connections in its first moments; the caller asks again.
  if (await asking(`127.0.0.1:${ports.temporal}`, ready, { interceptors: [] })) return server
  await server.release()
  throw new Error(
    stopping.aborted
      ? 'Temporal was stopped at its start'
      : `Temporal was not ready within ${readyWithinMs / 1000} s; the end of ${files.log}:\n${logTail(files.log)}`,
  )
}

/**
 * A connection for the duration of `work`. It retries a starting server within milliseconds, where
 * the library's first wait is a second.
 */
const asking = async <T>(
  address: string,
  work: (connection: Connection) => Promise<T>,
  options: ConnectionOptions = {},
): Promise<T> => {
  const channelArgs = {
    'grpc.initial_reconnect_backoff_ms': 10,
    'grpc.min_reconnect_backoff_ms': 10,
    'grpc.max_reconnect_backoff_ms': 50,
  }
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

/**
 * Sets the retention, which the development server fixes at a day, and adds missing search
 * attributes.
 */
const prepareNamespace = (
  connection: Connection,
  namespace: string,
  settings: TemporalSettings,
): Promise<void> =>
  connection.withDeadline(Date.now() + 15_000, async () => {
    // A data folder of an earlier version lacks attributes: the server ignores new ones in its
    // flags.
    const [{ config }, wrong] = await Promise.all([
      connection.workflowService.describeNamespace({ namespace }),
      ensureSearchAttributes(connection, namespace, settings.searchAttributes),
    ])
    const retentionMs = Number.parseInt(settings.retention, 10) * 3600_000
    if (optionalTsToMs(config?.workflowExecutionRetentionTtl) !== retentionMs)
      await connection.workflowService.updateNamespace({
        namespace,
        config: { workflowExecutionRetentionTtl: msToTs(retentionMs) },
      })
    if (wrong.length > 0)
      throw new Error(
        'the embedded Temporal server keeps search attributes with other types than ' +
          `temporal-config/namespace.yaml names: ${wrong.join(', ')}. With the service stopped, move the ` +
          'folder temporal out of the data folder; runs that wait are started again from PostgreSQL',
      )
  })
