import { Transform, type Readable } from 'node:stream'
import { around, type StorageMethod } from './around.ts'
import { StorageError, type StorageDriver, type StorageFault } from './contract.ts'
import { through } from './streams.ts'

/** One ended call of a driver; for streams, after the last byte. */
export interface StorageCall {
  method: StorageMethod
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

const sizeOf = (files: unknown): number =>
  (files as readonly { bytes: Buffer }[]).reduce((sum, { bytes }) => sum + bytes.length, 0)

/** The same storage. Each call calls `begin` first, and its result with a report at the end. */
export const withMeasures = (
  driver: StorageDriver,
  begin: () => (call: StorageCall) => void,
): StorageDriver => {
  const begun = (method: StorageMethod) => {
    const began = performance.now()
    const ended = begin()
    return (outcome: StorageCall['outcome'], bytes: number): void =>
      ended({ method, outcome, seconds: (performance.now() - began) / 1_000, bytes })
  }
  const measured = async <T>(
    method: StorageMethod,
    work: () => Promise<T>,
    bytesOf: (value?: T) => number,
  ): Promise<T> => {
    const end = begun(method)
    try {
      const value = await work()
      end('ok', bytesOf(value))
      return value
    } catch (error) {
      end(outcomeOf(error), bytesOf())
      throw error
    }
  }
  return {
    ...around(driver, (method, [, second], work) =>
      // It asks the storage for nothing.
      method === 'fileAtSite'
        ? work()
        : measured(method, work, (value) =>
            method === 'writeMany' ? sizeOf(second) : method === 'readMany' ? sizeOf(value ?? []) : 0,
          ),
    ),
    async read(path, options) {
      const end = begun('read')
      let bytes = 0
      try {
        const { entry, stream } = await driver.read(path, options)
        const counted = counting(stream, (count) => (bytes += count))
        counted.once('close', () => {
          if (counted.errored !== null) end(outcomeOf(counted.errored), bytes)
          else end(counted.readableEnded ? 'ok' : 'aborted', bytes)
        })
        return { entry, stream: counted }
      } catch (error) {
        end(outcomeOf(error), bytes)
        throw error
      }
    },
    write(path, source, options) {
      let bytes = 0
      const counted = counting(source, (count) => (bytes += count))
      return measured(
        'write',
        () => driver.write(path, counted, options),
        () => bytes,
      )
    },
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
