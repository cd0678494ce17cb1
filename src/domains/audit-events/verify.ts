import { z } from 'zod'
import { sql, type Db } from '../../db/sql.ts'
import type { VaultKeys } from '../../vault/keys.ts'
import { digestOf, headText, macOf, noKey, sealOf, startOf, worth } from './seal.ts'
import {
  ChainHead,
  chainHead,
  isSignedRecord,
  keysOfRecords,
  signedColumns,
  SignedRecord,
  withoutTime,
  type KeyOf,
} from './sealed.ts'
import { checkedLink, type Witness, type WitnessLink } from './witness.ts'

const batch = 5_000

const Sealed = SignedRecord.extend({
  sealNumber: z.number(),
  digest: z.string(),
  seal: z.string(),
  sealKey: z.string(),
})
type Sealed = z.output<typeof Sealed>

/** A record that is not as it was sealed. */
interface Fault {
  id: string
  reason: string
}

/** Faults that an answer names. */
const mostFaults = 101

export interface ChainVerdict {
  sealed: number
  unsealed: number
  /**
   * Number and seal of the newest link, to keep outside. With them a reader can prove later that no
   * record before the link was changed.
   */
  head: { number: number; seal: string } | null
  /** The first record whose seal needed the vault's key; null where none did. */
  signedFrom: number | null
  /** The link that a file outside of the database holds; null without that file. */
  witness: { number: number; since: number } | null
  first?: Fault
  /** The faults behind the first, 100 at most; the last may be the one that ended the walk. */
  further?: Fault[]
}

/**
 * Compares the references of a record with the records that exist now.
 * @returns the difference, or undefined
 */
export type Proof = (
  tx: Db,
  record: Pick<Sealed, 'executionId' | 'sessionId' | 'metadata' | 'occurredAt'>,
) => Promise<string | undefined>

/**
 * Walks the chain from its first record and names the records that differ from their seals. It goes on behind
 * one whose proof fails, and ends where the chain itself is broken. It reads in one transaction, so a
 * sealer beside it does not change the result.
 */
export const verifyAudit = async (
  db: Db,
  keys: VaultKeys | undefined,
  { proofs = [], witness }: { proofs?: readonly Proof[]; witness?: Witness | undefined } = {},
): Promise<ChainVerdict> => {
  const keyOf = keysOfRecords(keys)
  // Read before the records: the link is never ahead of them then.
  const { link, fault: broken } = await checkedLink(witness, keyOf)
  return db.snapshot(async (tx) => {
    const head = await tx.maybe(ChainHead, chainHead)
    const unsealed = await tx.only(
      z.number(),
      sql`select count(*) as total from audit_events where seal_number is null`,
    )
    const sealed = await tx.only(
      z.number(),
      sql`select count(*) as total from audit_events where seal_number is not null`,
    )
    let signedFrom: number | null = null
    const unproved: Fault[] = []
    const verdict = (last?: Fault): ChainVerdict => {
      const [first, ...further] = last === undefined ? unproved : [...unproved.slice(0, mostFaults - 1), last]
      return {
        ...{ sealed, unsealed, signedFrom },
        head: head === undefined ? null : { number: head.number, seal: head.seal },
        witness: link === undefined ? null : { number: link.number, since: link.since },
        ...(first === undefined ? {} : { first }),
        ...(further.length === 0 ? {} : { further }),
      }
    }

    if (broken !== undefined) return verdict({ id: head?.eventId ?? '', reason: broken })

    let before = { number: 0, seal: '', id: '', worth: 0, signed: 0 }
    for (;;) {
      const rows = await tx.many(
        Sealed,
        sql`select ${signedColumns}, seal_number, digest, seal, seal_key
          from audit_events where seal_number > ${before.number}
            order by seal_number limit ${batch}`,
      )
      for (const row of rows) {
        // Numbers above 1 begin where the service has signed a factory reset.
        if (before.number === 0 && row.sealNumber > 1)
          before = {
            ...{ ...before, ...startOf(row), signed: worth(row.sealKey) },
            worth: worth(link?.keyId),
          }
        const fault = (await linkFault(row, before, keyOf)) ?? witnessedFault(row, link)
        if (fault !== undefined) return verdict(fault)
        if (worth(row.sealKey) > worth(noKey)) signedFrom ??= row.sealNumber
        for (const proof of proofs) {
          const reason = await proof(tx, row)
          if (reason !== undefined && unproved.length < mostFaults) unproved.push({ id: row.id, reason })
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
    const end = (await endFault(head, before, keyOf)) ?? lostFault(before, link)
    if (end !== undefined) return verdict(end)
    const waiting = await tx.many(
      SignedRecord,
      sql`select ${signedColumns} from audit_events where seal_number is null
        order by sequence limit ${batch}`,
    )
    for (const record of waiting)
      if (!(await isSignedRecord(record, before.signed, keyOf)))
        return verdict({ id: record.id, reason: 'inserted: the service did not write it' })
    return verdict()
  })
}

const linkFault = async (
  row: Sealed,
  before: { number: number; seal: string; id: string; worth: number; signed: number },
  keyOf: KeyOf,
): Promise<Fault | undefined> => {
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
  const signed = await isSignedRecord(
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
  head: z.output<typeof ChainHead> | undefined,
  last: { number: number; seal: string; id: string; worth: number },
  keyOf: KeyOf,
): Promise<Fault | undefined> => {
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

const witnessedFault = ({ id, sealNumber, seal }: Sealed, link: WitnessLink | undefined): Fault | undefined =>
  sealNumber === link?.number && seal !== link.seal
    ? { id, reason: 'changed: a file outside of the database holds another seal of this number' }
    : undefined

const lostFault = (last: { number: number; id: string }, link: WitnessLink | undefined): Fault | undefined =>
  link === undefined || last.number >= link.number
    ? undefined
    : {
        id: link.eventId,
        reason:
          `removed: the chain ends at ${String(last.number)}, and a file outside of the database ` +
          `holds the seal of number ${String(link.number)}`,
      }
