import { AwsV4Signer } from 'aws4fetch'
import { lookup as lookupName } from 'node:dns'
import { Agent as PlainAgent, request as plainRequest, type ClientRequest, type IncomingMessage, type RequestOptions } from 'node:http'
import { Agent as SecureAgent, request as secureRequest } from 'node:https'
import { isIP, type LookupFunction } from 'node:net'
import { certificateFault } from './certificate-fault.ts'
import { isMetadataName } from './denied-networks.ts'

/** Where and how a function is called. */
export interface FunctionTarget {
  /** `http`: POST to the endpoint itself; `openfaas`: to a gateway; `lambda`: AWS's invoke call. */
  shape: 'http' | 'openfaas' | 'lambda'
  endpoint: string
  /** Its name; of `openfaas` and `lambda`. */
  function?: string | undefined
  /** Of `lambda`. */
  region?: string | undefined
  /** PEM; absent: the authorities of this machine. */
  certificateAuthority?: string | undefined
}

export type FunctionCredential =
  | { kind: 'bearer'; token: string }
  | { kind: 'aws'; accessKeyId: string; secretAccessKey: string; sessionToken?: string | undefined }

export interface FunctionRequest {
  /** Travels as `Idempotency-Key`. */
  name: string
  /** JSON. */
  body: Buffer
  /** The platform takes the call and answers nothing: OpenFaaS' queue, Lambda's events. The others ignore it. */
  asynchronous?: boolean
  /** Where OpenFaaS' queue sends the answer. */
  callbackUrl?: string | undefined
  credential?: FunctionCredential | undefined
  /** Over a connection of its own: one that was kept may have been closed by the other side, and then nobody knows whether the request was read. */
  fresh?: boolean
  deadlineSeconds: number
  answerLimitBytes: number
  signal?: AbortSignal
  /** The last byte of the request has been given to the network. */
  onSent?: () => void
}

export interface FunctionResponse {
  status: number
  body: Buffer
  /** The platform's own name of the call. */
  requestId: string | undefined
}

/**
 * What went wrong with a call:
 *
 * - `unreachable`: it was not sent.
 * - `cut`: it was sent, and no answer came: whether the function ran is not known.
 * - `busy`: the platform did not take it (429, 503), perhaps until `retryAfterSeconds`.
 * - `failed`: 5xx, or the function crashed.
 * - `timeLimit`: the platform ended it at its time limit.
 * - `memory`: it used more memory than the function has.
 * - `login`: the credential is refused (401, 403).
 * - `missing`: 404.
 * - `refused`: permanent: another 4xx, a redirect, a certificate, a denied address, an answer that is too large.
 */
export type FunctionTrouble = 'unreachable' | 'cut' | 'busy' | 'failed' | 'timeLimit' | 'memory' | 'login' | 'missing' | 'refused'

/** Holds neither the credential nor the request. */
export class FunctionError extends Error {
  readonly trouble: FunctionTrouble
  readonly retryAfterSeconds: number | undefined
  constructor(trouble: FunctionTrouble, message: string, options: ErrorOptions & { retryAfterSeconds?: number | undefined } = {}) {
    super(message, options)
    this.name = 'FunctionError'
    this.trouble = trouble
    this.retryAfterSeconds = options.retryAfterSeconds
  }
}

/** @throws FunctionError */
export type InvokeFunction = (target: FunctionTarget, request: FunctionRequest) => Promise<FunctionResponse>

export interface Functions {
  invoke: InvokeFunction
  close(): void
}

const longestMessage = 300
const connectSeconds = 10
/** A platform that asks for a longer pause is asked again after this. */
const longestPauseSeconds = 3600

const urlOf = (target: FunctionTarget, asynchronous: boolean): URL => {
  const base = target.endpoint.replace(/\/+$/, '')
  const name = encodeURIComponent(target.function ?? '')
  if (target.shape === 'lambda') return new URL(`${base}/2015-03-31/functions/${name}/invocations`)
  if (target.shape === 'openfaas') return new URL(`${base}/${asynchronous ? 'async-function' : 'function'}/${name}`)
  return new URL(target.endpoint)
}

const shown = (body: Buffer): string => {
  const text = body
    .subarray(0, 1000)
    .toString()
    .replace(/[^\x20-\x7e]+/g, ' ')
    .trim()
  return text === '' ? '' : `: ${text.length > longestMessage ? `${text.slice(0, longestMessage)}…` : text}`
}

/** `Retry-After`: seconds or a date. */
const pauseOf = (header: string | undefined): number | undefined => {
  if (header === undefined) return undefined
  const seconds = /^\d+(\.\d+)?$/.test(header) ? Number(header) : (Date.parse(header) - Date.now()) / 1000
  return Number.isFinite(seconds) ? Math.min(Math.max(0, seconds), longestPauseSeconds) : undefined
}

const headerOf = (response: IncomingMessage, name: string): string | undefined => {
  const value = response.headers[name]
  return Array.isArray(value) ? value[0] : value
}

