import { execFile } from 'node:child_process'
import { mkdirSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { promisify } from 'node:util'
import { z } from 'zod'
import type { Log } from '../observability/log.ts'
import { leash } from './leash.ts'
import type { Leashed } from './leash.ts'
import { choosePorts } from './ports.ts'
import { endProcesses, processesGiven } from './processes.ts'
import type { ProcessIdentity } from './processes.ts'
import { logTail, rotate } from './server-log.ts'
import { supervise } from './supervise.ts'
import { findTemporalProgram } from './temporal-program.ts'
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
    await prepareNamespace(program, address, options.namespace, settings)
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
      ...withoutUserConfig,
    ],
    environment: environmentOf(files.folder),
    directory: files.folder,
    logFile: files.log,
    softSignal: 'TERM',
    patienceSeconds: 8,
  })
  const ended = server.ended.then((code) => ({ code }))
  const deadline = Date.now() + readyWithinMs
  for (;;) {
    const early = await Promise.race([ended, isServing(program, `127.0.0.1:${ports.temporal}`), sleep(2000, undefined)])
    if (typeof early === 'object')
      throw new Error(`Temporal ended at its start with code ${early.code}; the end of ${files.log}:\n${logTail(files.log)}`)
    if (early === true) return server
    if (stopping.aborted || Date.now() > deadline) {
      await server.release()
      throw new Error(
        stopping.aborted
          ? 'Temporal was stopped at its start'
          : `Temporal was not ready within ${readyWithinMs / 1000} s; the end of ${files.log}:\n${logTail(files.log)}`,
      )
    }
  }
}

/** The program would otherwise read profiles and TEMPORAL_* variables that are meant for another server. */
const withoutUserConfig = ['--disable-config-file', '--disable-config-env']
const environmentOf = (home: string): Record<string, string> => ({ PATH: '/usr/bin:/bin', HOME: home, TZ: 'UTC' })

const operator = async (program: string, address: string, args: readonly string[]): Promise<string> => {
  const { stdout } = await promisify(execFile)(
    program,
    ['operator', ...args, '--address', address, '--command-timeout', '10s', ...withoutUserConfig],
    {
      env: environmentOf('/'),
      timeout: 15_000,
    },
  )
  return stdout
}

const isServing = async (program: string, address: string): Promise<boolean> => {
  try {
    return (await operator(program, address, ['cluster', 'health'])).includes('SERVING')
  } catch {
    await sleep(30)
    return false
  }
}

const described = z.object({ config: z.object({ workflowExecutionRetentionTtl: z.string() }) })
const listed = z.object({ customAttributes: z.record(z.string(), z.string()) })

/**
 * Sets the retention, which the development server fixes at a day, and reads the search attributes back: the server says yes to
 * a changed type and keeps the old one.
 */
const prepareNamespace = async (program: string, address: string, namespace: string, settings: TemporalSettings): Promise<void> => {
  const [description, attributes] = await Promise.all([
    operator(program, address, ['namespace', 'describe', '--namespace', namespace, '--output', 'json']),
    operator(program, address, ['search-attribute', 'list', '--namespace', namespace, '--output', 'json']),
  ])
  const seconds = Number.parseInt(settings.retention, 10) * 3600
  if (described.parse(JSON.parse(description)).config.workflowExecutionRetentionTtl !== `${seconds}s`)
    await operator(program, address, ['namespace', 'update', '--namespace', namespace, '--retention', settings.retention])
  const present = listed.parse(JSON.parse(attributes)).customAttributes
  const wrong = Object.entries(settings.searchAttributes).filter(([name, type]) => present[name] !== indexedType(type))
  if (wrong.length > 0)
    throw new Error(
      `the embedded Temporal server keeps search attributes with other types than temporal-config/namespace.yaml names: ${wrong
        .map(([name, type]) => `${name} is ${present[name] ?? 'missing'} instead of ${type}`)
        .join(
          ', ',
        )}. With the service stopped, move the folder temporal out of the data folder; runs that wait are started again from PostgreSQL`,
    )
}

const indexedType = (type: string): string => `INDEXED_VALUE_TYPE_${type.replace(/(?<=[a-z])(?=[A-Z])/g, '_').toUpperCase()}`
