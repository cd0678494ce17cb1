import { createHash, createSign } from 'node:crypto'
import type { Readable } from 'node:stream'
import { z } from 'zod'
import { openGoogleToken, type ServiceAccountKey } from './google-token.ts'
import { HttpError } from './http-error.ts'
import type { HttpAnswer } from './http-exchange.ts'
import type { Http, HttpRequest } from './http.ts'
import { piecesOf, usualPartBytes } from './pieces.ts'
import { S3Error, type S3Bucket, type S3Object, type S3PutOptions } from './s3.ts'

/** Absent: requests are not signed. */
export type GcsCredential = ServiceAccountKey

export interface GcsAddress {
  /** Address of the service: `https://storage.googleapis.com`. */
  endpoint: string
  bucket: string
}

const answerMs = 30_000
/** Limit for one part of an upload. */
const partMs = 600_000
const day = 86_400_000
/** Google takes multiples of this size for all parts but the last. */
const partUnit = 256 * 1024
const largestAnswer = 16 * 1024 * 1024
const scope = 'https://www.googleapis.com/auth/devstorage.read_write'

const Item = z.object({
  name: z.string(),
  size: z.string().optional(),
  generation: z.string().optional(),
  updated: z.string().optional(),
  md5Hash: z.string().optional(),
})
const Page = z.object({
  items: z.array(Item).optional(),
  prefixes: z.array(z.string()).optional(),
  nextPageToken: z.string().optional(),
})
const Rewritten = z.object({ done: z.boolean(), rewriteToken: z.string().optional() })
const Fault = z.object({ error: z.object({ message: z.string() }) })

const objectOf = ({ name, size = '0', generation = '', updated = '' }: z.output<typeof Item>): S3Object => {
  const modifiedAt = Date.parse(updated)
  return {
    key: name,
    sizeBytes: Number(size),
    modifiedAt: Number.isNaN(modifiedAt) ? undefined : modifiedAt,
    // Each content of a key has a generation of its own.
    etag: `"${generation}"`,
  }
}