/** AWS answers 200 also where the function crashed; a header says so, the body why. */
const crashOf = (body: Buffer): FunctionError => {
  let words: unknown
  try {
    words = (JSON.parse(body.toString()) as { errorMessage?: unknown }).errorMessage
  } catch {
    words = undefined
  }
  const said = typeof words === 'string' ? words.slice(0, longestMessage) : shown(body).replace(/^: /, '')
  if (/timed out after/i.test(said)) return new FunctionError('timeLimit', `the platform ended the function at its time limit: ${said}`)
  // Lambda kills a runtime for nothing else.
  if (/signal: killed|OutOfMemory/.test(said)) return new FunctionError('memory', `the function used more memory than it has: ${said}`)
  return new FunctionError('failed', `the function crashed: ${said === '' ? 'it did not say why' : said}`)
}

const troubleOf = (response: IncomingMessage, body: Buffer): FunctionError | undefined => {
  const status = response.statusCode ?? 0
  const retryAfterSeconds = pauseOf(headerOf(response, 'retry-after'))
  const options = { retryAfterSeconds }
  if (status === 429 || (status === 503 && retryAfterSeconds !== undefined))
    return new FunctionError('busy', `the platform does not take the call now (${status})${shown(body)}`, options)
  if (status === 504 || status === 408)
    return new FunctionError('cut', `the platform waited in vain for the function (${status})${shown(body)}`, options)
  if (status >= 500) return new FunctionError('failed', `the function failed (${status})${shown(body)}`, options)
  if (status === 401 || status === 403)
    return new FunctionError(
      'login',
      `the credential is refused (${status})${shown(body)}; give the runtime's credentialRef one that may call the function`,
    )
  if (status === 404) return new FunctionError('missing', `there is no such function (404)${shown(body)}`)
  if (status === 413)
    return new FunctionError('refused', `the request is larger than the platform takes (413)${shown(body)}; lower payloadLimitBytes`)
  if (status >= 400) return new FunctionError('refused', `the call is refused (${status})${shown(body)}`)
  if (status >= 300 || status < 200)
    return new FunctionError('refused', `the endpoint answers with a redirect (${status}), which is not followed`)
  return headerOf(response, 'x-amz-function-error') === undefined ? undefined : crashOf(body)
}

/** Resolves a name once for a connection and lets only a judged address through: there is no second question that could have another answer. */
const judgedLookup =
  (addressAllowed: (address: string) => true | string): LookupFunction =>
  (host, options, callback) => {
    lookupName(host, { family: options.family ?? 0, all: true }, (error, addresses) => {
      const [first] = addresses ?? []
      if (error !== null) return callback(error, '', 0)
      if (first === undefined) return callback(Object.assign(new Error(`${host} has no address`), { code: 'ENOTFOUND' }), '', 0)
      const verdict = addressAllowed(first.address)
      if (verdict !== true) return callback(new FunctionError('refused', verdict), '', 0)
      return options.all === true
        ? (callback as unknown as (error: null, all: object[]) => void)(null, [first])
        : callback(null, first.address, first.family)
    })
  }

/**
 * Calls functions over HTTP, with connections kept open. Every address is judged when it is connected to, and the name is not asked again in
 * between; a redirect is not followed. Requests are made once: to try again is the caller's.
 */
