import { AwsV4Signer } from 'aws4fetch'
import type { AwsKey } from './aws-key.ts'
import { HttpError } from './http-error.ts'
import type { HttpAnswer } from './http-exchange.ts'
import { openHttp, type AddressJudge } from './http.ts'

/** Where and how a function is called. */
export interface FunctionTarget {
  /** `http`: POST to the endpoint itself; `openfaas`: to a gateway; `lambda`: AWS's invoke call. */
  shape: 'http' | 'openfaas' | 'lambda'
  endpoint: string
  /** The function's name; only for `openfaas` and `lambda`. */
  function?: string | undefined
  /** Only for `lambda`. */
  region?: string | undefined
  /** PEM; absent: the authorities of this machine. */
  certificateAuthority?: string | undefined
}

export type FunctionCredential = { kind: 'bearer'; token: string } | ({ kind: 'aws' } & AwsKey)

export interface FunctionRequest {
  /** Sent as `Idempotency-Key`. */
  name: string
  /** JSON. */
  body: Buffer
  /**
   * The platform accepts the call and returns no result: OpenFaaS' queue, Lambda's events. The
   * others ignore it.
   */
  asynchronous?: boolean
  /** Where OpenFaaS' queue sends the answer. */
  callbackUrl?: string | undefined
  credential?: FunctionCredential | undefined
  /**
   * Uses a connection of its own. The other side may have closed a kept one; then it is unknown
   * whether the request was read.
   */
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
 * - `cut`: it was sent, and no answer came: it is unknown whether the function ran.
 * - `busy`: the platform did not accept it (429, 503), perhaps until `retryAfterSeconds`.
 * - `failed`: 5xx, or the function crashed.
 * - `timeLimit`: the platform ended it at its time limit.
 * - `memory`: it used more memory than the function has.
 * - `login`: the credential is refused (401, 403).
 * - `missing`: 404.
 * - `refused`: permanent: another 4xx, a redirect, a certificate, a denied address, an answer that
 *   is too large.
 */
export type FunctionTrouble =
  | 'unreachable'
  | 'cut'
  | 'busy'
  | 'failed'
  | 'timeLimit'
  | 'memory'
  | 'login'
  | 'missing'
  | 'refused'

/** Contains neither the credential nor the request. */
export class FunctionError extends Error {
  readonly trouble: FunctionTrouble
  readonly retryAfterSeconds: number | undefined
  constructor(
    trouble: FunctionTrouble,
    message: string,
    options: ErrorOptions & { retryAfterSeconds?: number | undefined } = {},
  ) {
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
/** Where a platform asks for a longer pause, the next request is sent after this one. */
const longestPauseSeconds = 3600

const urlOf = (target: FunctionTarget, asynchronous: boolean): URL => {
  const base = target.endpoint.replace(/\/+$/, '')
  const name = encodeURIComponent(target.function ?? '')
  if (target.shape === 'lambda') return new URL(`${base}/2015-03-31/functions/${name}/invocations`)
  if (target.shape === 'openfaas')
    return new URL(`${base}/${asynchronous ? 'async-function' : 'function'}/${name}`)
  return new URL(target.endpoint)
}

const shown = (body: Buffer, { quotable }: HttpAnswer): string => {
  const text = quotable(body.toString())
    .slice(0, 1000)
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

const headerOf = ({ headers }: HttpAnswer, name: string): string | undefined => {
  const value = headers[name]
  return Array.isArray(value) ? value[0] : value
}

/**
 * AWS answers 200 also where the function crashed; a header marks the crash, and the body gives the
 * reason.
 */
const crashOf = (body: Buffer, answer: HttpAnswer): FunctionError => {
  let reported: unknown
  try {
    reported = (JSON.parse(body.toString()) as { errorMessage?: unknown }).errorMessage
  } catch {
    reported = undefined
  }
  const detail =
    typeof reported === 'string'
      ? answer.quotable(reported).slice(0, longestMessage)
      : shown(body, answer).replace(/^: /, '')
  if (/timed out after/i.test(detail))
    return new FunctionError('timeLimit', `the platform ended the function at its time limit: ${detail}`)
  // Lambda kills a runtime for no other reason.
  if (/signal: killed|OutOfMemory/.test(detail))
    return new FunctionError('memory', `the function used more memory than it has: ${detail}`)
  return new FunctionError('failed', `the function crashed: ${detail === '' ? 'it gave no reason' : detail}`)
}

const troubleOf = (answer: HttpAnswer, body: Buffer): FunctionError | undefined => {
  const { status } = answer
  const reported = (): string => shown(body, answer)
  const retryAfterSeconds = pauseOf(headerOf(answer, 'retry-after'))
  const options = { retryAfterSeconds }
  if (status === 429 || (status === 503 && retryAfterSeconds !== undefined))
    return new FunctionError(
      'busy',
      `the platform does not take the call now (${status})${reported()}`,
      options,
    )
  if (status === 504 || status === 408)
    return new FunctionError(
      'cut',
      `the platform waited in vain for the function (${status})${reported()}`,
      options,
    )
  if (status >= 500)
    return new FunctionError('failed', `the function failed (${status})${reported()}`, options)
  if (status === 401 || status === 403)
    return new FunctionError(
      'login',
      `the credential is refused (${status})${reported()}; give the runtime's credentialRef one that ` +
        'may call the function',
    )
  if (status === 404) return new FunctionError('missing', `there is no such function (404)${reported()}`)
  if (status === 413)
    return new FunctionError(
      'refused',
      `the request is larger than the platform takes (413)${reported()}; lower payloadLimitBytes`,
    )
  if (status >= 400 || status === 304)
    return new FunctionError('refused', `the call is refused (${status})${reported()}`)
  return headerOf(answer, 'x-amz-function-error') === undefined ? undefined : crashOf(body, answer)
}

/** The trouble of a call that an error of the HTTP client means; other errors pass unchanged. */
const functionError = (error: unknown, { answerLimitBytes }: FunctionRequest): Error => {
  if (!(error instanceof HttpError)) return error as Error
  const { fault, stage, sent, message } = error
  if (fault === 'large')
    return new FunctionError(
      'refused',
      `the answer is larger than ${answerLimitBytes} bytes (answerLimitBytes); have the function ` +
        'upload its outputs (delivery: reference) or return fewer',
    )
  const refused = fault === 'denied' || fault === 'redirect' || fault === 'certificate'
  return new FunctionError(refused ? 'refused' : sent || stage === 'body' ? 'cut' : 'unreachable', message, {
    cause: error,
  })
}

const headersOf = async (
  target: FunctionTarget,
  request: FunctionRequest,
  url: URL,
): Promise<Record<string, string>> => {
  const headers: Record<string, string> = {
    'content-type': 'application/json',
    accept: 'application/json',
    'idempotency-key': request.name,
  }
  if (request.callbackUrl !== undefined && target.shape === 'openfaas')
    headers['x-callback-url'] = request.callbackUrl
  const { credential } = request
  if (target.shape === 'lambda') {
    if (credential?.kind !== 'aws')
      throw new FunctionError(
        'refused',
        'requests to lambda need an access key; name a cloud credential of provider aws',
      )
    headers['x-amz-invocation-type'] = request.asynchronous === true ? 'Event' : 'RequestResponse'
    const { kind: _, ...key } = credential
    const signer = new AwsV4Signer({
      method: 'POST',
      url: url.href,
      headers,
      body: request.body,
      ...key,
      service: 'lambda',
      region: target.region ?? 'us-east-1',
    })
    return Object.fromEntries((await signer.sign()).headers)
  }
  if (credential?.kind === 'bearer') headers['authorization'] = `Bearer ${credential.token}`
  else if (credential !== undefined)
    throw new FunctionError('refused', 'an access key is for functions of shape lambda; name a token')
  return headers
}

/**
 * Calls functions over HTTP, with connections kept open. Each request is sent once; the caller
 * retries.
 */
export const openFunctions = (options: { addressAllowed: AddressJudge }): Functions => {
  // Without a limit of connections: the caller bounds the calls.
  const http = openHttp(options)
  return {
    async invoke(target, request) {
      const url = urlOf(target, request.asynchronous === true)
      const headers = await headersOf(target, request, url)
      try {
        const answer = await http.request(url, {
          method: 'POST',
          headers,
          body: request.body,
          tls: { certificateAuthority: target.certificateAuthority },
          fresh: request.fresh,
          deadlineMs: request.deadlineSeconds * 1000,
          limitBytes: request.answerLimitBytes,
          signal: request.signal,
          onSent: request.onSent,
        })
        const body = await answer.bytes()
        const trouble = troubleOf(answer, body)
        if (trouble !== undefined) throw trouble
        const names = ['x-amzn-requestid', 'x-call-id', 'function-execution-id', 'x-request-id']
        const requestId = names.map((name) => headerOf(answer, name)).find((id) => id !== undefined)
        return { status: answer.status, body, requestId: requestId?.slice(0, 255) }
      } catch (error) {
        throw functionError(error, request)
      }
    },
    close: () => http.close(),
  }
}
