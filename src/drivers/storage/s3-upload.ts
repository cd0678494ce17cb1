import { createHash } from 'node:crypto'
import type { Readable } from 'node:stream'
import { S3Error, type KeptPart, type S3Parts } from '../../clients/s3.ts'
import type { OpenUpload, UploadOptions, Watch } from './contract.ts'

/** Limits of S3 for the parts of one upload. */
const mostParts = 10_000
const smallestPart = 5 * 2 ** 20
/** Memory of one upload is this many parts. */
const partsAtOnce = 3

/** Bytes of each part but the last: as many as are usual, or more for a file of many parts. */
export const partSize = (sizeBytes: number, usual: number): number => {
  const needed = Math.ceil(sizeBytes / mostParts / 2 ** 20) * 2 ** 20
  return Math.max(smallestPart, usual, needed)
}

const md5 = (bytes: Buffer): string => createHash('md5').update(bytes).digest('hex')
/** The tag of a part is the MD5 of its bytes, unless the store encrypts with a key of its own. */
const isKept = (part: KeptPart | undefined, bytes: Buffer): part is KeptPart =>
  part?.sizeBytes === bytes.length && part.etag.replaceAll('"', '') === md5(bytes)

/** Pieces of a stream of exactly `size` bytes; the last one may be smaller. */
async function* piecesOf(source: Readable, size: number): AsyncGenerator<Buffer> {
  let waiting: Buffer[] = []
  let has = 0
  for await (let bytes of source as AsyncIterable<Buffer>) {
    while (has + bytes.length >= size) {
      const head = bytes.subarray(0, size - has)
      yield Buffer.concat([...waiting, head], size)
      bytes = bytes.subarray(head.length)
      waiting = []
      has = 0
    }
    if (bytes.length > 0) waiting.push(bytes)
    has += bytes.length
  }
  if (has > 0) yield Buffer.concat(waiting, has)
}

/**
 * Sends the parts of a whole file that the store does not have yet, and gives the file its name. A
 * part that is kept is compared by its tag and not sent.
 * @throws S3Error; the error of the stream
 */
export const sendParts = async (
  parts: S3Parts,
  key: string,
  source: Readable,
  options: Watch & { upload: string; sizeBytes: number; usualPart: number; onlyNew: boolean },
): Promise<void> => {
  const { upload, sizeBytes, usualPart, onlyNew } = options
  const stop = new AbortController()
  const signal = options.signal === undefined ? stop.signal : AbortSignal.any([options.signal, stop.signal])
  const kept = new Map((await parts.list(key, upload, { signal })).map((part) => [part.number, part]))
  const size = kept.get(1)?.sizeBytes ?? partSize(sizeBytes, usualPart)
  const tags: { number: number; etag: string }[] = []
  const open = new Set<Promise<void>>()
  let failed: { error: unknown } | undefined
  const send = async (number: number, bytes: Buffer): Promise<void> => {
    try {
      tags.push({ number, etag: await parts.send(key, upload, number, bytes, { signal }) })
    } catch (error) {
      failed ??= { error }
      stop.abort(error)
    }
  }
  try {
    let number = 0
    for await (const bytes of piecesOf(source, size)) {
      if (failed !== undefined) break
      number += 1
      const part = kept.get(number)
      if (isKept(part, bytes)) {
        tags.push({ number, etag: part.etag })
        continue
      }
      if (open.size >= partsAtOnce) await Promise.race(open)
      const sending = send(number, bytes)
      open.add(sending)
      void sending.then(() => open.delete(sending))
    }
  } catch (error) {
    failed ??= { error }
  }
  // Parts under way are kept where they arrive: the next attempt goes on behind them.
  await Promise.all(open)
  if (failed !== undefined) throw failed.error
  await parts.complete(
    key,
    upload,
    tags.toSorted((a, b) => a.number - b.number),
    { onlyNew, signal },
  )
}

/** Ids of the key's unfinished uploads; none where the credential may not list them. */
const unfinishedOf = async (parts: S3Parts, key: string, { signal }: Watch): Promise<string[]> => {
  try {
    return await parts.unfinished(key, { signal })
  } catch (error) {
    if (error instanceof S3Error && error.status === 403) return []
    throw error
  }
}

/**
 * Removes the uploads that no part has reached. An attempt may have died between the begin of its
 * upload and its record of that, before its first part; an upload with parts that is not recorded
 * is another writer's.
 */
const abortEmpty = async (
  parts: S3Parts,
  key: string,
  uploads: readonly string[],
  { signal }: Watch,
): Promise<void> => {
  for (const each of uploads) {
    const kept = await parts.list(key, each, { signal }).catch((error: unknown) => {
      // Its writer has ended it meanwhile, or alone may see it.
      if (error instanceof S3Error && (error.code === 'NoSuchUpload' || error.status === 403))
        return undefined
      throw error
    })
    if (kept?.length === 0) await parts.abort(key, each, { signal })
  }
}

/** Removes an upload, and those of the key that no part has reached. */
export const discardParts = async (
  parts: S3Parts,
  key: string,
  upload: string,
  { signal }: Watch,
): Promise<void> => {
  await parts.abort(key, upload, { signal })
  await abortEmpty(parts, key, await unfinishedOf(parts, key, { signal }), { signal })
}

/** The upload of an earlier attempt that the store still has, else a new one. */
export const openUploadParts = async (
  parts: S3Parts,
  key: string,
  { earlier, signal }: UploadOptions,
): Promise<OpenUpload> => {
  const unfinished = await unfinishedOf(parts, key, { signal })
  const known = earlier.find((each) => unfinished.includes(each))
  if (known !== undefined) {
    const kept = await parts.list(key, known, { signal })
    return { upload: known, receivedBytes: kept.reduce((sum, { sizeBytes }) => sum + sizeBytes, 0) }
  }
  if (earlier.length > 0) await abortEmpty(parts, key, unfinished, { signal })
  return { upload: await parts.begin(key, { signal }), receivedBytes: 0 }
}
