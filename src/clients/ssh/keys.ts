import {
  createPrivateKey,
  createPublicKey,
  generateKeyPairSync,
  randomBytes,
  sign,
  verify,
  type JsonWebKey,
  type KeyObject,
} from 'node:crypto'
import ssh2 from 'ssh2'
import { fingerprint } from './known-hosts.ts'

/** A key pair of ours. Only `publicKey` and `fingerprint` may be shown. */
export interface SshKeyPair {
  /** OpenSSH or PEM text without passphrase, which ssh2 and OpenSSH read. */
  privateKey: string
  /** One line as in `authorized_keys`. */
  publicKey: string
  /** `SHA256:…` as `ssh-keygen -l` shows it. */
  fingerprint: string
}

/** Why a text is no usable key; never contains a part of it. */
export class KeyProblem extends Error {
  readonly field: 'privateKey' | 'passphrase'
  constructor(field: KeyProblem['field'], message: string) {
    super(message)
    this.name = 'KeyProblem'
    this.field = field
  }
}

/** No private key is this long: RSA of 16,384 bits in PEM has 13,000 characters. */
export const longestKey = 65_536
/** The same as OpenSSH's `RequiredRSASize`. */
const leastRsaBits = 1_024
/**
 * `ssh-keygen` takes 16 to 24 rounds; 200 cost a second of this process, and the text itself sets
 * the number.
 */
const mostBcryptRounds = 200
/** OpenSSL's default is 2,048, cautious users take 600,000; two million cost a second. */
const mostIterations = 2_000_000

/** Bytes with their length before them. */
export const field = (bytes: Buffer | string): Buffer => {
  const content = Buffer.from(bytes)
  const length = Buffer.alloc(4)
  length.writeUInt32BE(content.length)
  return Buffer.concat([length, content])
}

/** A positive number as OpenSSH writes it: without zeros in front, but for one before a set sign bit. */
const numberField = (bytes: Buffer): Buffer => {
  const from = bytes.findIndex((byte) => byte !== 0)
  const content = from < 0 ? Buffer.alloc(0) : bytes.subarray(from)
  return field((content[0] ?? 0) > 127 ? Buffer.concat([Buffer.from([0]), content]) : content)
}

const curves: Readonly<Record<string, string>> = {
  'P-256': 'nistp256',
  'P-384': 'nistp384',
  'P-521': 'nistp521',
}

type Part = 'd' | 'e' | 'n' | 'p' | 'q' | 'qi' | 'x' | 'y'

/** A key as PROTOCOL.key has it: its public blob, and the open and the hidden fields of its private part. */
const openSshFields = (jwk: JsonWebKey): { publicKey: Buffer; open: Buffer; hidden: Buffer } => {
  const of = (name: Part): Buffer => Buffer.from(jwk[name] ?? '', 'base64url')
  const numbers = (...names: Part[]): Buffer => Buffer.concat(names.map((name) => numberField(of(name))))
  if (jwk.kty === 'RSA') {
    const type = field('ssh-rsa')
    return {
      publicKey: Buffer.concat([type, numbers('e', 'n')]),
      open: Buffer.concat([type, numbers('n', 'e')]),
      hidden: numbers('d', 'qi', 'p', 'q'),
    }
  }
  const curve = curves[jwk.crv ?? '']
  const publicKey =
    curve === undefined
      ? Buffer.concat([field('ssh-ed25519'), field(of('x'))])
      : Buffer.concat([
          ...[`ecdsa-sha2-${curve}`, curve].map(field),
          field(Buffer.concat([Buffer.from([4]), of('x'), of('y')])),
        ])
  const hidden = curve === undefined ? field(Buffer.concat([of('d'), of('x')])) : numbers('d')
  return { publicKey, open: publicKey, hidden }
}

/** The begin of OpenSSH text without encryption, up to its private part. */
const openSshBegin = (publicKey: Buffer): Buffer =>
  Buffer.concat([
    Buffer.from('openssh-key-v1\0'),
    ...['none', 'none', ''].map(field),
    Buffer.from([0, 0, 0, 1]),
    field(publicKey),
  ])

/** Bytes of the private part's length and of its check number, which it has twice. */
const lengthAndChecks = 4 + 4 + 4
const openSshColumns = 70
const pemColumns = 64

/**
 * OpenSSH text of an ed25519 key (PROTOCOL.key, without encryption). ssh2 does not read Node's own
 * PKCS#8 of these.
 */
const openSshText = (key: KeyObject, comment: string): string => {
  const { publicKey, open: shown, hidden } = openSshFields(key.export({ format: 'jwk' }))
  const check = randomBytes(4)
  const open = Buffer.concat([check, check, shown, hidden, field(comment)])
  const padding = Buffer.from(Array.from({ length: (8 - (open.length % 8)) % 8 }, (_, i) => i + 1))
  const body = Buffer.concat([openSshBegin(publicKey), field(Buffer.concat([open, padding]))])
  const lines = body.toString('base64').match(new RegExp(`.{1,${openSshColumns}}`, 'g')) ?? []
  const name = 'OPENSSH PRIVATE KEY'
  return [`-----BEGIN ${name}-----`, ...lines, `-----END ${name}-----`, ''].join('\n')
}

