import type {
  HeadObjectCommandOutput,
  ListMultipartUploadsCommandOutput,
  ListObjectsV2CommandOutput,
  S3,
  S3ClientConfig,
  S3ServiceException,
} from '@aws-sdk/client-s3'
import { AwsV4Signer } from 'aws4fetch'
import { hash } from 'node:crypto'
import type { Readable } from 'node:stream'
import type { AwsKey } from './aws-key.ts'
import { HttpError } from './http-error.ts'
import type { Http } from './http.ts'
import { kept } from '../pacing/kept.ts'

export interface S3Address {
  /** Address of the service, without the bucket. */
  endpoint: string
  bucket: string
  region: string
  /** The bucket is in the path of a URL and not in its host. */
  pathStyle: boolean
}

/** Of one object. */
export interface S3Object {
  key: string
  sizeBytes: number
  modifiedAt: number | undefined
  etag: string | undefined
}

export interface S3Page {
  objects: S3Object[]
  /** Keys up to the next `/`, with it. */
  folders: string[]
  next: string | undefined
}

/**
 * A store's error, or why no answer came. `code` is the store's own code (`NoSuchKey`), the name of
 * the system's error (`ECONNREFUSED`), `denied` for an address that no connection may lead to, or
 * `late`.
 */
export class S3Error extends Error {
  readonly code: string
  readonly status: number | undefined
  readonly retryAfterSeconds: number | undefined
  constructor(
    code: string,
    message: string,
    facts: { status?: number | undefined; retryAfterSeconds?: number | undefined; cause?: unknown } = {},
  ) {
    super(message, { cause: facts.cause })
    this.name = 'S3Error'
    this.code = code
    this.status = facts.status
    this.retryAfterSeconds = facts.retryAfterSeconds
  }
}

interface Watch {
  signal?: AbortSignal | undefined
}

export interface S3PutOptions extends Watch {
  /** The store refuses with 412 where the key is taken. */
  onlyNew: boolean
}

/** One part of an unfinished upload that the store has. */
export interface KeptPart {
  number: number
  sizeBytes: number
  etag: string
}

/** What an object says of its content; a copy keeps it. */
export type ObjectFacts = Pick<
  HeadObjectCommandOutput,
  | 'CacheControl'
  | 'ContentDisposition'
  | 'ContentEncoding'
  | 'ContentLanguage'
  | 'ContentType'
  | 'Metadata'
  | 'WebsiteRedirectLocation'
> & { Expires?: Date | undefined }

/** Uploads whose parts the store keeps until they are completed or removed. */
export interface S3Parts {
  /** @returns the upload's id, which is no credential */
  begin(key: string, options?: Watch & { facts?: ObjectFacts | undefined }): Promise<string>
  /** Ids of the key's unfinished uploads. */
  unfinished(key: string, options?: Watch): Promise<string[]>
  /** In the order of their numbers, from 1 on. */
  list(key: string, upload: string, options?: Watch): Promise<KeptPart[]>
  /** @returns the part's tag */
  send(key: string, upload: string, number: number, bytes: Buffer, options?: Watch): Promise<string>
  complete(
    key: string,
    upload: string,
    parts: readonly { number: number; etag: string }[],
    options: S3PutOptions,
  ): Promise<void>
  /** No effect where the store does not have the upload. */
  abort(key: string, upload: string, options?: Watch): Promise<void>
}

/**
 * One bucket. Each request is sent once; the caller retries. It connects only to judged addresses
 * and follows no redirect. @throws S3Error; the reason of an aborted signal
 */
export interface S3Bucket {
  page(prefix: string, options: Watch & { limit: number; after?: string | undefined }): Promise<S3Page>
  head(key: string, options?: Watch): Promise<S3Object>
  get(
    key: string,
    options?: Watch & { from?: number | undefined; to?: number | undefined },
  ): Promise<{ object: S3Object; stream: Readable }>
  put(key: string, body: Buffer, options: S3PutOptions): Promise<void>
  /** A failed upload leaves nothing. Present where `parts` is absent. */
  putStream?: ((key: string, body: Readable, options: S3PutOptions) => Promise<void>) | undefined
  /** Content and facts of an object, which may be empty. */
  copy(from: string, to: string, options: S3PutOptions): Promise<void>
  remove(key: string, options?: Watch): Promise<void>
  /** Absent where an unfinished upload is found again by a credential only. */
  parts?: S3Parts | undefined
  /** A URL that is valid for so many seconds. */
  presign(key: string, seconds: number): Promise<string>
}

/** Limit from the call to the head of the answer, and between two bytes. */
const answerMs = 30_000
const connectMs = 10_000
/**
 * A store that does not answer keeps the parts of a failed upload; the store's own rules remove
 * them.
 */
export const abandonMs = 30_000

