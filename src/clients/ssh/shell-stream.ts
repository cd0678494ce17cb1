import { Readable, Writable, type Duplex } from 'node:stream'
import type { ShellStream } from '../../shell/site-shell.ts'

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
