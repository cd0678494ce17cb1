import { Transform, type Readable } from 'node:stream'
import { StorageError, type StorageDriver, type StorageFault } from './contract.ts'
import { through } from './through.ts'

/** One ended call of a driver; for streams, after the last byte. */
export interface StorageCall {
  method:
    | 'list'
    | 'stat'
    | 'read'
    | 'digest'
    | 'write'
    | 'writeFrom'
    | 'readMany'
    | 'writeMany'
    | 'openUpload'
    | 'copyWithin'
    | 'makeLink'
    | 'setAttributes'
    | 'received'
    | 'discard'
    | 'delete'
    | 'makeDirectory'
    | 'space'
    | 'presign'
  /** `ok`, or the fault; `aborted` covers ends that are no fault of the storage. */
  outcome: 'ok' | StorageFault | 'aborted'
  seconds: number
  /** Bytes of contents; those that go from site to site do not count. */
  bytes: number
}

const outcomeOf = (error: unknown): StorageCall['outcome'] =>
  error instanceof StorageError ? error.fault : 'aborted'

/** The same bytes, counted on their way. */
const counting = (source: Readable, onBytes: (count: number) => void): Transform =>
  through(
    source,
    new Transform({
      transform: (bytes: Buffer, _, done) => {
        onBytes(bytes.length)
        done(null, bytes)
      },
    }),
  )

const sizeOf = (files: readonly { bytes: Buffer }[]): number =>
  files.reduce((sum, { bytes }) => sum + bytes.length, 0)

/** The same storage. Each call calls `begin` first, and its result with a report at the end. */
export const withMeasures = (
  driver: StorageDriver,
  begin: () => (call: StorageCall) => void,
): StorageDriver => {
  const measured = async <T>(
    method: StorageCall['method'],
    work: () => Promise<T>,
    bytes = (): number => 0,
  ): Promise<T> => {
    const began = performance.now()
    const ended = begin()
    const measure = (outcome: StorageCall['outcome']): void =>
      ended({ method, outcome, seconds: (performance.now() - began) / 1_000, bytes: bytes() })
    try {
      const value = await work()
      measure('ok')
      return value
    } catch (error) {
      measure(outcomeOf(error))
      throw error
    }
  }
  const { writeFrom } = driver
  return {
    ...driver,
    ...(writeFrom && {
      writeFrom: (path, file, options) => measured('writeFrom', () => writeFrom(path, file, options)),
    }),
    list: (path, options) => measured('list', () => driver.list(path, options)),
    stat: (path, options) => measured('stat', () => driver.stat(path, options)),
    async read(path, options) {
      const began = performance.now()
      let bytes = 0
      const ended = begin()
      const measure = (outcome: StorageCall['outcome']): void =>
        ended({ method: 'read', outcome, seconds: (performance.now() - began) / 1_000, bytes })
      try {
        const { entry, stream } = await driver.read(path, options)
        const counted = counting(stream, (count) => (bytes += count))
        counted.once('close', () => {
          if (counted.errored !== null) measure(outcomeOf(counted.errored))
          else measure(counted.readableEnded ? 'ok' : 'aborted')
        })
        return { entry, stream: counted }
      } catch (error) {
        measure(outcomeOf(error))
        throw error
      }
    },
    digest: (path, options) => measured('digest', () => driver.digest(path, options)),
    write(path, source, options) {
      let bytes = 0
      const counted = counting(source, (count) => (bytes += count))
      return measured(
        'write',
        () => driver.write(path, counted, options),
        () => bytes,
      )
    },
    async readMany(folder, names, options) {
      let bytes = 0
      return measured(
        'readMany',
        async () => {
          const files = await driver.readMany(folder, names, options)
          bytes = sizeOf(files)
          return files
        },
        () => bytes,
      )
    },
    writeMany: (folder, files, options) =>
      measured(
        'writeMany',
        () => driver.writeMany(folder, files, options),
        () => sizeOf(files),
      ),
    copyWithin: (from, to, options) => measured('copyWithin', () => driver.copyWithin(from, to, options)),
    openUpload: (path, options) => measured('openUpload', () => driver.openUpload(path, options)),
    makeLink: (path, target, options) => measured('makeLink', () => driver.makeLink(path, target, options)),
    setAttributes: (path, attributes, options) =>
      measured('setAttributes', () => driver.setAttributes(path, attributes, options)),
    received: (path, upload, options) => measured('received', () => driver.received(path, upload, options)),
    discard: (path, upload, options) => measured('discard', () => driver.discard(path, upload, options)),
    delete: (path, options) => measured('delete', () => driver.delete(path, options)),
    makeDirectory: (path, options) => measured('makeDirectory', () => driver.makeDirectory(path, options)),
    space: (options) => measured('space', () => driver.space(options)),
    presign: (path, seconds) => measured('presign', () => driver.presign(path, seconds)),
  }
}

/** A stream of at most so many bytes a second, on average since its first byte. */
const limited = (source: Readable, bytesPerSecond: number): Transform => {
  let began: number | undefined
  let size = 0
  let timer: NodeJS.Timeout | undefined
  const slowed = new Transform({
    highWaterMark: Math.max(1, Math.min(256 * 1024, Math.floor(bytesPerSecond / 4))),
    transform: (bytes: Buffer, _, done) => {
      began ??= performance.now()
      size += bytes.length
      const early = (size / bytesPerSecond) * 1_000 - (performance.now() - began)
      if (early <= 0) done(null, bytes)
      else timer = setTimeout(() => done(null, bytes), early)
    },
    // A slow stream may be in a pause of minutes, which would hold its process.
    destroy: (error, closed) => {
      clearTimeout(timer)
      closed(error)
    },
  })
  return through(source, slowed)
}

/** The same storage, with a limit of so many bytes a second for each stream. */
export const withRate = (driver: StorageDriver, bytesPerSecond: number): StorageDriver => ({
  ...driver,
  async read(path, options) {
    const { entry, stream } = await driver.read(path, options)
    return { entry, stream: limited(stream, bytesPerSecond) }
  },
  write: (path, source, options) => driver.write(path, limited(source, bytesPerSecond), options),
})
