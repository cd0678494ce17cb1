import { WebSocketServer, type WebSocket } from 'ws'
import { Refusal } from '../refusal.ts'
import { HttpRefusal } from './errors.ts'
import type { Exchange } from './exchange.ts'
import type { KernelLog } from './log.ts'
import { PeerGone, usualPeerPace, type Attend, type Peer, type PeerPace } from './peer.ts'
import type { Route } from './route.ts'

/**
 * The limit of frames in one message. More frames are an attempt to spend this side's memory on
 * headers.
 */
const mostFragments = 1_024
/** Time from a close frame to the cut of the connection. */
const closeMs = 2_000
/** Bytes of a close frame's reason (RFC 6455, 5.5). */
const reasonBytes = 123

const keyForm = /^[+/0-9A-Za-z]{22}==$/

/**
 * @throws HttpRefusal 426 for a request that asks for no WebSocket, `invalid` for one whose
 *   handshake does not follow RFC 6455
 */
export const checkHandshake = ({ req, upgrade }: Exchange): void => {
  if (upgrade === undefined)
    throw new HttpRefusal(
      'upgrade_required',
      'this path is a WebSocket; ask for it with Connection: Upgrade and Upgrade: websocket',
      {
        Upgrade: 'websocket',
        Connection: 'Upgrade',
      },
    )
  if (req.headers['sec-websocket-version'] !== '13')
    throw new HttpRefusal('upgrade_required', 'Sec-WebSocket-Version must be 13', {
      Upgrade: 'websocket',
      'Sec-WebSocket-Version': '13',
    })
  if (!keyForm.test(req.headers['sec-websocket-key'] ?? ''))
    throw new Refusal('invalid', 'Sec-WebSocket-Key must be 16 bytes in base64, once')
}

const shortReason = (text: string): string => {
  const bytes = Buffer.from(text)
  return bytes.length <= reasonBytes ? text : bytes.subarray(0, reasonBytes).toString().replace(/�+$/, '')
}

/**
 * One open connection. Input is read at the pace of its reader, output is bounded, and silence ends
 * the connection.
 */
class OpenPeer implements Peer {
  readonly #ws: WebSocket
  readonly #pace: PeerPace
  readonly #gone = new AbortController()
  readonly #timer: NodeJS.Timeout
  readonly #came: (string | Buffer)[] = []
  #wake: (() => void) | undefined
  /** Time of the last ping, and whether it has been answered. */
  #pingedAt = performance.now()
  #answered = true
  /** The number of messages being sent, and the time since which none of them has left. */
  #sending = 0
  #stalledSince = 0

