import { stringify } from 'yaml'

/** The service's API as a user calls it: documents in YAML, answers in JSON. */
export interface Api {
  get(path: string): Promise<any>
  post(path: string, document?: unknown): Promise<any>
  /** A body as it is, a picture or a page. */
  fetch(path: string, accept: string): Promise<Buffer>
  /** The same without the wish to stop: what is asked for while everything is being stopped. */
  unstoppable(withinMs: number): Api
}

/** An answer that is not the wanted one, with what the service says about it. */
export class ApiError extends Error {
  readonly status: number
  constructor(status: number, message: string) {
    super(message)
    this.name = 'ApiError'
    this.status = status
  }
}

/** @throws ApiError from every function when the service refuses; the signal's reason when it is aborted */
export const openApi = (baseUrl: string, token: string | undefined, stop: AbortSignal): Api => {
  const call = async (method: 'GET' | 'POST', path: string, options: { document?: unknown; accept?: string }): Promise<Buffer> => {
    const { document, accept = 'application/json' } = options
    const answer = await fetch(baseUrl + path, {
      method,
      signal: stop,
      headers: {
        accept,
        ...(token === undefined ? {} : { authorization: `Bearer ${token}` }),
        ...(document === undefined ? {} : { 'content-type': 'application/yaml' }),
      },
      ...(document === undefined ? {} : { body: stringify(document) }),
    })
    const body = Buffer.from(await answer.arrayBuffer())
    if (!answer.ok) throw new ApiError(answer.status, `${method} ${path} was answered ${answer.status}: ${body.toString().slice(0, 2000)}`)
    return body
  }
  const json = (body: Buffer): unknown => (body.length === 0 ? undefined : JSON.parse(body.toString()))
  return {
    get: async (path) => json(await call('GET', path, {})),
    post: async (path, document) => json(await call('POST', path, { document })),
    fetch: (path, accept) => call('GET', path, { accept }),
    unstoppable: (withinMs) => openApi(baseUrl, token, AbortSignal.timeout(withinMs)),
  }
}
