import { HttpError } from './http-error.ts'
import { openHttp, type AddressJudge } from './http.ts'

/** An API server of Kubernetes, for plain requests. */
export interface KubernetesServer {
  host: string
  port: number
  token?: string
  /** PEM; absent: the certificate authorities of this machine. */
  certificateAuthority?: string
  /** Judges the address itself before a byte is sent to it. */
  addressAllowed: AddressJudge
}

/** The stage at which a request failed. */
export type KubernetesStage = 'name' | 'route' | 'host key' | 'login'

interface KubernetesErrorOptions {
  status?: number
  reason?: string
  retryAfterSeconds?: number
  permanent?: boolean
}

export class KubernetesError extends Error {
  readonly stage: KubernetesStage
  /** HTTP status, where there was an answer. */
  readonly status: number | undefined
  /** The API's own reason: `AlreadyExists`, `Forbidden`, `Expired` … */
  readonly reason: string | undefined
  readonly retryAfterSeconds: number | undefined
  /**
   * A retry is useless before a person changes something: a denied address, a wrong certificate.
   */
  readonly permanent: boolean
  constructor(stage: KubernetesStage, message: string, options: ErrorOptions & KubernetesErrorOptions = {}) {
    super(message, options)
    this.name = 'KubernetesError'
    this.stage = stage
    this.status = options.status
    this.reason = options.reason
    this.retryAfterSeconds = options.retryAfterSeconds
    this.permanent = options.permanent ?? false
  }
}

export interface KubernetesAnswer {
  body: unknown
  /** The address of the connection. */
  address: string
}

const deadlineMs = 10_000
const maxBytes = 32 * 1024 * 1024

/** `https://host:port`, for requests to one of its paths. */
export const serverUrl = ({ host, port }: Pick<KubernetesServer, 'host' | 'port'>): string =>
  `https://${host.includes(':') ? `[${host}]` : host}:${port}`

/** Statuses below 500 after which the same request may have another answer without a person's change. */
const passingStatuses = [408, 409, 425, 429]
/** Whether the server has refused a request for good, in its own words. */
export const isRefusal = (status: number | undefined): boolean =>
  status !== undefined && status >= 400 && status < 500 && !passingStatuses.includes(status)

/**
 * The stage that an error of the HTTP client means; other errors pass unchanged. `secure`: the
 * stage of a TLS fault that is not about the certificate.
 */
export const kubernetesError = (error: unknown, secure: KubernetesStage): Error => {
  if (!(error instanceof HttpError)) return error as Error
  const { fault, status, message } = error
  const stages = { route: 'route', tls: secure, request: 'login', answer: 'login', body: 'login' } as const
  const stage = fault === 'name' ? 'name' : fault === 'certificate' ? 'host key' : stages[error.stage]
  return new KubernetesError(stage, message, {
    cause: error,
    ...(status === undefined ? {} : { status }),
    permanent: fault === 'denied' || fault === 'certificate' || fault === 'large',
  })
}

/**
 * @throws KubernetesError without a cause: a parser's error quotes the text, which may repeat a
 *   token
 */
export const parseAnswer = <T>(text: string): T => {
  try {
    return JSON.parse(text) as T
  } catch {
    throw new KubernetesError('login', 'the answer is not JSON: this is no Kubernetes API', {
      permanent: true,
    })
  }
}

/**
 * One request over a connection of its own, within 10 s and 32 MiB, with the answer's JSON. A
 * redirect is an error and is not followed: the token is sent only to the named server.
 *
 * @throws KubernetesError with the stage, and the status where there was an answer
 */
export const askKubernetes = async (
  server: KubernetesServer,
  { method = 'GET', path, body }: { method?: 'GET' | 'POST'; path: string; body?: object },
): Promise<KubernetesAnswer> => {
  const { token, certificateAuthority, addressAllowed } = server
  const http = openHttp({ addressAllowed, connectMs: deadlineMs })
  try {
    const answer = await http.request(serverUrl(server) + path, {
      method,
      headers: {
        accept: 'application/json',
        ...(token === undefined ? {} : { authorization: `Bearer ${token}` }),
        ...(body === undefined ? {} : { 'content-type': 'application/json' }),
      },
      body: body && JSON.stringify(body),
      tls: { certificateAuthority },
      fresh: true,
      deadlineMs,
      limitBytes: maxBytes,
    })
    const text = (await answer.bytes()).toString('utf8')
    if (answer.status >= 300)
      throw new KubernetesError('login', refusalText(answer.status), { status: answer.status })
    return { body: parseAnswer(text), address: answer.address }
  } catch (error) {
    throw kubernetesError(error, 'host key')
  } finally {
    http.close()
  }
}

const refusalText = (status: number): string =>
  status === 401
    ? 'the token is refused (401); store a valid one'
    : status === 403
      ? 'the token is known, but may not do this (403); give its account the rights'
      : `the server answers ${status}`
