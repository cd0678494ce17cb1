import { promisify } from 'node:util'
import { constants, crc32, deflateRaw } from 'node:zlib'
import { piecesOf } from '../../clients/pieces.ts'

const deflate = promisify(deflateRaw)
/** Bytes that are compressed alone, so that all processors take part. */
const blockBytes = 1024 * 1024
/** How far back deflate looks (RFC 1951, section 2). */
const windowBytes = 32 * 1024
const blocksAtOnce = 4
/** RFC 1952, section 2.3: deflate, no flags, no time, an unknown operating system. */
const header = Buffer.from([0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255])

/**
 * The bytes of a stream as one gzip file (RFC 1952), compressed on several processors. The same
 * bytes give the same file, however they arrive. Each block begins with the last bytes of the one
 * before as its dictionary, and ends at a byte (as pigz has it), so the blocks are one deflate
 * stream. An error of the source ends it.
 */
export async function* gzipped(source: AsyncIterable<Uint8Array>): AsyncGenerator<Buffer> {
  yield header
  const open: Promise<Buffer>[] = []
  let [sum, size] = [0, 0]
  let before: Buffer | undefined
  for await (const block of piecesOf(source, blockBytes)) {
    const first = open.length < blocksAtOnce ? undefined : open.shift()
    if (first !== undefined) yield await first
    const work = deflate(block, {
      ...{ level: 6, finishFlush: constants.Z_SYNC_FLUSH, chunkSize: blockBytes + windowBytes },
      ...(before === undefined ? {} : { dictionary: before.subarray(-windowBytes) }),
    })
    // It may fail before it is awaited.
    work.catch(() => undefined)
    open.push(work)
    sum = crc32(block, sum)
    size += block.length
    before = block
  }
  for (const work of open) yield await work
  const trailer = Buffer.alloc(8)
  trailer.writeUInt32LE(sum)
  trailer.writeUInt32LE(size % 2 ** 32, 4)
  yield Buffer.concat([await deflate(Buffer.alloc(0)), trailer])
}
