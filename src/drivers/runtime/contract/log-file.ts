import { constants } from 'node:fs'
import { open } from 'node:fs/promises'
import type { LogRange, LogSlice } from './driver.ts'

/** A part of a log that is a file of this machine; of one that is gone nothing. */
export const readLogFile = async (file: string, range: LogRange): Promise<LogSlice> => {
  await using handle = await open(file, constants.O_RDONLY | constants.O_NOFOLLOW).catch(() => undefined)
  if (handle === undefined) return { bytes: Buffer.alloc(0), offset: 0, totalBytes: 0 }
  const { size } = await handle.stat()
  const offset = 'tail' in range ? Math.max(0, size - range.tail) : Math.min(range.offset, size)
  const length = Math.min('tail' in range ? range.tail : range.limit, size - offset)
  const { buffer, bytesRead } = await handle.read(Buffer.alloc(length), 0, length, offset)
  return { bytes: buffer.subarray(0, bytesRead), offset, totalBytes: size }
}
