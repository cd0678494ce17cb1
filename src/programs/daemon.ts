import { dirname } from 'node:path'
import { openAdmin, type Checks } from './admin.ts'
import { reachedHere, StartError, withoutPassword } from '../config.ts'
import type { Address, Config } from '../config.ts'
import { openEmbedded, type Embedded, type Endpoints } from '../embedded/embedded.ts'
import { makeDataFolder, makeFolder } from '../embedded/folders.ts'
import { tryHold } from '../embedded/hold.ts'
import { removeReady, writeReady } from '../embedded/ready-file.ts'
import { openProgress } from '../observability/progress.ts'
import { probeAddress } from '../listen.ts'
import type { Stoppable, Surroundings } from './program.ts'
import {
  codecKeyFile,
  codecPrefix,
  ensureCodecKey,
  pageOrigins,
  temporalCodec,
  type PayloadAccess,
} from '../temporal-codec.ts'

/** The service with its two servers: the API and, where the daemon runs one, its worker. */
export interface Service {
  /** Where the API listens. */
  address: Address
  checks: Checks
  /**
   * Access of Temporal's page to workflow payloads; undefined without a vault, where payloads are
   * plain.
   */
  payloads?: PayloadAccess | undefined
  /** Ids of the processes that work for this daemon. */
  workers: () => number[]
  /** Refuses new requests and tasks, lets those under way end, closes what it opened. */
  stop(): Promise<void>
}

export type StartService = (surroundings: Surroundings & { endpoints: Endpoints }) => Promise<Service>

/**
 * Embedded servers, service, admin listener and ready file of one data folder; closed in reverse.
 */
export const openDaemon = async (
  surroundings: Surroundings,
  startService: StartService,
): Promise<Stoppable> => {
  const { config, log, metrics } = surroundings
  const startedAt = performance.now()
  makeDataFolder(config.dataDir)
  const held = await tryHold(config.dataDir, 'daemon')
  if (held === undefined)
    throw new StartError(
      `SERVICE_DATA_DIR=${config.dataDir} is in use by a daemon or a backup that runs now: stop it ` +
        'or give another folder',
    )

  // The embedded servers take seconds to start, and minutes where they are built first: a taken
  // address is found before.
  await probeAddress('SERVICE_LISTEN_ADDRESS', config.listenAddress)
  makeFolder('SERVICE_READY_FILE', dirname(config.readyFile), 0o755)
  let service: Service | undefined
  let embedded: Embedded | undefined
  const codecKey = await codecKeyOf(config)
  const admin = await openAdmin({
    address: config.adminAddress,
    metrics,
    checks: () => service?.checks,
    beside:
      codecKey === undefined
        ? undefined
        : {
            prefix: codecPrefix,
            answer: temporalCodec({
              key: codecKey,
              origins: () => [...config.temporalPageOrigins, ...pageOrigins(embedded?.temporalUiUrl)],
              access: () => service?.payloads,
            }),
          },
  })
  const progress = openProgress(log, process.stderr)
  const publish = (): void => {
    if (service === undefined || embedded === undefined) return
    const rootUrl = `http://${reachedHere(service.address)}`
    const pids = embedded.pids()
    writeReady(config.readyFile, {
      baseUrl: rootUrl + config.apiPrefix,
      rootUrl,
      adminUrl: admin.url,
      temporalAddress: embedded.temporalAddress,
      temporalUiUrl: embedded.temporalUiUrl ?? null,
      databaseUrl: passwordless(embedded.databaseUrl),
      pids: {
        daemon: process.pid,
        workers: service.workers(),
        postgres: pids.postgres ?? null,
        temporal: pids.temporal ?? null,
      },
    })
  }
  embedded = await openEmbedded(config, {
    log,
    onProgress: progress.say,
    onRestart: publish,
    codecEndpoint:
      codecKey === undefined ? undefined : `http://${reachedHere(admin.address)}${codecPrefix}${codecKey}`,
  })
  progress.end()
  service = await startService({ ...surroundings, endpoints: embedded })
  publish()
  if (config.apiToken === undefined && !isLoopback(service.address.host))
    log.warn('the API listens beyond loopback without SERVICE_API_TOKEN: other machines are answered 403')
  log.info(
    {
      baseUrl: `http://${reachedHere(service.address)}${config.apiPrefix}`,
      adminUrl: admin.url,
      temporalUiUrl: embedded.temporalUiUrl,
      seconds: seconds(performance.now() - startedAt),
    },
    'ready',
  )

  const opened = { service, embedded }
  return {
    stop: async () => {
      removeReady(config.readyFile)
      // From here on /readyz reports not ready, so that no balancer sends more.
      service = undefined
      await opened.service.stop()
      await opened.embedded[Symbol.asyncDispose]()
      await admin.close()
      await held.release()
    },
    kill: () => {
      removeReady(config.readyFile)
      opened.embedded.kill()
    },
  }
}

/**
 * The key with which Temporal's page gets payloads decoded; undefined where no vault encrypts them,
 * or none was configured.
 */
const codecKeyOf = async (config: Config): Promise<string | undefined> => {
  if (config.vaultKeyFile === undefined && config.databaseUrl !== undefined) return undefined
  if (config.temporalCodecKey !== undefined || config.temporalAddress !== undefined)
    return config.temporalCodecKey
  return ensureCodecKey(codecKeyFile(config.dataDir))
}

const passwordless = (databaseUrl: string): string => {
  const url = new URL(withoutPassword(databaseUrl))
  url.password = ''
  return url.href
}

const isLoopback = (host: string): boolean => host === 'localhost' || host === '::1' || /^127\./.test(host)

const seconds = (milliseconds: number): number => Math.round(milliseconds) / 1000
