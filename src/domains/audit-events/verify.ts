import { z } from 'zod'
import { sql, type Db } from '../../db/sql.ts'
import type { VaultKey, VaultKeys } from '../../vault/keys.ts'
import { digestOf, headText, macOf, noKey, sealOf, signedText, worth } from './seal.ts'
import { SealedMembers, sealedColumns } from './sealer.ts'

const batch = 5_000

const Sealed = SealedMembers.extend({
  signature: z.string().optional(),
  signatureKey: z.string().optional(),
  sealNumber: z.number(),
  digest: z.string(),
  seal: z.string(),
  sealKey: z.string(),
})
type Sealed = z.output<typeof Sealed>
const Unsealed = SealedMembers.extend({
  signature: z.string().optional(),
  signatureKey: z.string().optional(),
})
const Head = z.object({
  number: z.number(),
  eventId: z.string(),
  seal: z.string(),
  signature: z.string(),
  signatureKey: z.string(),
})
const Count = z.object({ total: z.number() })

export interface ChainVerdict {
  sealed: number
  unsealed: number
  /**
   * Number and seal of the newest link, to keep outside. With them a reader can prove later that no
   * record before the link was changed.
   */
  head: { number: number; seal: string } | null
  first?: { id: string; reason: string }
}

const withoutTime = <Item extends { occurredAt: string }>({ occurredAt: _, ...record }: Item) => record

/** The keys that records name; `null` for a key that the vault no longer holds. */
const openKeys = (keys: VaultKeys | undefined) => {
  const known = new Map<string, VaultKey | null | undefined>([[noKey, undefined]])
  return async (id: string): Promise<VaultKey | null | undefined> => {
    if (!known.has(id)) known.set(id, (await keys?.find(id)) ?? null)
    return known.get(id)
  }
}

/**
 * Compares the references of a record with the records that exist now.
 * @returns the difference, or undefined
 */
export type Proof = (
  tx: Db,
  record: Pick<Sealed, 'executionId' | 'sessionId' | 'metadata'>,
) => Promise<string | undefined>

/**
 * Walks the chain from its first record and names the first record that differs from its seal. It
 * reads in one transaction, so a sealer beside it does not change the result.
 */
export const verifyAudit = (
  db: Db,
  keys: VaultKeys | undefined,
  proofs: readonly Proof[] = [],
): Promise<ChainVerdict> =>
  db.snapshot(async (tx) => {
    const keyOf = openKeys(keys)
    const head = await tx.maybe(
      Head,
      sql`select number, event_id, seal, signature, signature_key from audit_head`,
    )
    const { total: unsealed } = await tx.one(
      Count,
      sql`select count(*) as total from audit_events where seal_number is null`,
    )
    const { total: sealed } = await tx.one(
      Count,
      sql`select count(*) as total from audit_events where seal_number is not null`,
    )
    const verdict = (first?: { id: string; reason: string }): ChainVerdict => ({
      ...{ sealed, unsealed, head: head === undefined ? null : { number: head.number, seal: head.seal } },
      ...(first === undefined ? {} : { first }),
    })

    let before = { number: 0, seal: '', id: '', worth: 0, signed: 0 }
    for (;;) {
      const rows = await tx.many(
        Sealed,
        sql`select ${sealedColumns}, signature, signature_key, seal_number, digest, seal, seal_key
          from audit_events where seal_number > ${before.number}
            order by seal_number limit ${batch}`,
      )
      for (const row of rows) {
        const fault = await linkFault(row, before, keyOf)
        if (fault !== undefined) return verdict(fault)
        for (const proof of proofs) {
          const reason = await proof(tx, row)
          if (reason !== undefined) return verdict({ id: row.id, reason })
        }
        before = {
          ...{ number: row.sealNumber, seal: row.seal, id: row.id },
          ...{
            worth: Math.max(before.worth, worth(row.sealKey)),
            signed: Math.max(before.signed, worth(row.signatureKey)),
          },
        }
      }
      if (rows.length < batch) break
    }
    const end = await endFault(head, before, keyOf)
    if (end !== undefined) return verdict(end)
    const waiting = await tx.many(
      Unsealed,
      sql`select ${sealedColumns}, signature, signature_key from audit_events where seal_number is null
        order by sequence limit ${batch}`,
    )
    for (const record of waiting)
      if (!(await isSigned(record, before.signed, keyOf)))
        return verdict({ id: record.id, reason: 'inserted: the service did not write it' })
    return verdict()
  })