  constructor(ws: WebSocket, pace: PeerPace) {
    this.#ws = ws
    this.#pace = pace
    this.#timer = setInterval(() => this.#look(), Math.min(1_000, pace.pingMs / 4, pace.stallMs / 4)).unref()
    ws.on('message', (data, isBinary) => this.#receive(data as Buffer, isBinary))
    ws.on('pong', () => (this.#answered = true))
    // The library has closed the connection already, with the fitting code: 1009 for a message that
    // is too long.
    ws.on('error', () => undefined)
    ws.on('close', () => {
      clearInterval(this.#timer)
      this.#gone.abort()
      this.#wake?.()
    })
  }

  get signal(): AbortSignal {
    return this.#gone.signal
  }

  get messages(): AsyncIterable<string | Buffer> {
    return this.#read()
  }

  async *#read(): AsyncGenerator<string | Buffer> {
    for (;;) {
      const message = this.#came.shift()
      if (message !== undefined) yield message
      else if (this.#gone.signal.aborted) return
      else {
        this.#resume()
        await new Promise<void>((resolve) => (this.#wake = resolve))
      }
    }
  }

  #receive(data: Buffer, isBinary: boolean): void {
    this.#answered = true
    this.#came.push(isBinary ? data : data.toString())
    // One message waits for its reader, and the others stay in the network. The peer's pongs stay
    // there too, so none is required meanwhile.
    if (this.#wake === undefined) this.#ws.pause()
    this.#wake?.()
    this.#wake = undefined
  }

  #resume(): void {
    if (!this.#ws.isPaused) return
    this.#pingedAt = performance.now()
    this.#answered = true
    this.#ws.resume()
  }

  send(message: string | Uint8Array): Promise<void> {
    if (this.#ws.readyState !== this.#ws.OPEN) return Promise.reject(new PeerGone('the connection is over'))
    if (this.#ws.bufferedAmount > this.#pace.mostWaitingBytes) {
      this.#ws.terminate()
      return Promise.reject(new PeerGone('the connection was cut: its reader is slower than what is sent'))
    }
    if (this.#sending++ === 0) this.#stalledSince = performance.now()
    return new Promise((resolve, reject) => {
      this.#ws.send(message, (error) => {
        this.#sending--
        this.#stalledSince = performance.now()
        if (error === undefined || error === null) resolve()
        else reject(new PeerGone('the connection was lost', { cause: error }))
      })
    })
  }

  close(code = 1000, reason = ''): void {
    // A paused reader would never receive the other side's close frame.
    this.#ws.resume()
    this.#ws.close(code, shortReason(reason))
    setTimeout(() => this.#ws.terminate(), closeMs).unref()
  }

  #look(): void {
    const now = performance.now()
    if (this.#sending > 0 && now - this.#stalledSince > this.#pace.stallMs) return this.#ws.terminate()
    if (this.#ws.isPaused || now - this.#pingedAt < this.#pace.pingMs) return
    if (!this.#answered) return this.#ws.terminate()
    this.#pingedAt = now
    this.#answered = false
    this.#ws.ping()
  }
}

/**
 * The WebSockets of an application: the library's part of the upgrade, and every open connection.
 */
export const createSockets = ({
  log,
  pace = usualPeerPace,
}: {
  log: KernelLog
  pace?: PeerPace | undefined
}) => {
  const open = new Set<OpenPeer>()
  const servers = new Map<Route, WebSocketServer>()
  let ended = false
  const farewell = (peer: OpenPeer): void => peer.close(1001, 'the service stops')

  const serverOf = (built: Route): WebSocketServer => {
    let server = servers.get(built)
    if (server === undefined) {
      server = new WebSocketServer({
        noServer: true,
        clientTracking: false,
        maxPayload: built.socket?.limitBytes ?? 0,
        maxFragments: mostFragments,
        // A browser ends the connection where it named subprotocols and the server chooses none.
        handleProtocols: (offered) => {
          const spoken = built.socket?.protocol
          return spoken !== undefined && offered.has(spoken) ? spoken : false
        },
      })
      servers.set(built, server)
    }
    return server
  }

  const attendTo = async (peer: OpenPeer, attend: Attend, requestId: string): Promise<void> => {
    // The request was in progress at the stop.
    if (ended) return farewell(peer)
    open.add(peer)
    peer.signal.addEventListener('abort', () => open.delete(peer))
    try {
      await attend(peer)
      peer.close()
    } catch (error) {
      // 1013: a later attempt may succeed.
      if (error instanceof Refusal)
        return peer.close(error.code === 'unavailable' ? 1013 : 1008, error.message)
      if (!(error instanceof PeerGone)) log.error({ err: error, requestId }, 'a WebSocket failed')
      peer.close(1011, 'the service failed; the cause is in its log')
    }
  }

  return {
    /**
     * Makes the request's connection a WebSocket and passes it to `attend`. After this the
     * connection no longer belongs to the response.
     */
    accept({ req, res, upgrade, headers, requestId }: Exchange, built: Route, attend: Attend): void {
      if (upgrade === undefined) throw new Error('a request without an upgrade cannot become a WebSocket')
      const server = serverOf(built)
      const addHeaders = (lines: string[]): void => {
        for (let i = 0; i < headers.length; i += 2) lines.push(`${headers[i] ?? ''}: ${headers[i + 1] ?? ''}`)
      }
      res.detachSocket(upgrade.socket)
      res.statusCode = 101
      // The library answers within this call.
      server.once('headers', addHeaders)
      try {
        server.handleUpgrade(
          req,
          upgrade.socket,
          upgrade.head,
          (ws) => void attendTo(new OpenPeer(ws, pace), attend, requestId),
        )
      } finally {
        server.off('headers', addHeaders)
      }
    },

    /**
     * Ends every connection with 1001, at a stop. Connections that do not answer are cut after two
     * seconds.
     */
    end(): void {
      ended = true
      open.forEach(farewell)
    },
  }
}

export type Sockets = ReturnType<typeof createSockets>