const codeOf = (error: Error & { code?: string }): string => error.code ?? error.name

const isAnswer = (error: unknown): error is S3ServiceException =>
  error instanceof Error && '$metadata' in error && '$fault' in error

/** The message contains neither a request nor a signature. */
const errorOf = (error: unknown, bucket: string): Error => {
  if (isAnswer(error)) {
    const { httpStatusCode: status } = error.$metadata
    const after = Number(error.$response?.headers['retry-after'])
    const detail =
      error.message === '' || error.message === 'UnknownError'
        ? error.name
        : `${error.name}: ${error.message}`
    return new S3Error(
      error.name,
      `bucket ${bucket} answers ${status ?? 'nothing'} ${detail.slice(0, 300)}`,
      {
        status,
        retryAfterSeconds: Number.isFinite(after) ? after : undefined,
      },
    )
  }
  if (error instanceof HttpError) return new S3Error(error.fault, error.message)
  const { name, message } = error as Error & { code?: string }
  if (name === 'TimeoutError') return new S3Error('late', `bucket ${bucket} does not answer: ${message}`)
  return new S3Error(
    codeOf(error as Error),
    `bucket ${bucket} cannot be reached: ${message || codeOf(error as Error)}`,
  )
}

/** Commands whose body is the content of an object. */
const contents = new Set(['PutObjectCommand', 'UploadPartCommand'])

/**
 * Makes a client send the MD5 of content, which every store compares with what it has got:
 * signatures need not cover content, and a request may have none.
 */
const sendDigests = (client: S3): S3 => {
  client.middlewareStack.add(
    (next, { commandName }) =>
      (args) => {
        const { request } = args as { request: { body?: unknown; headers: Record<string, string> } }
        if (contents.has(String(commandName)) && request.body instanceof Uint8Array)
          request.headers['content-md5'] = hash('md5', request.body, 'base64')
        return next(args)
      },
    { step: 'build', name: 'contentDigest' },
  )
  return client
}

const clientOf = async (http: Http, place: S3Address, credential: AwsKey | undefined): Promise<S3> => {
  // Loading the library takes 150 ms and 35 MB, and many deployments have no bucket.
  const { S3: Client } = await import('@aws-sdk/client-s3')
  const { 'http:': httpAgent, 'https:': httpsAgent } = http.agents.kept
  const signing: Partial<S3ClientConfig> =
    credential === undefined
      ? {
          credentials: { accessKeyId: '', secretAccessKey: '' },
          signer: { sign: (request) => Promise.resolve(request) },
        }
      : { credentials: { ...credential } }
  const client = new Client({
    ...signing,
    endpoint: place.endpoint,
    region: place.region,
    forcePathStyle: place.pathStyle,
    maxAttempts: 1,
    followRegionRedirects: false,
    useArnRegion: false,
    // Ceph answers the default's trailers with 411.
    requestChecksumCalculation: 'WHEN_REQUIRED',
    responseChecksumValidation: 'WHEN_REQUIRED',
    requestHandler: {
      httpAgent,
      httpsAgent,
      connectionTimeout: connectMs,
      requestTimeout: answerMs,
      throwOnRequestTimeout: true,
      socketTimeout: answerMs,
    },
    // The machine's configuration for other programs is not used here.
    defaultUserAgentProvider: () => Promise.resolve([['orrery', '1']]),
  })
  return sendDigests(client)
}

/**
 * XML cannot carry all keys, so each list requests encoded keys; the answer's `EncodingType` shows
 * whether the store has encoded them.
 */
const decoderOf = ({
  EncodingType,
}: {
  EncodingType?: string | undefined
}): ((text: string | undefined) => string) =>
  EncodingType === 'url' ? (text = '') => decodeURIComponent(text.replaceAll('+', ' ')) : (text = '') => text
/** A key in the form of `x-amz-copy-source` and of URLs. */
const encodedKey = (key: string): string => key.split('/').map(encodeURIComponent).join('/')

const urlOf = ({ endpoint, bucket, pathStyle }: S3Address, key: string): string => {
  const url = new URL(endpoint)
  const base = url.pathname.replace(/\/+$/, '')
  if (!pathStyle) url.host = `${bucket}.${url.host}`
  url.pathname = pathStyle ? `${base}/${bucket}/${encodedKey(key)}` : `${base}/${encodedKey(key)}`
  return url.href
}

/** A page of a list in the service's own form. */
const pageOf = (page: ListObjectsV2CommandOutput): S3Page => {
  const decoded = decoderOf(page)
  return {
    objects: (page.Contents ?? []).map(({ Key, Size, LastModified, ETag }) => ({
      key: decoded(Key),
      sizeBytes: Size ?? 0,
      // Some stores list parts of a second, which the head of an object does not have.
      modifiedAt: LastModified && Math.floor(LastModified.getTime() / 1_000) * 1_000,
      etag: ETag,
    })),
    folders: (page.CommonPrefixes ?? []).map(({ Prefix }) => decoded(Prefix)),
    next: page.IsTruncated === true ? page.NextContinuationToken : undefined,
  }
}

