import type { IncomingMessage, ServerResponse } from 'node:http'
import { Readable } from 'node:stream'
import { digestCheck, type DigestCheck } from './content-digest.ts'
import { mediaType, plainEncoding, tooLarge } from './body.ts'
import { ClientGone } from './errors.ts'
import { lateBody, PaceWatch, type BodyPace } from './pace.ts'
import type { Route, Upload } from './route.ts'

/** Bytes that are read ahead of a slow consumer. The rest waits in the sockets. */
const readAhead = 256 * 1024

/**
 * The body of a request as a stream. It requests no byte from the client before the first read, so
 * a client that waits for `100 Continue` sends none until then. It ends only after the comparison
 * of its digest, and fails with the refusal for the client.
 */
class UploadStream extends Readable {
  readonly #req: IncomingMessage
  readonly #res: ServerResponse
  readonly #limit: number
  readonly #check: DigestCheck | undefined
  readonly #pace: BodyPace
  #watch: PaceWatch | undefined
  #size = 0
  /** The cause of the failure on the client's side, whatever error the consumer passes on. */
  failure: Error | undefined

  constructor(
    req: IncomingMessage,
    res: ServerResponse,
    given: { limitBytes: number; check: DigestCheck | undefined; pace: BodyPace },
  ) {
    super({ highWaterMark: readAhead })
    this.#req = req
    this.#res = res
    this.#limit = given.limitBytes
    this.#check = given.check
    this.#pace = given.pace
    // A consumer that has left handles no errors. Without a listener an error would end the
    // process.
    this.on('error', () => undefined)
  }

  override _read(): void {
    if (this.#watch === undefined) this.#begin()
    else this.#req.resume()
    this.#watch?.waits()
  }

  override _destroy(error: Error | null, callback: (error?: Error | null) => void): void {
    this.#watch?.stop()
    this.#req.off('data', this.#onData).off('end', this.#onEnd).off('close', this.#onClose)
    this.#req.pause()
    callback(error)
  }

  #begin(): void {
    const pace = this.#pace
    this.#watch = new PaceWatch(pace, () =>
      this.#fail(
        lateBody(
          `the body came slower than ${pace.leastBytesPerSecond} bytes a second for ${pace.slowMs / 1_000} s`,
        ),
      ),
    )
    if (this.#req.destroyed) return this.#onClose()
    if (this.#req.headers.expect?.toLowerCase() === '100-continue') this.#res.writeContinue()
    this.#req.on('data', this.#onData).on('end', this.#onEnd).on('close', this.#onClose)
  }

  #fail(error: Error): void {
    this.failure ??= error
    this.destroy(error)
  }

  readonly #onData = (bytes: Buffer): void => {
    this.#size += bytes.length
    this.#watch?.came(bytes.length)
    if (this.#size > this.#limit) return this.#fail(tooLarge(this.#limit))
    this.#check?.update(bytes)
    if (this.push(bytes)) return
    this.#req.pause()
    this.#watch?.pauses()
  }

  readonly #onEnd = (): void => {
    this.#watch?.stop()
    try {
      this.#check?.finish(this.#req.trailers)
      this.push(null)
    } catch (error) {
      this.#fail(error as Error)
    }
  }

  readonly #onClose = (): void => {
    if (!this.#req.readableEnded)
      this.#fail(new ClientGone('the connection closed before the body was complete'))
  }
}

export interface RequestUpload extends Upload {
  stream: UploadStream
  /**
   * Identifies the bytes in an Idempotency-Key; undefined where the request does not state their
   * digest before the body.
   */
  digest: string | undefined
}

const fits = (type: string, range: string): boolean =>
  range === type || range === '*/*' || (range.endsWith('/*') && type.startsWith(range.slice(0, -1)))

/**
 * The body of a request that its route takes as a stream; undefined where the media type is not one
 * of the route's streams, so that the body is a document or 415. This call reads no byte of the
 * body.
 * @throws Refusal `too_large` for an announced size beyond the limit
 */
export const openUpload = (
  req: IncomingMessage,
  res: ServerResponse,
  built: Route,
  pace: BodyPace,
): RequestUpload | undefined => {
  if (built.upload === undefined) return undefined
  const { types, limitBytes } = built.upload
  const contentType =
    req.headers['content-type'] ?? (built.body === undefined ? 'application/octet-stream' : undefined)
  const type = contentType === undefined ? undefined : mediaType(contentType)
  if (contentType === undefined || type === undefined || !types.some((range) => fits(type, range)))
    return undefined
  plainEncoding(req)
  const announced = req.headers['content-length']
  if (Number(announced ?? 0) > limitBytes) throw tooLarge(limitBytes)
  const check = digestCheck(req)
  return {
    type,
    contentType,
    sizeBytes: announced === undefined ? undefined : Number(announced),
    digest: check?.stated,
    stream: new UploadStream(req, res, { limitBytes, check, pace }),
  }
}
