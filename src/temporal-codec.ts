import { createHash, randomBytes, timingSafeEqual } from 'node:crypto'
import { readFile, stat } from 'node:fs/promises'
import type { IncomingMessage, ServerResponse } from 'node:http'
import { join } from 'node:path'
import type { Payload, PayloadCodec } from '@temporalio/common'
import { z } from 'zod'
import { StartError } from './config.ts'
import type { NewAuditEvent } from './domains/audit-events/schemas.ts'
import { SealBroken } from './vault/envelope.ts'
import { KeyNotHeld } from './vault/payload-codec.ts'
import { createOnce } from './whole-file.ts'

/** Path of the codec below the admin address; the key and the verb follow. */
export const codecPrefix = '/temporal-codec/'

/**
 * The largest request in bytes: Temporal stores payloads of 2 MiB at most, and base64 adds a third.
 */
const mostBytes = 8_388_608
/** Reads of one origin are one audit record in this time. */
const auditEveryMs = 60_000

/** Decrypts payloads, and records each read. It exists while the service runs. */
export interface PayloadAccess {
  codec: PayloadCodec
  audit: (event: NewAuditEvent) => Promise<void>
}

export interface TemporalCodecOptions {
  /** A client with this key may read. `ensureCodecKey` creates it. */
  key: string
  /** Origins of Temporal's page, e.g. `http://localhost:8233`; their number is small. */
  origins: () => readonly string[]
  /** Undefined while the service starts or stops. */
  access: () => PayloadAccess | undefined
}

const wellFormedKey = /^[\w-]{32,128}$/

/**
 * The key in the codec's address, from a file that only its owner may read. The function creates a
 * missing file.
 * @throws StartError naming file and remedy when others may read it, or it holds something else
 */
export const ensureCodecKey = async (file: string): Promise<string> => {
  const facts = await stat(file).catch(() => undefined)
  if (facts === undefined) await createOnce(file, `${randomBytes(32).toString('base64url')}\n`)
  else if ((facts.mode & 0o077) !== 0)
    throw new StartError(
      `the key of Temporal's page ${file} may be read by others: chmod 600 ${file}, or remove it for a new one`,
    )
  const key = (await readFile(file, 'utf8')).trim()
  if (!wellFormedKey.test(key))
    throw new StartError(`${file} holds no key of Temporal's page: remove it, the next start makes one`)
  return key
}

/** The key that `ensureCodecKey` made in a data folder; undefined: it made none. */
export const readCodecKey = (dataDir: string): Promise<string | undefined> =>
  readFile(codecKeyFile(dataDir), 'utf8').then(
    (text) => text.trim(),
    () => undefined,
  )

export const codecKeyFile = (dataDir: string): string => join(dataDir, 'temporal-codec.key')

/** Both origins under which a browser of this machine opens a page of its loopback address. */
export const pageOrigins = (pageUrl: string | undefined): string[] => {
  if (pageUrl === undefined) return []
  const { port } = new URL(pageUrl)
  return [`http://127.0.0.1:${port}`, `http://localhost:${port}`]
}

const PayloadsDocument = z.object({
  payloads: z
    .array(z.object({ metadata: z.record(z.string(), z.base64()).optional(), data: z.base64().optional() }))
    .max(10_000),
})

/** A refusal with a status and a sentence only. */
class Declined extends Error {
  readonly status: number
  readonly headers: Record<string, string>
  constructor(status: number, message: string, headers: Record<string, string> = {}) {
    super(message)
    this.status = status
    this.headers = headers
  }
}

const bodyOf = async (request: IncomingMessage): Promise<Buffer> => {
  const tooLarge = (): Declined => new Declined(413, `the body is larger than ${mostBytes} bytes`)
  if (Number(request.headers['content-length'] ?? 0) > mostBytes) throw tooLarge()
  const chunks: Buffer[] = []
  let bytes = 0
  // The rest of a refused body is read and dropped, so that the client gets its answer.
  for await (const chunk of request.iterator({ destroyOnReturn: false }) as AsyncIterable<Buffer>) {
    bytes += chunk.length
    if (bytes > mostBytes) throw tooLarge()
    chunks.push(chunk)
  }
  return Buffer.concat(chunks)
}

const payloadsIn = (body: Buffer): Payload[] => {
  let document: unknown
  try {
    document = JSON.parse(body.toString('utf8'))
  } catch {
    throw new Declined(400, 'the body is not JSON')
  }
  const parsed = PayloadsDocument.safeParse(document)
  if (!parsed.success)
    throw new Declined(400, 'the body is not {"payloads":[{"metadata":{…},"data":"…"}]} with base64 texts')
  return parsed.data.payloads.map(({ metadata = {}, data }) => ({
    metadata: Object.fromEntries(
      Object.entries(metadata).map(([name, text]) => [name, Buffer.from(text, 'base64')]),
    ),
    data: Buffer.from(data ?? '', 'base64'),
  }))
}

