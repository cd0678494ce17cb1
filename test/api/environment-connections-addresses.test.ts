import { describe, expect, test } from '@jest/globals'
import fc from '../support/fast-check.ts'
import { isIPv4 } from 'node:net'
import { addressJudge, parseNetwork } from '../../src/clients/denied-networks.ts'
import { hostProblem, parseHostPort, parseHttps, parseJump } from '../../src/connections/endpoint.ts'
import { environmentStatus, pauseAfter } from '../../src/domains/environment-connections/status.ts'

const open = addressJudge({ allowLoopback: true })
const closed = addressJudge({ allowLoopback: false, denied: ['10.0.0.0/8', 'fd12::/16', '192.0.2.1'] })

describe('the address that is connected to', () => {
  test.each([
    '169.254.169.254',
    '169.254.0.1',
    'fe80::1',
    'fe80::1%eth0',
    'febf::1',
    'fd00:ec2::254',
    'fd00:ec2::23',
    'fd00:ec2:0:1::1',
    'fd20:ce::254',
    'fd00:c1::a9fe:a9fe',
    'fd00:42::42',
    'fd00:a9fe:a9fe::1',
    '168.63.129.16',
    '192.0.0.192',
    '100.100.100.200',
    '0.0.0.0',
    '0.1.2.3',
    '224.0.0.1',
    '239.255.255.255',
    '255.255.255.255',
    'ff02::1',
    '::',
    '::ffff:169.254.169.254',
    '::ffff:a9fe:a9fe',
    '::169.254.169.254',
    '64:ff9b::169.254.169.254',
    '64:ff9b:1::a9fe:a9fe',
    '2002:a9fe:a9fe::1',
    '0:0:0:0:0:ffff:a9fe:a9fe',
    '::ffff:0:169.254.169.254',
  ])('%s is denied whatever is configured', (address) => {
    expect(open(address)).toEqual(expect.any(String))
  })

  test.each([
    '127.0.0.1',
    '127.255.255.254',
    '::1',
    '::ffff:127.0.0.1',
    '64:ff9b::127.0.0.1',
    '2002:7f00:1::',
  ])('%s is this machine, denied where the configuration says so', (address) => {
    expect([open(address), closed(address)]).toEqual([true, expect.any(String)])
  })

  test.each(['10.1.2.3', '::ffff:10.1.2.3', 'fd12::1', '192.0.2.1'])(
    '%s is in a network that was configured',
    (address) => {
      expect([open(address), closed(address)]).toEqual([true, expect.any(String)])
    },
  )

  test.each([
    '8.8.8.8',
    '192.168.1.1',
    '172.16.0.1',
    '2001:db8::1',
    'fd00:ec3::23',
    'fd00::1',
    '192.0.2.2',
    '2002:808:808::1',
  ])('%s is allowed', (address) => {
    expect([open(address), closed(address)]).toEqual([true, true])
  })

  test('every address within a denied network is denied, in every form in which IPv6 can say it', () => {
    fc.assert(
      fc.property(fc.nat(255), fc.nat(255), fc.constantFrom('169.254', '224.0', '0.0'), (c, d, network) => {
        const address = `${network}.${c}.${d}`
        const [a, b] = network.split('.').map(Number) as [number, number]
        const hex = `${((a << 8) | b).toString(16)}:${((c << 8) | d).toString(16)}`
        for (const form of [
          address,
          `::ffff:${address}`,
          `::ffff:${hex}`,
          `64:ff9b::${hex}`,
          `2002:${hex}::`,
        ])
          expect(open(form)).not.toBe(true)
      }),
    )
  })

  test('what is no address, and networks that are none, are refused', () => {
    for (const text of ['', 'localhost', '1.2.3', '2130706433'])
      expect(open(text)).toEqual(expect.any(String))
    for (const text of ['10.0.0.0/33', '10.0.0', 'fd00::/129', '10.0.0.0/8/8', '10.0.0.0/'])
      expect(() => parseNetwork(text)).toThrow(RangeError)
  })
})