const encoded = (text: string): string =>
  encodeURIComponent(text).replace(/[!'()*]/g, (char) => `%${char.charCodeAt(0).toString(16).toUpperCase()}`)

/** A signed URL in Google's V4 format: any holder may read the object. */
const presigned = (
  { endpoint, bucket }: GcsAddress,
  { clientEmail, privateKey }: GcsCredential,
  key: string,
  seconds: number,
): string => {
  const { host, origin } = new URL(endpoint)
  const time = new Date().toISOString().replace(/[-:]|\.\d+/g, '')
  const place = `${time.slice(0, 8)}/auto/storage/goog4_request`
  const path = `/${bucket}/${key.split('/').map(encoded).join('/')}`
  const query = [
    ['X-Goog-Algorithm', 'GOOG4-RSA-SHA256'],
    ['X-Goog-Credential', `${clientEmail}/${place}`],
    ['X-Goog-Date', time],
    ['X-Goog-Expires', String(seconds)],
    ['X-Goog-SignedHeaders', 'host'],
  ]
    .map(([name = '', value = '']) => `${name}=${encoded(value)}`)
    .join('&')
  const request = ['GET', path, query, `host:${host}\n`, 'host', 'UNSIGNED-PAYLOAD'].join('\n')
  const digest = createHash('sha256').update(request).digest('hex')
  const signature = createSign('RSA-SHA256')
    .update(['GOOG4-RSA-SHA256', time, place, digest].join('\n'))
    .sign(privateKey, 'hex')
  return `${origin}${path}?${query}&X-Goog-Signature=${signature}`
}

/** Requests to the service, and what its answers mean. */
const openCalls = ({ http, place, credential }: GcsOptions) => {
  const token = credential && openGoogleToken(credential, scope)
  const { bucket } = place

  const refused = async (
    answer: HttpAnswer,
    { isList, hasDigest }: { isList: boolean; hasDigest: boolean },
  ): Promise<S3Error> => {
    const { status, headers } = answer
    const text = (await answer.bytes(64 * 1024).catch(() => Buffer.alloc(0))).toString()
    let message = text
    try {
      ;({ message } = Fault.parse(JSON.parse(text)).error)
    } catch {
      // The service does not use the expected format.
    }
    const shown = answer
      .quotable(message)
      .replace(/[^\x20-\x7e]+/g, ' ')
      .slice(0, 300)
    const after = Number(headers['retry-after'])
    const isDigest = hasDigest && status === 400 && /\b(md5|crc32c|checksum|hash)\b/i.test(shown)
    const named = status === 404 && isList ? 'NoSuchBucket' : isDigest ? 'BadDigest' : undefined
    const code = named ?? (status === 401 && credential ? 'InvalidToken' : `${status}`)
    return new S3Error(code, `bucket ${bucket} answers ${status} ${shown}`, {
      status,
      retryAfterSeconds: Number.isFinite(after) ? after : undefined,
    })
  }

  const call = async (
    url: string,
    request: Omit<Partial<HttpRequest>, 'limitBytes'> & { isList?: boolean } = {},
  ): Promise<HttpAnswer> => {
    const { isList = false, headers, signal, ...rest } = request
    try {
      const answer = await http.request(url, {
        deadlineMs: answerMs,
        limitBytes: Number.POSITIVE_INFINITY,
        signal,
        headers: { ...headers, ...(token === undefined ? {} : { authorization: `Bearer ${token()}` }) },
        ...rest,
      })
      if (answer.status >= 200 && answer.status < 300) return answer
      throw await refused(answer, { isList, hasDigest: headers?.['x-goog-hash'] !== undefined })
    } catch (error) {
      if (signal?.aborted === true) throw signal.reason as Error
      if (error instanceof HttpError) throw new S3Error(error.fault, error.message, { cause: error })
      throw error
    }
  }
  const document = async <T extends z.ZodType>(schema: T, answer: HttpAnswer): Promise<z.output<T>> => {
    try {
      return schema.parse(JSON.parse((await answer.bytes(largestAnswer)).toString()))
    } catch (error) {
      if (error instanceof HttpError) throw new S3Error(error.fault, error.message, { cause: error })
      throw new S3Error('refused', `bucket ${bucket} answers what is no document of Google's storage`)
    }
  }

  const base = place.endpoint.replace(/\/+$/, '')
  const objects = `${base}/storage/v1/b/${encoded(bucket)}/o`
  return {
    call,
    document,
    objects,
    objectUrl: (key: string): string => `${objects}/${encoded(key)}`,
    uploads: `${base}/upload/storage/v1/b/${encoded(bucket)}/o`,
  }
}
type Calls = ReturnType<typeof openCalls>

const fields = 'name,size,generation,updated'

/** The header with which the service refuses other bytes than those of the digest. */
const hashHeader = (md5: string) => ({ 'x-goog-hash': `md5=${md5}` })

/**
 * Compares a new object with what was sent: a service may leave that header unread. The object is
 * removed where they differ. @throws S3Error `BadDigest`
 */
const refuseOthers = async (
  { call, document, objectUrl }: Calls,
  { bucket }: GcsAddress,
  key: string,
  { answer, md5 }: { answer: HttpAnswer; md5: string },
): Promise<void> => {
  const { generation = '', md5Hash } = await document(Item, answer)
  if (md5Hash === md5) return
  await call(`${objectUrl(key)}?generation=${encoded(generation)}`, { method: 'DELETE' }).catch(
    () => undefined,
  )
  throw new S3Error(
    'BadDigest',
    `bucket ${bucket} has stored other bytes than those that were sent; send it again`,
  )
}

/** An upload in parts; the service keeps them until the last one. */
const uploadStream = async (
  calls: Calls,
  { place, partBytes = () => Promise.resolve(usualPartBytes) }: GcsOptions,
  key: string,
  body: Readable,
  { onlyNew, signal }: S3PutOptions,
): Promise<void> => {
  const { call, uploads } = calls
  const { endpoint, bucket } = place
  const part = Math.max(1, Math.floor((await partBytes()) / partUnit)) * partUnit
  const query = `uploadType=resumable&name=${encoded(key)}${onlyNew ? '&ifGenerationMatch=0' : ''}`
  const begun = await call(`${uploads}?${query}`, {
    ...{ method: 'POST', body: '{}', signal },
    headers: { 'content-type': 'application/json' },
  })
  await begun.bytes(largestAnswer)
  const session = new URL(begun.headers.location ?? '', endpoint)
  // The token is sent only to the service that the storage names.
  if (session.origin !== new URL(endpoint).origin)
    throw new S3Error('refused', `bucket ${bucket} sends the upload elsewhere, which is not followed`)
  const hash = createHash('md5')
  let last: { answer: HttpAnswer; md5: string }
  try {
    let size = 0
    const send = async (bytes: Buffer, md5?: string): Promise<HttpAnswer> => {
      const isLast = md5 !== undefined
      const total = isLast ? String(size + bytes.length) : '*'
      const range =
        bytes.length === 0 ? `bytes */${total}` : `bytes ${size}-${size + bytes.length - 1}/${total}`
      const answer = await call(session.href, {
        ...{ method: 'PUT', body: bytes, signal, deadlineMs: partMs },
        // Without it a part before the last is answered with 308, which all other clients read as a
        // redirect.
        headers: { 'content-range': range, 'x-guploader-no-308': 'yes', ...(isLast ? hashHeader(md5) : {}) },
      })
      size += bytes.length
      return answer
    }
    let held: Buffer | undefined
    for await (const piece of piecesOf(body, part)) {
      if (held !== undefined) await (await send(held)).bytes(largestAnswer)
      hash.update(piece)
      held = piece
    }
    const md5 = hash.digest('base64')
    last = { md5, answer: await send(held ?? Buffer.alloc(0), md5) }
  } catch (error) {
    await call(session.href, { method: 'DELETE' }).catch(() => undefined)
    throw error
  }
  await refuseOthers(calls, place, key, last)
}

export interface GcsOptions {
  http: Http
  place: GcsAddress
  credential?: GcsCredential | undefined
  /** Bytes of one part of an upload, rounded down to multiples of 256 KiB; default 8 MiB. */
  partBytes?: (() => Promise<number>) | undefined
}

/**
 * A bucket of Google Cloud Storage, by its JSON API. As with `openS3`: requests go out once, only
 * to addresses that were judged, and no redirect is followed.
 */
export const openGcs = (options: GcsOptions): S3Bucket => {
  const { place, credential } = options
  const calls = openCalls(options)
  const { call, document, objects, objectUrl, uploads } = calls
  const head: S3Bucket['head'] = async (key, { signal } = {}) =>
    objectOf(await document(Item, await call(`${objectUrl(key)}?fields=${fields}`, { signal })))

  return {
    async page(prefix, { limit, after, signal }) {
      const query = [
        `prefix=${encoded(prefix)}&delimiter=%2F&maxResults=${limit}`,
        `fields=nextPageToken,prefixes,items(${fields})`,
        ...(after === undefined ? [] : [`pageToken=${encoded(after)}`]),
      ].join('&')
      const page = await document(Page, await call(`${objects}?${query}`, { signal, isList: true }))
      return {
        objects: (page.items ?? []).map(objectOf),
        folders: page.prefixes ?? [],
        next: page.nextPageToken === '' ? undefined : page.nextPageToken,
      }
    },
    head,
    async get(key, { from, to, signal } = {}) {
      const object = await head(key, { signal })
      const answer = await call(`${objectUrl(key)}?alt=media`, {
        ...{ signal, deadlineMs: 30 * day, headMs: answerMs, idleMs: answerMs },
        headers: {
          // Objects that are stored compressed arrive compressed.
          'accept-encoding': 'gzip',
          ...(from === undefined ? {} : { range: `bytes=${from}-${to ?? ''}` }),
        },
      })
      const generation = answer.headers['x-goog-generation']
      return {
        object: typeof generation === 'string' ? { ...object, etag: `"${generation}"` } : object,
        stream: answer.body,
      }
    },
    async put(key, body, { onlyNew, signal }) {
      const query = `uploadType=media&name=${encoded(key)}${onlyNew ? '&ifGenerationMatch=0' : ''}`
      const md5 = createHash('md5').update(body).digest('base64')
      const answer = await call(`${uploads}?${query}`, {
        ...{ method: 'POST', body, signal, deadlineMs: partMs },
        headers: { 'content-type': 'application/octet-stream', ...hashHeader(md5) },
      })
      await refuseOthers(calls, place, key, { answer, md5 })
    },
    putStream: (key, body, sending) => uploadStream(calls, options, key, body, sending),
    async copy(from, to, { onlyNew, signal }) {
      const condition = onlyNew ? 'ifGenerationMatch=0' : ''
      const url = `${objectUrl(from)}/rewriteTo/b/${encoded(place.bucket)}/o/${encoded(to)}`
      for (let query = `?${condition}`; ;) {
        const answer = await call(`${url}${query}`, { method: 'POST', signal, deadlineMs: partMs })
        const { done, rewriteToken } = await document(Rewritten, answer)
        if (done) return
        query = `?${condition}&rewriteToken=${encoded(rewriteToken ?? '')}`
      }
    },
    async remove(key, { signal } = {}) {
      try {
        const answer = await call(objectUrl(key), { method: 'DELETE', signal })
        await answer.bytes(largestAnswer)
      } catch (error) {
        // Nothing has the key.
        if (!(error instanceof S3Error) || error.status !== 404) throw error
      }
    },
    presign: (key, seconds) =>
      Promise.resolve(
        credential === undefined
          ? `${new URL(place.endpoint).origin}/${place.bucket}/${key.split('/').map(encoded).join('/')}`
          : presigned(place, credential, key, seconds),
      ),
  }
}
