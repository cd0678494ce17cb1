import { z } from 'zod'
import { sql, type Db } from '../../db/sql.ts'
import type { Log } from '../../observability/log.ts'
import { everyRound } from '../../pacing/every-round.ts'
import type { VaultKeys } from '../../vault/keys.ts'
import { digestOf, headText, macOf, noKey, sealOf, startOf } from './seal.ts'
import { ChainHead, chainHead, SealedMembers, sealedColumns } from './sealed.ts'
import { renewWitness, type Witness } from './witness.ts'

/** A record is sealed within a second of its commit. */
const pauseMs = 400
const roundsOfWitness = 3
const batch = 1_000
/** An arbitrary number. Every version of the service has to use the same one. */
const lock = 7_355_608_153

/**
 * Numbers and chains up to `batch` committed records without a seal, in one transaction: a kill
 * leaves all of them sealed or none. Of several daemons one seals at a time.
 * @returns how many were sealed
 */
export const sealRecords = async (db: Db, keys: VaultKeys | undefined): Promise<number> => {
  const any = await db.only(
    z.boolean(),
    sql`select exists (select from audit_events where seal_number is null) as any`,
  )
  if (!any) return 0
  return db.transaction(async (tx) => {
    const held = await tx.only(z.boolean(), sql`select pg_try_advisory_xact_lock(${lock}) as held`)
    if (!held) return 0
    const records = await tx.many(
      SealedMembers,
      sql`select ${sealedColumns} from audit_events where seal_number is null order by sequence limit ${batch}`,
    )
    const last = records.at(-1)
    const [first] = records
    if (last === undefined || first === undefined) return 0
    const key = await keys?.primary()
    const keyId = key?.id ?? noKey
    let { number, seal } = (await tx.maybe(ChainHead, sql`${chainHead} for update`)) ?? startOf(first)
    const links = records.map(({ occurredAt, ...record }) => {
      const digest = digestOf(key, record, occurredAt)
      seal = sealOf(key, seal, ++number, record.id, digest)
      return { id: record.id, number, digest, seal }
    })
    await tx.run(sql`update audit_events e set seal_number = g.number, digest = g.digest, seal = g.seal,
      seal_key = ${keyId}
      from unnest(${links.map((link) => link.id)}::text[], ${links.map((link) => link.number)}::bigint[],
        ${links.map((link) => link.digest)}::text[],
        ${links.map((link) => link.seal)}::text[]) as g (id, number, digest, seal)
      where e.id = g.id`)
    const signature = macOf(key, 'head', headText(number, last.id, seal))
    await tx.run(sql`insert into audit_head (number, event_id, seal, signature, signature_key)
      values (${number}, ${last.id}, ${seal}, ${signature}, ${keyId})
      on conflict (singleton) do update set number = excluded.number, event_id = excluded.event_id, seal =
        excluded.seal, signature = excluded.signature,
        signature_key = excluded.signature_key`)
    return links.length
  })
}

/**
 * Seals every committed record, and keeps others from sealing until the caller's transaction ends.
 * @returns the head
 */
export const sealAll = async (tx: Db, keys: VaultKeys | undefined) => {
  await tx.run(sql`select pg_advisory_xact_lock(${lock})`)
  while ((await sealRecords(tx, keys)) > 0);
  return tx.maybe(ChainHead, chainHead)
}

/**
 * Seals until it is stopped. While PostgreSQL or the key is unavailable it seals nothing;
 * afterwards it seals the whole backlog. The witness follows the head at most once a second, as each
 * write waits for the disk.
 */
export const openSealer = (
  { db, vaultKeys, auditWitness }: { db: Db; vaultKeys: VaultKeys | undefined; auditWitness: Witness },
  log: Pick<Log, 'warn'>,
) => {
  let failing = false
  let rounds = 0
  const round = async (signal: AbortSignal): Promise<void> => {
    let sealed: number
    await vaultKeys?.refresh()
    do {
      sealed = await sealRecords(db, vaultKeys)
    } while (sealed === batch && !signal.aborted)
    if (rounds++ % roundsOfWitness === 0) await renewWitness(db, vaultKeys, auditWitness)
    failing = false
  }
  return everyRound(pauseMs, round, (error) => {
    if (!failing) log.warn({ err: error }, 'audit records cannot be sealed and witnessed now; they are later')
    failing = true
  })
}