describe('an endpoint', () => {
  test.each([
    ['host', { host: 'host' }],
    ['host.example.org:2222', { host: 'host.example.org', port: 2222 }],
    ['10.0.0.1:22', { host: '10.0.0.1', port: 22 }],
    ['2001:db8::1', { host: '2001:db8::1' }],
    ['[2001:db8::1]', { host: '2001:db8::1' }],
    ['[2001:db8::1]:2222', { host: '2001:db8::1', port: 2222 }],
    ['node_1', { host: 'node_1' }],
  ])('%s is understood', (text, place) => {
    expect(parseHostPort(text)).toEqual(place)
  })

  test.each([
    '',
    ' ',
    'a b',
    'a:',
    'a:x',
    'a:0',
    'a:65536',
    'a:70000',
    'a@b',
    'a/b',
    'ssh://a',
    'a?b',
    'a#b',
    '[a]:1',
    '[::1',
    '1:2:3',
    '-a',
    'a..b',
    '0x7f.1',
    '127.1',
    '1',
    'a\0b',
    'ä.example',
  ])('%j is not', (text) => {
    expect(parseHostPort(text)).toEqual(expect.any(String))
  })

  test('whatever is accepted is one host and one port, and nothing that a shell, a URL or a resolver reads otherwise', () => {
    fc.assert(
      fc.property(
        fc.oneof(
          fc.string(),
          fc.webAuthority({ withIPv4: true, withIPv6: true, withPort: true, withUserInfo: true }),
          fc.domain(),
        ),
        (text) => {
          const place = parseHostPort(text)
          if (typeof place === 'string') return
          expect(place.host).toMatch(/^[A-Za-z0-9._:-]{1,253}$/)
          expect(place.host.startsWith('-')).toBe(false)
          if (/^[\d.]+$/.test(place.host)) expect(isIPv4(place.host)).toBe(true)
          if (place.port !== undefined) expect(place.port >= 1 && place.port <= 65_535).toBe(true)
        },
      ),
      { numRuns: 2_000 },
    )
  })

  test('of Kubernetes is https, without path and user; a jump may have a user', () => {
    expect(parseHttps('https://k8s.example.org:6443')).toEqual({ host: 'k8s.example.org', port: 6443 })
    expect(parseHttps('k8s.example.org')).toEqual({ host: 'k8s.example.org', port: 443 })
    for (const text of ['http://a', 'https://a/path', 'https://u@a', 'gopher://a', 'file:///a', 'https://'])
      expect(parseHttps(text)).toEqual(expect.any(String))
    expect(parseJump('me@gate:2222')).toEqual({ username: 'me', host: 'gate', port: 2222 })
    for (const text of ['-oX@a', '@a', 'a b@c', '']) expect(parseJump(text)).toEqual(expect.any(String))
    expect(hostProblem('h'.repeat(10_000))?.length).toBeLessThan(200)
  })
})

describe('the status of an environment', () => {
  const at = (status: string | undefined, more: object = {}) => ({
    status,
    discovering: false,
    discovered: false,
    ...more,
  })
  test.each([
    ['what its author set stays until something was checked', 'ready', [at(undefined)], false, 'ready'],
    [
      'defined says connecting while the first check is awaited',
      'defined',
      [at(undefined)],
      true,
      'connecting',
    ],
    ['other words of the author do not', 'degraded', [at(undefined)], true, 'degraded'],
    ['connected', 'connecting', [at('online'), at(undefined)], false, 'connected'],
    ['degraded', 'connected', [at('online'), at('offline')], false, 'degraded'],
    ['unreachable', 'ready', [at('offline'), at('offline')], false, 'unreachable'],
    ['discovering', 'connected', [at('online', { discovering: true })], false, 'discovering'],
    ['ready', 'discovering', [at('online', { discovered: true }), at('online')], false, 'ready'],
    ['without connections nothing changes', 'mine', [], false, 'mine'],
  ])('%s', (_, current, connections, checking, expected) => {
    expect(environmentStatus(current, connections, checking)).toBe(expected)
  })

  test('checks are a minute apart, two after 5 successes, five after 15, ten after 30', () => {
    expect([0, 4, 5, 14, 15, 29, 30, 1_000].map((successes) => pauseAfter(successes, 60))).toEqual([
      60, 60, 120, 120, 300, 300, 600, 600,
    ])
  })
})
