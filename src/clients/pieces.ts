/** Bytes of one part of an upload where nothing else is asked for. */
export const usualPartBytes = 8 * 2 ** 20

/** The bytes of a stream in pieces of exactly `size` bytes; the last one may be smaller. */
export async function* piecesOf(source: AsyncIterable<Uint8Array>, size: number): AsyncGenerator<Buffer> {
  let waiting: Uint8Array[] = []
  let has = 0
  for await (let bytes of source) {
    while (has + bytes.length >= size) {
      const head = bytes.subarray(0, size - has)
      yield Buffer.concat([...waiting, head], size)
      bytes = bytes.subarray(head.length)
      waiting = []
      has = 0
    }
    if (bytes.length > 0) waiting.push(bytes)
    has += bytes.length
  }
  if (has > 0) yield Buffer.concat(waiting, has)
}
