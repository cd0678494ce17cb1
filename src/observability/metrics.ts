import { collectDefaultMetrics, Histogram, Registry } from 'prom-client'
import { openMeasures, type GaugeRow, type Measures } from './measures.ts'
import { orAfter } from '../pacing/within.ts'

export interface Metrics {
  /** Further metrics register here. */
  readonly registry: Registry
  /**
   * Counts one answered request; `route` is the pattern, never the path, so that ids create no
   * series.
   */
  request(method: string, route: string, status: number, seconds: number): void
  /** The service's counters beside requests. */
  readonly measures: Measures
  /** Counts one workflow that was started again although its record is open. */
  workflowRestarted(kind: string): void
  /** Shows the count of a kind from now on, before its first event. */
  workflowsOf(kind: string): void
  /** From now on scrapes call `read` for the gauges of the record, every 5 s at most. */
  watchRecord(read: () => Promise<readonly GaugeRow[]>): void
  /** The usable parts of the process, as found by `/readyz`. */
  ready(parts: Readonly<Record<string, boolean>>): void
  /** All metrics as Prometheus text, with those of the Temporal SDK. */
  text(): Promise<string>
}

/** The record is read this often at most, however many scrape. */
const recordEveryMs = 5_000
/** A scrape waits this long for the record; Prometheus gives up after 10 s. */
const recordWithinMs = 3_000

/**
 * The metrics of one program. `sdkMetricsUrl` is where the Temporal SDK's native part serves its
 * own; its names begin with `temporal_`, ours with `orrery_`, `process_` and `nodejs_`, so the two
 * texts are joined unchanged.
 */
export const openMetrics = (sdkMetricsUrl: string | undefined): Metrics => {
  const registry = new Registry()
  collectDefaultMetrics({ register: registry })
  const requests = new Histogram({
    name: 'orrery_http_request_seconds',
    help: 'Time to answer a request of the API, by route',
    labelNames: ['method', 'route', 'status'],
    buckets: [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10],
    registers: [registry],
  })
  const measures = openMeasures(registry)
  let record: (() => Promise<readonly GaugeRow[]>) | undefined
  let recordReadAt = -Infinity
  /**
   * Without an answer there are no gauges of the record: old ones would look like the present
   * state.
   */
  const readRecord = async (): Promise<void> => {
    const now = performance.now()
    if (record === undefined || now - recordReadAt < recordEveryMs) return
    recordReadAt = now
    measures.setRecorded(await orAfter(record(), recordWithinMs, []).catch(() => []))
  }
  return {
    registry,
    measures,
    workflowRestarted: (kind) => {
      measures.workflowsRestarted.inc({ kind })
    },
    workflowsOf: (kind) => {
      measures.workflowsRestarted.inc({ kind }, 0)
    },
    watchRecord: (read) => {
      record = read
    },
    ready: (parts) => {
      measures.ready.reset()
      for (const [part, good] of Object.entries(parts)) measures.ready.set({ part }, good ? 1 : 0)
    },
    request: (method, route, status, seconds) => {
      requests.observe({ method, route, status: String(status) }, seconds)
    },
    text: async () => {
      await readRecord()
      return `${await registry.metrics()}${sdkMetricsUrl === undefined ? '' : await scrape(sdkMetricsUrl)}`
    },
  }
}

/** A scrape without the SDK's part is better than none; the text reports that it is missing. */
const scrape = async (url: string): Promise<string> => {
  try {
    const response = await fetch(url, { signal: AbortSignal.timeout(2000) })
    return await response.text()
  } catch (error) {
    return `# the Temporal SDK's metrics could not be read: ${error instanceof Error ? error.name : 'unknown'}\n`
  }
}
