import { STATUS_CODES } from 'node:http'
import { Refusal, type Problem, type RefusalCode } from '../refusal.ts'

/** The status of each code that a domain may refuse with. */
export const refusalStatus = {
  invalid: 400,
  unauthenticated: 401,
  forbidden: 403,
  missing: 404,
  conflict: 409,
  too_large: 413,
  unacceptable: 422,
  locked: 423,
  unavailable: 503,
  not_built: 503,
} as const satisfies Record<RefusalCode, number>

/** Codes that only the kernel uses. No domain needs them. */
export const kernelStatus = {
  method_not_allowed: 405,
  not_acceptable: 406,
  precondition_failed: 412,
  unsupported_media_type: 415,
  upgrade_required: 426,
} as const
export type KernelCode = keyof typeof kernelStatus
export type AnswerCode = RefusalCode | KernelCode | 'internal'

const statuses: Record<RefusalCode | KernelCode, number> = { ...refusalStatus, ...kernelStatus }

/** An error as it is sent: the members that the client reads. */
export interface ErrorAnswer {
  status: number
  code: AnswerCode
  message: string
  details: Problem[]
  extra: Record<string, unknown>
  headers: Record<string, string>
}

/** A refusal by the kernel, or a domain's refusal with headers that only HTTP has. */
export class HttpRefusal extends Error {
  readonly code: RefusalCode | KernelCode
  readonly headers: Record<string, string>
  readonly status: number
  /** `status` where it differs from the usual one of the code: a late request is `invalid`, too. */
  constructor(
    code: RefusalCode | KernelCode,
    message: string,
    headers: Record<string, string> = {},
    status: number = statuses[code],
  ) {
    super(message)
    this.name = 'HttpRefusal'
    this.code = code
    this.headers = headers
    this.status = status
  }
}

/** The client left before its request was complete: no answer can reach it. */
export class ClientGone extends Error {}

/**
 * The answer to an error; undefined for a fault of the service. `translate` turns errors of the
 * database (a violated constraint, a lost connection) into refusals.
 */
export const errorAnswer = (
  error: unknown,
  translate: (error: unknown) => Refusal | undefined,
): ErrorAnswer | undefined => {
  if (error instanceof HttpRefusal)
    return {
      status: error.status,
      code: error.code,
      message: error.message,
      details: [],
      extra: {},
      headers: error.headers,
    }
  const refusal = error instanceof Refusal ? error : translate(error)
  if (refusal === undefined) return undefined
  const headers: Record<string, string> = {}
  if (refusal.retryAfterSeconds !== undefined)
    headers['Retry-After'] = String(Math.max(1, Math.ceil(refusal.retryAfterSeconds)))
  if (refusal.code === 'unauthenticated') headers['WWW-Authenticate'] = 'Bearer'
  return {
    status: statuses[refusal.code],
    code: refusal.code,
    message: refusal.message,
    details: refusal.details,
    extra: refusal.extra,
    headers,
  }
}

/** The answer to a fault. The log holds the cause, under the request id. */
export const internalAnswer = (requestId: string): ErrorAnswer => ({
  status: 500,
  code: 'internal',
  message: 'the service failed to answer; the cause is in its log under this request id',
  details: [],
  extra: { requestId },
  headers: {},
})

/**
 * The body of every error, with the members of RFC 9457 where the client asked for
 * `application/problem+json`.
 */
export const errorBody = (answer: ErrorAnswer, problem: boolean, instance: string): string => {
  const plain = { ...answer.extra, error: answer.message, code: answer.code, details: answer.details }
  if (!problem) return JSON.stringify(plain)
  const title = STATUS_CODES[answer.status] ?? 'Error'
  return JSON.stringify({
    type: `urn:orrery:error:${answer.code}`,
    title,
    status: answer.status,
    detail: answer.message,
    instance,
    ...plain,
  })
}
