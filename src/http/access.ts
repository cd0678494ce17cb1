import { hash, timingSafeEqual } from 'node:crypto'
import type { IncomingMessage } from 'node:http'
import { isIPv4, isIPv6 } from 'node:net'
import { HttpRefusal } from './errors.ts'

/** The callers that are admitted: the part of the configuration that the guards read. */
export interface AccessRules {
  /** Where it is absent, only loopback peers are served. */
  apiToken?: string | undefined
  /** Exact origins (`https://desk.example`) of browser pages that may call. */
  allowedOrigins: readonly string[]
  /**
   * Further names (`api.example` or `api.example:8080`) by which clients may address the service.
   */
  allowedHosts: readonly string[]
  /** The host that the service listens on. */
  listenHost: string
}

export interface Actor {
  id: string
  type: 'token' | 'local'
}

const unmapped = (address: string): string =>
  address.toLowerCase().startsWith('::ffff:') && isIPv4(address.slice(7)) ? address.slice(7) : address

/** Whether a socket's peer is this machine: 127.0.0.0/8, ::1, and the former mapped into IPv6. */
export const isLoopback = (address: string | undefined): boolean => {
  if (address === undefined) return false
  const plain = unmapped(address)
  return isIPv4(plain) ? plain.startsWith('127.') : plain === '::1'
}

/**
 * `name` or `[v6]`, and a port of 1–65535 if any; lower case. Undefined for anything that is not a
 * plain authority.
 */
