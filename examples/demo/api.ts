import { stringify } from 'yaml'

/** The service's API as a user calls it: documents in YAML, answers in JSON. */
export interface Api {
  get(path: string): Promise<any>
  post(path: string, document?: unknown): Promise<any>
  put(path: string, document: unknown): Promise<any>
  /** Sends one file as a field of a form. */
  upload(path: string, field: string, bytes: Buffer): Promise<any>
  /** Posts a body as it is. */
  send(path: string, type: string, body: Buffer): Promise<any>
  /** Fetches a body unchanged, a picture or a page. */
  fetch(path: string, accept: string): Promise<Buffer>
  /** The same API without the abort signal, for requests during a stop. */
  unstoppable(withinMs: number): Api
}

/** An error status, with the service's message. */
export class ApiError extends Error {
  readonly status: number
  constructor(status: number, message: string) {
    super(message)
    this.name = 'ApiError'
    this.status = status
  }
}

/**
 * @throws ApiError from every function when the service refuses; the signal's reason when it is
 *   aborted
 */
export const openApi = (baseUrl: string, token: string | undefined, stop: AbortSignal): Api => {
  const call = async (
    method: 'GET' | 'POST' | 'PUT',
    path: string,
    options: {
      document?: unknown
      accept?: string
      form?: FormData
      raw?: { type: string; body: Buffer }
    },
  ): Promise<Buffer> => {
    const { document, accept = 'application/json', form, raw } = options
    const answer = await fetch(baseUrl + path, {
      method,
      signal: stop,
      headers: {
        accept,
        ...(token === undefined ? {} : { authorization: `Bearer ${token}` }),
        ...(document === undefined ? {} : { 'content-type': 'application/yaml' }),
        ...(raw === undefined ? {} : { 'content-type': raw.type }),
      },
      ...(raw === undefined ? {} : { body: new Uint8Array(raw.body) }),
      ...(document === undefined ? {} : { body: stringify(document) }),
      ...(form === undefined ? {} : { body: form }),
    })
    const body = Buffer.from(await answer.arrayBuffer())
    if (!answer.ok)
      throw new ApiError(
        answer.status,
        `${method} ${path} was answered ${answer.status}: ${body.toString().slice(0, 2000)}`,
      )
    return body
  }
  const json = (body: Buffer): unknown => (body.length === 0 ? undefined : JSON.parse(body.toString()))
  return {
    get: async (path) => json(await call('GET', path, {})),
    post: async (path, document) => json(await call('POST', path, { document })),
    put: async (path, document) => json(await call('PUT', path, { document })),
    upload: async (path, field, bytes) => {
      const form = new FormData()
      form.append(field, new Blob([Uint8Array.from(bytes)]), 'context.tar.gz')
      return json(await call('POST', path, { form }))
    },
    send: async (path, type, body) => json(await call('POST', path, { raw: { type, body } })),
    fetch: (path, accept) => call('GET', path, { accept }),
    unstoppable: (withinMs) => openApi(baseUrl, token, AbortSignal.timeout(withinMs)),
  }
}
