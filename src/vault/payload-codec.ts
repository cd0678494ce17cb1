import { createCipheriv, createDecipheriv, hkdfSync, randomBytes } from 'node:crypto'
import type { Payload, PayloadCodec } from '@temporalio/common'
import { SealBroken } from './envelope.ts'
import type { VaultKey, VaultKeys } from './keys.ts'

/** A payload was encrypted with a key that is not in the key file. */
export class KeyNotHeld extends Error {
  constructor(keyId: string, file: string) {
    super(
      `a payload was encrypted with the vault key ${JSON.stringify(keyId.slice(0, 32))}, which ${file} does not hold`,
    )
    this.name = 'KeyNotHeld'
  }
}

const encoding = Buffer.from('binary/encrypted')
const saltLength = 32
const tagLength = 16

/**
 * Derives key and nonce of one payload from its own salt, so no number of payloads exhausts a key
 * of the file.
 */
const derived = ({ secret }: VaultKey, salt: Buffer): { key: Buffer; nonce: Buffer } => {
  const bytes = Buffer.from(hkdfSync('sha256', secret, salt, 'temporal payload', 44))
  return { key: bytes.subarray(0, 32), nonce: bytes.subarray(32) }
}

/** A payload as bytes: the length of its metadata, the metadata as JSON of base64, the data. */
const packed = ({ metadata, data }: Payload): Buffer => {
  const members = Object.fromEntries(
    Object.entries(metadata ?? {}).map(([name, value]) => [name, Buffer.from(value).toString('base64')]),
  )
  const head = Buffer.from(JSON.stringify(members))
  const length = Buffer.alloc(4)
  length.writeUInt32BE(head.length)
  return Buffer.concat([length, head, Buffer.from(data ?? [])])
}

const unpacked = (bytes: Buffer): Payload => {
  const start = 4 + bytes.readUInt32BE(0)
  const members = JSON.parse(bytes.toString('utf8', 4, start)) as Record<string, string>
  return {
    metadata: Object.fromEntries(
      Object.entries(members).map(([name, value]) => [name, Buffer.from(value, 'base64')]),
    ),
    data: bytes.subarray(start),
  }
}

const encoded = (payload: Payload, key: VaultKey): Payload => {
  const keyId = Buffer.from(key.id)
  const salt = randomBytes(saltLength)
  const { key: once, nonce } = derived(key, salt)
  const locking = createCipheriv('aes-256-gcm', once, nonce, { authTagLength: tagLength }).setAAD(keyId)
  return {
    metadata: { encoding, 'encryption-key-id': keyId },
    data: Buffer.concat([salt, locking.update(packed(payload)), locking.final(), locking.getAuthTag()]),
  }
}

const decoded = async (payload: Payload, keys: VaultKeys): Promise<Payload> => {
  const { metadata, data } = payload
  // Payloads from before the key file stay readable.
  if (metadata?.['encoding'] === undefined || !encoding.equals(metadata['encoding'])) return payload
  const keyId = Buffer.from(metadata['encryption-key-id'] ?? [])
  const key = await keys.find(keyId.toString('latin1'))
  if (key === undefined) throw new KeyNotHeld(keyId.toString('latin1'), keys.file)
  const bytes = Buffer.from(data ?? [])
  const end = bytes.length - tagLength
  if (end < saltLength) throw new SealBroken()
  const { key: once, nonce } = derived(key, bytes.subarray(0, saltLength))
  try {
    const opening = createDecipheriv('aes-256-gcm', once, nonce, { authTagLength: tagLength })
      .setAAD(keyId)
      .setAuthTag(bytes.subarray(end))
    return unpacked(Buffer.concat([opening.update(bytes.subarray(saltLength, end)), opening.final()]))
  } catch {
    throw new SealBroken()
  }
}

/**
 * Encrypts Temporal's arguments, results, signals, queries and memos, with a key derived from the
 * vault's; search attributes stay plain.
 */
export const payloadCodec = (keys: VaultKeys): PayloadCodec => ({
  async encode(payloads) {
    const key = await keys.primary()
    return payloads.map((payload) => encoded(payload, key))
  },
  decode: (payloads) => Promise.all(payloads.map((payload) => decoded(payload, keys))),
})