const authority = (host: string): { name: string; port: string } | undefined => {
  const found = /^(\[[0-9a-f:.]+\]|[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?)(?::([1-9][0-9]{0,4}))?$/.exec(
    host.toLowerCase(),
  )
  if (found === null || found[1] === undefined) return undefined
  const name = found[1].startsWith('[') ? found[1].slice(1, -1) : found[1]
  if (found[1].startsWith('[') && !isIPv6(name)) return undefined
  if (found[2] !== undefined && Number(found[2]) > 65_535) return undefined
  return { name, port: found[2] ?? '' }
}

/**
 * The number of times that a header occurs. Node keeps only the first of two, and a proxy may have
 * read the other.
 */
const occurrences = (req: IncomingMessage, name: string): number => {
  let count = 0
  for (let i = 0; i < req.rawHeaders.length; i += 2) {
    const raw = req.rawHeaders[i]
    if (raw !== undefined && raw.length === name.length && raw.toLowerCase() === name) count++
  }
  return count
}

const digest = (text: string): Buffer => hash('sha256', text, 'buffer')

const corsMethods = 'GET, POST, PUT, DELETE, OPTIONS'
/** The headers that the service reads and a page may set by itself. */
const corsRequestHeaders =
  'Content-Type, Authorization, Accept, Idempotency-Key, If-Match, If-None-Match, If-Range, Last-Event-ID, ' +
  'Range, Content-Range, Content-Digest, Prefer, X-Request-Id'
/** The headers of answers that a page reads, beside those that every page may read. */
const corsAnswerHeaders =
  'Location, Link, ETag, Retry-After, X-Total-Count, X-Truncated, X-Request-Id, Idempotency-Replayed, ' +
  'Content-Range, Accept-Ranges, Content-Disposition, Preference-Applied, Accept-Post, Allow, ' +
  'WWW-Authenticate, AKOFLOW-SERVER, Orrery-Version, Orrery-Instance, Orrery-Attempt, Orrery-Offset'

/**
 * The guards before every route. They check the socket's peer, never a forwarded header, which any
 * client can write.
 */
export const createAccess = (rules: AccessRules) => {
  const names = new Set(['localhost', '127.0.0.1', '::1'])
  const authorities = new Set<string>()
  const listen = authority(
    rules.listenHost.includes(':') && !rules.listenHost.startsWith('[')
      ? `[${rules.listenHost}]`
      : rules.listenHost,
  )
  if (listen !== undefined && listen.name !== '0.0.0.0' && listen.name !== '::') names.add(listen.name)
  for (const host of rules.allowedHosts) {
    const allowed = authority(host.trim())
    if (allowed === undefined)
      throw new Error(
        `allowed host ${JSON.stringify(host)} is not a host name with an optional port; write it ` +
          'like api.example or api.example:8080',
      )
    if (allowed.port === '') names.add(allowed.name)
    else authorities.add(`${allowed.name}:${allowed.port}`)
  }
  const origins = new Set(rules.allowedOrigins)
  /** The last accepted name of the service: a client sends the same one with every request. */
  let lastHost: string | undefined
  const expected = rules.apiToken === undefined ? undefined : digest(rules.apiToken)

  /** The address of the connection cannot be rebound, so a Host with this address is accepted. */
  const arrivedAt = (req: IncomingMessage, name: string): boolean =>
    (isIPv4(name) || isIPv6(name)) &&
    req.socket.localAddress !== undefined &&
    unmapped(req.socket.localAddress) === name

  return {
    /**
     * Checks peer and Host. @throws HttpRefusal 403 for foreign peers of a service without a token,
     * and for names of other hosts (DNS rebinding)
     */
    admit(req: IncomingMessage): void {
      if (expected === undefined && !isLoopback(req.socket.remoteAddress))
        throw new HttpRefusal('forbidden', 'API is restricted to loopback')
      const host = req.headers.host
      if (host !== undefined && occurrences(req, 'host') === 1) {
        if (host === lastHost) return
        const asked = authority(host)
        if (
          asked !== undefined &&
          (names.has(asked.name) || authorities.has(`${asked.name}:${asked.port}`))
        ) {
          lastHost = host
          return
        }
        if (asked !== undefined && arrivedAt(req, asked.name)) return
      }
      throw new HttpRefusal(
        'forbidden',
        'the Host header does not name this service; the names it answers to are set by SERVICE_ALLOWED_HOSTS',
      )
    },

    /**
     * CORS headers of the answer (flat name, value pairs). A page of another origin is refused for
     * reads and writes alike: a write without preflight (no Content-Type) would otherwise pass
     * through any browser on this machine.
     */
    cors(req: IncomingMessage): string[] {
      const origin = req.headers.origin
      if (origin === undefined) return origins.size === 0 ? [] : ['Vary', 'Origin']
      if (occurrences(req, 'origin') === 1) {
        if (origins.has(origin)) {
          return [
            'Access-Control-Allow-Origin',
            origin,
            'Vary',
            'Origin',
            'Access-Control-Expose-Headers',
            corsAnswerHeaders,
          ]
        }
        if (origin.toLowerCase() === `http://${req.headers.host?.toLowerCase()}`) return ['Vary', 'Origin']
      }
      throw new HttpRefusal('forbidden', 'origin is not allowed', { Vary: 'Origin' })
    },

    /** Headers of a preflight's 200, after `cors` let the origin pass. */
    preflight(req: IncomingMessage): string[] {
      const headers = [
        'Access-Control-Allow-Methods',
        corsMethods,
        'Access-Control-Allow-Headers',
        corsRequestHeaders,
        'Access-Control-Max-Age',
        '600',
      ]
      if (req.headers['access-control-request-private-network'] === 'true')
        headers.push('Access-Control-Allow-Private-Network', 'true')
      return headers
    },

    /**
     * The caller. Both sides are hashed first, so that the time taken reveals neither length nor
     * content of the token.
     * @throws HttpRefusal 401
     */
    authenticate(req: IncomingMessage): Actor {
      if (expected === undefined) return { id: 'loopback', type: 'local' }
      const header = req.headers.authorization ?? ''
      // The name of a scheme is case-insensitive (RFC 9110, 11.1).
      const given = /^bearer /i.test(header) ? header.slice(7) : ''
      const equal = timingSafeEqual(digest(given), expected)
      if (!equal || given === '' || occurrences(req, 'authorization') !== 1) {
        throw new HttpRefusal('unauthenticated', 'authentication required', { 'WWW-Authenticate': 'Bearer' })
      }
      return { id: 'api-token', type: 'token' }
    },

    /** The caller's part in the key of a repeated request. */
    caller: expected === undefined ? 'loopback' : digest(`caller:${rules.apiToken}`).toString('base64url'),
  }
}

export type Access = ReturnType<typeof createAccess>
