import { formatAddress, type Config } from '../config.ts'
import type { Log } from '../observability/log.ts'
import { makeDataFolder, refuseHalfRestored, removeUnfinished } from './folders.ts'
import { openPostgres } from './postgres.ts'
import { openTemporal } from './temporal.ts'

/** The addresses of the two servers, embedded or external. */
export interface Endpoints {
  /** With the password. */
  databaseUrl: string
  /** `host:port` */
  temporalAddress: string
  /** Temporal's page; undefined where the server is external. */
  temporalUiUrl: string | undefined
}

export interface Embedded extends Endpoints {
  /**
   * Process ids of the running servers; an external server or one that is being restarted has none.
   */
  pids(): { postgres: number | undefined; temporal: number | undefined }
  /** Ends the servers by force. */
  kill(): void
  /** Shuts them down cleanly, with all data on disk. */
  [Symbol.asyncDispose](): Promise<void>
}

export interface EmbeddedOptions {
  log: Log
  onProgress: (message: string) => void
  /** A server runs again under another process id. */
  onRestart: () => void
  /** The endpoint with which Temporal's page decodes payloads. */
  codecEndpoint?: string | undefined
}

/**
 * Starts the servers that the configuration does not name, both at once. The caller holds the data
 * folder.
 * @throws Error of the first server that fails to start; the other is stopped. StartError for a folder
 *   whose restore was cut off
 */
export const openEmbedded = async (
  config: Config,
  { log, onProgress, onRestart, codecEndpoint }: EmbeddedOptions,
): Promise<Embedded> => {
  const { dataDir, cacheDir } = config
  makeDataFolder(dataDir)
  if (config.databaseUrl === undefined) {
    refuseHalfRestored(dataDir)
    removeUnfinished(dataDir)
  }
  const starting = [
    config.databaseUrl === undefined
      ? openPostgres({ dataDir, cacheDir, log, fsync: true, onRestart })
      : Promise.resolve(undefined),
    config.temporalAddress === undefined
      ? openTemporal({
          dataDir,
          cacheDir,
          namespace: config.temporalNamespace,
          program: config.temporalBinary,
          environment: config.childEnvironment,
          log,
          onProgress,
          codecEndpoint,
          onRestart,
        })
      : Promise.resolve(undefined),
  ] as const
  const settled = await Promise.allSettled(starting)
  const failed = settled.find((outcome) => outcome.status === 'rejected')
  if (failed !== undefined) {
    for (const outcome of settled) if (outcome.status === 'fulfilled') await outcome.value?.stop()
    throw failed.reason
  }
  const [postgres, temporal] = await Promise.all(starting)
  const databaseUrl = postgres?.databaseUrl ?? config.databaseUrl
  const temporalAddress =
    temporal?.address ??
    (config.temporalAddress === undefined ? undefined : formatAddress(config.temporalAddress))
  if (databaseUrl === undefined || temporalAddress === undefined)
    throw new Error('a server is neither named nor embedded')
  return {
    databaseUrl,
    temporalAddress,
    temporalUiUrl: temporal?.uiUrl,
    pids: () => ({ postgres: postgres?.process()?.pid, temporal: temporal?.process()?.pid }),
    kill: () => {
      postgres?.kill()
      temporal?.kill()
    },
    [Symbol.asyncDispose]: async () => {
      await Promise.all([postgres?.stop(), temporal?.stop()])
    },
  }
}
