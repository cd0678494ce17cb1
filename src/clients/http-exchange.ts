import { addAbortListener } from 'node:events'
import type { ClientRequest, IncomingHttpHeaders, IncomingMessage } from 'node:http'
import type { Socket } from 'node:net'
import { Readable } from 'node:stream'
import { receiveBody, sendBody } from './http-bodies.ts'
import { HttpError, withoutCredentials, type HttpFault, type HttpStage } from './http-error.ts'

/** Faults of a server's certificate, by Node's codes of errors (`tls`, OpenSSL). */
const certificateFault = /CERT|SELF_SIGNED|UNABLE_TO_(?:GET_ISSUER|VERIFY)|ALTNAME|SSL|TLS|EPROTO/

/** How long a request may take and how large its answer may be. */
export interface HttpLimits {
  /** Time from the call to the last byte of the answer. */
  deadlineMs: number
  /** Time from the call to the head of the answer; absent: only the deadline applies. */
  headMs?: number | undefined
  /**
   * Time in which the other side may move no byte of a stream although it could; absent: only the
   * deadline applies.
   */
  idleMs?: number | undefined
  /** Bytes of the answer's body; Infinity: any number. */
  limitBytes: number
}

export interface HttpAnswer {
  status: number
  headers: IncomingHttpHeaders
  /** The address of the connection. */
  address: string
  /**
   * Fails with HttpError. The caller reads it to its end or destroys it; destroying it ends the
   * connection.
   */
  body: Readable
  /**
   * Returns the whole body. @throws HttpError also where it is larger than `mostBytes`; used where
   * only a good answer is read as a stream
   */
  bytes: (mostBytes?: number) => Promise<Buffer>
  /**
   * Removes the request's credentials, which a server may repeat, from a text of the answer that
   * goes into a message.
   */
  quotable: (text: string) => string
}

export interface ExchangeOptions extends HttpLimits {
  asked: ClientRequest
  /** For messages: `host` or `host:port`. */
  place: string
  method: string
  /** Names are in lower case. */
  headers: Readonly<Record<string, string>>
  body?: string | Uint8Array | Readable | undefined
  connectMs: number
  signal?: AbortSignal | undefined
  onSent?: (() => void) | undefined
  credentials: readonly string[]
}

/**
 * A server that does not know `Expect: 100-continue` ignores it; the body is sent after this time
 * (RFC 9110, 10.1.1).
 */
const continueMs = 1_000
/** Node fires a longer timer at once. */
const longestTimerMs = 2 ** 31 - 1

type Timer = 'deadline' | 'head' | 'connect' | 'writing' | 'reading'

/** One request and its answer: the events of the connection, the timers, and both bodies. */
export class HttpExchange {
  /** The head of the answer. @throws HttpError; errors of the body's own stream */
  readonly answer: Promise<HttpAnswer>
  readonly #options: ExchangeOptions
  readonly #resolve: (answer: HttpAnswer) => void
  readonly #reject: (error: Error) => void
  readonly #timers = new Map<Timer, NodeJS.Timeout>()
  #stage: HttpStage = 'route'
  #sent = false
  /** True once no more of the request's body is sent. */
  #stopped = false
  #goOn: () => void = () => undefined
  #body: Readable | undefined
  readonly #listening: Disposable | undefined

