import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import type { App } from './app.ts'
import { errorBody } from './errors.ts'

export interface ServerTimeouts {
  /** Time until the headers are complete. The server cuts off a client that drips them. */
  headersMs: number
  keepAliveMs: number
}

export const usualTimeouts: ServerTimeouts = { headersMs: 15_000, keepAliveMs: 72_000 }

interface Rejection {
  status: string
  code: 'invalid' | 'unauthenticated' | 'too_large'
  message: string
}

/** The answer to bytes that never became a request. */
const rejection = (code: string | undefined, tokenNeeded: boolean): Rejection => {
  if (code === 'ERR_HTTP_REQUEST_TIMEOUT')
    return { status: '408 Request Timeout', code: 'invalid', message: 'the request was not complete in time' }
  if (code !== 'HPE_HEADER_OVERFLOW')
    return { status: '400 Bad Request', code: 'invalid', message: 'this is not a complete HTTP/1.1 request' }
  // Headers that are too long to read hold no valid token, so the answer reveals no more to an
  // unknown client.
  return tokenNeeded
    ? { status: '401 Unauthorized', code: 'unauthenticated', message: 'authentication required' }
    : {
        status: '431 Request Header Fields Too Large',
        code: 'too_large',
        message: 'the headers are larger than 16 KiB',
      }
}

/**
 * A Node server for the application, not yet listening. It bounds the waits for slow clients, and
 * answers requests that Node's parser refuses (half a body, oversized headers, no HTTP at all) in
 * the service's form of errors.
 */
export const createHttpServer = (
  app: App,
  options: { tokenNeeded: boolean; version: string; timeouts?: ServerTimeouts },
): Server => {
  const timeouts = options.timeouts ?? usualTimeouts
  /** The latest answer on a connection: an error text must not be written into the middle of it. */
  const latest = new WeakMap<Socket, ServerResponse>()
  const listener = (req: IncomingMessage, res: ServerResponse): void => {
    latest.set(req.socket, res)
    app.listener(req, res)
  }
  const server = createServer(
    {
      headersTimeout: timeouts.headersMs,
      // The kernel limits the time of bodies (`pace.ts`). This limit would cut streams that may
      // take longer than a document.
      requestTimeout: 0,
      keepAliveTimeout: timeouts.keepAliveMs,
      connectionsCheckingInterval: Math.min(5_000, timeouts.headersMs),
      maxHeaderSize: 16_384,
      // The kernel answers a missing Host with 403, like every name of another host.
      requireHostHeader: false,
      shouldUpgradeCallback: (req) => app.upgrades(req),
    },
    listener,
  )
  server.on('upgrade', (req: IncomingMessage, socket: Socket, head: Buffer) => app.upgrade(req, socket, head))
  // The body reader sends the continue, after it has checked the limits.
  server.on('checkContinue', listener)
  server.on('clientError', (error: NodeJS.ErrnoException, socket: Socket) => {
    const last = latest.get(socket)
    const halfSent = last !== undefined && last.headersSent && !last.writableFinished
    if (!socket.writable || error.code === 'ECONNRESET' || halfSent) return void socket.destroy()
    const { status, code, message } = rejection(error.code, options.tokenNeeded)
    const body = errorBody(
      { status: Number(status.slice(0, 3)), code, message, details: [], extra: {}, headers: {} },
      false,
      '',
    )
    const lines = [
      `HTTP/1.1 ${status}`,
      'Content-Type: application/json',
      `Content-Length: ${Buffer.byteLength(body)}`,
      `AKOFLOW-SERVER: ${options.version}`,
      ...(code === 'unauthenticated' ? ['WWW-Authenticate: Bearer'] : []),
      'Connection: close',
    ]
    socket.end(`${lines.join('\r\n')}\r\n\r\n${body}`)
  })
  return server
}