const objectOf = (
  key: string,
  {
    ContentLength = 0,
    LastModified,
    ETag,
  }: Pick<HeadObjectCommandOutput, 'ContentLength' | 'LastModified' | 'ETag'>,
): S3Object => ({ key, sizeBytes: ContentLength, modifiedAt: LastModified?.getTime(), etag: ETag })

const factsOf = (head: HeadObjectCommandOutput): ObjectFacts => {
  const expires = new Date(head.ExpiresString ?? '')
  return {
    CacheControl: head.CacheControl,
    ContentDisposition: head.ContentDisposition,
    ContentEncoding: head.ContentEncoding,
    ContentLanguage: head.ContentLanguage,
    ContentType: head.ContentType,
    Metadata: head.Metadata,
    WebsiteRedirectLocation: head.WebsiteRedirectLocation,
    ...(Number.isNaN(expires.getTime()) ? {} : { Expires: expires }),
  }
}

/** Asks a store. @throws S3Error; the reason of the signal when it is aborted */
type Ask = <T>(
  signal: AbortSignal | undefined,
  question: (s3: S3, watch: { abortSignal?: AbortSignal }) => Promise<T>,
) => Promise<T>

const partsOf = (Bucket: string, ask: Ask): S3Parts => ({
  begin: (Key, { facts, signal } = {}) =>
    ask(signal, async (s3, watch) => {
      const { UploadId = '' } = await s3.createMultipartUpload({ Bucket, Key, ...facts }, watch)
      return UploadId
    }),
  unfinished: (key, { signal } = {}) =>
    ask(signal, async (s3, watch) => {
      const found: string[] = []
      let [KeyMarker, UploadIdMarker]: (string | undefined)[] = []
      do {
        const page: ListMultipartUploadsCommandOutput = await s3.listMultipartUploads(
          { Bucket, Prefix: key, KeyMarker, UploadIdMarker },
          watch,
        )
        for (const { Key, UploadId } of page.Uploads ?? [])
          if (Key === key && UploadId !== undefined) found.push(UploadId)
        const isLast = page.IsTruncated !== true || page.NextKeyMarker === undefined
        ;[KeyMarker, UploadIdMarker] = isLast ? [] : [page.NextKeyMarker, page.NextUploadIdMarker]
      } while (KeyMarker !== undefined)
      return found
    }),
  list: (Key, UploadId, { signal } = {}) =>
    ask(signal, async (s3, watch) => {
      const parts: KeptPart[] = []
      let PartNumberMarker: string | undefined
      do {
        const page = await s3.listParts({ Bucket, Key, UploadId, PartNumberMarker }, watch)
        for (const { PartNumber, Size, ETag } of page.Parts ?? [])
          parts.push({ number: PartNumber ?? 0, sizeBytes: Size ?? 0, etag: ETag ?? '' })
        PartNumberMarker = page.IsTruncated === true ? page.NextPartNumberMarker : undefined
      } while (PartNumberMarker !== undefined)
      return parts.toSorted((a, b) => a.number - b.number)
    }),
  send: (Key, UploadId, PartNumber, Body, { signal } = {}) =>
    ask(signal, async (s3, watch) => {
      const { ETag = '' } = await s3.uploadPart({ Bucket, Key, UploadId, PartNumber, Body }, watch)
      return ETag
    }),
  complete: (Key, UploadId, parts, { onlyNew, signal }) =>
    ask(signal, async (s3, watch) => {
      const Parts = parts.map(({ number, etag }) => ({ PartNumber: number, ETag: etag }))
      const of = { Bucket, Key, UploadId, MultipartUpload: { Parts } }
      await s3.completeMultipartUpload({ ...of, ...(onlyNew ? { IfNoneMatch: '*' } : {}) }, watch)
    }),
  async abort(Key, UploadId, { signal } = {}) {
    try {
      await ask(signal, (s3, watch) => s3.abortMultipartUpload({ Bucket, Key, UploadId }, watch))
    } catch (error) {
      if (!(error instanceof S3Error) || error.code !== 'NoSuchUpload') throw error
    }
  },
})

/**
 * Copies an object to a key that is free. Many stores ignore a condition of CopyObject, and know the
 * one of a completed upload, which has the facts that it began with.
 */