export const openFunctions = (options: { addressAllowed: (address: string) => true | string }): Functions => {
  // More than any runtime's concurrency: the caller bounds the calls.
  const keep = { keepAlive: true, maxSockets: Infinity, maxFreeSockets: 256, scheduling: 'lifo' as const }
  const agents = { 'http:': new PlainAgent(keep), 'https:': new SecureAgent(keep) }
  const lookup = judgedLookup(options.addressAllowed)

  const headersOf = async (target: FunctionTarget, request: FunctionRequest, url: URL): Promise<Record<string, string>> => {
    const headers: Record<string, string> = {
      'content-type': 'application/json',
      accept: 'application/json',
      'idempotency-key': request.name,
    }
    if (request.callbackUrl !== undefined && target.shape === 'openfaas') headers['x-callback-url'] = request.callbackUrl
    const { credential } = request
    if (target.shape === 'lambda') {
      if (credential?.kind !== 'aws')
        throw new FunctionError('refused', 'requests to lambda need an access key; name a cloud credential of provider aws')
      headers['x-amz-invocation-type'] = request.asynchronous === true ? 'Event' : 'RequestResponse'
      const { accessKeyId, secretAccessKey, sessionToken } = credential
      const signer = new AwsV4Signer({
        method: 'POST',
        url: url.href,
        headers,
        body: request.body,
        accessKeyId,
        secretAccessKey,
        ...(sessionToken === undefined ? {} : { sessionToken }),
        service: 'lambda',
        region: target.region ?? 'us-east-1',
      })
      return Object.fromEntries((await signer.sign()).headers)
    }
    if (credential?.kind === 'bearer') headers['authorization'] = `Bearer ${credential.token}`
    else if (credential !== undefined) throw new FunctionError('refused', 'an access key is for functions of shape lambda; name a token')
    return headers
  }

  const send = (target: FunctionTarget, request: FunctionRequest, url: URL, headers: Record<string, string>): Promise<FunctionResponse> =>
    new Promise((resolve, reject) => {
      const host = url.hostname.replace(/^\[|\]$/g, '')
      let sent = false
      let asked: ClientRequest
      const fail = (error: FunctionError): void => {
        reject(error)
        asked.destroy()
      }
      const secure = url.protocol === 'https:'
      const how: RequestOptions = {
        method: 'POST',
        host,
        port: url.port === '' ? (secure ? 443 : 80) : url.port,
        path: url.pathname + url.search,
        headers: { ...headers, host: url.host, 'content-length': request.body.length },
        lookup,
        ...(request.signal === undefined ? {} : { signal: request.signal }),
      }
      const own = request.fresh === true ? { agent: false as const } : {}
      asked = secure
        ? secureRequest({
            ...how,
            agent: agents['https:'],
            ...own,
            ...(target.certificateAuthority === undefined ? {} : { ca: target.certificateAuthority }),
          })
        : plainRequest({ ...how, agent: agents['http:'], ...own })
      const connecting = setTimeout(() => {
        fail(new FunctionError('unreachable', `${url.host} did not accept a connection within ${connectSeconds} s`))
      }, connectSeconds * 1000)
      asked.once('socket', (socket) => {
        if (!socket.connecting) return clearTimeout(connecting)
        // A function may take an hour to answer; what goes away meanwhile is noticed.
        socket.setKeepAlive(true, 30_000)
        socket.once(secure ? 'secureConnect' : 'connect', () => clearTimeout(connecting))
      })
      const timer = setTimeout(() => {
        fail(
          new FunctionError(
            sent ? 'cut' : 'unreachable',
            `${url.host} did not ${sent ? 'answer' : 'take the request'} within ${request.deadlineSeconds} s`,
          ),
        )
      }, request.deadlineSeconds * 1000)
      const done = (): void => {
        clearTimeout(timer)
        clearTimeout(connecting)
      }
      asked.once('close', done)
      asked.on('finish', () => {
        sent = true
        request.onSent?.()
      })
      asked.on('error', (error: NodeJS.ErrnoException) => {
        if (error instanceof FunctionError) return reject(error)
        const code = error.code ?? ''
        if (certificateFault.test(code) && !sent)
          return reject(new FunctionError('refused', `the certificate of ${url.host} is refused: ${error.message}`, { cause: error }))
        // A kept connection that the other side has closed meanwhile: the request may have been read before.
        const unsent = !sent && !asked.reusedSocket
        reject(new FunctionError(unsent ? 'unreachable' : 'cut', `${url.host}: ${error.message || code}`, { cause: error }))
      })
      asked.on('response', (response) => {
        const tooLarge = (): void =>
          fail(
            new FunctionError(
              'refused',
              `the answer is larger than ${request.answerLimitBytes} bytes (answerLimitBytes); have the function upload its outputs (delivery: reference) or return fewer`,
            ),
          )
        if (Number(headerOf(response, 'content-length') ?? 0) > request.answerLimitBytes) return tooLarge()
        const chunks: Buffer[] = []
        let size = 0
        response.on('data', (chunk: Buffer) => {
          chunks.push(chunk)
          size += chunk.length
          if (size > request.answerLimitBytes) tooLarge()
        })
        response.on('error', (error) =>
          fail(new FunctionError('cut', `the answer of ${url.host} broke off: ${error.message}`, { cause: error })),
        )
        response.on('end', () => {
          done()
          const body = Buffer.concat(chunks)
          const trouble = troubleOf(response, body)
          if (trouble !== undefined) return reject(trouble)
          const requestId =
            headerOf(response, 'x-amzn-requestid') ??
            headerOf(response, 'x-call-id') ??
            headerOf(response, 'function-execution-id') ??
            headerOf(response, 'x-request-id')
          resolve({ status: response.statusCode ?? 0, body, requestId: requestId?.slice(0, 255) })
        })
      })
      asked.end(request.body)
    })

  return {
    async invoke(target, request) {
      const url = urlOf(target, request.asynchronous === true)
      const host = url.hostname.replace(/^\[|\]$/g, '')
      if (isMetadataName(host)) throw new FunctionError('refused', `${host} is a metadata service; connections to it are denied`)
      // An address is not looked up, so it is judged here.
      const verdict = isIP(host) === 0 ? true : options.addressAllowed(host)
      if (verdict !== true) throw new FunctionError('refused', verdict)
      return send(target, request, url, await headersOf(target, request, url))
    },
    close() {
      for (const agent of Object.values(agents)) agent.destroy()
    },
  }
}
