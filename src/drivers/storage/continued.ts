import { Transform, type Readable } from 'node:stream'
import type { WriteOptions } from './contract.ts'
import { through } from './streams.ts'

/** The bytes of a stream behind its first `count`. */
export const behind = (source: Readable, count: number): Readable => {
  let left = count
  return through(
    source,
    new Transform({
      transform: (bytes: Buffer, _, done) => {
        const rest = left >= bytes.length ? undefined : left === 0 ? bytes : bytes.subarray(left)
        left = Math.max(0, left - bytes.length)
        if (rest === undefined) done()
        else done(null, rest)
      },
    }),
  )
}

/**
 * The upload of a whole file as its last part: the kept bytes at the head of the stream are left
 * out. A driver that keeps parts by offset writes it as every other part, and compares the digest
 * of the whole before the file gets its name.
 */
export const whole = (source: Readable, write: WriteOptions): { source: Readable; write: WriteOptions } => {
  const { continued, ...rest } = write
  if (continued === undefined) return { source, write }
  const { upload, receivedBytes: offset } = continued
  return {
    source: offset === 0 ? source : behind(source, offset),
    write: { ...rest, part: { upload, offset, last: true, keepsAfter: () => true } },
  }
}
