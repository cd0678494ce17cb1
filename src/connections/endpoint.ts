import { isIP, isIPv4, isIPv6 } from 'node:net'
import { isMetadataName } from '../clients/denied-networks.ts'

/** Where a server listens; without a port the protocol's default applies. */
export interface HostPort {
  host: string
  port?: number
}

/** DNS (RFC 1035): 253 characters written, 63 for each label. */
const longestName = 253
const label = /^(?!-)[A-Za-z0-9_-]{1,63}(?<!-)$/
/**
 * Text that C libraries read as an address although it is not written as one: `2130706433`,
 * `0x7f.1`, `0177.0.0.1`.
 */
const number = /^(?:0x[0-9a-f]*|\d+)$/i

/** The beginning of a text, without what may be a password in it. */
const shown = (text: string): string => {
  const open = text.replace(/:(?!\/\/).*@/s, ':…@')
  return JSON.stringify(open.length > 60 ? `${open.slice(0, 60)}…` : open)
}

/** The fault of a host's name or address, or undefined. */
export const hostProblem = (host: string): string | undefined => {
  if (isIP(host) !== 0) return undefined
  if (host === '')
    return 'names no host; give a host name or an address, with :port where it is not the usual one'
  if (host.length > longestName)
    return `${shown(host)} is longer than a host name can be (${host.length} characters, at most ${longestName})`
  const labels = host.replace(/\.$/, '').split('.')
  if (number.test(labels.at(-1) ?? ''))
    return `${shown(host)} is a number, not a host; write an IPv4 address as four decimal numbers`
  if (!labels.every((part) => label.test(part)))
    return (
      `${shown(host)} is not a host name; it has letters, digits and hyphens between dots (names of ` +
      'other scripts in their xn-- form)'
    )
  if (isMetadataName(host)) return `${shown(host)} is a metadata service; connections to it are denied`
  return undefined
}

/** The port in a text or number, or the fault of it. */
export const portProblem = (port: unknown): string | undefined =>
  typeof port === 'number' && Number.isInteger(port) && port >= 1 && port <= 65_535
    ? undefined
    : `${JSON.stringify(port)} is not a port; give a whole number from 1 to 65535`

/** `host`, `host:port`, `[v6]:port` or a bare IPv6 address; a returned text names the fault. */
export const parseHostPort = (text: string): HostPort | string => {
  if (/\s|\p{Cc}/u.test(text))
    return `${shown(text)} holds white space or control characters; give host or host:port`
  if (/^[a-z][a-z0-9+.-]*:\/\//i.test(text))
    return `${shown(text)} has a scheme; give host or host:port alone`
  if (text.includes('@'))
    return `${shown(text)} has a user in it; give host or host:port, and the user as username`
  if (/[/?#\\]/.test(text)) return `${shown(text)} has a path in it; give host or host:port alone`
  if (isIPv6(text)) return { host: text }
  const parts = /^\[([^\]]*)\](?::(.*))?$/.exec(text) ?? /^([^:]*)(?::(.*))?$/.exec(text)
  const [, host = '', port] = parts ?? [undefined, text]
  if (text.startsWith('[') && !isIPv6(host))
    return `${shown(text)} is not an IPv6 address in brackets; give for example [2001:db8::1]:22`
  if (!text.startsWith('[') && text.includes(':') && !isIPv4(host) && (text.match(/:/g)?.length ?? 0) > 1)
    return `${shown(text)} is not an IPv6 address; with a port it is written in brackets: [2001:db8::1]:22`
  const wrong = hostProblem(host)
  if (wrong !== undefined) return wrong
  if (port === undefined) return { host }
  if (!/^\d{1,10}$/.test(port))
    return `${shown(text)} has no number as its port; give a whole number from 1 to 65535`
  return portProblem(Number(port)) ?? { host, port: Number(port) }
}

/** `[user@]host[:port]`, in the form of OpenSSH's ProxyJump. */
export const parseJump = (text: string): (HostPort & { username?: string }) | string => {
  const at = text.lastIndexOf('@')
  const username = at < 0 ? undefined : text.slice(0, at)
  const wrong = username === undefined ? undefined : usernameProblem(username)
  if (wrong !== undefined) return wrong
  const place = parseHostPort(text.slice(at + 1))
  return typeof place === 'string' ? place : { ...place, ...(username === undefined ? {} : { username }) }
}

/** The account's name reaches a server and, quoted, a proxy command. */
export const usernameProblem = (username: string): string | undefined =>
  /^[^\s\p{Cc}:@/\\-][^\s\p{Cc}:/\\]{0,254}$/u.test(username)
    ? undefined
    : `${shown(username.replace(/:.*/s, ':…'))} is not an account's name; it has no white space, colons or ` +
      'slashes and does not begin with a hyphen'

/**
 * `https://host[:port]`, or `host[:port]`: an HTTPS server without path, query or user. A returned
 * text names the fault.
 */
export const parseHttps = (text: string): Required<HostPort> | string => {
  const scheme = /^([a-z][a-z0-9+.-]*):\/\//i.exec(text)?.[1]?.toLowerCase()
  if (scheme !== undefined && scheme !== 'https')
    return `${shown(text)} has the scheme ${scheme}; only https is spoken, because a token travels in it`
  const place = parseHostPort(scheme === undefined ? text : text.slice('https://'.length).replace(/\/$/, ''))
  return typeof place === 'string' ? place : { port: 443, ...place }
}