const copyNew = async (
  ask: Ask,
  parts: S3Parts,
  { Bucket, from, to }: { Bucket: string; from: string; to: string },
  signal: AbortSignal | undefined,
): Promise<void> => {
  const head = await ask(signal, (s3, watch) => s3.headObject({ Bucket, Key: from }, watch))
  const facts = factsOf(head)
  // Not every store takes an empty object as a part.
  if (head.ContentLength === 0) {
    const empty = { Bucket, Key: to, Body: Buffer.alloc(0), IfNoneMatch: '*', ...facts }
    await ask(signal, (s3, watch) => s3.putObject(empty, watch))
    return
  }
  const UploadId = await parts.begin(to, { facts, signal })
  try {
    const source = { CopySource: `${Bucket}/${encodedKey(from)}`, CopySourceIfMatch: head.ETag }
    const part = { Bucket, Key: to, UploadId, PartNumber: 1, ...source }
    const copied = ask(signal, (s3, watch) => s3.uploadPartCopy(part, watch))
    const { CopyPartResult } = await copied.catch((error: unknown) => {
      if (!(error instanceof S3Error) || error.status !== 412) throw error
      throw new S3Error(
        'SourceChanged',
        `${from} in bucket ${Bucket} was replaced while it was copied; retry`,
      )
    })
    const etag = CopyPartResult?.ETag ?? ''
    await parts.complete(to, UploadId, [{ number: 1, etag }], { onlyNew: true, signal })
  } catch (error) {
    const abandoned = { signal: AbortSignal.timeout(abandonMs) }
    await parts.abort(to, UploadId, abandoned).catch(() => undefined)
    throw error
  }
}

/** A URL of an object that any holder may use for so many seconds. */
const signedUrl = async (
  place: S3Address,
  credential: AwsKey | undefined,
  key: string,
  seconds: number,
): Promise<string> => {
  const url = urlOf(place, key)
  if (credential === undefined) return url
  const signed = new URL(url)
  signed.searchParams.set('X-Amz-Expires', String(seconds))
  const signer = new AwsV4Signer({
    ...{ ...credential, url: signed.href, service: 's3', region: place.region, signQuery: true },
  })
  return (await signer.sign()).url.href
}

/**
 * `http` stays the caller's; it contacts nothing yet. The library's client is never destroyed: that
 * would end the agents of `http`, and with them the open requests of all others that use it.
 */
export const openS3 = (options: {
  http: Http
  place: S3Address
  /** Absent: requests are not signed. */
  credential?: AwsKey | undefined
}): S3Bucket => {
  const { http, place, credential } = options
  const { bucket: Bucket } = place
  const opened = kept(Number.POSITIVE_INFINITY, () => clientOf(http, place, credential))
  const ask: Ask = async (signal, question) => {
    try {
      return await question(await opened(), signal === undefined ? {} : { abortSignal: signal })
    } catch (error) {
      if (signal?.aborted === true) throw signal.reason as Error
      throw errorOf(error, Bucket)
    }
  }
  const parts = partsOf(Bucket, ask)

  return {
    page: (prefix, { limit, after, signal }) =>
      ask(signal, async (s3, watch) => {
        const of = { Bucket, Prefix: prefix, Delimiter: '/', MaxKeys: limit, ContinuationToken: after }
        return pageOf(await s3.listObjectsV2({ ...of, EncodingType: 'url' }, watch))
      }),

    head: (key, { signal } = {}) =>
      ask(signal, async (s3, watch) => objectOf(key, await s3.headObject({ Bucket, Key: key }, watch))),

    get: (key, { from, to, signal } = {}) =>
      ask(signal, async (s3, watch) => {
        const Range = from === undefined ? undefined : `bytes=${from}-${to ?? ''}`
        const answer = await s3.getObject({ Bucket, Key: key, Range }, watch)
        const whole = /\/(\d+)$/.exec(answer.ContentRange ?? '')?.[1]
        const sizeBytes = whole === undefined ? answer.ContentLength : Number(whole)
        return {
          object: objectOf(key, { ...answer, ContentLength: sizeBytes }),
          stream: answer.Body as unknown as Readable,
        }
      }),

    put: (key, body, { onlyNew, signal }) =>
      ask(signal, async (s3, watch) => {
        const of = { Bucket, Key: key, Body: body }
        await s3.putObject({ ...of, ...(onlyNew ? { IfNoneMatch: '*' } : {}) }, watch)
      }),

    async copy(from, to, { onlyNew, signal }) {
      if (onlyNew) return copyNew(ask, parts, { Bucket, from, to }, signal)
      const CopySource = `${Bucket}/${encodedKey(from)}`
      await ask(signal, (s3, watch) => s3.copyObject({ Bucket, Key: to, CopySource }, watch))
    },

    async remove(key, { signal } = {}) {
      await ask(signal, (s3, watch) => s3.deleteObject({ Bucket, Key: key }, watch))
    },

    parts,

    presign: (key, seconds) => signedUrl(place, credential, key, seconds),
  }
}
