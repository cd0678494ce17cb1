import type { ClientRequest, IncomingMessage } from 'node:http'
import { Readable, Writable } from 'node:stream'
import { pipeline } from 'node:stream/promises'

/** A larger piece would be handed to the system at once, and nobody sees whether it moves. */
const pieceBytes = 64 * 1024

/**
 * Writes a stream as a request's body, piece by piece. `drained` waits until the network takes more, and answers false when no more is
 * wanted: the rest is not sent then.
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
    // More than was declared would be taken for the next request of the connection.
    if (declared !== undefined && size > Number(declared)) throw new RangeError(`the body is larger than content-length ${declared}`)
    for (let at = 0; at < bytes.length; at += pieceBytes) if (!(await drained(!asked.write(bytes.subarray(at, at + pieceBytes))))) return
  }
  const end = async (): Promise<void> => {
    if (declared !== undefined && size < Number(declared)) throw new RangeError(`the body has ${size} bytes, content-length is ${declared}`)
    if (await drained(false)) asked.end()
  }
  // A stream that is piped gives its chunks as they are; one that is iterated copies them together.
  const sink = new Writable({
    highWaterMark: 1,
    write: (bytes: Buffer, _, done) => void send(bytes).then(() => done(), done),
    final: (done) => void end().then(() => done(), done),
  })
  await pipeline(body, sink)
}

export interface ReceiverHooks {
  limitBytes: number
  /** The reader waits for the other side, or does not. */
  waiting: (now: boolean) => void
  /** It is too large. */
  exceeded: () => void
  /** An error of Node as the reader shall see it. */
  named: (error: Error) => Error
  /** All of it was received. */
  received: () => void
  /** The reader does not want the rest. */
  abandoned: () => void
}

/** An answer's body as a stream of its own, which takes from the network what its reader takes. */
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
  // Who has stopped reading need not listen.
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
