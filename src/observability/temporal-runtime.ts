import type { Log } from './log.ts'
import { sdkLog } from './sdk-log.ts'

/**
 * Installs the native part of the Temporal SDK for this process, before its first connection: its
 * log lines go to this log, its metrics to a loopback port, and this process keeps the stop
 * signals. The native part is loaded only here, since it takes 0.3 s and 90 MB.
 * @returns the address of the metrics
 */
export const installTemporalRuntime = async (log: Log, metricsPort: number): Promise<string> => {
  const { Runtime } = await import('@temporalio/worker')
  Runtime.install({
    shutdownSignals: [],
    logger: sdkLog(log),
    telemetryOptions: {
      // Hundreds of warnings come while a server is away; /readyz reports the connection's state.
      logging: { filter: { core: 'ERROR', other: 'ERROR' }, forward: {} },
      metrics: { prometheus: { bindAddress: `127.0.0.1:${metricsPort}`, useSecondsForDurations: true } },
    },
  })
  return `http://127.0.0.1:${metricsPort}/metrics`
}