const base64 = (bytes: Uint8Array): string => Buffer.from(bytes).toString('base64')

const textOf = (payloads: readonly Payload[]): string =>
  JSON.stringify({
    payloads: payloads.map(({ metadata, data }) => ({
      metadata: Object.fromEntries(
        Object.entries(metadata ?? {}).map(([name, value]) => [name, base64(value)]),
      ),
      data: base64(data ?? new Uint8Array()),
    })),
  })

/** Encodes or decodes. @throws Declined with the problem of a payload, without any part of it */
const converted = async (codec: PayloadCodec, verb: string, payloads: Payload[]): Promise<Payload[]> => {
  try {
    return await (verb === 'decode' ? codec.decode(payloads) : codec.encode(payloads))
  } catch (error) {
    if (error instanceof KeyNotHeld)
      throw new Declined(422, 'a payload was encrypted with a vault key that this service does not hold')
    if (error instanceof SealBroken)
      throw new Declined(422, 'a payload does not open: it was changed, or another service encrypted it')
    throw error
  }
}

/** One audit record for all reads of an origin within a minute, written before the first answer. */
const auditedReads = (): ((origin: string, audit: PayloadAccess['audit']) => Promise<void>) => {
  const last = new Map<string, { at: number; written: Promise<void> }>()
  return (origin, audit) => {
    const now = Date.now()
    const known = last.get(origin)
    if (known !== undefined && now - known.at < auditEveryMs) return known.written
    const written = audit({
      eventType: 'workflow-payloads.read',
      actorId: 'temporal-page',
      actorType: 'service',
      outcome: 'succeeded',
      summary: `payloads of workflows were read on Temporal's page at ${origin}`,
      metadata: { origin },
    }).catch(() => {
      last.delete(origin)
      throw new Declined(503, 'the read cannot be recorded now; try again', { 'Retry-After': '2' })
    })
    last.set(origin, { at: now, written })
    return written
  }
}

/**
 * The codec of Temporal's page: `POST /temporal-codec/<key>/decode` and `…/encode` with payloads as
 * Temporal's HTTP API writes them. A browser gets an answer on the page's own origins only. The
 * page cannot send a token, so its key is in the address: a person who may open the page may read.
 */
export const temporalCodec = ({ key, origins, access }: TemporalCodecOptions) => {
  const digest = (text: string): Buffer => createHash('sha256').update(text).digest()
  const expected = digest(key)
  const audited = auditedReads()

  const respond = async (request: IncomingMessage, response: ServerResponse): Promise<void> => {
    const [given = '', verb = '', ...more] = (request.url ?? '')
      .replace(/\?.*/s, '')
      .slice(codecPrefix.length)
      .split('/')
    const known = timingSafeEqual(digest(given), expected)
    if (!known || more.length > 0 || (verb !== 'decode' && verb !== 'encode'))
      throw new Declined(404, 'nothing is here')
    const { origin } = request.headers
    response.setHeader('Vary', 'Origin')
    if (origin !== undefined) {
      if (!origins().includes(origin)) throw new Declined(403, "this origin is not that of Temporal's page")
      response.setHeader('Access-Control-Allow-Origin', origin)
    }
    if (request.method === 'OPTIONS') {
      response.writeHead(204, {
        'Access-Control-Allow-Methods': 'POST',
        'Access-Control-Allow-Headers': 'Authorization, Content-Type, X-Namespace',
        'Access-Control-Max-Age': '600',
      })
      response.end()
      return
    }
    if (request.method !== 'POST') throw new Declined(405, 'only POST', { Allow: 'POST, OPTIONS' })
    if (!/^application\/json\b/i.test(request.headers['content-type'] ?? ''))
      throw new Declined(415, 'the body must be application/json')
    const payloads = payloadsIn(await bodyOf(request))
    const opened = access()
    if (opened === undefined)
      throw new Declined(503, 'the service starts or stops; try again', { 'Retry-After': '2' })
    await audited(origin ?? 'no origin', opened.audit)
    send(response, 200, textOf(await converted(opened.codec, verb, payloads)))
  }

  /** Answers a request whose path begins with `codecPrefix`. */
  return async (request: IncomingMessage, response: ServerResponse): Promise<void> => {
    try {
      await respond(request, response)
    } catch (error) {
      if (!(error instanceof Declined)) throw error
      for (const [name, value] of Object.entries(error.headers)) response.setHeader(name, value)
      send(response, error.status, JSON.stringify({ error: error.message }))
    }
  }
}

const send = (response: ServerResponse, status: number, text: string): void => {
  response.writeHead(status, {
    'Content-Type': 'application/json',
    'Content-Length': Buffer.byteLength(text),
    'Cache-Control': 'no-store',
    'X-Content-Type-Options': 'nosniff',
  })
  response.end(text)
}