/** What the bytes `from` `to` of a body alone decide of the lines of its base64 text. */
const linesBetween = (body: Buffer, from: number, to: number, columns: number): string[] => {
  const text = body.toString('base64')
  const [first, end] = [Math.ceil((from * 4) / 3), Math.floor((to * 4) / 3)]
  const lines: string[] = []
  for (let at = first; at < end; at = (Math.floor(at / columns) + 1) * columns)
    lines.push(text.slice(at, Math.min(end, (Math.floor(at / columns) + 1) * columns)))
  return lines
}

/**
 * The parts of lines that hold private numbers of a key, in the forms in which its owner may have it
 * beside that of `privateKey`: OpenSSH, whose comment and check number are unknown here, and PKCS#8.
 * None where the text is no key.
 */
export const privateLines = (privateKey: string): string[] => {
  try {
    const { key } = privateKeyOf(privateKey, undefined)
    const jwk = key.export({ format: 'jwk' })
    const { publicKey, open, hidden } = openSshFields(jwk)
    const openSsh = Buffer.concat([openSshBegin(publicKey), Buffer.alloc(lengthAndChecks), open, hidden])
    const pkcs8 = key.export({ format: 'der', type: 'pkcs8' })
    const number = pkcs8.indexOf(Buffer.from(jwk.d ?? '', 'base64url'))
    return [
      ...linesBetween(openSsh, openSsh.length - hidden.length, openSsh.length, openSshColumns),
      ...linesBetween(pkcs8, Math.max(0, number), pkcs8.length, pemColumns),
    ]
  } catch {
    return []
  }
}

const sshKeyOf = (key: KeyObject, comment: string): SshKeyPair => {
  const { asymmetricKeyType: type } = key
  const privateKey =
    type === 'ed25519'
      ? openSshText(key, comment)
      : key.export({ format: 'pem', type: type === 'rsa' ? 'pkcs1' : 'sec1' }).toString()
  const parsed = ssh2.utils.parseKey(privateKey) as ssh2.ParsedKey
  const publicKey = parsed.getPublicSSH()
  return {
    privateKey,
    publicKey: [parsed.type, publicKey.toString('base64'), ...(comment === '' ? [] : [comment])].join(' '),
    fingerprint: fingerprint(publicKey),
  }
}

/** Makes a new ed25519 key. (One in 200 of those that ssh2 makes is malformed.) */
export const makeSshKey = (comment: string): SshKeyPair =>
  sshKeyOf(generateKeyPairSync('ed25519').privateKey, comment)

const fromOpenSsh = (text: string, passphrase: string | undefined): { key: KeyObject; comment: string } => {
  refuseCostlyRounds(text)
  const parsed: unknown = ssh2.utils.parseKey(text, passphrase)
  if (parsed instanceof Error) {
    if (/no passphrase given/.test(parsed.message))
      throw new KeyProblem('passphrase', 'is required: the key is encrypted')
    if (passphrase !== undefined && /passphrase|integrity|decrypt/i.test(parsed.message))
      throw new KeyProblem('passphrase', 'does not open the key')
    throw new KeyProblem('privateKey', notAKey)
  }
  // A file with several keys is parsed to a list; OpenSSH takes the first key too.
  const first = (Array.isArray(parsed) ? parsed[0] : parsed) as ssh2.ParsedKey
  if (!first.isPrivateKey()) throw new KeyProblem('privateKey', 'is a public key; give the private one')
  return { key: createPrivateKey(first.getPrivatePEM()), comment: first.comment }
}

const notAKey =
  'is not a private key that can be read; give ed25519, ECDSA (P-256, P-384, P-521) or RSA as ' +
  'OpenSSH, PEM or PKCS#8 text, from its BEGIN line to its END line'

/**
 * The number of rounds is in the open part of the text: name, cipher, derivation, its options
 * (salt, rounds).
 */
const refuseCostlyRounds = (text: string): void => {
  const bytes = Buffer.from(text.replace(/-----[^-]*-----|\s/g, ''), 'base64')
  let at = 'openssh-key-v1\0'.length
  const next = (): Buffer => {
    const length = at + 4 <= bytes.length ? bytes.readUInt32BE(at) : 0
    const value = bytes.subarray(at + 4, at + 4 + length)
    at += 4 + length
    return value
  }
  next()
  const derivation = next().toString('latin1')
  const options = next()
  if (derivation !== 'bcrypt' || options.length < 8) return
  const rounds = options.readUInt32BE(options.length - 4)
  if (rounds > mostBcryptRounds)
    throw new KeyProblem(
      'privateKey',
      `is encrypted with ${rounds} rounds, more than ${mostBcryptRounds}; re-encrypt a copy with: ` +
        'ssh-keygen -p -a 16 -f KEY',
    )
}

