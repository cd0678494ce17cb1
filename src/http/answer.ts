import type { ServerResponse } from 'node:http'
import { Transform, type Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { prefersProblem } from './accept.ts'
import { Chunks } from './chunks.ts'
import { errorAnswer, errorBody, internalAnswer, type ErrorAnswer } from './errors.ts'
import { clientLeft, type Body, type Exchange, type Outgoing } from './exchange.ts'
import { usualStallMs, type Followed, type FollowedOptions } from './followed-stream.ts'
import type { AppOptions } from './options.ts'
import { Reply, type Route } from './route.ts'

/** `content-type` as `Content-Type`, so that a handler's spelling does not send a header twice. */
const canonical = (name: string): string =>
  name.toLowerCase() === 'etag'
    ? 'ETag'
    : name.toLowerCase().replace(/(^|-)[a-z]/g, (letter) => letter.toUpperCase())

const flatHeaders = (start: readonly string[], headers: Record<string, string>): string[] => {
  const flat = [...start]
  for (const name in headers) flat.push(name, headers[name] ?? '')
  return flat
}

const lengthOf = (body: Body | undefined): number =>
  body === undefined ? 0 : body instanceof Chunks ? body.byteLength : Buffer.byteLength(body)

/**
 * Passes as many bytes as the answer has announced. Others fail it, so that the connection is cut:
 * the next answer on it would begin in the wrong place, or never.
 */
const announced = (length: string): Transform => {
  let left = Number(length)
  const mismatch = (): Error => new Error(`the stream does not have the ${length} bytes that were announced`)
  return new Transform({
    transform: (bytes: Buffer, _, done) => {
      left -= bytes.length
      if (left < 0) done(mismatch())
      else done(null, bytes)
    },
    flush: (done) => done(left === 0 ? null : mismatch()),
  })
}

/**
 * Sends a stream to its end. A reader that takes too little in five times `stallMs` while bytes wait
 * is cut: they may come over one of the few streams of a site. Linux reports a full connection as
 * writable once a third of its buffer is free, for which a reader of 10 kB/s needs a minute. A growing
 * source cuts by itself.
 */
const sendAll = (
  source: Readable | Followed,
  res: ServerResponse,
  { length, ...followed }: FollowedOptions & { stallMs: number; length: string | undefined },
): Promise<void> => {
  if (typeof source === 'function') return pipeline(source(followed), res)
  res.setTimeout(5 * followed.stallMs, () => {
    if (res.writableLength > 0) res.destroy()
  })
  return length === undefined ? pipeline(source, res) : pipeline(source, announced(length), res)
}

/** Turns results and errors into answers, and sends them. */
export const createAnswers = (
  options: Pick<
    AppOptions,
    'config' | 'log' | 'translate' | 'streamOpened' | 'stallMs' | 'validateResponses' | 'onAnswer'
  >,
) => {
  const { config, log, stallMs = usualStallMs } = options
  const translate = options.translate ?? (() => undefined)

  const note = (
    exchange: Exchange,
    status: number,
    contentType: string | undefined,
    body: Body | undefined,
  ): void =>
    options.onAnswer?.({
      method: exchange.req.method ?? '',
      template: exchange.entry?.route.path,
      status,
      contentType,
      body: exchange.req.method === 'HEAD' || body === undefined ? undefined : body.toString(),
    })

  /** `shown` is the body before compression. */
  const write = (exchange: Exchange, outgoing: Outgoing, shown = outgoing.body): void => {
    const { req, res } = exchange
    if (res.headersSent || res.destroyed) return
    const { status, headers, body } = outgoing
    const flat = flatHeaders(exchange.headers, headers)
    if (status !== 204 && status !== 304) flat.push('Content-Length', String(lengthOf(body)))
    res.writeHead(status, flat)
    if (req.method === 'HEAD' || status === 204 || status === 304) res.end()
    else if (body instanceof Chunks) {
      for (const part of body.parts) res.write(part)
      res.end()
    } else res.end(body)
    note(exchange, status, headers['Content-Type'], shown)
  }

  const stream = async (
    exchange: Exchange,
    reply: Reply,
    status: number,
    headers: Record<string, string>,
  ): Promise<void> => {
    const { req, res } = exchange
    const source = reply.stream
    if (source === undefined) return
    if ((res.destroyed || req.method === 'HEAD') && typeof source !== 'function') source.destroy()
    if (res.destroyed) return
    res.writeHead(status, flatHeaders([...exchange.headers, 'X-Accel-Buffering', 'no'], headers))
    note(exchange, status, headers['Content-Type'], undefined)
    if (req.method === 'HEAD') return void res.end()
    // An event stream may stay silent for long, and its reader needs to see that it is open.
    res.flushHeaders()
    try {
      const length = headers['Content-Length']
      await sendAll(source, res, { opened: options.streamOpened, stallMs, length })
    } catch (error) {
      if (!clientLeft(exchange, error))
        log.error(
          { err: error, requestId: exchange.requestId, path: exchange.path },
          'a stream failed after its answer had begun',
        )
    }
  }

  const serializeChecked = (built: Route, body: unknown): string => {
    const text = JSON.stringify(body)
    if (options.validateResponses === true && built.response !== undefined) {
      const result = built.response.safeParse(JSON.parse(text ?? 'null'))
      if (!result.success)
        throw new Error(
          `the answer of ${built.method} ${built.path} does not fit its schema: ${result.error.message}`,
        )
    }
    return text
  }

  return {
    write,
    stream,

    /**
     * The library writes the answer that switches the connection to WebSocket. This method only
     * records it.
     */
    switched: (exchange: Exchange): void => note(exchange, 101, undefined, undefined),

    refuse(exchange: Exchange, answer: ErrorAnswer): void {
      const problem = prefersProblem(exchange.req.headers.accept)
      write(exchange, {
        status: answer.status,
        headers: {
          ...answer.headers,
          'Content-Type': problem ? 'application/problem+json' : 'application/json',
          'Cache-Control': 'no-store',
        },
        body: errorBody(answer, problem, exchange.path),
      })
    },

    /** The answer to an error; undefined where the client has left. */
    answerTo(exchange: Exchange, error: unknown): ErrorAnswer | undefined {
      if (clientLeft(exchange, error)) return undefined
      const known = errorAnswer(error, translate)
      if (known !== undefined) return known
      log.error(
        { err: error, requestId: exchange.requestId, method: exchange.req.method, path: exchange.path },
        'a request failed',
      )
      return internalAnswer(exchange.requestId)
    },

    /**
     * A handler's result as status, headers and text; `body` stays undefined for streams and
     * answers without content.
     */
    outgoing(built: Route, result: unknown): Outgoing {
      const reply = result instanceof Reply ? result : undefined
      const body: unknown = reply === undefined ? result : reply.body
      const status =
        reply?.status ?? built.status ?? (built.response !== undefined || built.raw !== undefined ? 200 : 204)
      const headers: Record<string, string> = {}
      for (const [name, value] of Object.entries(reply?.headers ?? {})) headers[canonical(name)] = value
      if (headers['Location']?.startsWith('/') === true)
        headers['Location'] = config.apiPrefix + headers['Location']
      if (status === 202) headers['Retry-After'] ??= '1'
      if (reply?.stream !== undefined) {
        headers['Content-Type'] ??= built.raw?.[0] ?? 'application/octet-stream'
        return { status, headers, body: undefined }
      }
      if (body === undefined) {
        if (status !== 204 && built.response !== undefined)
          throw new Error(`${built.method} ${built.path} answered nothing where its schema has a body`)
        return { status, headers, body: undefined }
      }
      if ((typeof body === 'string' || body instanceof Chunks) && built.raw !== undefined) {
        const type = built.raw[0] ?? 'text/plain'
        headers['Content-Type'] ??=
          type.startsWith('text/') && !type.includes('charset') ? `${type}; charset=utf-8` : type
        return { status, headers, body }
      }
      headers['Content-Type'] ??= 'application/json'
      return { status, headers, body: serializeChecked(built, body) }
    },
  }
}

export type Answers = ReturnType<typeof createAnswers>
