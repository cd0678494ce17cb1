import { existsSync, mkdtempSync, readFileSync } from 'node:fs'
import { hostname } from 'node:os'
import { join } from 'node:path'
import { Connection } from '@temporalio/client'
import { DefaultLogger, Runtime } from '@temporalio/worker'
import { configFromEnvironment } from '../../src/config.ts'
import { readTemporalSettings, searchAttributeTypes } from '../../src/embedded/temporal-settings.ts'
import { openLog } from '../../src/observability/log.ts'
import { openMetrics } from '../../src/observability/metrics.ts'
import { openTraces } from '../../src/observability/traces.ts'
import { startService, type Further } from '../../src/service.ts'
import { writeWhole } from '../../src/whole-file.ts'
import { openClient } from './client.ts'
import { recordConformance } from './conformance.ts'
import { cloneDatabase } from './database.ts'
import { beforeNextLook } from './pace.ts'
import { runFolder, sharedFolder } from './run-folder.ts'
import { workflowBundle } from './workflow-bundle.ts'

// The SDK logs each start and stop of a worker in several lines; errors suffice here.
Runtime.install({
  shutdownSignals: [],
  logger: new DefaultLogger('ERROR', ({ message, meta }) =>
    process.stderr.write(`${message} ${JSON.stringify(meta)}\n`),
  ),
})

export const temporalAddress = (): string => {
  const address = process.env['ORRERY_TEST_TEMPORAL']
  if (address === undefined)
    throw new Error(
      'ORRERY_TEST_TEMPORAL is not set: run the tests with npm test, whose global setup starts Temporal',
    )
  return address
}

/** Creates a namespace in the test run's Temporal, with the service's search attributes. */
export const makeNamespace = async (name: string): Promise<void> => {
  const connection = await Connection.connect({ address: temporalAddress() })
  try {
    await connection.workflowService.registerNamespace({
      namespace: name,
      workflowExecutionRetentionPeriod: { seconds: 86_400 as never },
    })
    const searchAttributes = Object.fromEntries(
      Object.entries(readTemporalSettings().searchAttributes).map(([key, type]) => [
        key,
        searchAttributeTypes.indexOf(type) + 1,
      ]),
    )
    for (let tries = 0; ; tries++) {
      try {
        await connection.operatorService.addSearchAttributes({ namespace: name, searchAttributes })
        return
      } catch (error) {
        // Every part of the server knows the namespace only a moment after its registration.
        if (tries >= 600) throw error
        await new Promise((resolve) => setTimeout(resolve, 100))
      }
    }
  } finally {
    await connection.close()
  }
}

/**
 * The document of the API. The first service of a run makes it for all of them: that takes half a
 * second of a processor. One with further routes has its own.
 */
const apiDocument = async (isShared: boolean, read: () => Promise<string>): Promise<object> => {
  const path = join(sharedFolder(), 'api-document.json')
  if (isShared && existsSync(path)) return JSON.parse(readFileSync(path, 'utf8')) as object
  const text = await read()
  if (isShared) writeWhole(path, text, 0o600)
  return JSON.parse(text) as object
}

/**
 * The service over HTTP, as users call it, on its own database and Temporal namespace. Every answer
 * is compared with the API's document. A call whose answer the document does not allow throws; for
 * requests past `call` the disposal throws.
 */
export const openService = async (
  options: {
    environment?: Record<string, string>
    temporalAddress?: string
    databaseUrl?: (own: string) => string
    /** Kinds of operations for the tests, and the file of their workflows beside the service's. */
    further?: Further & { workflowsPath: string }
    /** Seconds between two looks at open records, in place of the service's own. */
    lookEverySeconds?: number
    /** Receives the log in place of standard output. */
    log?: { write: (line: string) => void }
  } = {},
) => {
  const database = await cloneDatabase()
  const namespace = `t-${new URL(database.url).pathname.slice(3)}`
  await makeNamespace(namespace)
  const dataDir = mkdtempSync(join(runFolder(), 'data-'))
  const endpoints = {
    databaseUrl: options.databaseUrl?.(database.url) ?? database.url,
    temporalAddress: options.temporalAddress ?? temporalAddress(),
    temporalUiUrl: undefined,
  }
  const config = configFromEnvironment({
    SERVICE_LISTEN_ADDRESS: '127.0.0.1:0',
    SERVICE_DATA_DIR: dataDir,
    SERVICE_DATABASE_URL: endpoints.databaseUrl,
    SERVICE_TEMPORAL_ADDRESS: endpoints.temporalAddress,
    SERVICE_TEMPORAL_NAMESPACE: namespace,
    SERVICE_HOST_ID: hostname(),
    // Only the tests of such lists spend the seconds for them.
    SERVICE_SBOM: 'off',
    SERVICE_LOG_LEVEL: process.env['ORRERY_TEST_LOG'] ?? 'error',
    ...options.environment,
  })
  const log = openLog(config.logLevel, options.log)
  const conformance = recordConformance()
  const metrics = openMetrics(undefined)
  const service = await startService(
    { config, log, metrics, traces: await openTraces({ tracesEndpoint: undefined }, 'test'), endpoints },
    {
      onAnswer: conformance.onAnswer,
      validateResponses: true,
      workflowBundle: await workflowBundle(options.further?.workflowsPath),
      ...(options.further === undefined ? {} : { further: options.further }),
      ...(options.lookEverySeconds === undefined ? {} : { lookEverySeconds: options.lookEverySeconds }),
    },
  )
  const baseUrl = `http://127.0.0.1:${String(service.address.port)}/api`
  const authorization: Record<string, string> =
    config.apiToken === undefined ? {} : { authorization: `Bearer ${config.apiToken}` }
  conformance.begin(
    await apiDocument(options.further === undefined, async () =>
      (await fetch(new URL('/openapi.json', baseUrl), { headers: authorization })).text(),
    ),
  )

  const client = openClient(baseUrl, { onAnswer: () => conformance.raise() })

  return {
    baseUrl,
    rootUrl: baseUrl.slice(0, -4),
    db: database.db,
    databaseUrl: database.url,
    dataDir,
    namespace,
    metrics,
    service,
    ...client,
    /** Waits until a run is over. @returns its detail */
    async finished(runId: string, seconds = 120): Promise<any> {
      const began = performance.now()
      for (;;) {
        const detail = await client.get(`/execution-runs/${encodeURIComponent(runId)}/`)
        if (['completed', 'failed', 'cancelled'].includes(detail.run.status)) return detail
        if (performance.now() - began > seconds * 1_000)
          throw new Error(
            `run ${runId} is ${detail.run.status} after ${String(seconds)} s: ` +
              JSON.stringify({
                run: detail.run,
                live: detail.live,
                activities: detail.activities?.slice(0, 5),
              }),
          )
        await beforeNextLook(began)
      }
    },
    async [Symbol.asyncDispose]() {
      await service.stop()
      await database.drop()
      conformance.raise()
    },
  }
}

export type TestService = Awaited<ReturnType<typeof openService>>
