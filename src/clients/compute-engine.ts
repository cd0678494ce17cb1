import { z } from 'zod'
import { append } from '../lists.ts'
import { openGoogleToken, type ServiceAccountKey } from './google-token.ts'
import { HttpError } from './http-error.ts'
import type { Http } from './http.ts'

export interface GoogleProject {
  project: string
  region: string
  /** Replaces `https://compute.googleapis.com`. */
  endpoint?: string | undefined
}

/** Compute Engine refused, with its reason, or gave no answer. */
export class ComputeEngineError extends Error {
  /** Google's reason (`notFound`, `QUOTA_EXCEEDED`), or the fault of the connection. */
  readonly code: string
  readonly status: number | undefined
  constructor(code: string, message: string, status?: number) {
    super(message)
    this.name = 'ComputeEngineError'
    this.code = code
    this.status = status
  }
}

const answerMs = 30_000
const largestAnswer = 32 * 1024 * 1024
const scope = 'https://www.googleapis.com/auth/compute'
const billingScope = 'https://www.googleapis.com/auth/cloud-billing.readonly'
/** Compute Engine among the services of the billing catalog. */
const billedService = '6F81-5844-456A'
const mostSkus = 100_000

const Fault = z.object({
  error: z.object({
    message: z.string().optional(),
    status: z.string().optional(),
    errors: z.array(z.object({ reason: z.string().optional() })).optional(),
  }),
})
const Operation = z.object({
  name: z.string(),
  status: z.string(),
  error: z
    .object({ errors: z.array(z.object({ code: z.string(), message: z.string().optional() })) })
    .optional(),
})
export type ComputeOperation = z.output<typeof Operation>

const SkuPage = z.object({ skus: z.array(z.unknown()).optional(), nextPageToken: z.string().optional() })
const Page = z.object({ items: z.unknown().optional(), nextPageToken: z.string().optional() })

/**
 * A name as one segment of a path. @throws ComputeEngineError for `.` and `..`, which every form of an address
 * resolves
 */
export const segmentOf = (name: string): string => {
  if (/^\.{1,2}$/.test(name))
    throw new ComputeEngineError('no-name', `${JSON.stringify(name)} names nothing at Compute Engine`)
  return encodeURIComponent(name)
}

const shownOf = (text: string): string => text.replace(/[^\x20-\x7e]+/g, ' ').slice(0, 400)

/**
 * Compute Engine of one project and region, by its REST API. Only addresses that were judged are
 * connected to; requests go out once, and no redirect is followed.
 */
