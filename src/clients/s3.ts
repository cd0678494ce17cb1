import type {
  HeadObjectCommandOutput,
  ListMultipartUploadsCommandOutput,
  ListObjectsV2CommandOutput,
  PutObjectCommandInput,
  S3Client,
  S3ClientConfig,
  S3ServiceException,
} from '@aws-sdk/client-s3'
import { AwsV4Signer } from 'aws4fetch'
import { createHash } from 'node:crypto'
import type { Readable } from 'node:stream'
import { HttpError } from './http-error.ts'
import type { Http } from './http.ts'

/** An access key; absent: requests are not signed. */
export interface S3Credential {
  accessKeyId: string
  secretAccessKey: string
  sessionToken?: string | undefined
}

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

/** Loading the library takes 150 ms and 35 MB, and many deployments have no bucket. */
const library = () => Promise.all([import('@aws-sdk/client-s3'), import('@aws-sdk/lib-storage')])

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
  /** Uploads in parts of 8 MiB where the object is larger; a failed upload leaves nothing. */
  put(key: string, body: Readable | Buffer, options: S3PutOptions): Promise<void>
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
const partBytes = 8 * 1024 * 1024
/**
 * A store that does not answer keeps the parts of a failed upload; the store's own rules remove
 * them.
 */
const abandonMs = 30_000
const partsAtOnce = 4

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
const sendDigests = (client: S3Client): S3Client => {
  client.middlewareStack.add(
    (next, { commandName }) =>
      (args) => {
        const { request } = args as { request: { body?: unknown; headers: Record<string, string> } }
        if (contents.has(String(commandName)) && request.body instanceof Uint8Array)
          request.headers['content-md5'] = createHash('md5').update(request.body).digest('base64')
        return next(args)
      },
    { step: 'build', name: 'contentDigest' },
  )
  return client
}

