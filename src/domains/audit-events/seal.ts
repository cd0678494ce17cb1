import { createHash, createHmac } from 'node:crypto'
import { z } from 'zod'
import { withSortedKeys } from '../../json-object.ts'
import type { VaultKey, VaultKeys } from '../../vault/keys.ts'

/**
 * How audit records are made provable. The writer of a record signs it. One sealer numbers the
 * committed records and chains them, each seal over the one before. The key is the vault's, so an
 * intruder with the database alone can forge neither. Without a key both are plain digests.
 */

/**
 * The members of a record that are signed, in the order of the signed text, before its metadata. The
 * database sets the time, so only the seal covers it.
 */
const signedMembers = [
  'id',
  'eventType',
  'actorId',
  'actorType',
  'environmentId',
  'resourceId',
  'connectionId',
  'runtimeId',
  'sessionId',
  'executionId',
  'externalId',
  'outcome',
  'summary',
] as const
type Signed = (typeof signedMembers)[number]
type Always = 'id' | 'eventType' | 'outcome' | 'summary'
export type SignedMembers = Record<Always, string> &
  Partial<Record<Exclude<Signed, Always>, string | undefined>> & { metadata?: unknown }

/** The id that stands for the absence of a key. */
export const noKey = 'sha256'

export const signedText = (record: SignedMembers): string =>
  JSON.stringify([
    ...signedMembers.map((member) => record[member]),
    record.metadata === undefined ? null : withSortedKeys(record.metadata),
  ])

/** `purpose` keeps a digest of one kind from being taken for one of another. */
export const macOf = (
  key: VaultKey | undefined,
  purpose: 'record' | 'digest' | 'seal' | 'head' | 'witness',
  text: string,
): string => {
  const hash = key === undefined ? createHash('sha256') : createHmac('sha256', key.secret)
  return hash.update(`orrery audit ${purpose}\n${text}`).digest('hex')
}

/** Digest of a whole record: the signed text, and the time of the write by the database. */
export const digestOf = (key: VaultKey | undefined, record: SignedMembers, occurredAt: string): string =>
  macOf(key, 'digest', `${occurredAt}\n${signedText(record)}`)

export const sealOf = (
  key: VaultKey | undefined,
  before: string,
  number: number,
  id: string,
  digest: string,
): string => macOf(key, 'seal', JSON.stringify([before, number, id, digest]))

export const headText = (number: number, id: string, seal: string): string =>
  JSON.stringify([number, id, seal])

/** The type of the record with which a chain begins behind the head of the one before. */
export const resetType = 'instance.reset'
const Reset = z.object({
  eventType: z.literal(resetType),
  metadata: z.object({ previousHead: z.object({ number: z.int().min(1), seal: z.string() }) }),
})

/**
 * The link before the first record of a chain: after a factory reset the head of the chain before,
 * so that no number and no seal comes again.
 */
export const startOf = (first: unknown): { number: number; seal: string } => {
  const reset = Reset.safeParse(first)
  return reset.success ? reset.data.metadata.previousHead : { number: 0, seal: '' }
}

/**
 * Ranks signatures: a key above a plain digest, a plain digest above none. A record after a better
 * signature has to have one as good.
 */
export const worth = (keyId: string | undefined): number =>
  keyId === undefined ? 0 : keyId === noKey ? 1 : 2

/** The signature of a record's text by the key that seals now. */
export const signRecord = async (
  keys: VaultKeys | undefined,
  text: string,
): Promise<{ keyId: string; signature: string }> => {
  const key = await keys?.primary()
  return { keyId: key?.id ?? noKey, signature: macOf(key, 'record', text) }
}
