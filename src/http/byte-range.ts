import { HttpRefusal } from './errors.ts'

/** Of bytes that are sent. */
interface ByteRange {
  offset: number
  length: number
}

/**
 * The one range of a `Range` header (RFC 9110, 14.2) of `noun`; undefined: the whole, also for
 * several ranges or an invalid header.
 * @throws HttpRefusal 416 where no byte is in it
 */
export const rangeOf = (
  header: string | undefined,
  sizeBytes: number,
  noun: string,
): ByteRange | undefined => {
  const [, first = '', last = ''] =
    /^\s*bytes\s*=\s*(\d{0,15})\s*-\s*(\d{0,15})\s*$/i.exec(header ?? '') ?? []
  if (first === '' && last === '') return undefined
  if (first !== '' && last !== '' && Number(last) < Number(first)) return undefined
  const offset = first === '' ? Math.max(0, sizeBytes - Number(last)) : Number(first)
  const end = first === '' || last === '' ? sizeBytes : Math.min(Number(last) + 1, sizeBytes)
  if (offset >= sizeBytes)
    throw new HttpRefusal(
      'invalid',
      `${noun} has ${sizeBytes} bytes, and none of them are in the range that was asked for`,
      { 'Content-Range': `bytes */${sizeBytes}` },
      416,
    )
  return { offset, length: end - offset }
}

/** Status and headers of an answer with these bytes of `sizeBytes`: all, or one range. */
export const rangeReply = (
  range: ByteRange | undefined,
  sizeBytes: number,
  headers: Readonly<Record<string, string>>,
): { status: number; headers: Record<string, string> } => {
  const { offset, length } = range ?? { offset: 0, length: sizeBytes }
  return {
    status: range === undefined ? 200 : 206,
    headers: {
      'content-length': String(length),
      'accept-ranges': 'bytes',
      'cache-control': 'private, no-cache',
      ...headers,
      ...(range && { 'content-range': `bytes ${offset}-${offset + length - 1}/${sizeBytes}` }),
    },
  }
}
