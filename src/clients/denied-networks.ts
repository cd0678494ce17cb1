import { BlockList, isIP, isIPv4 } from 'node:net'

/**
 * Addresses that no connection may lead to, whatever its caller: metadata services of clouds,
 * link-local addresses, and addresses of more than one machine.
 */
const builtIn: readonly (readonly [network: string, bits: number, what: string])[] = [
  ['0.0.0.0', 8, 'an unspecified address'],
  ['169.254.0.0', 16, 'a link-local address, where clouds have their metadata services'],
  ['100.100.100.200', 32, 'a metadata service'],
  ['168.63.129.16', 32, 'a metadata service'],
  ['192.0.0.192', 32, 'a metadata service'],
  ['224.0.0.0', 4, 'a multicast address'],
  ['240.0.0.0', 4, 'a reserved or broadcast address'],
  ['::', 128, 'an unspecified address'],
  ['fe80::', 10, 'a link-local address'],
  ['fec0::', 10, 'a site-local address, deprecated since RFC 3879'],
  ['fd00:ec2::', 32, "a service of Amazon's machines: metadata, credentials of pods, time"],
  ['fd20:ce::', 32, "a metadata service of Google's machines"],
  ['fd00:c1::', 32, "a metadata service of Oracle's machines"],
  ['fd00:42::42', 128, "a metadata service of Scaleway's machines"],
  ['fd00:a9fe:a9fe::', 48, "a metadata service of Akamai's machines"],
  ['ff00::', 8, 'a multicast address'],
]

const loopback: readonly (readonly [network: string, bits: number])[] = [
  ['127.0.0.0', 8],
  ['::1', 128],
]

/** Names under which clouds answer for their metadata; the address is checked as well. */
const metadataNames = new Set([
  'metadata',
  'metadata.google.internal',
  'metadata.goog',
  'instance-data',
  'instance-data.ec2.internal',
  'metadata.azure.internal',
  'metadata.azure.com',
  'metadata.tencentyun.com',
  'api.metadata.cloud.ibm.com',
  'metadata.platformequinix.com',
])

const listOf = (
  networks: readonly (readonly [network: string, bits: number, ...rest: unknown[]])[],
): BlockList => {
  const list = new BlockList()
  for (const [network, bits] of networks) list.addSubnet(network, bits, isIPv4(network) ? 'ipv4' : 'ipv6')
  return list
}

const holds = (list: BlockList, address: string): boolean =>
  list.check(address, isIPv4(address) ? 'ipv4' : 'ipv6')

/** Two bytes in decimals as one group of an IPv6 address. */
const hexOf = (high: string | undefined, low: string | undefined): string =>
  ((Number(high) << 8) | Number(low)).toString(16)

/** The eight 16-bit groups of an IPv6 address without zone. */
const groupsOf = (address: string): number[] => {
  const dotted = /^(.*:)(\d+)\.(\d+)\.(\d+)\.(\d+)$/.exec(address)
  const plain =
    dotted === null ? address : `${dotted[1]}${hexOf(dotted[2], dotted[3])}:${hexOf(dotted[4], dotted[5])}`
  const [head = '', tail] = plain.split('::')
  const left = head === '' ? [] : head.split(':')
  const right = tail === undefined || tail === '' ? [] : tail.split(':')
  const gap = tail === undefined ? [] : Array.from({ length: 8 - left.length - right.length }, () => '0')
  return [...left, ...gap, ...right].map((group) => Number.parseInt(group, 16))
}

/**
 * The IPv4 addresses that an IPv6 address stands for: mapped, compatible, translated (NAT64), 6to4.
 */
const embedded = (address: string): string[] => {
  const groups = groupsOf(address)
  const four = (at: number): string => {
    const [high = 0, low = 0] = groups.slice(at, at + 2)
    return [high >> 8, high & 255, low >> 8, low & 255].join('.')
  }
  const zero = (from: number, to: number): boolean => groups.slice(from, to).every((group) => group === 0)
  if (zero(0, 5) && (groups[5] === 0xffff || groups[5] === 0))
    return groups[5] === 0 && zero(6, 7) && (groups[7] ?? 0) <= 1 ? [] : [four(6)]
  if (zero(0, 4) && groups[4] === 0xffff && groups[5] === 0) return [four(6)]
  if (groups[0] === 0x64 && groups[1] === 0xff9b) return [four(6)]
  if (groups[0] === 0x2002) return [four(1)]
  return []
}

export interface DeniedNetworks {
  /**
   * Networks in CIDR form (`10.0.0.0/8`, `fd00::/8`) or single addresses, besides the built-in
   * ones.
   */
  denied?: readonly string[]
  /** Whether this machine itself may be connected to. */
  allowLoopback: boolean
}

/**
 * Judges addresses: true, or the reason against the address. It judges the address that is
 * connected to, not the name. An IPv6 address that stands for an IPv4 address is judged as both.
 */
export const addressJudge = ({
  denied = [],
  allowLoopback,
}: DeniedNetworks): ((address: string) => true | string) => {
  const always = builtIn.map((entry) => ({ list: listOf([entry]), what: entry[2] }))
  const here = listOf(loopback)
  const configured = denied.map((text) => ({ text, list: listOf([parseNetwork(text)]) }))
  const judgeOne = (address: string): true | string => {
    const found = always.find(({ list }) => holds(list, address))
    if (found !== undefined) return `${address} is ${found.what}; connections to it are denied`
    if (!allowLoopback && holds(here, address))
      return `${address} is this machine; the configuration denies connections to it`
    const own = configured.find(({ list }) => holds(list, address))
    return own === undefined ? true : `${address} is in ${own.text}, which the configuration denies`
  }
  return (address) => {
    // A zone names an interface of this machine; only link-local addresses need one.
    const bare = address.replace(/%.*$/, '')
    if (isIP(bare) === 0) return `${JSON.stringify(address)} is not an IP address`
    const all = isIPv4(bare) ? [bare] : [bare, ...embedded(bare)]
    return all.map(judgeOne).find((verdict) => verdict !== true) ?? true
  }
}

/** @throws RangeError for text that is neither an address nor a network */
export const parseNetwork = (text: string): [network: string, bits: number] => {
  const [network = '', bits, ...rest] = text.split('/')
  const family = isIP(network)
  const most = family === 4 ? 32 : 128
  const length = bits === undefined ? most : /^\d{1,3}$/.test(bits) ? Number(bits) : Number.NaN
  if (family === 0 || rest.length > 0 || !(length >= 0 && length <= most))
    throw new RangeError(`${JSON.stringify(text)} is not a network; give for example 10.0.0.0/8 or fd00::/8`)
  return [network, length]
}

/** True for the names of metadata services, in any case and with a final dot. */
export const isMetadataName = (host: string): boolean =>
  metadataNames.has(host.toLowerCase().replace(/\.$/, ''))
