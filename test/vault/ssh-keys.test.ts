import { expect } from '@jest/globals'
import { execFileSync } from 'node:child_process'
import { createPrivateKey, generateKeyPairSync } from 'node:crypto'
import { chmodSync, copyFileSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import ssh2 from 'ssh2'
import { importSshKey, KeyProblem, makeSshKey, privateLines } from '../../src/clients/ssh/keys.ts'
import { runFolder } from '../support/run-folder.ts'
import { needs } from '../support/needs.ts'
import { openShare } from '../support/share.ts'

const { afterAll, beforeAll, describe, test } = needs('openssh-client', 'openssl')

/** Keys as OpenSSH and OpenSSL make them: ssh-keygen is the judge of what we read and write. */
let folder: string
beforeAll(() => {
  folder = mkdtempSync(join(runFolder(), 'orrery-keys-'))
})
afterAll(() => rmSync(folder, { recursive: true, force: true }))

const passphrase = 'correct horse'
let made = 0
const keygen = (...args: string[]): string => {
  const file = join(folder, `key-${String((made += 1))}`)
  execFileSync('ssh-keygen', ['-q', '-C', 'ada@lab', '-f', file, ...args])
  return file
}
const privateFile = (text: string): string => {
  const file = join(folder, `written-${String((made += 1))}`)
  writeFileSync(file, text, { mode: 0o600 })
  return file
}
const publicOf = (text: string): string =>
  execFileSync('ssh-keygen', ['-y', '-P', '', '-f', privateFile(text)], { encoding: 'utf8' }).trim()
const fingerprintOf = (file: string): string =>
  execFileSync('ssh-keygen', ['-l', '-f', file], { encoding: 'utf8' }).split(' ')[1] ?? ''
const problemOf = (text: string, phrase?: string): KeyProblem => {
  try {
    importSshKey(text, phrase)
  } catch (error) {
    if (error instanceof KeyProblem) return error
    throw error
  }
  throw new Error('the key was taken')
}
/** The characters of a key's text that hold bits of a private number alone, and stand in none of the parts. */
const openOf = (text: string, parts: readonly string[], number: Buffer): number => {
  const lines = text.split('\n').filter((line) => /^[A-Za-z0-9+/=]+$/.test(line))
  const covered = lines.flatMap((line) => {
    const found = Array.from(line, () => false)
    for (const part of parts)
      for (let at = line.indexOf(part); at >= 0; at = line.indexOf(part, at + 1))
        found.fill(true, at, at + part.length)
    return found
  })
  const at = Buffer.from(lines.join(''), 'base64').indexOf(number)
  expect(at).toBeGreaterThan(0)
  const places = covered.slice(Math.ceil((at * 4) / 3), Math.floor(((at + number.length) * 4) / 3))
  return places.filter((one) => !one).length
}
/** Without the zeros in front that a form may leave out. */
const digitsOf = (number: string): Buffer => {
  const bytes = Buffer.from(number, 'base64url')
  return bytes.subarray(bytes.findIndex((byte) => byte !== 0))
}
const typed = (line: string): string => line.split(' ').slice(0, 2).join(' ')

/** As many rounds over the passphrase as OpenSSH takes by itself, which cost seconds, for one kind alone. */
const quickly = ['-a', '1']
const kinds: [name: string, args: string[]][] = [
  ['ed25519', ['-t', 'ed25519']],
  ['ecdsa 256', ['-t', 'ecdsa', '-b', '256', ...quickly]],
  ['ecdsa 384', ['-t', 'ecdsa', '-b', '384', ...quickly]],
  ['ecdsa 521', ['-t', 'ecdsa', '-b', '521', ...quickly]],
  ['rsa 2048', ['-t', 'rsa', '-b', '2048', ...quickly]],
]
const forms: [name: string, convert: (file: string, phrase: string) => string][] = [
  ['OpenSSH', (file) => readFileSync(file, 'utf8')],
  [
    'PEM',
    (file, phrase) => {
      const copy = `${file}-pem`
      copyFileSync(file, copy)
      chmodSync(copy, 0o600)
      execFileSync('ssh-keygen', ['-q', '-p', '-m', 'PEM', '-P', phrase, '-N', phrase, '-f', copy])
      return readFileSync(copy, 'utf8')
    },
  ],
  [
    'PKCS#8',
    (file, phrase) => {
      const { privateKey } = importSshKey(readFileSync(file, 'utf8'), phrase === '' ? undefined : phrase)
      const parsed = ssh2.utils.parseKey(privateKey) as ssh2.ParsedKey
      return createPrivateKey(parsed.getPrivatePEM())
        .export({
          type: 'pkcs8',
          format: 'pem',
          ...(phrase === '' ? {} : { cipher: 'aes-256-cbc', passphrase: phrase }),
        })
        .toString()
    },
  ],
]

const isRead = openShare(2)

describe.each(kinds)('a key of the kind %s', (_kind, args) => {
  test.each(forms.filter(isRead))(
    'in %s form is read, with and without passphrase, as OpenSSH reads it',
    (form, convert) => {
      for (const phrase of ['', passphrase]) {
        const file = keygen(...args, '-N', phrase)
        const text = convert(file, phrase)
        const key = importSshKey(text, phrase === '' ? undefined : phrase)
        expect(typed(key.publicKey)).toBe(typed(readFileSync(`${file}.pub`, 'utf8')))
        expect(typed(publicOf(key.privateKey))).toBe(typed(key.publicKey))
        expect(key.fingerprint).toBe(fingerprintOf(`${file}.pub`))
        if (form === 'OpenSSH') expect(key.publicKey.endsWith(' ada@lab')).toBe(true)
        const parsed = ssh2.utils.parseKey(key.privateKey) as ssh2.ParsedKey
        expect(parsed.isPrivateKey()).toBe(true)
        // Windows line ends and what a form field leaves around a text.
        expect(
          importSshKey(`  \r\n${text.replaceAll('\n', '\r\n')}\r\n `, phrase === '' ? undefined : phrase)
            .fingerprint,
        ).toBe(key.fingerprint)
        if (phrase === '') {
          // Masks take whole parts of at least 8 characters.
          const parts = [...key.privateKey.split('\n'), ...privateLines(key.privateKey)].filter(
            ({ length }) => length >= 8,
          )
          const jwk = createPrivateKey(parsed.getPrivatePEM()).export({ format: 'jwk' })
          for (const number of [jwk.d, jwk.p, jwk.q, jwk.qi])
            if (number !== undefined) expect(openOf(text, parts, digitsOf(number))).toBeLessThan(8)
          continue
        }
        expect(problemOf(text)).toMatchObject({
          field: 'passphrase',
          message: 'is required: the key is encrypted',
        })
        expect(problemOf(text, 'wrong')).toMatchObject({
          field: 'passphrase',
          message: 'does not open the key',
        })
      }
    },
  )
})

test('a key of ours is ed25519, read by OpenSSH, and never the same twice', () => {
  const keys = Array.from({ length: 20 }, () => makeSshKey('orrery lab'))
  for (const key of keys) {
    expect(key.publicKey).toMatch(/^ssh-ed25519 AAAA\S+ orrery lab$/)
    expect(key.fingerprint).toMatch(/^SHA256:[A-Za-z0-9+/]{43}$/)
  }
  expect(new Set(keys.map(({ fingerprint }) => fingerprint)).size).toBe(20)
  expect(publicOf(keys[0]!.privateKey)).toBe(keys[0]!.publicKey)
})

test('a text that is no private key is refused with what it is, and not shown', () => {
  const file = keygen('-t', 'ed25519', '-N', '')
  const text = readFileSync(file, 'utf8')
  expect(problemOf(readFileSync(`${file}.pub`, 'utf8')).message).toMatch(/public key; give the private one/)
  const pem = generateKeyPairSync('ed25519').publicKey.export({ type: 'spki', format: 'pem' }).toString()
  expect(problemOf(pem).message).toMatch(/public key; give the private key/)
  const dsa = generateKeyPairSync('dsa', { modulusLength: 1024, divisorLength: 160 }).privateKey
  expect(problemOf(dsa.export({ type: 'pkcs8', format: 'pem' }).toString()).message).toMatch(
    /type dsa; give ed25519/,
  )
  const koblitz = generateKeyPairSync('ec', { namedCurve: 'secp256k1' }).privateKey
  expect(problemOf(koblitz.export({ type: 'sec1', format: 'pem' }).toString()).message).toMatch(
    /curve that SSH does not know/,
  )
  const small = generateKeyPairSync('rsa', { modulusLength: 768 }).privateKey
  expect(problemOf(small.export({ type: 'pkcs1', format: 'pem' }).toString()).message).toMatch(/768 bits/)
  for (const broken of [
    '',
    'x',
    '-----BEGIN',
    `${text.slice(0, 120)}\n-----END OPENSSH PRIVATE KEY-----`,
    'x'.repeat(70_000),
  ]) {
    const problem = problemOf(broken)
    expect(problem.field).toBe('privateKey')
    if (broken.length > 1) expect(problem.message).not.toContain(broken.slice(0, 40).trim().slice(10) || '\0')
  }
})

test('a key with one letter changed is refused, or is still the same key', () => {
  const text = readFileSync(keygen('-t', 'rsa', '-b', '2048', '-N', ''), 'utf8')
  const { fingerprint } = importSshKey(text)
  const lines = text.trim().split('\n')
  for (let line = 1; line < lines.length - 1; line += 2) {
    const at = (line * 7) % (lines[line]?.length ?? 1)
    const changed = lines
      .map((one, i) =>
        i === line ? one.slice(0, at) + (one[at] === 'A' ? 'B' : 'A') + one.slice(at + 1) : one,
      )
      .join('\n')
    let taken: string | undefined
    try {
      taken = importSshKey(changed).fingerprint
    } catch (error) {
      expect(error).toBeInstanceOf(KeyProblem)
    }
    if (taken !== undefined) expect(taken).toBe(fingerprint)
  }
})

test('an encrypted key that would take minutes to open is refused at once', () => {
  const costly = readFileSync(keygen('-t', 'ed25519', '-N', passphrase, '-a', '16'), 'utf8')
  const body = Buffer.from(costly.replace(/-----[^-]*-----|\s/g, ''), 'base64')
  // Magic (15), cipher and derivation by name (14 and 10), the options' length (4), the salt (20),
  // the rounds.
  expect(body.readUInt32BE(63)).toBe(16)
  body.writeUInt32BE(2 ** 31, 63)
  const problem = problemOf(
    `-----BEGIN OPENSSH PRIVATE KEY-----\n${body.toString('base64')}\n-----END OPENSSH PRIVATE KEY-----\n`,
    passphrase,
  )
  expect(problem.message).toMatch(/2147483648 rounds.*ssh-keygen -p/)
  const pkcs8 = execFileSync(
    'openssl',
    ['pkcs8', '-topk8', '-v2', 'aes-256-cbc', '-iter', '2000001', '-passout', `pass:${passphrase}`],
    {
      input: generateKeyPairSync('ed25519').privateKey.export({ type: 'pkcs8', format: 'pem' }),
      encoding: 'utf8',
    },
  )
  expect(problemOf(pkcs8, passphrase).message).toMatch(/more than 2000000 iterations/)
})
