import { HttpError } from './http-error.ts'

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
