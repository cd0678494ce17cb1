import { bytesOf, nameOfBytes, type ByteName, type StoragePath } from '../../drivers/storage/paths.ts'

/**
 * A directory's path in the index: names separated by a byte 0, which sorts before every byte of a
 * name. So all entries below a directory form one range.
 */
export const bytesOfParent = (path: StoragePath): Buffer => bytesOf(path.join('\0') as ByteName)

export const parentOfBytes = (bytes: Uint8Array): StoragePath =>
  bytes.length === 0 ? [] : (nameOfBytes(bytes).split('\0') as ByteName[])

/** The end of the range below a directory; null: the end of the storage. */
export const endOfRange = (path: StoragePath): Buffer | null =>
  path.length === 0 ? null : Buffer.concat([bytesOfParent(path), Buffer.from([1])])
