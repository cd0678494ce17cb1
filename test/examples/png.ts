import { crc32, inflateSync } from 'node:zlib'

export interface Picture {
  width: number
  height: number
  /** Red, green and blue bytes, row by row. */
  pixels: Uint8Array
}

/** The chunks of a PNG, after its signature and all their checksums were found right. */
export const readPngChunks = (file: Buffer): { type: string; data: Buffer }[] => {
  if (file.subarray(0, 8).toString('hex') !== '89504e470d0a1a0a') throw new Error('no PNG signature')
  const chunks: { type: string; data: Buffer }[] = []
  for (let at = 8; at < file.length;) {
    const length = file.readUInt32BE(at)
    const type = file.subarray(at + 4, at + 8).toString('latin1')
    if (at + 12 + length > file.length) throw new Error(`chunk ${type} ends beyond the file`)
    const checksum = file.readUInt32BE(at + 8 + length)
    if (crc32(file.subarray(at + 4, at + 8 + length)) !== checksum)
      throw new Error(`chunk ${type} has a wrong checksum`)
    chunks.push({ type, data: file.subarray(at + 8, at + 8 + length) })
    at += 12 + length
  }
  if (chunks[0]?.type !== 'IHDR' || chunks.at(-1)?.type !== 'IEND')
    throw new Error('no IHDR first or no IEND last')
  return chunks
}

/**
 * Reads an 8-bit RGB PNG of unfiltered rows as a strict reader does: zlib's own checksum and the
 * size of the data must fit, too.
 */
export const readPng = (file: Buffer): Picture => {
  const chunks = readPngChunks(file)
  const header = chunks[0]?.data ?? Buffer.alloc(0)
  const width = header.readUInt32BE(0)
  const height = header.readUInt32BE(4)
  if (header.subarray(8).toString('hex') !== '0802000000') throw new Error('not 8-bit RGB without interlace')
  const rows = inflateSync(
    Buffer.concat(chunks.filter(({ type }) => type === 'IDAT').map(({ data }) => data)),
  )
  const stride = 1 + 3 * width
  if (rows.length !== height * stride)
    throw new Error(`${rows.length} bytes of image data, ${height * stride} expected`)
  const pixels = new Uint8Array(3 * width * height)
  for (let y = 0; y < height; y++) {
    if (rows[y * stride] !== 0) throw new Error(`row ${y} is filtered`)
    pixels.set(rows.subarray(y * stride + 1, (y + 1) * stride), 3 * width * y)
  }
  return { width, height, pixels }
}
