import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import { reachedHere, type Address } from '../config.ts'
import { listen } from '../listen.ts'
import type { Metrics } from '../observability/metrics.ts'
import { orAfter } from '../pacing/within.ts'

/** Returns whether a part can be used now; a rejection or silence of 2 s counts as no. */
export type Checks = Readonly<Record<string, () => Promise<boolean>>>

export interface AdminOptions {
  address: Address
  metrics: Pick<Metrics, 'ready' | 'text'>
  /** Undefined while the program starts or stops: not ready, whatever the state of its parts. */
  checks: () => Checks | undefined
  /** Answers all paths that begin with `prefix`. */
  beside?:
    | { prefix: string; answer: (request: IncomingMessage, response: ServerResponse) => Promise<void> }
    | undefined
}

export interface Admin {
  /** The listener, for programs of this machine. */
  readonly url: string
  /** The address of the listener. */
  readonly address: Address
  close(): Promise<void>
}

const checkWithinMs = 2000

/**
 * The listener of operations: `/livez` (the process answers), `/readyz` (its parts do; 503 with the
 * state of each otherwise) and `/metrics` (Prometheus). These require no token and reveal no data,
 * so the address belongs on loopback or a private network. `beside` has its own access control.
 * @throws StartError that names SERVICE_ADMIN_ADDRESS when the address cannot be listened on
 */
export const openAdmin = async ({ address, metrics, checks, beside }: AdminOptions): Promise<Admin> => {
  const routes: Record<string, (response: ServerResponse) => Promise<void>> = {
    '/livez': (response) => answer(response, 200, 'application/json', '{"status":"ok"}\n'),
    '/readyz': async (response) => {
      const state = await readiness(checks())
      await answer(response, state.ready ? 200 : 503, 'application/json', `${JSON.stringify(state)}\n`)
    },
    '/metrics': async (response) => {
      const { ready, parts } = await readiness(checks())
      metrics.ready({
        process: ready,
        ...Object.fromEntries(Object.entries(parts).map(([name, state]) => [name, state === 'ok'])),
      })
      await answer(response, 200, 'text/plain; version=0.0.4; charset=utf-8', await metrics.text())
    },
  }
  const server = createServer((request, response) => {
    const path = (request.url ?? '').replace(/\?.*/, '')
    const handle = Object.hasOwn(routes, path) ? routes[path] : undefined
    const done =
      beside !== undefined && path.startsWith(beside.prefix)
        ? beside.answer(request, response)
        : handle === undefined
          ? answer(
              response,
              404,
              'application/json',
              '{"error":"this address answers /livez, /readyz and /metrics","code":"missing"}\n',
            )
          : request.method !== 'GET' && request.method !== 'HEAD'
            ? answer(
                response.setHeader('Allow', 'GET, HEAD'),
                405,
                'application/json',
                '{"error":"only GET and HEAD","code":"method_not_allowed"}\n',
              )
            : handle(response)
    done.catch(() =>
      answer(response, 500, 'application/json', '{"error":"internal error","code":"internal"}\n'),
    )
  })
  const bound = await listen(server, 'SERVICE_ADMIN_ADDRESS', address)
  return {
    url: `http://${reachedHere(bound)}`,
    address: bound,
    close: () =>
      new Promise((resolve) => {
        server.close(() => {
          resolve()
        })
        server.closeAllConnections()
      }),
  }
}

const readiness = async (
  checks: Checks | undefined,
): Promise<{ ready: boolean; parts: Record<string, 'ok' | 'unavailable'> }> => {
  if (checks === undefined) return { ready: false, parts: {} }
  const parts = await Promise.all(
    Object.entries(checks).map(async ([name, check]) => {
      const good = await orAfter(check(), checkWithinMs, false).catch(() => false)
      return [name, good ? 'ok' : 'unavailable'] as const
    }),
  )
  return { ready: parts.every(([, state]) => state === 'ok'), parts: Object.fromEntries(parts) }
}

const answer = (response: ServerResponse, status: number, type: string, text: string): Promise<void> => {
  if (!response.headersSent)
    response.writeHead(status, {
      'Content-Type': type,
      'Content-Length': Buffer.byteLength(text),
      'Cache-Control': 'no-store',
    })
  response.end(text)
  return Promise.resolve()
}