/** The iterations of PBKDF2 and similar follow a salt in the first bytes: OCTET STRING, INTEGER. */
const refuseCostlyIterations = (text: string): void => {
  const bytes = Buffer.from(text.replace(/-----[^-]*-----|\s/g, ''), 'base64').subarray(0, 256)
  for (let at = 0; at + 2 < bytes.length; at++) {
    if (bytes[at] !== 0x04) continue
    const salt = bytes[at + 1] ?? 0
    const value = at + 2 + salt
    const length = bytes[value + 1] ?? 0
    if (salt > 64 || bytes[value] !== 0x02 || length < 1 || length > 8 || value + 2 + length > bytes.length)
      continue
    if (BigInt(`0x${bytes.toString('hex', value + 2, value + 2 + length)}`) > BigInt(mostIterations))
      throw new KeyProblem(
        'privateKey',
        `is encrypted with more than ${mostIterations} iterations; re-encrypt a copy with fewer`,
      )
  }
}

const fromPem = (text: string, passphrase: string | undefined): KeyObject => {
  const encrypted = /BEGIN ENCRYPTED|Proc-Type: 4,ENCRYPTED/.test(text)
  if (encrypted && passphrase === undefined)
    throw new KeyProblem('passphrase', 'is required: the key is encrypted')
  if (encrypted) refuseCostlyIterations(text)
  try {
    return createPrivateKey({ key: text, ...(passphrase === undefined ? {} : { passphrase }) })
  } catch {
    throw encrypted
      ? new KeyProblem('passphrase', 'does not open the key')
      : new KeyProblem('privateKey', notAKey)
  }
}

const privateKeyOf = (text: string, passphrase: string | undefined): { key: KeyObject; comment: string } =>
  text.includes('-----BEGIN OPENSSH PRIVATE KEY-----')
    ? fromOpenSsh(text, passphrase)
    : { key: fromPem(text, passphrase), comment: '' }

const challenge = Buffer.from('what is signed to see that both halves belong together')

/**
 * Refuses keys that ssh2 or a current server would refuse, and keys whose halves do not belong
 * together.
 */
const refuseUnfit = (key: KeyObject): void => {
  const { asymmetricKeyType: type, asymmetricKeyDetails: details } = key
  if (type === 'rsa') {
    const bits = details?.modulusLength ?? 0
    if (bits < leastRsaBits || bits > 16_384)
      throw new KeyProblem(
        'privateKey',
        `is an RSA key of ${bits} bits; give one of ${leastRsaBits} to 16384, or ed25519`,
      )
  } else if (type === 'ec') {
    if (!['prime256v1', 'secp384r1', 'secp521r1'].includes(details?.namedCurve ?? ''))
      throw new KeyProblem(
        'privateKey',
        `is an ECDSA key on a curve that SSH does not know; give P-256, P-384 or P-521, or ed25519`,
      )
  } else if (type !== 'ed25519')
    throw new KeyProblem('privateKey', `is of the type ${String(type)}; give ed25519, ECDSA or RSA`)
  const algorithm = type === 'ed25519' ? null : 'sha256'
  try {
    if (verify(algorithm, challenge, createPublicKey(key), sign(algorithm, challenge, key))) return
  } catch {
    // The numbers are malformed: the same answer as for a wrong signature.
  }
  throw new KeyProblem('privateKey', 'is damaged: its public and private parts do not belong together')
}

/**
 * Reads a private key: ed25519, ECDSA, RSA in OpenSSH, PEM (PKCS#1, SEC1) or PKCS#8 form, encrypted
 * ones with their passphrase.
 * @throws KeyProblem naming field and remedy
 */
export const importSshKey = (text: string, passphrase?: string): SshKeyPair => {
  if (text.length > longestKey) throw new KeyProblem('privateKey', `is longer than ${longestKey} characters`)
  const trimmed = `${text.replaceAll('\r\n', '\n').trim()}\n`
  const begin = /^-----BEGIN ([A-Z0-9 ]+)-----/m.exec(trimmed)?.[1]
  if (begin === undefined)
    throw new KeyProblem(
      'privateKey',
      /^(?:ssh-|ecdsa-|sk-)/.test(trimmed) ? 'is a public key; give the private one' : notAKey,
    )
  if (/PUBLIC|CERTIFICATE/.test(begin))
    throw new KeyProblem('privateKey', `is a ${begin.toLowerCase()}; give the private key`)
  try {
    const { key, comment } = privateKeyOf(trimmed, passphrase)
    refuseUnfit(key)
    return sshKeyOf(key, oneLine(comment))
  } catch (error) {
    // The libraries' other messages about a malformed text could quote it.
    throw error instanceof KeyProblem ? error : new KeyProblem('privateKey', notAKey)
  }
}

/** A comment ends the line of `authorized_keys`: it must not begin another line. */
const oneLine = (comment: string): string =>
  comment
    .replace(/[\p{Cc}\p{Cs}\s]+/gu, ' ')
    .trim()
    .slice(0, 255)
