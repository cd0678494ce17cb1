import type { StorageDriver } from './contract.ts'

/** What a storage is asked for. The first argument of each is the path that it concerns, but of `space`. */
export type StorageMethod = Exclude<keyof StorageDriver, 'capabilities' | 'close'>

/** Makes a call, or refuses it; it always returns a promise. `work` may be called again. */
type Wrap = <T>(method: StorageMethod, args: readonly unknown[], work: () => Promise<T>) => Promise<T>

/** The same storage, with `wrap` around each call. Methods that it lacks are lacking still. */
export const around = (driver: StorageDriver, wrap: Wrap): StorageDriver =>
  Object.fromEntries(
    Object.entries(driver).map(([name, member]: [string, unknown]) => [
      name,
      typeof member !== 'function' || name === 'close'
        ? member
        : (...args: readonly unknown[]) =>
            wrap(name as StorageMethod, args, () =>
              (member as (...all: unknown[]) => Promise<unknown>)(...args),
            ),
    ]),
  ) as unknown as StorageDriver