const clientOf = (
  Client: typeof S3Client,
  http: Http,
  place: S3Address,
  credential: S3Credential | undefined,
): S3Client => {
  const { 'http:': httpAgent, 'https:': httpsAgent } = http.agents.kept
  const signing: Partial<S3ClientConfig> =
    credential === undefined
      ? {
          credentials: { accessKeyId: '', secretAccessKey: '' },
          signer: { sign: (request) => Promise.resolve(request) },
        }
      : { credentials: { ...credential, sessionToken: credential.sessionToken ?? '' } }
  if (credential !== undefined && credential.sessionToken === undefined)
    signing.credentials = { accessKeyId: credential.accessKeyId, secretAccessKey: credential.secretAccessKey }
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

/** The loaded library, and a client of it. */
interface Opened {
  sdk: Awaited<ReturnType<typeof library>>[0]
  Upload: Awaited<ReturnType<typeof library>>[1]['Upload']
  client: S3Client
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

/** Waits for `work`. @throws S3Error; the reason of the signal when it is aborted */
const answerOf = async <T>(bucket: string, work: Promise<T>, signal: AbortSignal | undefined): Promise<T> => {
  try {
    return await work
  } catch (error) {
    if (signal?.aborted === true) throw signal.reason as Error
    throw errorOf(error, bucket)
  }
}
const watched = (signal: AbortSignal | undefined): { abortSignal?: AbortSignal } =>
  signal === undefined ? {} : { abortSignal: signal }

/** Uploads a stream in parts. A failed upload leaves nothing at the store. */
const uploadStream = async (
  { sdk, Upload, client }: Opened,
  params: PutObjectCommandInput & { Bucket: string },
  signal: AbortSignal | undefined,
): Promise<void> => {
  const upload = new Upload({
    client,
    params,
    partSize: partBytes,
    queueSize: partsAtOnce,
    leavePartsOnError: false,
  })
  const stop = (): void => void upload.abort()
  // A signal that is aborted already sends no event.
  signal?.throwIfAborted()
  signal?.addEventListener('abort', stop, { once: true })
  try {
    await answerOf(params.Bucket, upload.done(), signal)
  } catch (error) {
    // The library may return before it has removed the parts. A missing upload is no error, and the
    // first error is the one that is reported.
    const { uploadId: UploadId } = upload
    const { Bucket, Key } = params
    const abandon = new sdk.AbortMultipartUploadCommand({ Bucket, Key, UploadId })
    if (UploadId !== undefined)
      await client.send(abandon, { abortSignal: AbortSignal.timeout(abandonMs) }).catch(() => undefined)
    throw error
  } finally {
    signal?.removeEventListener('abort', stop)
  }
}

const partsOf = (Bucket: string, open: () => Promise<Pick<Opened, 'sdk' | 'client'>>): S3Parts => {
  const asked = async <T>(
    signal: AbortSignal | undefined,
    ask: (opened: Pick<Opened, 'sdk' | 'client'>) => Promise<T>,
  ) => answerOf(Bucket, ask(await open()), signal)
  return {
    begin: (Key, { facts, signal } = {}) =>
      asked(signal, async ({ sdk, client }) => {
        const begun = await client.send(
          new sdk.CreateMultipartUploadCommand({ Bucket, Key, ...facts }),
          watched(signal),
        )
        return begun.UploadId ?? ''
      }),
    unfinished: (key, { signal } = {}) =>
      asked(signal, async ({ sdk, client }) => {
        const found: string[] = []
        let [KeyMarker, UploadIdMarker]: (string | undefined)[] = []
        do {
          const page: ListMultipartUploadsCommandOutput = await client.send(
            new sdk.ListMultipartUploadsCommand({ Bucket, Prefix: key, KeyMarker, UploadIdMarker }),
            watched(signal),
          )
          for (const { Key, UploadId } of page.Uploads ?? [])
            if (Key === key && UploadId !== undefined) found.push(UploadId)
          const isLast = page.IsTruncated !== true || page.NextKeyMarker === undefined
          ;[KeyMarker, UploadIdMarker] = isLast ? [] : [page.NextKeyMarker, page.NextUploadIdMarker]
        } while (KeyMarker !== undefined)
        return found
      }),
    list: (Key, UploadId, { signal } = {}) =>
      asked(signal, async ({ sdk, client }) => {
        const parts: KeptPart[] = []
        let marker: string | undefined
        do {
          const page = await client.send(
            new sdk.ListPartsCommand({ Bucket, Key, UploadId, PartNumberMarker: marker }),
            watched(signal),
          )
          for (const { PartNumber, Size, ETag } of page.Parts ?? [])
            parts.push({ number: PartNumber ?? 0, sizeBytes: Size ?? 0, etag: ETag ?? '' })
          marker = page.IsTruncated === true ? page.NextPartNumberMarker : undefined
        } while (marker !== undefined)
        return parts.toSorted((a, b) => a.number - b.number)
      }),
    send: (Key, UploadId, PartNumber, Body, { signal } = {}) =>
      asked(signal, async ({ sdk, client }) => {
        const sent = await client.send(
          new sdk.UploadPartCommand({ Bucket, Key, UploadId, PartNumber, Body }),
          watched(signal),
        )
        return sent.ETag ?? ''
      }),
    complete: (Key, UploadId, parts, { onlyNew, signal }) =>
      asked(signal, async ({ sdk, client }) => {
        const MultipartUpload = {
          Parts: parts.map(({ number, etag }) => ({ PartNumber: number, ETag: etag })),
        }
        await client.send(
          new sdk.CompleteMultipartUploadCommand({
            ...{ Bucket, Key, UploadId, MultipartUpload, ...(onlyNew ? { IfNoneMatch: '*' } : {}) },
          }),
          watched(signal),
        )
      }),
    async abort(Key, UploadId, { signal } = {}) {
      try {
        await asked(signal, ({ sdk, client }) =>
          client.send(new sdk.AbortMultipartUploadCommand({ Bucket, Key, UploadId }), watched(signal)),
        )
      } catch (error) {
        if (!(error instanceof S3Error) || error.code !== 'NoSuchUpload') throw error
      }
    },
  }
}

/**
 * Copies an object to a key that is free. Many stores ignore a condition of CopyObject, and know the
 * one of a completed upload, which has the facts that it began with.
 */
const copyNew = async (
  { sdk, client }: Pick<Opened, 'sdk' | 'client'>,
  parts: S3Parts,
  { Bucket, from, to }: { Bucket: string; from: string; to: string },
  signal: AbortSignal | undefined,
): Promise<void> => {
  const asked = <T>(work: Promise<T>): Promise<T> => answerOf(Bucket, work, signal)
  const head = await asked(client.send(new sdk.HeadObjectCommand({ Bucket, Key: from }), watched(signal)))
  const facts = factsOf(head)
  // Not every store takes an empty object as a part.
  if (head.ContentLength === 0) {
    const empty = { Bucket, Key: to, Body: Buffer.alloc(0), IfNoneMatch: '*', ...facts }
    await asked(client.send(new sdk.PutObjectCommand(empty), watched(signal)))
    return
  }
  const UploadId = await parts.begin(to, { facts, signal })
  try {
    const CopySource = `${Bucket}/${encodedKey(from)}`
    const source = { CopySource, CopySourceIfMatch: head.ETag }
    const part = new sdk.UploadPartCopyCommand({ Bucket, Key: to, UploadId, PartNumber: 1, ...source })
    const { CopyPartResult } = await asked(client.send(part, watched(signal))).catch((error: unknown) => {
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
  credential: S3Credential | undefined,
  key: string,
  seconds: number,
): Promise<string> => {
  const url = urlOf(place, key)
  if (credential === undefined) return url
  const { accessKeyId, secretAccessKey, sessionToken } = credential
  const signed = new URL(url)
  signed.searchParams.set('X-Amz-Expires', String(seconds))
  const signer = new AwsV4Signer({
    ...{
      url: signed.href,
      accessKeyId,
      secretAccessKey,
      service: 's3',
      region: place.region,
      signQuery: true,
    },
    ...(sessionToken === undefined ? {} : { sessionToken }),
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
  credential?: S3Credential | undefined
}): S3Bucket => {
  const { http, place, credential } = options
  const { bucket: Bucket } = place
  let opened: Opened | undefined
  const open = async (): Promise<Opened> => {
    const [sdk, { Upload }] = await library()
    return (opened ??= { sdk, Upload, client: clientOf(sdk.S3Client, http, place, credential) })
  }

  const named = <T>(work: Promise<T>, signal: AbortSignal | undefined): Promise<T> =>
    answerOf(Bucket, work, signal)
  const parts = partsOf(Bucket, open)

  return {
    async page(prefix, { limit, after, signal }) {
      const { sdk, client } = await open()
      const command = new sdk.ListObjectsV2Command({
        ...{ Bucket, Prefix: prefix, Delimiter: '/', MaxKeys: limit, EncodingType: 'url' },
        ContinuationToken: after,
      })
      return pageOf(await named(client.send(command, watched(signal)), signal))
    },

    async head(key, { signal } = {}) {
      const { sdk, client } = await open()
      const head = await named(
        client.send(new sdk.HeadObjectCommand({ Bucket, Key: key }), watched(signal)),
        signal,
      )
      return {
        key,
        sizeBytes: head.ContentLength ?? 0,
        modifiedAt: head.LastModified?.getTime(),
        etag: head.ETag,
      }
    },

    async get(key, { from, to, signal } = {}) {
      const { sdk, client } = await open()
      const Range = from === undefined ? undefined : `bytes=${from}-${to ?? ''}`
      const answer = await named(
        client.send(new sdk.GetObjectCommand({ Bucket, Key: key, Range }), watched(signal)),
        signal,
      )
      const whole = /\/(\d+)$/.exec(answer.ContentRange ?? '')?.[1]
      return {
        object: {
          key,
          sizeBytes: whole === undefined ? (answer.ContentLength ?? 0) : Number(whole),
          modifiedAt: answer.LastModified?.getTime(),
          etag: answer.ETag,
        },
        stream: answer.Body as unknown as Readable,
      }
    },

    async put(key, body, { onlyNew, signal }) {
      const loaded = await open()
      const { sdk, client } = loaded
      const params = { Bucket, Key: key, Body: body, ...(onlyNew ? { IfNoneMatch: '*' } : {}) }
      if (Buffer.isBuffer(body))
        await named(client.send(new sdk.PutObjectCommand(params), watched(signal)), signal)
      else await uploadStream(loaded, params, signal)
    },

    async copy(from, to, { onlyNew, signal }) {
      const { sdk, client } = await open()
      if (!onlyNew) {
        const copied = { Bucket, Key: to, CopySource: `${Bucket}/${encodedKey(from)}` }
        await named(client.send(new sdk.CopyObjectCommand(copied), watched(signal)), signal)
        return
      }
      await copyNew({ sdk, client }, parts, { Bucket, from, to }, signal)
    },

    async remove(key, { signal } = {}) {
      const { sdk, client } = await open()
      await named(client.send(new sdk.DeleteObjectCommand({ Bucket, Key: key }), watched(signal)), signal)
    },

    parts,

    presign: (key, seconds) => signedUrl(place, credential, key, seconds),
  }
}
