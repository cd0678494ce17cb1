import { z } from 'zod'
import { sql, type Db, type Sql } from '../db/sql.ts'
import type { NewAuditEvent } from '../domains/audit-events/schemas.ts'
import { Refusal, unacceptable } from '../refusal.ts'
import { rewrap, seal, SealBroken, unseal, type Sealed } from './envelope.ts'
import type { VaultKey, VaultKeys } from './keys.ts'
import { readOutside, shownReference, type OutsideSources } from './outside.ts'
import type { Secret, SecretFinder, SecretKind, SecretOpener } from './secret.ts'

export interface VaultOptions {
  db: Db
  /** Undefined: there is no key file, nothing can be stored or opened; references to outside still work. */
  keys: VaultKeys | undefined
  outside: OutsideSources
  /** Records a use before the secret is given out. */
  audit: (event: NewAuditEvent) => Promise<void>
}

/** What may be shown of a credential: fingerprint and public key, the provider. */
export type Shown = Readonly<Record<string, string>>

/** Opaque to clients. */
export const referenceOf = (kind: SecretKind, id: string): string => `vault:${kind}/${id}`

const kinds: readonly SecretKind[] = ['ssh-key', 'kubernetes-token', 'cloud-credential']

const parsedReference = (reference: string): { kind: SecretKind; id: string } | undefined => {
  const [, name, id = ''] = /^vault:([a-z-]+)\/([A-Za-z0-9_-]{1,64})$/.exec(reference) ?? []
  const kind = kinds.find((candidate) => candidate === name)
  return kind === undefined ? undefined : { kind, id }
}

const Row = z.object({
  kind: z.enum(kinds as [SecretKind, ...SecretKind[]]),
  id: z.string(),
  version: z.number(),
  keyId: z.string(),
  dataKey: z.instanceof(Buffer),
  content: z.instanceof(Buffer),
})
type Stored = z.output<typeof Row>

const closed = (): Refusal =>
  new Refusal(
    'unavailable',
    'the vault has no key, so credentials can be neither stored nor opened: make one (umask 077; openssl rand -base64 32 > FILE), name it in SERVICE_VAULT_KEY_FILE for every program of the service, and start again',
    { retryAfterSeconds: 30 },
  )

/** Rows of one turn of a rotation: each is a short lock of its own. */
const turn = 100

const KeyUseRow = z.object({ keyId: z.string(), records: z.number() })

const VersionRow = z.object({ version: z.number() })

/** The audit event of an opening. */
const usedEvent = (
  { reference, actor, purpose, environmentId, connectionId }: Parameters<SecretOpener['open']>[1] & { reference: string },
  outcome: 'succeeded' | 'failed',
  metadata: NewAuditEvent['metadata'],
): NewAuditEvent => ({
  eventType: 'credential.used',
  actorId: actor,
  actorType: 'service',
  ...(environmentId === undefined ? {} : { environmentId }),
  ...(connectionId === undefined ? {} : { connectionId }),
  outcome,
  summary: `credential ${shownReference(reference)} ${outcome === 'failed' ? 'could not be opened' : 'opened'}: ${purpose}`,
  metadata: { credentialRef: shownReference(reference), purpose, ...metadata },
})

/**
 * The vault: secrets of the table `credentials`, each under a data key of its own, that under a key of the key file. Kind, id and version
 * are bound to both, so a record that was changed or put in another's place does not open.
 */
