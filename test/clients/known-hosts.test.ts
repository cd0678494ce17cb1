import { expect } from '@jest/globals'
import fc from '../support/fast-check.ts'
import { execFileSync, spawnSync } from 'node:child_process'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import {
  fingerprint,
  judgeHostKey,
  keyType,
  knownHostsName,
  linesOf,
  parseKnownHosts,
} from '../../src/clients/ssh/known-hosts.ts'
import { makeKey } from './sshd.ts'
import { runFolder } from '../support/run-folder.ts'
import { runsOf } from '../support/share.ts'
import { needs } from '../support/needs.ts'
import { sites } from '../../sites/requirements.ts'

const { afterAll, beforeAll, describe, test } = needs(...sites.sshd)

let folder: string
let keys: { publicKey: string; fingerprint: string; type: string; blob: Buffer }[]
beforeAll(() => {
  folder = mkdtempSync(join(runFolder(), 'known-hosts-'))
  keys = ['ed25519', 'rsa', 'ecdsa', 'ed25519'].map((type, index) => {
    const { publicKey, fingerprint: told } = makeKey(folder, `key${index}`, type)
    const [name, base64] = publicKey.split(' ') as [string, string]
    return {
      publicKey: `${name} ${base64}`,
      fingerprint: told,
      type: name,
      blob: Buffer.from(base64, 'base64'),
    }
  })
})
afterAll(() => rmSync(folder, { recursive: true, force: true }))

/** What OpenSSH finds for a name. */
const openSshFinds = (text: string, name: string): boolean => {
  const file = join(folder, 'known_hosts')
  writeFileSync(file, text)
  return spawnSync('ssh-keygen', ['-F', name, '-f', file]).status === 0
}

/** The text with its names hashed by OpenSSH. */
const hashed = (text: string): string => {
  const file = join(folder, 'hashed')
  writeFileSync(file, text)
  execFileSync('ssh-keygen', ['-H', '-f', file], { stdio: 'ignore' })
  return execFileSync('cat', [file], { encoding: 'utf8' })
}

const verdict = (text: string, name: string, key: number, fingerprints: string[] = []): unknown =>
  judgeHostKey(keys[key]!.blob, name, { entries: parseKnownHosts(text), fingerprints })

describe('verdicts', () => {
  test('fingerprint and type are what ssh-keygen tells', () => {
    for (const key of keys) {
      expect(fingerprint(key.blob)).toBe(key.fingerprint)
      expect(keyType(key.blob)).toBe(key.type)
    }
    expect(keyType(Buffer.from('garbage'))).toBe('')
  })

  const known = { verdict: 'known' }
  const unknown = { verdict: 'unknown', authority: false }
  const cases: [what: string, text: () => string, name: string, expected: () => unknown][] = [
    ['a plain name', () => `a.example ${keys[0]!.publicKey}`, 'a.example', () => known],
    ['capitals in the file', () => `A.Example ${keys[0]!.publicKey}`, 'a.example', () => known],
    ['a name that is not there', () => `a.example ${keys[0]!.publicKey}`, 'b.example', () => unknown],
    ['an empty text', () => '', 'a.example', () => unknown],
    [
      'a changed key',
      () => `a.example ${keys[3]!.publicKey}`,
      'a.example',
      () => ({ verdict: 'changed', expected: [keys[3]!.fingerprint] }),
    ],
    [
      'a key of another type than the known one',
      () => `a.example ${keys[1]!.publicKey}`,
      'a.example',
      () => ({ verdict: 'changed', expected: [keys[1]!.fingerprint] }),
    ],
    [
      'one of several keys',
      () => `a.example ${keys[1]!.publicKey}\na.example ${keys[0]!.publicKey}`,
      'a.example',
      () => known,
    ],
    [
      'a revoked key',
      () => `@revoked a.example ${keys[0]!.publicKey}`,
      'a.example',
      () => ({ verdict: 'revoked' }),
    ],
    [
      'a revoked key that also stands as good',
      () => `a.example ${keys[0]!.publicKey}\n@revoked * ${keys[0]!.publicKey}`,
      'a.example',
      () => ({ verdict: 'revoked' }),
    ],
    [
      'another key revoked',
      () => `@revoked * ${keys[3]!.publicKey}\na.example ${keys[0]!.publicKey}`,
      'a.example',
      () => known,
    ],
    ['a hashed name', () => hashed(`a.example ${keys[0]!.publicKey}\n`), 'a.example', () => known],
    [
      'a hashed name with another key',
      () => hashed(`a.example ${keys[3]!.publicKey}\n`),
      'a.example',
      () => ({ verdict: 'changed', expected: [keys[3]!.fingerprint] }),
    ],
    [
      'a hashed name of another host',
      () => hashed(`a.example ${keys[0]!.publicKey}\n`),
      'b.example',
      () => unknown,
    ],
    ['a wildcard', () => `*.example ${keys[0]!.publicKey}`, 'a.example', () => known],
    [
      'a wildcard with an exception',
      () => `*.example,!a.example ${keys[0]!.publicKey}`,
      'a.example',
      () => unknown,
    ],
    ['one letter of any kind', () => `?.example ${keys[0]!.publicKey}`, 'a.example', () => known],
    ['another port', () => `[a.example]:2222 ${keys[0]!.publicKey}`, '[a.example]:2222', () => known],
    [
      'the port of another',
      () => `[a.example]:2222 ${keys[0]!.publicKey}`,
      '[a.example]:2223',
      () => unknown,
    ],
    [
      'a name without port for one with',
      () => `a.example ${keys[0]!.publicKey}`,
      '[a.example]:2222',
      () => unknown,
    ],
    [
      'a hashed name with port',
      () => hashed(`[a.example]:2222 ${keys[0]!.publicKey}\n`),
      '[a.example]:2222',
      () => known,
    ],
    [
      'a certificate authority',
      () => `@cert-authority * ${keys[0]!.publicKey}`,
      'a.example',
      () => ({ verdict: 'unknown', authority: true }),
    ],
  ]
  test.each(cases)('%s', (_what, text, name, expected) => {
    expect(verdict(text(), name, 0)).toEqual(expected())
  })

  test('fingerprints alone', () => {
    expect(verdict('', 'a', 0, [keys[0]!.fingerprint])).toEqual(known)
    expect(verdict('', 'a', 0, [`${keys[0]!.fingerprint}=`])).toEqual(known)
    expect(verdict('', 'a', 0, [keys[1]!.fingerprint])).toEqual({
      verdict: 'changed',
      expected: [keys[1]!.fingerprint],
    })
  })

  test('names: lower case, with brackets for another port than 22', () => {
    expect(knownHostsName('A.Example', 22)).toBe('a.example')
    expect(knownHostsName('::1', 2222)).toBe('[::1]:2222')
  })
})

