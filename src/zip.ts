import { Readable } from 'node:stream'
import { configure, ZipFS, ZipWriter, type ZipWriterAddDataOptions } from '@zip.js/zip.js'

// The usual bound is one open entry for each processor: readers that stall would hold up all others.
configure({ maxWorkers: 1_000_000 })

export interface ZipEntry {
  name: string
  time: Date
  /** Its bytes, from their begin. */
  open: () => Readable
}

/** An entry whose bytes are packed already. */
export interface PackedEntry extends ZipEntry {
  /** 0: the bytes as they are; 8: deflated. */
  method: 0 | 8
  /** CRC-32 of the bytes before they are packed. */
  crc: number
  /** In bytes, before and after they are packed. */
  size: number
  packedSize: number
}

const writing = { useWebWorkers: false, supportZip64SplitFile: false } as const

/** Its header holds sizes and sum, and no field beside them but for numbers above 4 GiB. */
const packedOptions = (entry: PackedEntry): ZipWriterAddDataOptions => ({
  passThrough: true,
  compressionMethod: entry.method,
  uncompressedSize: entry.size,
  crc32: entry.crc,
  lastModDate: entry.time,
  extendedTimestamp: false,
})

/**
 * A ZIP file of entries in their order, each opened when the one before it is written. The stream
 * fails where an entry cannot be read, or has not the size that it says.
 */
export const zipStream = (
  entries: AsyncIterable<ZipEntry | PackedEntry> | Iterable<ZipEntry | PackedEntry>,
): Readable => {
  let goOn: (() => void) | undefined
  // A stream made by `Readable.fromWeb` can lose its end behind a chunk that fills it.
  const stream = new Readable({ read: () => goOn?.() })
  const leaving = (): void => {
    if (stream.destroyed) throw new Error('the reader of the ZIP file has left')
  }
  const written = new WritableStream<Uint8Array>({
    async write(bytes) {
      leaving()
      if (stream.push(bytes)) return
      await new Promise<void>((resolve) => {
        goOn = resolve
      })
    },
  })
  let source: Readable | undefined
  stream.once('close', () => {
    // An entry whose bytes do not come cannot be asked to return.
    source?.destroy()
    goOn?.()
  })
  // It may fail before it has a reader, who finds it destroyed then.
  stream.on('error', () => undefined)
  const zipWriter = new ZipWriter(written, writing)
  const write = async (): Promise<void> => {
    for await (const entry of entries) {
      leaving()
      // `Readable.toWeb` throws where nothing catches it if its stream has bytes when it is cancelled.
      source = entry.open()
      // It too may fail before its first bytes are asked for.
      source.on('error', () => undefined)
      const packed = 'crc' in entry ? entry : undefined
      const bytes = { readable: ReadableStream.from(source), size: packed?.packedSize }
      const options = packed === undefined ? { lastModDate: entry.time } : packedOptions(packed)
      const { compressedSize } = await zipWriter.add(entry.name, bytes, options)
      if (packed !== undefined && compressedSize !== packed.packedSize)
        throw new Error(`the size of ${entry.name} has changed while it was sent`)
    }
    await zipWriter.close()
    stream.push(null)
  }
  write().catch((error: unknown) => stream.destroy(error as Error))
  return stream
}

/** The number of bytes that `zipStream` gives for these entries. */
export const zipSize = (entries: readonly PackedEntry[]): Promise<number> => {
  const tree = new ZipFS()
  for (const entry of entries) {
    // Files of a tree stand before those of its folders. Without folders they keep their order, on
    // which depends whose place exceeds 4 GiB. Of a name only the length counts.
    const file = tree.addUint8Array(entry.name.replaceAll('/', '-'), new Uint8Array(), packedOptions(entry))
    file.uncompressedSize = entry.packedSize
  }
  return tree.root.getExportedSize({ ...writing, bufferedWrite: false })
}