export const openVault = ({ db, keys, outside, audit }: VaultOptions) => {
  const sealing = async (): Promise<VaultKey> => {
    if (keys === undefined) throw closed()
    return keys.primary()
  }

  const keyOf = async (record: Stored): Promise<VaultKey> => {
    const key = await keys?.find(record.keyId)
    if (key !== undefined) return key
    if (keys === undefined) throw closed()
    throw new Refusal(
      'unavailable',
      `the credential ${JSON.stringify(referenceOf(record.kind, record.id))} was sealed with the vault key ${record.keyId}, which the key file of this program does not hold; add it there`,
      { retryAfterSeconds: 30 },
    )
  }

  const find = async (reference: string): Promise<Stored | undefined> => {
    const named = parsedReference(reference)
    if (named === undefined) return undefined
    const record = await db.maybe(
      Row,
      sql`select kind, id, version, key_id, data_key, content from credentials where kind = ${named.kind} and id = ${named.id}`,
    )
    if (record === undefined)
      throw unacceptable([{ path: '', message: `the credential ${JSON.stringify(reference)} does not exist; store it first` }])
    return record
  }

  const opened = async (record: Stored): Promise<Secret> => {
    try {
      return JSON.parse(unseal(record, record, await keyOf(record)).toString('utf8')) as Secret
    } catch (error) {
      if (!(error instanceof SealBroken)) throw error
      const reference = JSON.stringify(referenceOf(record.kind, record.id))
      throw unacceptable([
        { path: '', message: `the credential ${reference} does not open: its record was changed outside of the service; store it again` },
      ])
    }
  }

  const sealed = async (secret: Secret, id: string, version: number): Promise<Sealed> =>
    seal(Buffer.from(JSON.stringify(secret)), { kind: secret.kind, id, version }, await sealing())

  const opener: SecretOpener & SecretFinder = {
    async open(reference, use) {
      const record = async (outcome: 'succeeded' | 'failed', metadata: NewAuditEvent['metadata']): Promise<void> =>
        audit(usedEvent({ ...use, reference }, outcome, metadata))
      let found: { secret: Secret; version: string }
      try {
        const stored = await find(reference)
        found =
          stored === undefined ? await readOutside(reference, outside) : { secret: await opened(stored), version: String(stored.version) }
        if (stored !== undefined) {
          // Once a minute is precise enough, and a busy credential costs no write per use.
          await db.run(
            sql`update credentials set last_used_at = now() where kind = ${stored.kind} and id = ${stored.id}
                and (last_used_at is null or last_used_at < now() - interval '1 minute')`,
          )
        }
      } catch (error) {
        if (error instanceof Refusal) await record('failed', { reason: error.message })
        throw error
      }
      await record('succeeded', { version: found.version })
      return found.secret
    },

    async look(reference) {
      const stored = await find(reference)
      if (stored !== undefined) return { kind: stored.kind, version: String(stored.version) }
      const { secret, version } = await readOutside(reference, outside)
      return { kind: secret.kind, version }
    },
  }

  return {
    ...opener,

    /** Whether there is a key to seal with. */
    ready: keys !== undefined,

    /** Stores a new secret; false when its kind has the id already. @throws Refusal `unavailable` without a key */
    async put(tx: Db, id: string, secret: Secret, shown: Shown): Promise<boolean> {
      const { keyId, dataKey, content } = await sealed(secret, id, 1)
      const added = await tx.run(
        sql`insert into credentials (kind, id, version, shown, key_id, data_key, content)
            values (${secret.kind}, ${id}, 1, ${JSON.stringify(shown)}, ${keyId}, ${dataKey}, ${content}) on conflict do nothing`,
      )
      return added === 1
    },

    /** Puts another secret under a reference that exists, as its next version; undefined when it does not. */
    replace: (id: string, secret: Secret, shown: Shown): Promise<number | undefined> =>
      db.transaction(async (tx) => {
        const known = await tx.maybe(VersionRow, sql`select version from credentials where kind = ${secret.kind} and id = ${id} for update`)
        if (known === undefined) return undefined
        const version = known.version + 1
        const { keyId, dataKey, content } = await sealed(secret, id, version)
        await tx.run(
          sql`update credentials set version = ${version}, shown = ${JSON.stringify(shown)}, key_id = ${keyId}, data_key = ${dataKey},
                content = ${content}, changed_at = now() where kind = ${secret.kind} and id = ${id}`,
        )
        return version
      }),

    /** Number of records by the id of the key that wraps them. */
    async usage(): Promise<ReadonlyMap<string, number>> {
      const rows = await db.many(KeyUseRow, sql`select key_id, count(*) as records from credentials group by key_id order by key_id`)
      return new Map(rows.map(({ keyId, records }) => [keyId, records]))
    },

    /**
     * Wraps every record under the first key of the file; may be broken off and run again, beside a running service.
     * `broken`: references of records that do not open; they stay as they are.
     */
    async rewrap(): Promise<{ wrapped: number; broken: string[] }> {
      const to = await sealing()
      const broken: string[] = []
      let wrapped = 0
      let after: Sql = sql``
      for (;;) {
        const rows = await db.many(
          Row,
          sql`select kind, id, version, key_id, data_key, content from credentials where key_id <> ${to.id} ${after} order by kind, id limit ${turn}`,
        )
        for (const row of rows) {
          try {
            const { keyId, dataKey } = rewrap(row, row, await keyOf(row), to)
            // A record that was replaced or deleted meanwhile is left alone: it was sealed anew, or is gone.
            wrapped += await db.run(
              sql`update credentials set key_id = ${keyId}, data_key = ${dataKey}
                  where kind = ${row.kind} and id = ${row.id} and version = ${row.version} and key_id = ${row.keyId}`,
            )
          } catch (error) {
            if (!(error instanceof SealBroken)) throw error
            broken.push(referenceOf(row.kind, row.id))
          }
        }
        const last = rows.at(-1)
        if (last === undefined) return { wrapped, broken }
        after = sql`and (kind, id) > (${last.kind}, ${last.id})`
      }
    },
  }
}

export type Vault = ReturnType<typeof openVault>