type KeyOf = ReturnType<typeof openKeys>

const isSigned = async (record: z.output<typeof Unsealed>, least: number, keyOf: KeyOf): Promise<boolean> => {
  const { signature, signatureKey, ...members } = record
  if (worth(signatureKey) < least) return false
  if (signatureKey === undefined) return true
  const key = await keyOf(signatureKey)
  return key !== null && signature === macOf(key, 'record', signedText(withoutTime(members)))
}

const linkFault = async (
  row: Sealed,
  before: { number: number; seal: string; id: string; worth: number; signed: number },
  keyOf: KeyOf,
): Promise<{ id: string; reason: string } | undefined> => {
  const { id } = row
  if (row.sealNumber !== before.number + 1)
    return {
      id: before.id === '' ? id : before.id,
      reason: `removed: number ${String(before.number + 1)} is missing after this record`,
    }
  const key = await keyOf(row.sealKey)
  if (key === null)
    return { id, reason: `cannot be checked: key ${row.sealKey} is not among the vault's keys` }
  const { signature, signatureKey, sealNumber, digest, seal, sealKey, ...members } = row
  const record = withoutTime(members)
  const signed = await isSigned(
    {
      ...members,
      ...(signature === undefined ? {} : { signature }),
      ...(signatureKey === undefined ? {} : { signatureKey }),
    },
    before.signed,
    keyOf,
  )
  const own = digestOf(key, record, row.occurredAt) === digest
  if (worth(sealKey) < before.worth) return { id, reason: 'inserted: its seal was made without the key' }
  if (sealOf(key, before.seal, sealNumber, id, digest) !== seal) {
    // Content and digest of one record agree where the whole record was moved to another's place.
    if (own)
      return {
        id,
        reason: signed ? 'swapped: it was sealed at another place' : 'inserted: the service did not write it',
      }
    return {
      id,
      reason: signed
        ? 'changed: its time is not the one that was sealed'
        : 'inserted or changed: neither its seal nor its signature fits',
    }
  }
  if (!own) return { id, reason: 'changed: it is not what was sealed' }
  return signed ? undefined : { id, reason: 'inserted: the service did not write it' }
}

const endFault = async (
  head: z.output<typeof Head> | undefined,
  last: { number: number; seal: string; id: string; worth: number },
  keyOf: KeyOf,
): Promise<{ id: string; reason: string } | undefined> => {
  if (head === undefined)
    return last.number === 0
      ? undefined
      : { id: last.id, reason: 'removed: the head of the chain is missing' }
  const key = await keyOf(head.signatureKey)
  if (key === null)
    return {
      id: head.eventId,
      reason: `cannot be checked: key ${head.signatureKey} is not among the vault's keys`,
    }
  const genuine =
    macOf(key, 'head', headText(head.number, head.eventId, head.seal)) === head.signature &&
    worth(head.signatureKey) >= last.worth
  if (!genuine)
    return { id: head.eventId, reason: 'changed: the head of the chain was not written by the service' }
  if (head.number > last.number)
    return {
      id: head.eventId,
      reason: `removed: the chain ends at ${String(last.number)} and had ${String(head.number)} records`,
    }
  return head.seal === last.seal
    ? undefined
    : { id: last.id, reason: 'inserted: it follows the head of the chain' }
}