  constructor(options: ExchangeOptions) {
    const { asked, deadlineMs, headMs, signal } = options
    this.#options = options
    const { promise, resolve, reject } = Promise.withResolvers<HttpAnswer>()
    this.answer = promise
    this.#resolve = resolve
    this.#reject = reject
    this.#start('deadline', deadlineMs)
    this.#start('head', headMs)
    const abort = (): void =>
      this.#fail(this.#error('aborted', `the request to ${options.place} was aborted`))
    this.#listening = signal && addAbortListener(signal, abort)
    asked.once('socket', (socket) => this.#connecting(socket))
    asked.once('finish', () => this.#finished())
    asked.once('response', (response) => this.#answered(response))
    asked.on('drain', () => this.#goOn())
    asked.on('error', (error) => {
      // Once there is an answer, its body reports a broken connection itself.
      if (this.#body === undefined) this.#fail(this.#named(error))
    })
    asked.once('close', () => this.#leave())
    this.#send().catch((error: unknown) => {
      if (!this.#stopped) this.#fail(error as Error)
    })
  }

  #start(name: Timer, milliseconds: number | undefined): void {
    if (milliseconds === undefined || milliseconds === Infinity) return
    this.#stop(name)
    const reason = (): string => `${this.#lateText(name)} within ${milliseconds / 1_000} s`
    this.#timers.set(
      name,
      setTimeout(() => this.#fail(this.#error('late', reason())), Math.min(milliseconds, longestTimerMs)),
    )
  }

  #stop(name: Timer): void {
    clearTimeout(this.#timers.get(name))
    this.#timers.delete(name)
  }

  #lateText(name: Timer): string {
    const { place } = this.#options
    if (name === 'writing') return `${place} did not take a byte of the request`
    if (name === 'reading') return `${place} did not send a byte of the answer`
    if (this.#stage === 'request') return `${place} did not take the request`
    if (this.#stage === 'answer') return `${place} did not answer`
    return this.#stage === 'body'
      ? `the answer of ${place} did not end`
      : `${place} did not accept a connection`
  }

  #error(
    fault: HttpFault,
    message: string,
    facts: { status?: number; code?: string | undefined; location?: string | undefined } = {},
  ): HttpError {
    // The other side may have read the request on a kept connection that it was about to close.
    const sent = this.#sent || this.#options.asked.reusedSocket
    return new HttpError(fault, message, { stage: this.#stage, sent, ...facts })
  }

  #named(error: NodeJS.ErrnoException): HttpError {
    if (error instanceof HttpError) return error
    const { place } = this.#options
    // An attempt at several addresses has one error for each address and no text of its own.
    const each = 'errors' in error ? (error.errors as Error[]).map(({ message }) => message).join('; ') : ''
    const reason = error.message || each || (error.code ?? 'the connection failed')
    if (this.#stage === 'tls' && certificateFault.test(error.code ?? ''))
      return this.#error('certificate', `the certificate of ${place} is refused: ${reason}`, {
        code: error.code,
      })
    const message =
      this.#stage === 'body' ? `the answer of ${place} broke off: ${reason}` : `${place}: ${reason}`
    return this.#error('lost', message, { code: error.code })
  }

  /** Ends the exchange. A request that waited for a connection reports nothing itself. */
  #leave(): void {
    this.#listening?.[Symbol.dispose]()
    for (const name of this.#timers.keys()) this.#stop(name)
    this.#stopSending()
  }

  #fail(error: Error): void {
    this.#leave()
    this.#reject(error)
    this.#body?.destroy(error)
    this.#options.asked.destroy()
  }

  #stopSending(): void {
    this.#stopped = true
    this.#goOn()
    const { body } = this.#options
    if (body instanceof Readable) body.destroy()
  }

  #connecting(socket: Socket): void {
    if (!socket.connecting) {
      this.#stage = 'request'
      return
    }
    this.#start('connect', this.#options.connectMs)
    const secure = 'encrypted' in socket
    const open = (): void => {
      this.#stop('connect')
      this.#stage = 'request'
    }
    socket.once('connect', () => (secure ? (this.#stage = 'tls') : open()))
    if (secure) socket.once('secureConnect', open)
  }

  #finished(): void {
    this.#sent = true
    if (this.#stage === 'request') this.#stage = 'answer'
    this.#options.onSent?.()
  }

  async #send(): Promise<void> {
    const { asked, headers, body } = this.#options
    if (headers['expect'] !== undefined) {
      asked.flushHeaders()
      await this.#continued()
    }
    if (this.#stopped) return
    if (body instanceof Readable)
      await sendBody(asked, body, headers['content-length'], (wait) => this.#drained(wait))
    else asked.end(body)
  }

  async #continued(): Promise<void> {
    const { asked } = this.#options
    const timer = setTimeout(() => this.#goOn(), continueMs)
    asked.once('continue', () => this.#goOn())
    await new Promise<void>((resolve) => (this.#goOn = resolve))
    clearTimeout(timer)
  }

  /** @returns whether more is to be sent */
  async #drained(wait: boolean): Promise<boolean> {
    if (wait && !this.#stopped) {
      this.#start('writing', this.#options.idleMs)
      await new Promise<void>((resolve) => (this.#goOn = resolve))
      this.#stop('writing')
    }
    return !this.#stopped
  }

  #answered(response: IncomingMessage): void {
    const { asked, place, method, limitBytes, credentials } = this.#options
    const { statusCode: status = 0, headers } = response
    this.#stop('head')
    this.#stage = 'body'
    // The server will not read it: it refused before it had received the whole request.
    if (!asked.writableEnded && status >= 300) this.#stopSending()
    if (status >= 300 && status < 400 && status !== 304)
      return this.#fail(
        this.#error('redirect', `${place} answers with a redirect (${status}), which is not followed`, {
          status,
          location: headers.location,
        }),
      )
    const length = method === 'HEAD' || status === 304 ? 0 : Number(headers['content-length'] ?? 0)
    if (length > limitBytes) return this.#fail(this.#tooLarge(limitBytes))
    const body = this.#bodyOf(response)
    this.#body = body
    this.#resolve({
      status,
      headers,
      address: asked.socket?.remoteAddress ?? '',
      body,
      bytes: (mostBytes) => this.#bytesOf(body, mostBytes),
      quotable: (text) => withoutCredentials(text, credentials),
    })
  }

  #tooLarge(mostBytes: number): HttpError {
    return this.#error('large', `the answer of ${this.#options.place} is larger than ${mostBytes} bytes`)
  }

  async #bytesOf(body: Readable, mostBytes = Infinity): Promise<Buffer> {
    const chunks: Buffer[] = []
    let size = 0
    for await (const chunk of body as AsyncIterable<Buffer>) {
      size += chunk.length
      if (size > mostBytes) throw this.#tooLarge(mostBytes)
      chunks.push(chunk)
    }
    return Buffer.concat(chunks)
  }

  #bodyOf(response: IncomingMessage): Readable {
    const { asked, idleMs, limitBytes } = this.#options
    return receiveBody(response, {
      limitBytes,
      waiting: (now) => (now ? this.#start('reading', idleMs) : this.#stop('reading')),
      exceeded: () => this.#fail(this.#tooLarge(limitBytes)),
      named: (error) => this.#named(error),
      // A connection with an unfinished request cannot be used again.
      received: () => asked.writableEnded || asked.destroy(),
      abandoned: () => asked.destroy(),
    })
  }
}
