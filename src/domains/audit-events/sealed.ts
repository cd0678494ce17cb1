import { z } from 'zod'
import { raw, sql } from '../../db/sql.ts'
import type { VaultKey, VaultKeys } from '../../vault/keys.ts'
import { auditMembers } from './schemas.ts'
import { macOf, noKey, signedText, worth } from './seal.ts'

/** Records and head as seals need them, and who wrote them. */

/** Columns of `SealedMembers`. The time has the stored microseconds. */
export const sealedColumns =
  raw(`id, event_type, actor_id, actor_type, environment_id, resource_id, connection_id, runtime_id, session_id,
    execution_id, external_id, outcome, summary, metadata,
  to_char(occurred_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.US') as occurred_at`)

/** A record as it stands in the database: whoever changed it there may have put any text. */
export const SealedMembers = z.object({
  id: z.string(),
  ...auditMembers,
  outcome: z.string(),
  occurredAt: z.string(),
})
export const SignedRecord = SealedMembers.extend({
  signature: z.string().optional(),
  signatureKey: z.string().optional(),
})
export type SignedRecord = z.output<typeof SignedRecord>
export const signedColumns = sql`${sealedColumns}, signature, signature_key`

/** The newest link of the chain. */
export const ChainHead = z.object({
  number: z.number(),
  eventId: z.string(),
  seal: z.string(),
  signature: z.string(),
  signatureKey: z.string(),
})
export const chainHead = sql`select number, event_id, seal, signature, signature_key from audit_head`

/** The keys that records name; `null` for a key that the vault no longer holds. */
export const keysOfRecords = (keys: VaultKeys | undefined) => {
  const known = new Map<string, VaultKey | null | undefined>([[noKey, undefined]])
  return async (id: string): Promise<VaultKey | null | undefined> => {
    if (!known.has(id)) known.set(id, (await keys?.find(id)) ?? null)
    return known.get(id)
  }
}

export type KeyOf = ReturnType<typeof keysOfRecords>

export const withoutTime = <Item extends { occurredAt: string }>({ occurredAt: _, ...record }: Item) => record

/** Whether the service wrote the record, with a signature of at least this worth. */
export const isSignedRecord = async (record: SignedRecord, least: number, keyOf: KeyOf): Promise<boolean> => {
  const { signature, signatureKey, ...members } = record
  if (worth(signatureKey) < least) return false
  if (signatureKey === undefined) return true
  const key = await keyOf(signatureKey)
  return key !== null && signature === macOf(key, 'record', signedText(withoutTime(members)))
}
