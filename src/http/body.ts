import type { IncomingMessage, ServerResponse } from 'node:http'
import { Refusal } from '../refusal.ts'
import { digestCheck } from './content-digest.ts'
import { ClientGone, HttpRefusal } from './errors.ts'
import { lateBody } from './pace.ts'
import type { YamlReader } from './yaml-reader.ts'

export const tooLarge = (limit: number): Refusal =>
  new Refusal('too_large', `the body is larger than the ${limit} bytes allowed here`)

/**
 * The whole body, at most `limit` bytes, in at most `withinMs` milliseconds.
 * @throws `too_large` at the first byte beyond (the rest is read and dropped, so that the client
 *   receives the answer), 408 for a late body, `invalid` where it does not match Content-Digest,
 *   and ClientGone where the connection ends before the body does
 */
export const readBody = async (
  req: IncomingMessage,
  res: ServerResponse,
  { limit, withinMs }: { limit: number; withinMs: number },
): Promise<Buffer> => {
  if (Number(req.headers['content-length'] ?? 0) > limit) throw tooLarge(limit)
  const check = digestCheck(req)
  if (req.headers.expect?.toLowerCase() === '100-continue') res.writeContinue()
  const bytes = await collect(req, limit, withinMs)
  check?.update(bytes)
  check?.finish(req.trailers)
  return bytes
}

const collect = (req: IncomingMessage, limit: number, withinMs: number): Promise<Buffer> =>
  new Promise((resolve, reject) => {
    const chunks: Buffer[] = []
    let size = 0
    const done = (): void => {
      clearTimeout(late)
      req.off('data', onData).off('end', onEnd).off('close', onClose)
    }
    const onData = (chunk: Buffer): void => {
      size += chunk.length
      chunks.push(chunk)
      if (size <= limit) return
      done()
      reject(tooLarge(limit))
    }
    const onEnd = (): void => {
      done()
      resolve(chunks.length === 1 && chunks[0] !== undefined ? chunks[0] : Buffer.concat(chunks, size))
    }
    const onClose = (): void => {
      done()
      reject(new ClientGone('the connection closed before the body was complete'))
    }
    const late = setTimeout(() => {
      done()
      reject(lateBody('the request was not complete in time'))
    }, withinMs)
    req.on('data', onData).on('end', onEnd).on('close', onClose)
  })

/**
 * Reads and drops the rest of a body that its route did not read, for a bounded time, so that the
 * client receives the answer.
 */
export const dropRest = (req: IncomingMessage, withinMs: number): void => {
  if (req.complete || req.destroyed) return
  const { socket } = req
  const late = setTimeout(() => socket.destroy(), withinMs).unref()
  // Once the answer is sent, the end of the connection no longer concerns the request.
  const over = (): void => {
    clearTimeout(late)
    socket.off('close', over)
  }
  socket.once('close', over)
  req.once('end', over)
  req.resume()
}

const yamlTypes = new Set(['application/yaml', 'application/x-yaml', 'text/yaml'])

/** The media type of a Content-Type, in lower case, without its parameters. */
export const mediaType = (contentType: string): string =>
  (contentType.split(';', 1)[0] ?? '').trim().toLowerCase()

/** @throws HttpRefusal 415 for compressed bodies */
export const plainEncoding = (req: IncomingMessage): void => {
  const encoding = req.headers['content-encoding']
  if (encoding !== undefined && encoding.toLowerCase() !== 'identity')
    throw new HttpRefusal(
      'unsupported_media_type',
      'compressed bodies are not read; send the document without Content-Encoding',
      {
        'Accept-Encoding': 'identity',
      },
    )
}

/** The 415 of a body that is neither a document nor one of `streams`. */
export const otherType = (documents: boolean, streams: readonly string[]): HttpRefusal => {
  const types = [...(documents ? ['application/json', 'application/yaml'] : []), ...streams]
  const text = streams.length > 0 ? types.join(' or ') : 'application/json or application/yaml, in UTF-8'
  return new HttpRefusal('unsupported_media_type', `Content-Type must be ${text}`, {
    'Accept-Post': types.join(', '),
  })
}

/**
 * `json` or `yaml` by Content-Type; a missing one counts as JSON. @throws HttpRefusal 415 for other
 * types, charsets and encodings
 */
