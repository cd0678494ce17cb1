import type { ClientRequest, IncomingMessage } from 'node:http'
import { Readable, Writable } from 'node:stream'
import { pipeline } from 'node:stream/promises'

/** A larger piece would be passed to the system at once, and its progress would be invisible. */
const pieceBytes = 64 * 1024

/**
 * Writes a stream as a request's body, piece by piece. `drained` waits until the network takes
 * more, and returns false when no more is wanted; the rest is not sent then.
 * @throws RangeError when the stream has another length than `declared`; what the stream throws
 */
export const sendBody = async (
  asked: ClientRequest,
  body: Readable,
  declared: string | undefined,
  drained: (wait: boolean) => Promise<boolean>,
): Promise<void> => {
  let size = 0
  const send = async (bytes: Buffer): Promise<void> => {
    size += bytes.length
    // The server would read bytes beyond the declared length as the connection's next request.
    if (declared !== undefined && size > Number(declared))
      throw new RangeError(`the body is larger than content-length ${declared}`)
    for (let at = 0; at < bytes.length; at += pieceBytes)
      if (!(await drained(!asked.write(bytes.subarray(at, at + pieceBytes))))) return
  }
  const end = async (): Promise<void> => {
    if (declared !== undefined && size < Number(declared))
      throw new RangeError(`the body has ${size} bytes, content-length is ${declared}`)
    if (await drained(false)) asked.end()
  }
  // A piped stream gives its chunks as they are; iteration copies them together.
  const sink = new Writable({
    highWaterMark: 1,
    write: (bytes: Buffer, _, done) => void send(bytes).then(() => done(), done),
    final: (done) => void end().then(() => done(), done),
  })
  await pipeline(body, sink)
}

export interface ReceiverHooks {
  limitBytes: number
  /** Whether the reader waits for the other side. */
  waiting: (now: boolean) => void
  /** Called when the body is too large. */
  exceeded: () => void
  /** Translates an error of Node for the reader. */
  named: (error: Error) => Error
  /** Called when all of the body was received. */
  received: () => void
  /** Called when the reader does not want the rest. */
  abandoned: () => void
}

/**
 * An answer's body as a stream of its own; it takes bytes from the network as its reader takes
 * them.
 */
export const receiveBody = (response: IncomingMessage, hooks: ReceiverHooks): Readable => {
  let size = 0
  let ended = false
  const body = new Readable({
    read: () => {
      if (ended) return
      hooks.waiting(true)
      response.resume()
    },
    destroy: (error, callback) => {
      hooks.waiting(false)
      if (!ended) hooks.abandoned()
      callback(error)
    },
  })
  // A reader that has stopped need not listen for errors.
  body.on('error', () => undefined)
  response.on('data', (chunk: Buffer) => {
    size += chunk.length
    hooks.waiting(false)
    if (size > hooks.limitBytes) hooks.exceeded()
    else if (body.push(chunk)) hooks.waiting(true)
    else response.pause()
  })
  response.on('end', () => {
    ended = true
    hooks.waiting(false)
    hooks.received()
    body.push(null)
  })
  response.on('error', (error) => body.destroy(hooks.named(error)))
  return body
}
