import { createHash } from 'node:crypto'
import type { Readable, Transform } from 'node:stream'

/**
 * Passes the bytes of `source` through `transform`. Each of the two ends the other, with the error
 * of `source` (as `errorOf` names it). An error without a reader yet is kept for the reader. A
 * small body fails while its consumer still checks in the store whether the name is free, and an
 * error event without a listener would end the process.
 */
export const through = <T extends Transform>(
  source: Readable,
  transform: T,
  errorOf: (error: Error) => Error = (error) => error,
): T => {
  transform.on('error', () => undefined)
  source.on('error', (error) => transform.destroy(errorOf(error)))
  transform.on('close', () => source.destroy())
  // Such a source emits nothing any more.
  if (source.destroyed && !source.readableEnded)
    transform.destroy(errorOf(source.errored ?? new Error('the stream was closed before it was read')))
  return source.pipe(transform)
}

/**
 * The bytes of a stream; they end without an error where it breaks in a way that allows keeping
 * them. `cut` then has the error.
 */
export async function* untilBreak(
  source: Readable,
  keepsAfter: (error: unknown) => boolean,
  cut: { error?: unknown },
): AsyncGenerator<Buffer> {
  try {
    for await (const bytes of source as AsyncIterable<Buffer>) yield bytes
  } catch (error) {
    if (!keepsAfter(error)) throw error
    cut.error = error
  }
}

/** SHA-256 of the bytes of a stream, in hexadecimal digits. */
export const streamDigest = async (stream: Readable, signal?: AbortSignal): Promise<string> => {
  const hash = createHash('sha256')
  for await (const bytes of stream as AsyncIterable<Buffer>) {
    signal?.throwIfAborted()
    hash.update(bytes)
  }
  return hash.digest('hex')
}

/**
 * Ends a stream with the reason of an aborted signal until it is disposed of: one that stalls must
 * not hide that nobody waits for it.
 */
export const endedBy = (signal: AbortSignal | undefined, stream: Readable): Disposable => {
  const end = (): void => void stream.destroy(signal?.reason as Error)
  if (signal?.aborted === true) end()
  else signal?.addEventListener('abort', end, { once: true })
  // A composed signal with a listener is kept as long as the process.
  return { [Symbol.dispose]: () => signal?.removeEventListener('abort', end) }
}
