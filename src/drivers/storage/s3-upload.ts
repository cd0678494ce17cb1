import { hash } from 'node:crypto'
import type { Readable } from 'node:stream'
import { piecesOf } from '../../clients/pieces.ts'
import { abandonMs, S3Error, type KeptPart, type S3Bucket, type S3Parts } from '../../clients/s3.ts'
import type { OpenUpload, UploadOptions, Watch } from './contract.ts'
import { endedBy } from './streams.ts'

/** Limits of S3 for the parts of one upload. */
const mostParts = 10_000
const smallestPart = 5 * 2 ** 20
/** Memory of one upload is this many parts. */
const partsAtOnce = 3

/** Bytes of each part but the last: as many as are usual, or more for a file of many parts. */
const partSize = (sizeBytes: number, usual: number): number => {
  const needed = Math.ceil(sizeBytes / mostParts / 2 ** 20) * 2 ** 20
  return Math.max(smallestPart, usual, needed)
}

const md5 = (bytes: Buffer): string => hash('md5', bytes)
/** The tag of a part is the MD5 of its bytes, unless the store encrypts with a key of its own. */
const isKept = (part: KeptPart | undefined, bytes: Buffer): part is KeptPart =>
  part?.sizeBytes === bytes.length && part.etag.replaceAll('"', '') === md5(bytes)

interface Sending extends Watch {
  upload: string
  onlyNew: boolean
}

/**
 * Sends pieces as the parts of an upload, but for those that the store keeps, and gives the file its
 * name.
 */
const sendPieces = async (
  parts: S3Parts,
  key: string,
  source: Readable,
  pieces: AsyncIterable<Buffer>,
  options: Sending & { kept: ReadonlyMap<number, KeptPart> },
): Promise<void> => {
  const { upload, onlyNew, kept } = options
  const stop = new AbortController()
  const signal = options.signal === undefined ? stop.signal : AbortSignal.any([options.signal, stop.signal])
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
    using _ = endedBy(signal, source)
    let number = 0
    for await (const bytes of pieces) {
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

/**
 * Sends the parts of a whole file that the store does not have yet, and gives the file its name. A
 * part that is kept is compared by its tag and not sent.
 * @throws S3Error; the error of the stream
 */
export const sendParts = async (
  parts: S3Parts,
  key: string,
  source: Readable,
  { sizeBytes, usualPart, ...sending }: Sending & { sizeBytes: number; usualPart: number },
): Promise<void> => {
  const { upload, signal } = sending
  const kept = new Map((await parts.list(key, upload, { signal })).map((part) => [part.number, part]))
  const size = kept.get(1)?.sizeBytes ?? partSize(sizeBytes, usualPart)
  await sendPieces(parts, key, source, piecesOf(source, size), { ...sending, kept })
}

async function* withFirst(first: Buffer[], rest: AsyncIterable<Buffer>): AsyncGenerator<Buffer> {
  for (let one = first.shift(); one !== undefined; one = first.shift()) yield one
  yield* rest
}

/**
 * Puts a stream under a key: in one request where it is no longer than a part, else in parts. A
 * failed upload leaves nothing. @throws as `sendParts`
 */
export const putWhole = async (
  { put }: Pick<S3Bucket, 'put'>,
  parts: S3Parts,
  key: string,
  source: Readable,
  given: Watch & { sizeBytes: number | undefined; usualPart: number; onlyNew: boolean },
): Promise<void> => {
  const { sizeBytes = 0, usualPart, onlyNew, signal } = given
  const pieces = piecesOf(source, partSize(sizeBytes, usualPart))
  const first: Buffer[] = []
  for (let next = await pieces.next(); next.done !== true; next = await pieces.next())
    if (first.push(next.value) === 2) break
  if (first.length < 2) return put(key, first[0] ?? Buffer.alloc(0), { onlyNew, signal })
  const upload = await parts.begin(key, { signal })
  try {
    const kept = new Map<number, KeptPart>()
    await sendPieces(parts, key, source, withFirst(first, pieces), { upload, onlyNew, kept, signal })
  } catch (error) {
    await parts.abort(key, upload, { signal: AbortSignal.timeout(abandonMs) }).catch(() => undefined)
    throw error
  }
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

/** The parts of an upload; undefined where it is over, or the credential may not see it. */
const keptParts = async (
  parts: S3Parts,
  key: string,
  upload: string,
  { signal }: Watch,
): Promise<KeptPart[] | undefined> => {
  try {
    return await parts.list(key, upload, { signal })
  } catch (error) {
    // Some stores refuse an id that they cannot have given with 400.
    if (error instanceof S3Error && [400, 403, 404].includes(error.status ?? 0)) return undefined
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
    const kept = await keptParts(parts, key, each, { signal })
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
  for (const upload of earlier) {
    const kept = await keptParts(parts, key, upload, { signal })
    // Some stores list no parts of an upload that is over.
    if (kept !== undefined && kept.length > 0)
      return { upload, receivedBytes: kept.reduce((sum, { sizeBytes }) => sum + sizeBytes, 0) }
  }
  if (earlier.length > 0) await abortEmpty(parts, key, await unfinishedOf(parts, key, { signal }), { signal })
  return { upload: await parts.begin(key, { signal }), receivedBytes: 0 }
}
