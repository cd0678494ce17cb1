import { Readable, Writable, type Duplex } from 'node:stream'
import { LinkError, type ShellResult, type ShellStream } from '../../shell/site-shell.ts'

/**
 * The two ends of a script that runs at the other side of `way`, for its caller. The reader of
 * `way` pushes the output into `stdout`.
 */
export interface StreamEnds extends Pick<ShellStream, 'stdin'> {
  stdout: Readable
  /** The script ended normally. */
  over: () => void
  /**
   * The way was lost: the stream fails instead of ending, so that no reader takes a part for the
   * whole.
   */
  broken: (error: Error) => void
}

/** `kill`: called when the reader stops reading. */
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
  // A script that has ended reads no input: the stream's `done` holds its end.
  stdin.on('error', () => undefined)
  stdout.on('error', () => undefined)
  return {
    stdin,
    stdout,
    over: () => {
      stdout.push(null)
      stdin.destroy(
        stdin.writableFinished
          ? undefined
          : Object.assign(new Error('the script ended before its input'), { code: 'EPIPE' }),
      )
    },
    broken: (error) => {
      stdout.destroy(error)
      stdin.destroy(error)
    },
  }
}

/**
 * Runs a script over a stream of its own, from its input to its whole output; `until` in
 * `performance.now()` milliseconds.
 */
export const collectOutput = async (
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
