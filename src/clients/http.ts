import { lookup as systemLookup, type LookupAddress, type LookupAllOptions } from 'node:dns'
import { Agent as PlainAgent, request as plainRequest } from 'node:http'
import { Agent as SecureAgent, request as secureRequest } from 'node:https'
import { isIP, type LookupFunction } from 'node:net'
import type { Readable } from 'node:stream'
import { isMetadataName } from './denied-networks.ts'
import { credentialsOf, HttpError } from './http-error.ts'
import { HttpExchange, type HttpAnswer, type HttpLimits } from './http-exchange.ts'

/** True, or the reason against a connection to the address. */
export type AddressJudge = (address: string) => true | string

export interface HttpTls {
  /** In PEM. Absent: the authorities of this machine. */
  certificateAuthority?: string | undefined
}

export interface HttpRequest extends HttpLimits {
  /** Default GET. */
  method?: string
  /**
   * `expect: 100-continue`: the body waits until the server asks for it, at most a second. `host`
   * is always the URL's.
   */
  headers?: Readonly<Record<string, string>>
  /**
   * A stream goes out in chunks unless `content-length` is among the headers; it is destroyed when
   * the request fails.
   */
  body?: string | Uint8Array | Readable | undefined
  /** Used instead of the client's own settings. */
  tls?: HttpTls | undefined
  /**
   * Uses a connection of its own. The other side may have closed a kept one; then it is unknown
   * whether the request was read.
   */
  fresh?: boolean | undefined
  /** Ends the request, or the answer's body, with its connection. */
  signal?: AbortSignal | undefined
  /** The last byte of the request has been given to the network. */
  onSent?: (() => void) | undefined
}

/** Resolves a name to all its addresses, as `lookup` of `node:dns`. */
export type Resolve = (
  name: string,
  options: LookupAllOptions,
  callback: (error: NodeJS.ErrnoException | null, addresses: LookupAddress[]) => void,
) => void

export interface HttpOptions {
  addressAllowed: AddressJudge
  /** Limit for kept connections to one host; requests beyond them wait. Default: no limit. */
  connections?: number
  /** To an open connection, TLS included; default 10 s. */
  connectMs?: number
  tls?: HttpTls
  /** Default: the system's. */
  resolve?: Resolve
}

interface Agents {
  readonly 'http:': PlainAgent
  readonly 'https:': SecureAgent
}

/**
 * Sends requests to addresses that users give. It connects only to judged addresses: each
 * connection resolves the name once. A redirect is an error. It retries nothing and uses no proxy.
 */
export interface Http {
  /** @throws HttpError; errors of the stream of the request's body */
  request(url: string | URL, request: HttpRequest): Promise<HttpAnswer>
  /**
   * For libraries that make requests of their own. `kept`: connections are reused; `fresh`: each
   * request has its own.
   */
  readonly agents: { readonly kept: Agents; readonly fresh: Agents }
  /**
   * For libraries that connect by themselves. It does not see an address given in place of a host
   * name; `agents` judge those too.
   */
  readonly lookup: LookupFunction
  /** Ends all connections, also those with open requests, and allows no others. */
  close(): void
}

const defaultConnectMs = 10_000
/**
 * A connection that is silent this long is probed. An answer may take an hour, and the probe
 * detects a lost peer meanwhile.
 */
const probeMs = 30_000
/**
 * Delay before the next address of a name is tried beside the first; Node's own 250 ms are too
 * short for a satellite link.
 */
const nextAddressMs = 2_000

const denied = (message: string): HttpError => new HttpError('denied', message, { stage: 'route' })

/** Resolves a name once for a connection and lets only judged addresses through. */
const judgedLookup =
  (addressAllowed: AddressJudge, resolve: Resolve): LookupFunction =>
  (name, options, callback) => {
    if (isMetadataName(name))
      return callback(denied(`${name} is a metadata service; connections to it are denied`), '')
    resolve(name, { ...options, all: true }, (error, addresses) => {
      if (error !== null || addresses.length === 0) {
        const code = error?.code ?? 'ENOTFOUND'
        return callback(
          new HttpError('name', `the name ${name} has no address (${code})`, { stage: 'route', code }),
          '',
        )
      }
      const verdicts = addresses.map((each) => ({ ...each, verdict: addressAllowed(each.address) }))
      const allowed = verdicts
        .filter(({ verdict }) => verdict === true)
        .map(({ address, family }) => ({ address, family }))
      const [first] = allowed
      if (first === undefined) return callback(denied(String(verdicts[0]?.verdict)), '')
      if (options.all === true) callback(null, allowed)
      else callback(null, first.address, first.family)
    })
  }