describe('the file', () => {
  test('lines that cannot be used count as absent, the others count', () => {
    const entries = parseKnownHosts(
      [
        '# a comment',
        '',
        `a ${keys[0]!.publicKey} some words`,
        'b ssh-ed25519',
        `c ssh-rsa ${keys[0]!.publicKey.split(' ')[1]!}`,
        '@good d x y',
      ].join('\n'),
    )
    expect(entries.map(({ names }) => names)).toEqual(['a'])
  })

  test('no text makes it fail, or compute without end', () => {
    fc.assert(
      fc.property(fc.string({ unit: 'binary', maxLength: 300 }), (text) => parseKnownHosts(text).length >= 0),
    )
    const slow = `${'*a'.repeat(5000)} ${keys[0]!.publicKey}`
    expect(linesOf(parseKnownHosts(slow), 'a'.repeat(255))).toEqual([])
  })

  // Few letters, so that names and patterns meet often.
  const name = fc.string({ unit: fc.constantFrom('a', 'b', '.'), minLength: 1, maxLength: 4 })
  const pattern = fc.string({ unit: fc.constantFrom('a', 'b', '.', '*', '?'), minLength: 1, maxLength: 4 })
  const names = fc
    .array(fc.tuple(fc.boolean(), pattern), { minLength: 1, maxLength: 3 })
    .map((list) => list.map(([not, text]) => (not ? `!${text}` : text)).join(','))

  test('finds for every name what OpenSSH finds', () => {
    fc.assert(
      fc.property(fc.array(names, { minLength: 1, maxLength: 3 }), name, (lines, host) => {
        const text = lines.map((line) => `${line} ${keys[0]!.publicKey}\n`).join('')
        expect(linesOf(parseKnownHosts(text), host).length > 0).toBe(openSshFinds(text, host))
      }),
      { numRuns: runsOf(40, 150) },
    )
  })

  test('finds in files that OpenSSH has hashed what stood in them', () => {
    fc.assert(
      fc.property(
        fc.array(name, { minLength: 1, maxLength: 3 }),
        name,
        fc.constantFrom(22, 2222),
        (hosts, host, port) => {
          const text = hashed(
            hosts.map((one) => `${knownHostsName(one, port)} ${keys[0]!.publicKey}\n`).join(''),
          )
          expect(linesOf(parseKnownHosts(text), knownHostsName(host, port)).length > 0).toBe(
            hosts.includes(host),
          )
        },
      ),
      { numRuns: runsOf(12, 40) },
    )
  })
})
