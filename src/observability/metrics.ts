import { collectDefaultMetrics, Counter, Histogram, Registry } from 'prom-client'

export interface Metrics {
  /** Further metrics register here. */
  readonly registry: Registry
  /** Counts one answered request; `route` is the pattern, never the path, so that ids make no series. */
  request(method: string, route: string, status: number, seconds: number): void
  /** Counts one workflow that was started again although its record is open. */
  workflowRestarted(kind: string): void
  /** Everything as Prometheus text, with what the Temporal SDK measures. */
  text(): Promise<string>
}

/**
 * The metrics of one program. `sdkMetricsUrl` is where the Temporal SDK's native part serves its own; its names begin with
 * `temporal_`, ours with `orrery_`, `process_` and `nodejs_`, so the two texts are joined as they are.
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
  const restarted = new Counter({
    name: 'orrery_workflows_restarted_total',
    help: 'Workflows of open records that were started again after Temporal had ended, reset or lost them',
    labelNames: ['kind'],
    registers: [registry],
  })
  return {
    registry,
    workflowRestarted: (kind) => {
      restarted.inc({ kind })
    },
    request: (method, route, status, seconds) => {
      requests.observe({ method, route, status: String(status) }, seconds)
    },
    text: async () => `${await registry.metrics()}${sdkMetricsUrl === undefined ? '' : await scrape(sdkMetricsUrl)}`,
  }
}

/** A scrape without the SDK's part is better than none; the text says that it is missing. */
const scrape = async (url: string): Promise<string> => {
  try {
    const response = await fetch(url, { signal: AbortSignal.timeout(2000) })
    return await response.text()
  } catch (error) {
    return `# the Temporal SDK's metrics could not be read: ${error instanceof Error ? error.name : 'unknown'}\n`
  }
}
