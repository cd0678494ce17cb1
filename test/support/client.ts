/**
 * An answer of an API. `body` is the parsed JSON, or the text of another type; undefined where it
 * is empty.
 */
export interface Answer<T = any> {
  status: number
  headers: Headers
  text: string
  body: T
}

export interface ClientOptions {
  /** Headers of every `call`. */
  headers?: Record<string, string>
  /** Runs after every answer, and may throw because of it. */
  onAnswer?: () => void
}

/** A client of the API at a base URL, e.g. `http://127.0.0.1:8080/api`, for any server. */
export const openClient = (baseUrl: string, { headers: always = {}, onAnswer }: ClientOptions = {}) => {
  const { origin } = new URL(baseUrl)

  /** Sends a request to a path below the root of the server. */
  const request = async <T = any>(path: string, init?: RequestInit): Promise<Answer<T>> => {
    const response = await fetch(origin + path, init)
    const text = await response.text()
    onAnswer?.()
    const { status, headers } = response
    const isJson = /[/+]json\b/.test(headers.get('content-type') ?? '') && text !== ''
    return { status, headers, text, body: (isJson ? JSON.parse(text) : text === '' ? undefined : text) as T }
  }

  /**
   * Sends a document to a path below the API's prefix: a string as YAML, unchanged; any other value
   * as JSON.
   */
  const call = <T = any>(
    method: string,
    path: string,
    document?: unknown,
    headers: Record<string, string> = {},
  ): Promise<Answer<T>> => {
    const isText = typeof document === 'string'
    const type =
      document === undefined ? {} : { 'content-type': isText ? 'application/yaml' : 'application/json' }
    return request<T>(baseUrl.slice(origin.length) + path, {
      method,
      headers: { ...always, ...type, ...headers },
      ...(document === undefined ? {} : { body: isText ? document : JSON.stringify(document) }),
    })
  }

  /** The body of a call that must succeed. @throws Error with the answer when it does not */
  const ok = async (
    method: string,
    path: string,
    document?: unknown,
    headers?: Record<string, string>,
  ): Promise<any> => {
    const answer = await call(method, path, document, headers)
    if (answer.status >= 300)
      throw new Error(`${method} ${path} answered ${String(answer.status)}: ${answer.text.slice(0, 2_000)}`)
    return answer.body
  }

  return {
    request,
    call,
    ok,
    get: (path: string, headers?: Record<string, string>): Promise<any> =>
      ok('GET', path, undefined, headers),
    post: (path: string, document?: unknown): Promise<any> => ok('POST', path, document),
  }
}
