import { createServer, request, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo, Socket } from 'node:net'
import { once } from 'node:events'

/** A relay before an HTTP server on loopback: it counts, refuses and cuts. */
export interface Relay extends AsyncDisposable {
  readonly endpoint: string
  /** Bytes of request bodies that the server was given so far. */
  sent(): number
  /** Bytes of answers that the server has given so far. */
  received(): number
  /** Answers requests itself, for as long as this gives a status; undefined: none. */
  refuse(answer: ((request: IncomingMessage) => RelayRefusal | undefined) | undefined): void
  /** Ends all connections at once. */
  cut(): void
  close(): Promise<void>
}

export interface RelayRefusal {
  status: number
  /** Seconds. */
  retryAfter?: number
  body?: string
}

/** Starts a relay to `target`, an address like `http://127.0.0.1:9000`. */
export const startRelay = async (target: string): Promise<Relay> => {
  const { hostname, port } = new URL(target)
  const sockets = new Set<Socket>()
  let [sent, received] = [0, 0]
  let refuse: ((request: IncomingMessage) => RelayRefusal | undefined) | undefined

  const pass = (incoming: IncomingMessage, answer: ServerResponse): void => {
    const refusal = refuse?.(incoming)
    if (refusal !== undefined) {
      incoming.resume()
      answer.writeHead(refusal.status, {
        ...(refusal.retryAfter === undefined ? {} : { 'retry-after': String(refusal.retryAfter) }),
      })
      answer.end(refusal.body ?? '')
      return
    }
    const { method, url, headers } = incoming
    // The signature holds for the name that the client has asked for.
    const outgoing = request({ hostname, port, method, path: url, headers, setHost: false }, (reply) => {
      reply.on('data', (bytes: Buffer) => (received += bytes.length))
      answer.writeHead(reply.statusCode ?? 502, reply.rawHeaders)
      reply.pipe(answer)
      reply.once('error', () => answer.destroy())
    })
    outgoing.once('error', () => answer.destroy())
    answer.once('close', () => outgoing.destroy())
    incoming.on('data', (bytes: Buffer) => (sent += bytes.length))
    incoming.pipe(outgoing)
  }
  const server = createServer(pass)
  server.on('connection', (socket) => {
    sockets.add(socket)
    socket.once('close', () => sockets.delete(socket))
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  const cut = (): void => {
    for (const socket of sockets) socket.destroy()
  }
  const close = async (): Promise<void> => {
    cut()
    server.close()
    await Promise.resolve()
  }
  return {
    endpoint: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    sent: () => sent,
    received: () => received,
    refuse: (answer) => {
      refuse = answer
    },
    cut,
    close,
    [Symbol.asyncDispose]: close,
  }
}
