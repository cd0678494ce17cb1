import type { StorageDriver } from '../../drivers/storage/contract.ts'
import type { StoragePath } from '../../drivers/storage/byte-name.ts'

/** A way to the files of a storage. */
export interface Reached {
  driver: StorageDriver
  /** Two storages hold the same entry where location and path together are equal. */
  place: {
    /** `here` for this machine, else the connection or the bucket. */
    at: string
    /** Names from there to the endpoint. */
    base: StoragePath
    /** The connection whose streams its files take; absent where they take none. */
    link?: string | undefined
  }
}
