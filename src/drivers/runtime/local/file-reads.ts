import { DriverError } from '../contract/driver.ts'

/** The reads of ended tasks' files that are under way: large files take long. */
export interface FileReads {
  /** Reads the files of a task; `signal` is aborted by a cancel, or by the close of the driver. */
  during<T>(name: string, look: (signal: AbortSignal) => Promise<T>): Promise<T>
  /** A cancel: the reads of these tasks' files end. */
  end(names: readonly string[]): void
  /** @throws from now on DriverError `unknown` where a read is under way */
  close(): void
}

export const openFileReads = (): FileReads => {
  const underWay = new Map<AbortController, string>()
  let closed = false
  return {
    async during(name, look) {
      const stop = new AbortController()
      underWay.set(stop, name)
      try {
        const seen = await look(stop.signal)
        if (closed) throw new DriverError('unknown', `the driver was closed while it looked at ${name}`)
        return seen
      } finally {
        underWay.delete(stop)
      }
    },
    end(names) {
      const ended = new Set(names)
      for (const [stop, name] of underWay) if (ended.has(name)) stop.abort()
    },
    close() {
      closed = true
      for (const stop of underWay.keys()) stop.abort()
    },
  }
}
