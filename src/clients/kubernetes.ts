import { lookup as lookupName } from 'node:dns/promises'
import { request } from 'node:https'
import { isIP } from 'node:net'
import { checkServerIdentity as checkIdentity } from 'node:tls'
import { certificateFault } from './certificate-fault.ts'

/** An API server of Kubernetes, as far as it can be asked with plain requests. */
export interface KubernetesServer {
  host: string
  port: number
  token?: string
  /** PEM; absent: the certificate authorities of this machine. */
  certificateAuthority?: string
  /** Asked about the address itself before a byte is sent to it; a text is the reason against it. */
  addressAllowed: (address: string) => true | string
}

/** How far a request came: the stage that failed. */
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
  /** The API's own word for it: `AlreadyExists`, `Forbidden`, `Expired` … */
  readonly reason: string | undefined
  readonly retryAfterSeconds: number | undefined
  /** Trying again is useless before somebody changes something: a denied address, a wrong certificate. */
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
  /** The address that was connected to. */
  address: string
}

const deadlineMs = 10_000
const maxBytes = 32 * 1024 * 1024

/** The only address of a host that is connected to: it was judged, and the name is not asked again. */
const addressOf = async ({ host, addressAllowed }: KubernetesServer): Promise<string> => {
  let addresses: string[]
  try {
    addresses = isIP(host) === 0 ? (await lookupName(host, { all: true })).map(({ address }) => address) : [host]
  } catch (error) {
    throw new KubernetesError('name', `the name ${host} has no address (${(error as NodeJS.ErrnoException).code ?? 'unknown'})`, {
      cause: error,
    })
  }
  const [first] = addresses
  if (first === undefined) throw new KubernetesError('name', `the name ${host} has no address`)
  const verdict = addressAllowed(first)
  if (verdict !== true) throw new KubernetesError('route', verdict)
  return first
}

/**
 * One request, within 10 s and 32 MiB, with the answer's JSON. A redirect is an error and is not followed: the token goes to the server that was named
 * and to no other.
 *
 * @throws KubernetesError with the stage, and the status where there was an answer
 */
export const askKubernetes = async (
  server: KubernetesServer,
  { method = 'GET', path, body }: { method?: 'GET' | 'POST'; path: string; body?: object },
): Promise<KubernetesAnswer> => {
  const address = await addressOf(server)
  const text = body === undefined ? undefined : JSON.stringify(body)
  return new Promise((resolve, reject) => {
    let stage: KubernetesStage = 'route'
    const fail = (message: string, options: ErrorOptions & { status?: number } = {}, at: KubernetesStage = stage): void =>
      reject(new KubernetesError(at, message, options))
    const asked = request({
      host: address,
      port: server.port,
      path,
      method,
      agent: false,
      ...(isIP(server.host) === 0 ? { servername: server.host } : {}),
      ...(server.certificateAuthority === undefined ? {} : { ca: server.certificateAuthority }),
      // The address is what is connected to; the certificate has to be the name's.
      checkServerIdentity: (_, certificate) => checkIdentity(server.host, certificate),
      headers: {
        host: `${server.host.includes(':') ? `[${server.host}]` : server.host}:${server.port}`,
        accept: 'application/json',
        ...(server.token === undefined ? {} : { authorization: `Bearer ${server.token}` }),
        ...(text === undefined ? {} : { 'content-type': 'application/json', 'content-length': Buffer.byteLength(text) }),
      },
    })
    const timer = setTimeout(() => {
      fail(`${server.host}:${server.port} did not ${stage === 'route' ? 'accept a connection' : 'answer'} within ${deadlineMs / 1_000} s`)
      asked.destroy()
    }, deadlineMs)
    asked.on('socket', (socket) => {
      socket.once('connect', () => (stage = 'host key'))
      socket.once('secureConnect', () => (stage = 'login'))
    })
    asked.on('error', (error: NodeJS.ErrnoException) => {
      clearTimeout(timer)
      const certificate = stage !== 'login' && certificateFault.test(error.code ?? '')
      fail(
        certificate ? `the certificate of ${server.host} is refused: ${error.message}` : `${server.host}:${server.port}: ${error.message}`,
        { cause: error },
        certificate ? 'host key' : stage,
      )
    })
    asked.on('response', (response) => {
      const chunks: Buffer[] = []
      let size = 0
      response.on('data', (chunk: Buffer) => {
        chunks.push(chunk)
        size += chunk.length
        if (size > maxBytes) {
          fail(`the answer is larger than ${maxBytes} bytes`)
          asked.destroy()
        }
      })
      response.on('end', () => {
        clearTimeout(timer)
        const status = response.statusCode ?? 0
        if (status >= 300 && status < 400) return fail(`the server answers with a redirect (${status}), which is not followed`, { status })
        if (status >= 400) return fail(refusalText(status), { status })
        try {
          resolve({ body: JSON.parse(Buffer.concat(chunks).toString('utf8')), address })
        } catch (error) {
          fail('the answer is not JSON: this is no Kubernetes API', { status, cause: error })
        }
      })
      response.on('error', (error) => {
        clearTimeout(timer)
        fail(`the answer broke off: ${error.message}`, { cause: error })
      })
    })
    asked.end(text)
  })
}

const refusalText = (status: number): string =>
  status === 401
    ? 'the token is refused (401); store a valid one'
    : status === 403
      ? 'the token is known, but may not do this (403); give its account the rights'
      : `the server answers ${status}`