export const openComputeEngine = (options: { http: Http; place: GoogleProject; key: ServiceAccountKey }) => {
  const { http, place, key } = options
  const ownToken = openGoogleToken(key, scope)
  const billingToken = openGoogleToken(key, billingScope)
  const root = (place.endpoint ?? 'https://compute.googleapis.com').replace(/\/+$/, '')
  const projects = `${root}/compute/v1/projects`
  const base = (project = place.project): string => `${projects}/${segmentOf(project)}`

  const errorOf = (status: number, text: string): ComputeEngineError => {
    let [reason, message] = [`${status}`, text]
    try {
      const { error } = Fault.parse(JSON.parse(text))
      reason = error.errors?.[0]?.reason ?? error.status ?? reason
      message = error.message ?? text
    } catch {
      // The service does not use the expected format.
    }
    return new ComputeEngineError(reason, `${reason}: ${shownOf(message)}`, status)
  }

  const ask = async <T extends z.ZodType>(
    url: string,
    schema: T,
    {
      method = 'GET',
      body,
      token = ownToken,
    }: { method?: string; body?: unknown; token?: () => string } = {},
  ): Promise<z.output<T>> => {
    try {
      const answer = await http.request(url, {
        ...{ method, deadlineMs: answerMs, limitBytes: largestAnswer },
        headers: {
          authorization: `Bearer ${token()}`,
          ...(body === undefined ? {} : { 'content-type': 'application/json' }),
        },
        ...(body === undefined ? {} : { body: JSON.stringify(body) }),
      })
      const text = (await answer.bytes(largestAnswer)).toString()
      if (answer.status < 200 || answer.status >= 300)
        throw errorOf(answer.status, answer.quotable(text.slice(0, 65_536)))
      return schema.parse(JSON.parse(text))
    } catch (error) {
      if (error instanceof HttpError) throw new ComputeEngineError(error.fault, error.message, error.status)
      if (error instanceof z.ZodError || error instanceof SyntaxError)
        throw new ComputeEngineError('format', `the answer is no document of Compute Engine's`)
      throw error
    }
  }

  return {
    place,
    account: key.clientEmail,
    /** A resource below the project. @throws ComputeEngineError */
    get: async <T extends z.ZodType>(path: string, schema: T) =>
      ask(`${base()}${path.startsWith('?') ? '' : '/'}${path}`, schema),
    /** Every item of a list, of any project, at most `most`. @throws ComputeEngineError */
    async list(
      path: string,
      query: Readonly<Record<string, string>>,
      { project = place.project, most = 10_000 }: { project?: string; most?: number } = {},
    ): Promise<unknown[]> {
      const found: unknown[] = []
      let pageToken: string | undefined
      do {
        const parameters = new URLSearchParams({
          ...{ maxResults: '500', ...query },
          ...(pageToken === undefined ? {} : { pageToken }),
        })
        const page = await ask(`${base(project)}/${path}?${parameters.toString()}`, Page)
        // An aggregated list has an object by zones instead of a list.
        if (Array.isArray(page.items)) append(found, page.items as unknown[])
        else if (page.items !== undefined && page.items !== null)
          append(found, Object.values(page.items) as unknown[])
        pageToken = page.nextPageToken === '' ? undefined : page.nextPageToken
      } while (pageToken !== undefined && found.length < most)
      return found
    },
    /**
     * The entries of the billing catalog for Compute Engine, in US dollars. @throws
     * ComputeEngineError
     */
    async skus(): Promise<unknown[]> {
      const billing = (place.endpoint ?? 'https://cloudbilling.googleapis.com').replace(/\/+$/, '')
      const found: unknown[] = []
      let pageToken = ''
      do {
        const parameters = new URLSearchParams({
          ...{ currencyCode: 'USD', pageSize: '5000' },
          ...(pageToken === '' ? {} : { pageToken }),
        })
        const url = `${billing}/v1/services/${billedService}/skus?${parameters.toString()}`
        const page = await ask(url, SkuPage, { token: billingToken })
        append(found, page.skus ?? [])
        pageToken = page.nextPageToken ?? ''
      } while (pageToken !== '' && found.length < mostSkus)
      return found
    },
    /** Begins a change. @returns its operation @throws ComputeEngineError */
    change: async (method: 'POST' | 'DELETE', path: string, body?: unknown): Promise<ComputeOperation> =>
      ask(`${base()}/${path}`, Operation, { method, ...(body === undefined ? {} : { body }) }),
    /**
     * Waits for the end of an operation, at most as long as one request lasts. `scope`:
     * `global`, `zones/NAME`. @throws ComputeEngineError with the operation's own error
     */
    async settle(scopeOf: string, operation: ComputeOperation): Promise<ComputeOperation> {
      const ended =
        operation.status === 'DONE'
          ? operation
          : await ask(`${base()}/${scopeOf}/operations/${segmentOf(operation.name)}/wait`, Operation, {
              method: 'POST',
            })
      const [first] = ended.error?.errors ?? []
      if (first !== undefined)
        throw new ComputeEngineError(first.code, `${first.code}: ${shownOf(first.message ?? '')}`, 200)
      return ended
    },
  }
}
export type ComputeEngine = ReturnType<typeof openComputeEngine>
