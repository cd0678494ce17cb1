import type { StorageDriver } from '../../drivers/storage/contract.ts'

interface Kept {
  driver: StorageDriver
  /** Open calls, with the streams of reads. */
  calls: number
  timer: NodeJS.Timeout
}

/**
 * Drivers that are kept while they are used, so that connections and processes serve many requests.
 * A driver without an open call for `idleMs` is closed; an open call may last for hours.
 */
export const openKeptDrivers = (idleMs: number) => {
  const kept = new Map<string, Kept>()
  const ofDriver = new WeakMap<StorageDriver, Kept>()

  return {
    /** The driver of a key, which has all inputs of it: a changed record, or secret, gets another one. */
    find: (key: string): StorageDriver | undefined => {
      const known = kept.get(key)
      known?.timer.refresh()
      return known?.driver
    },
    keep: (key: string, driver: StorageDriver): StorageDriver => {
      const timer = setTimeout(() => {
        // The end of its last call starts the timer anew.
        if (entry.calls > 0) return
        kept.delete(key)
        void driver.close()
      }, idleMs)
      timer.unref()
      const entry: Kept = { driver, calls: 0, timer }
      kept.set(key, entry)
      ofDriver.set(driver, entry)
      return driver
    },
    /** Begins a call of a driver. @returns what ends it */
    begin: (driver: StorageDriver): (() => void) => {
      const entry = ofDriver.get(driver)
      if (entry === undefined) return () => undefined
      entry.calls += 1
      return () => {
        entry.calls -= 1
        entry.timer.refresh()
      }
    },
    close: async (): Promise<void> => {
      const all = [...kept.values()]
      kept.clear()
      for (const { timer } of all) clearTimeout(timer)
      await Promise.allSettled(all.map(({ driver }) => driver.close()))
    },
  }
}

export type KeptDrivers = ReturnType<typeof openKeptDrivers>
