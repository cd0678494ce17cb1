import { createCipheriv, createDecipheriv, createSecretKey, randomBytes, type KeyObject } from 'node:crypto'
import type { VaultKey } from './keys.ts'

/** The record that a sealed secret belongs to; it opens under no other. */
export interface Label {
  kind: string
  id: string
  version: number
}

/**
 * A secret encrypted with a data key of its own, and the data key encrypted with a key of the key
 * file; both as nonce (12 bytes), ciphertext, tag (16 bytes).
 */
export interface Sealed {
  /** Id of the key that wraps the data key. */
  keyId: string
  dataKey: Buffer
  content: Buffer
}

/** The bytes were changed, or belong to another record. */
export class SealBroken extends Error {
  constructor() {
    super('the sealed record does not open: it was changed, or belongs to another')
    this.name = 'SealBroken'
  }
}

const cipher = 'aes-256-gcm'
const nonceLength = 12
const tagLength = 16

const lock = (key: KeyObject | Buffer, plain: Buffer, bound: Buffer): Buffer => {
  const nonce = randomBytes(nonceLength)
  const locking = createCipheriv(cipher, key, nonce, { authTagLength: tagLength }).setAAD(bound)
  return Buffer.concat([nonce, locking.update(plain), locking.final(), locking.getAuthTag()])
}

const unlock = (key: KeyObject | Buffer, locked: Buffer, bound: Buffer): Buffer => {
  if (locked.length < nonceLength + tagLength) throw new SealBroken()
  const end = locked.length - tagLength
  try {
    const opening = createDecipheriv(cipher, key, locked.subarray(0, nonceLength), {
      authTagLength: tagLength,
    })
      .setAAD(bound)
      .setAuthTag(locked.subarray(end))
    return Buffer.concat([opening.update(locked.subarray(nonceLength, end)), opening.final()])
  } catch {
    throw new SealBroken()
  }
}

/** As JSON, so that no two labels give the same bytes. */
const bound = (part: 'data key' | 'content', { kind, id, version }: Label): Buffer =>
  Buffer.from(JSON.stringify([part, kind, id, version]))

/** Seals `plain` under a fresh data key. */
export const seal = (plain: Buffer, label: Label, key: VaultKey): Sealed => {
  const dataKey = randomBytes(32)
  try {
    return {
      keyId: key.id,
      dataKey: lock(key.secret, dataKey, bound('data key', label)),
      content: lock(dataKey, plain, bound('content', label)),
    }
  } finally {
    dataKey.fill(0)
  }
}

/** @throws SealBroken when a bit of it, or the label, has changed since the sealing */
export const unseal = (sealed: Sealed, label: Label, key: VaultKey): Buffer =>
  unlock(
    createSecretKey(unlock(key.secret, sealed.dataKey, bound('data key', label))),
    sealed.content,
    bound('content', label),
  )

/**
 * The same record with its data key under another key; the content is not touched. @throws
 * SealBroken
 */
export const rewrap = (sealed: Sealed, label: Label, from: VaultKey, to: VaultKey): Sealed => {
  const dataKey = unlock(from.secret, sealed.dataKey, bound('data key', label))
  return {
    keyId: to.id,
    dataKey: lock(to.secret, dataKey, bound('data key', label)),
    content: sealed.content,
  }
}
