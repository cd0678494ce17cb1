/**
 * How far a request came: no connection yet, its TLS, the request on its way, waiting for the
 * answer, the answer's body.
 */
export type HttpStage = 'route' | 'tls' | 'request' | 'answer' | 'body'

/**
 * What went wrong with a request:
 *
 * - `denied`: no connection may lead there.
 * - `name`: the name has no address.
 * - `certificate`: the server's certificate is not trusted, or is another name's.
 * - `late`: a deadline has passed, or the other side moved no byte for too long.
 * - `lost`: the network or the other side broke it off, or no connection was made.
 * - `redirect`: the answer is a redirect.
 * - `large`: the answer is larger than the caller's limit.
 * - `aborted`: the caller's signal.
 */
export type HttpFault = 'denied' | 'name' | 'certificate' | 'late' | 'lost' | 'redirect' | 'large' | 'aborted'

interface HttpErrorFacts {
  stage: HttpStage
  /** Whether the other side may have read the whole request. */
  sent?: boolean
  status?: number | undefined
  /** Node's code, as `ECONNREFUSED`. */
  code?: string | undefined
  location?: string | undefined
}

/**
 * Contains neither the request nor bytes of the answer: the message names the host and the reason.
 * Node's own error is not the `cause`, because a parser's error carries the bytes that could not be
 * parsed.
 */
export class HttpError extends Error {
  readonly fault: HttpFault
  readonly stage: HttpStage
  readonly sent: boolean
  readonly status: number | undefined
  readonly code: string | undefined
  readonly #location: string | undefined

  constructor(
    fault: HttpFault,
    message: string,
    { stage, sent = false, status, code, location }: HttpErrorFacts,
  ) {
    super(message)
    this.name = 'HttpError'
    this.fault = fault
    this.stage = stage
    this.sent = sent
    this.status = status
    this.code = code
    this.#location = location
  }

  /**
   * The target of a redirect, as the server wrote it. No log shows it: it may be a signed URL,
   * which is a credential.
   */
  get location(): string | undefined {
    return this.#location
  }
}

/** Names of headers and of parameters of a URL whose values are credentials. */
const credentialName = /auth|cookie|credential|password|secret|signature|token|^sig$|api-?key/i
/** Shorter values occur in many other texts. */
const shortestCredential = 6

/**
 * Parts of a header's value that are credentials when they stand alone: without the scheme,
 * decoded, AWS' signature.
 */
const partsOf = (value: string): string[] => {
  const [scheme = '', ...rest] = value.split(' ')
  const bare = rest.join(' ')
  const login = /^basic$/i.test(scheme) ? Buffer.from(bare, 'base64').toString() : ''
  const signature = /(?<=Signature=)[0-9a-f]+/.exec(value)?.[0] ?? ''
  return [value, bare, login, login.slice(login.indexOf(':') + 1), signature]
}

/**
 * The texts of a request that no error and no log may contain, in the forms in which an answer may
 * repeat them; the longest first.
 */
export const credentialsOf = (headers: Readonly<Record<string, string>>, url: URL): string[] => {
  const named = [...Object.entries(headers), ...url.searchParams].filter(([name]) =>
    credentialName.test(name),
  )
  const texts = named.flatMap(([, value]) => partsOf(value))
  const forms = texts.flatMap((text) => [text, encodeURIComponent(text), JSON.stringify(text).slice(1, -1)])
  return [...new Set(forms)]
    .filter(({ length }) => length >= shortestCredential)
    .sort((a, b) => b.length - a.length)
}

/** `text` with stars instead of each credential. */
export const withoutCredentials = (text: string, credentials: readonly string[]): string =>
  credentials.reduce((rest, credential) => rest.replaceAll(credential, '****'), text)
