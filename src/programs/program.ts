import { constants } from 'node:os'
import { readArguments } from './arguments.ts'
import { ConfigError, configFromEnvironment, printConfig, StartError, type Config } from '../config.ts'
import { freePort } from '../embedded/ports.ts'
import { openLog, type Log } from '../observability/log.ts'
import { openMetrics, type Metrics } from '../observability/metrics.ts'
import { installTemporalRuntime } from '../observability/temporal-runtime.ts'
import { openTraces, type Traces } from '../observability/traces.ts'

/** The parts that every program has before it opens anything. */
export interface Surroundings {
  config: Config
  log: Log
  metrics: Metrics
  traces: Traces
}

/** A running program. */
export interface Stoppable {
  /** Takes no new work, lets work under way end, closes everything. */
  stop(): Promise<void>
  /** Ends at once the children that would outlive the process; called before a forced exit. */
  kill(): void
}

/**
 * A terminal sends Ctrl-C to every process of its group and parents such as npm pass it on, so one
 * request arrives several times.
 */
const sameSignalMs = 300

/** A longer stop is forced: orchestrators kill after 30 s or more, and a kill loses nothing. */
const stopWithinMs = 28_000

/**
 * Runs a program to its end: arguments (`usage` begins with the command), configuration
 * (`--print-config` shows it and exits), log, metrics, traces; SIGTERM, SIGINT or SIGHUP (a closed
 * terminal) stops it in order, a second one by force. Exit codes: 0 stopped, 1 failed, 2 unusable
 * arguments or configuration, 128 + signal when forced.
 */
export const runProgram = async (
  { name, usage }: { name: string; usage: string },
  open: (surroundings: Surroundings) => Promise<Stoppable>,
): Promise<void> => {
  const onlyPrint = readArguments(
    { usage, options: { 'print-config': { type: 'boolean' } } },
    ({ values }) => values['print-config'],
  )
  const config = configOrExit()
  if (onlyPrint === true) {
    process.stdout.write(`${printConfig(config)}\n`)
    return
  }
  // A closed terminal closes standard output and error while the program stops.
  for (const stream of [process.stdout, process.stderr]) stream.on('error', () => undefined)
  const log = openLog(config.logLevel).child({ program: name })
  process.on('uncaughtException', (error) => {
    log.fatal({ err: error }, `${name} failed`)
    process.exit(1)
  })

  let running: Stoppable | undefined
  let stoppingSince: number | undefined
  const force = (code: number): never => {
    running?.kill()
    process.exit(code)
  }
  const onSignal = (signal: NodeJS.Signals, number: number): void => {
    if (stoppingSince !== undefined && performance.now() - stoppingSince < sameSignalMs) return
    // Before anything is open there is nothing to lose: embedded servers end with this process.
    if (stoppingSince !== undefined || running === undefined) force(128 + number)
    stoppingSince = performance.now()
    log.info({ signal }, `${name} stops; once more to force it`)
    setTimeout(() => {
      log.error(`${name} did not stop within ${stopWithinMs / 1000} s and is ended by force`)
      force(1)
    }, stopWithinMs).unref()
    running?.stop().then(
      () => {
        log.info(`${name} stopped`)
        process.exit(0)
      },
      (error: unknown) => {
        log.error({ err: error }, `${name} did not stop cleanly`)
        force(1)
      },
    )
  }
  for (const signal of ['SIGTERM', 'SIGINT', 'SIGHUP'] as const)
    process.on(signal, () => {
      onSignal(signal, constants.signals[signal])
    })

  try {
    const [sdkMetricsUrl, traces] = await Promise.all([
      freePort().then((port) => installTemporalRuntime(log, port)),
      openTraces(config, name),
    ])
    const opened = await open({ config, log, metrics: openMetrics(sdkMetricsUrl), traces })
    running = {
      stop: async () => {
        await opened.stop()
        await traces.close().catch((error: unknown) => {
          log.warn({ err: error }, 'the last traces could not be sent to OTEL_EXPORTER_OTLP_ENDPOINT')
        })
      },
      kill: () => {
        opened.kill()
      },
    }
  } catch (error) {
    if (error instanceof StartError) log.fatal(`${name} could not be started: ${error.message}`)
    else log.fatal({ err: error }, `${name} could not be started`)
    if (process.stderr.isTTY && !process.stdout.isTTY)
      process.stderr.write(`${error instanceof Error ? error.message : String(error)}\n`)
    process.exit(1)
  }
}

const configOrExit = (): Config => {
  try {
    return configFromEnvironment()
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error
    process.stderr.write(`${error.message}\n`)
    process.exit(2)
  }
}
