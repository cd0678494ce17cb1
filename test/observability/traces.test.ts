import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { afterEach, beforeEach, expect, test } from '@jest/globals'
import { openTraces } from '../../src/observability/traces.ts'

interface Span {
  name: string
  traceId: string
  spanId: string
  parentSpanId?: string
  status: { code?: number }
  attributes: { key: string; value: { stringValue?: string } }[]
}
interface Export {
  resourceSpans: {
    resource: { attributes: { key: string; value: { stringValue: string } }[] }
    scopeSpans: { spans: Span[] }[]
  }[]
}

/** A collector that speaks OTLP over HTTP with JSON, as the real ones do on port 4318. */
const received: { path: string; document: Export }[] = []
const collector = createServer((request, response) => {
  let text = ''
  request.on('data', (chunk: Buffer) => (text += chunk.toString()))
  request.on('end', () => {
    received.push({ path: request.url ?? '', document: JSON.parse(text) as Export })
    response.setHeader('Content-Type', 'application/json').end('{}')
  })
})
let endpoint = ''
beforeEach(async () => {
  received.length = 0
  await new Promise<void>((resolve) => collector.listen(0, '127.0.0.1', resolve))
  endpoint = `http://127.0.0.1:${(collector.address() as AddressInfo).port}`
})
afterEach(() => new Promise((resolve) => collector.close(resolve)))

test('spans reach the collector, nested, continuing the trace of the caller, failures marked', async () => {
  const traces = await openTraces({ tracesEndpoint: `${endpoint}/` }, 'orrery')
  const traceparent = '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01'
  const answer = await traces.span(
    'GET /runs/{id}/',
    { 'http.route': '/runs/{id}/' },
    () => traces.span('query', {}, () => Promise.resolve(42)),
    { traceparent },
  )
  expect(answer).toBe(42)
  await expect(traces.span('broken', {}, () => Promise.reject(new Error('no')))).rejects.toThrow('no')
  expect(traces.temporalPlugins).toHaveLength(1)
  await traces.close()

  expect(new Set(received.map(({ path }) => path))).toEqual(new Set(['/v1/traces']))
  const resources = received.flatMap(({ document }) => document.resourceSpans)
  expect(resources[0]?.resource.attributes).toContainEqual({
    key: 'service.name',
    value: { stringValue: 'orrery' },
  })
  const spans = resources.flatMap(({ scopeSpans }) => scopeSpans.flatMap((scope) => scope.spans))
  const named = (name: string): Span | undefined => spans.find((span) => span.name === name)
  expect(named('GET /runs/{id}/')).toMatchObject({
    traceId: '0af7651916cd43dd8448eb211c80319c',
    parentSpanId: 'b7ad6b7169203331',
  })
  expect(named('query')).toMatchObject({
    traceId: '0af7651916cd43dd8448eb211c80319c',
    parentSpanId: named('GET /runs/{id}/')?.spanId,
  })
  expect(named('broken')?.status.code).toBe(2)
  expect(named('query')?.status.code ?? 0).toBe(0)
})

test('without an endpoint nothing is sent and work runs as it is', async () => {
  const traces = await openTraces({ tracesEndpoint: undefined }, 'orrery')
  expect(await traces.span('x', {}, () => Promise.resolve('done'))).toBe('done')
  expect(traces.temporalPlugins).toEqual([])
  await traces.close()
  expect(received).toEqual([])
})
