import type { Attributes } from '@opentelemetry/api'
import type { OpenTelemetryPlugin } from '@temporalio/interceptors-opentelemetry'
import type { Config } from '../config.ts'

export interface Traces {
  /**
   * Runs `work` inside a span of the trace that `headers` (lower-case names) continue, or of the
   * one under way. A rejection marks the span as failed.
   */
  span<T>(
    name: string,
    attributes: Attributes,
    work: () => Promise<T>,
    headers?: Readonly<Record<string, string | undefined>>,
  ): Promise<T>
  /**
   * For the options of Temporal's client and worker: traces go on through workflows and activities.
   * Empty when traces are off.
   */
  readonly temporalPlugins: OpenTelemetryPlugin[]
  /** Sends the remaining spans. */
  close(): Promise<void>
}

/**
 * Traces to the collector that the configuration names, or none at no cost: the libraries are
 * loaded only for a collector.
 */
export const openTraces = async (
  { tracesEndpoint }: Pick<Config, 'tracesEndpoint'>,
  program: string,
): Promise<Traces> => {
  if (tracesEndpoint === undefined)
    return { span: (_name, _attributes, work) => work(), temporalPlugins: [], close: () => Promise.resolve() }
  const [
    { context, propagation, SpanStatusCode, trace },
    { NodeTracerProvider, BatchSpanProcessor },
    { OTLPTraceExporter },
    { envDetector, Resource },
    { OpenTelemetryPlugin },
  ] = await Promise.all([
    import('@opentelemetry/api'),
    import('@opentelemetry/sdk-trace-node'),
    import('@opentelemetry/exporter-trace-otlp-http'),
    import('@opentelemetry/resources'),
    import('@temporalio/interceptors-opentelemetry'),
  ])
  const resource = new Resource({ 'service.name': program }).merge(
    new Resource((await envDetector.detect()).attributes),
  )
  const processor = new BatchSpanProcessor(
    new OTLPTraceExporter({ url: `${tracesEndpoint.replace(/\/+$/, '')}/v1/traces` }),
  )
  const provider = new NodeTracerProvider({ resource, spanProcessors: [processor] })
  provider.register()
  const tracer = provider.getTracer('orrery')
  return {
    span: (name, attributes, work, headers) =>
      context.with(
        headers === undefined ? context.active() : propagation.extract(context.active(), headers),
        () =>
          tracer.startActiveSpan(name, { attributes }, async (span) => {
            try {
              return await work()
            } catch (error) {
              span.recordException(error instanceof Error ? error : String(error))
              span.setStatus({ code: SpanStatusCode.ERROR })
              throw error
            } finally {
              span.end()
            }
          }),
      ),
    temporalPlugins: [new OpenTelemetryPlugin({ resource, spanProcessor: processor })],
    close: async () => {
      try {
        await provider.shutdown()
      } finally {
        trace.disable()
      }
    },
  }
}