/**
 * The same agent, but it connects only to hosts without a `problem`, at the addresses that `lookup`
 * gives.
 */
const judging = <A extends PlainAgent>(
  agent: A,
  problem: (host: string) => HttpError | undefined,
  lookup: LookupFunction,
): A => {
  const connect = agent.createConnection.bind(agent)
  agent.createConnection = (options, callback) => {
    const against = problem(options.host ?? '')
    if (against === undefined) {
      const tries = { lookup, autoSelectFamily: true, autoSelectFamilyAttemptTimeout: nextAddressMs }
      return connect(
        { ...options, ...tries, keepAlive: true, keepAliveInitialDelay: probeMs } as typeof options,
        callback,
      )
    }
    ;(callback as ((error: Error) => void) | undefined)?.(against)
    return undefined
  }
  return agent
}

/**
 * Headers under names in lower case, with the URL's host and the length of a body that is no
 * stream.
 */
const headersOf = ({ headers = {}, body }: HttpRequest, { host }: URL): Record<string, string> => {
  const given = Object.fromEntries(
    Object.entries(headers).map(([name, value]) => [name.toLowerCase(), value]),
  )
  const length =
    typeof body === 'string' || ArrayBuffer.isView(body)
      ? { 'content-length': String(Buffer.byteLength(body)) }
      : {}
  return { 'user-agent': 'orrery', ...given, ...length, host }
}

/** The caller closes it. It contacts nothing yet. */
export const openHttp = (options: HttpOptions): Http => {
  const {
    addressAllowed,
    connections = Infinity,
    connectMs = defaultConnectMs,
    resolve = systemLookup,
  } = options
  const lookup = judgedLookup(addressAllowed, resolve)
  let closed = false
  /** Node does not look up an address in place of a name, so the address is judged here. */
  const problem = (host: string): HttpError | undefined => {
    if (closed) return new HttpError('aborted', 'the client is closed', { stage: 'route' })
    const verdict = isIP(host) === 0 ? true : addressAllowed(host)
    return verdict === true ? undefined : denied(verdict)
  }
  const agentsOf = (settings: { keepAlive: boolean; maxSockets: number }): Agents => ({
    'http:': judging(new PlainAgent(settings), problem, lookup),
    'https:': judging(new SecureAgent(settings), problem, lookup),
  })
  const agents = {
    kept: agentsOf({ keepAlive: true, maxSockets: connections }),
    fresh: agentsOf({ keepAlive: false, maxSockets: Infinity }),
  }

  const request = async (address: string | URL, request: HttpRequest): Promise<HttpAnswer> => {
    const url = new URL(address)
    const { protocol, host: place } = url
    if (protocol !== 'http:' && protocol !== 'https:') throw denied(`${protocol} is neither http nor https`)
    if (url.username !== '' || url.password !== '')
      throw denied(`the URL of ${place} holds a user or password; a credential travels in a header`)
    const { method = 'GET', tls, fresh = false } = request
    const { certificateAuthority } = { ...options.tls, ...tls }
    if (request.signal?.aborted === true)
      throw new HttpError('aborted', `the request to ${place} was aborted`, { stage: 'route' })
    const headers = headersOf(request, url)
    const asked = (protocol === 'https:' ? secureRequest : plainRequest)({
      method,
      host: url.hostname.replace(/^\[|\]$/g, ''),
      port: url.port === '' ? (protocol === 'https:' ? 443 : 80) : url.port,
      path: url.pathname + url.search,
      headers,
      agent: agents[fresh ? 'fresh' : 'kept'][protocol],
      ...(certificateAuthority === undefined ? {} : { ca: certificateAuthority }),
    })
    const credentials = credentialsOf(headers, url)
    return new HttpExchange({ ...request, asked, place, method, headers, connectMs, credentials }).answer
  }

  return {
    request,
    agents,
    lookup,
    close() {
      closed = true
      for (const { 'http:': plain, 'https:': secure } of Object.values(agents)) {
        plain.destroy()
        secure.destroy()
      }
    },
  }
}
