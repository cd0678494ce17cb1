import { Readable, Writable, type Duplex } from 'node:stream'
import { LinkError, type ShellResult, type ShellStream } from '../../drivers/shell.ts'

/** The two ends that a caller has of a script that runs at the other side of `way`. What comes is pushed into `stdout` by whoever reads `way`. */
export interface StreamEnds extends Pick<ShellStream, 'stdin'> {
  stdout: Readable
  /** The script has ended in order. */
  over: () => void
  /** The way was lost: not an end of the bytes, so that nobody takes a part for the whole. */
  broken: (error: Error) => void
}

/** `kill`: called when the reader wants no more. */
export const endsOf = (way: Duplex, kill: () => void): StreamEnds => {
  const stdout = new Readable({
    highWaterMark: 1024 * 1024,
    read: () => way.resume(),
    destroy: (error, callback) => {
      kill()
      callback(error)
    },
  })
  const stdin = new Writable({
    highWaterMark: 256 * 1024,
    write: (chunk: Buffer, _encoding, callback) => {
      way.write(chunk, () => callback())
    },
    final: (callback) => {
      way.end()
      callback()
    },
  })
  // A site that ended does not read: its end is told by the stream's `done`.
  stdin.on('error', () => undefined)
  stdout.on('error', () => undefined)
  return {
    stdin,
    stdout,
    over: () => {
      stdout.push(null)
      stdin.destroy(stdin.writableFinished ? undefined : Object.assign(new Error('the script ended before its input'), { code: 'EPIPE' }))
    },
    broken: (error) => {
      stdout.destroy(error)
      stdin.destroy(error)
    },
  }
}

/** A script over a stream of its own, from its input to its whole output; `until` in `performance.now()` milliseconds. */
export const collect = async (
  stream: ShellStream,
  input: Uint8Array | string | undefined,
  until: number,
  maxBytes: number,
): Promise<ShellResult> => {
  const chunks: Buffer[] = []
  let bytes = 0
  let failure: Error | undefined
  const stop = (error: Error): void => {
    failure ??= error
    stream.kill()
  }
  const timer = setTimeout(
    () => stop(new LinkError('link', 'the script did not end until its deadline')),
    Math.max(1, until - performance.now()),
  )
  stream.stdout.on('data', (chunk: Buffer) => {
    bytes += chunk.length
    if (bytes <= maxBytes) chunks.push(chunk)
    else stop(new RangeError(`the script wrote more than ${maxBytes} bytes`))
  })
  stream.stdin.end(input)
  try {
    const { code, signal, stderr } = await stream.done
    if (failure !== undefined) throw failure
    if (!stream.stdout.readableEnded) await new Promise((resolve) => stream.stdout.once('end', resolve))
    return { code, signal, stdout: Buffer.concat(chunks), stderr }
  } finally {
    clearTimeout(timer)
  }
}