export const documentFormat = (req: IncomingMessage, streams: readonly string[] = []): 'json' | 'yaml' => {
  plainEncoding(req)
  const header = req.headers['content-type']
  if (header === undefined || header === 'application/json') return 'json'
  const [type, ...parameters] = header.split(';').map((piece) => piece.trim().toLowerCase())
  const charset = parameters
    .find((parameter) => parameter.startsWith('charset='))
    ?.slice(8)
    .replaceAll('"', '')
  if (charset === undefined || charset === 'utf-8' || charset === 'utf8' || charset === 'us-ascii') {
    if (type === 'application/json') return 'json'
    if (type !== undefined && yamlTypes.has(type)) return 'yaml'
  }
  throw otherType(true, streams)
}

const decoder = new TextDecoder('utf-8', { fatal: true })

const utf8 = (bytes: Buffer): string => {
  try {
    return decoder.decode(bytes)
  } catch {
    throw new Refusal('invalid', 'the body is not valid UTF-8')
  }
}

/**
 * The limit of values in a JSON document of at most `limit` bytes; a document of 32 MiB has some 2
 * million. A body of nothing but `[],` would cost eight seconds and a gigabyte.
 */
const valueBound = (limit: number): number => Math.max(leastValueBound, Math.floor(limit / 8))
const leastValueBound = 4_000_000
/** The limit of keys in one object: V8 takes three seconds for two million of them. */
const keyBound = 250_000

/**
 * The bound that a large body exceeds. It counts separators outside of strings in the bytes, before
 * any value is built from them.
 */
const excess = (bytes: Buffer, limit: number): string | undefined => {
  const most = valueBound(limit)
  if (bytes.length < 2 * leastValueBound) return undefined
  /** Keys counted so far in each open object and array. */
  const open: number[] = []
  let separators = 0
  let quoted = false
  for (let i = 0; i < bytes.length; i++) {
    const byte = bytes[i]
    if (quoted) {
      if (byte === 0x5c) i++
      else if (byte === 0x22) quoted = false
    } else if (byte === 0x22) quoted = true
    else if (byte === 0x3a) {
      const keys = (open.pop() ?? 0) + 1
      if (keys > keyBound) return `an object of more than ${keyBound} keys`
      open.push(keys)
    } else if (byte === 0x5d || byte === 0x7d) open.pop()
    else if (byte === 0x2c || byte === 0x5b || byte === 0x7b) {
      if (++separators > most)
        return `more than ${most} values; SERVICE_BODY_LIMIT_BYTES allows one for each 8 bytes`
      if (byte !== 0x2c) open.push(0)
    }
  }
  return undefined
}

/**
 * V8 quotes the document in some of its messages. The answer keeps only the fault and its position.
 */
const jsonFault = (error: unknown): string =>
  error instanceof Error
    ? error.message.replace(/, (?:\.\.\.)?"[\s\S]*"(?:\.\.\.)? is not valid JSON$/, '')
    : 'it cannot be read'

const readJson = (text: string): unknown => {
  try {
    // Only a document with such a run of digits can hold an integer beyond 2^53-1. All others skip
    // the reviver, because it costs ten times the parse.
    if (!/(?<![\d.])(?:9\d{15}|[1-9]\d{16})/.test(text)) return JSON.parse(text)
    return JSON.parse(text, ((_key: string, value: unknown, context?: { source?: string }) =>
      typeof value === 'number' &&
      context?.source !== undefined &&
      /^-?\d+$/.test(context.source) &&
      !Number.isSafeInteger(value)
        ? BigInt(context.source)
        : value) as (key: string, value: unknown) => unknown)
  } catch (error) {
    throw new Refusal('invalid', `the body is not valid JSON: ${jsonFault(error)}`)
  }
}

/**
 * The document in `bytes`; undefined for an empty body. An integer beyond 2^53-1 becomes a bigint,
 * so that `checkDocument` can judge it by its path. `limit`: the bytes that the body may have.
 * @throws `invalid` (400) for bytes that are not readable as `format`
 */
export const readDocument = async (
  bytes: Buffer,
  format: 'json' | 'yaml',
  { limit, readYaml }: { limit: number; readYaml: YamlReader },
): Promise<unknown> => {
  if (bytes.length === 0) return undefined
  const excessive = format === 'json' ? excess(bytes, limit) : undefined
  if (excessive !== undefined) throw new Refusal('too_large', `the document has ${excessive}`)
  const text = utf8(bytes)
  if (format === 'json') return readJson(text)
  const { value, problems } = await readYaml(text)
  const [first] = problems
  if (first !== undefined)
    throw new Refusal(
      'invalid',
      `the body is not valid YAML: ${first.path === '' ? '' : `${first.path}: `}${first.message}`,
      {
        details: problems,
      },
    )
  return value
}
