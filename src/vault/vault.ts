import { z } from 'zod'
import { append } from '../lists.ts'
import { privateLines } from '../clients/ssh/keys.ts'
import { sql, type Db, type Sql } from '../db/sql.ts'
import type { NewAuditEvent } from '../domains/audit-events/schemas.ts'
import { Refusal, unacceptableAt } from '../refusal.ts'
import { rewrap, seal, SealBroken, unseal, type Sealed } from './envelope.ts'
import type { VaultKey, VaultKeys } from './keys.ts'
import { readOutside, shownReference, type OutsideSources } from './outside.ts'
import type { Secret, SecretFinder, SecretKind, SecretOpener } from './secret.ts'

export interface VaultOptions {
  db: Db
  /**
   * Undefined: there is no key file, and nothing can be stored or opened; references to outside
   * still work.
   */
  keys: VaultKeys | undefined
  outside: OutsideSources
  /** Records a use before the secret is returned. */
  audit: (event: NewAuditEvent) => Promise<void>
}

/** The public facts of a credential: fingerprint and public key, the provider. */
export type Shown = Readonly<Record<string, string>>

/** Opaque to clients. */
export const referenceOf = (kind: SecretKind, id: string): string => `vault:${kind}/${id}`

export const kinds: readonly SecretKind[] = [
  'ssh-key',
  'kubernetes-token',
  'cloud-credential',
  'registry-credential',
  'signing-key',
  'machine-variables',
]

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
    'the vault has no key, so credentials can be neither stored nor opened: make one (umask 077; ' +
      'openssl rand -base64 32 > FILE), name it in SERVICE_VAULT_KEY_FILE for every program of the ' +
      'service, and start again',
    { retryAfterSeconds: 30 },
  )

/** Rows of one step of a rotation: each row is a short lock of its own. */
const turn = 100

const KeyUseRow = z.object({ keyId: z.string(), records: z.number() })

/** Number of records of a vault by the id of the key that wraps them. */
export const keyUse = async (db: Db): Promise<ReadonlyMap<string, number>> => {
  const rows = await db.many(
    KeyUseRow,
    sql`select key_id, count(*) as records from credentials group by key_id order by key_id`,
  )
  return new Map(rows.map(({ keyId, records }) => [keyId, records]))
}

/** The audit event of an opening. */
const usedEvent = (
  {
    reference,
    actor,
    purpose,
    environmentId,
    connectionId,
  }: Parameters<SecretOpener['open']>[1] & { reference: string },
  outcome: 'succeeded' | 'failed',
  metadata: NewAuditEvent['metadata'],
): NewAuditEvent => ({
  eventType: 'credential.used',
  actorId: actor,
  actorType: 'service',
  ...(environmentId === undefined ? {} : { environmentId }),
  ...(connectionId === undefined ? {} : { connectionId }),
  outcome,
  summary:
    `credential ${shownReference(reference)} ` +
    `${outcome === 'failed' ? 'could not be opened' : 'opened'}: ${purpose}`,
  metadata: { credentialRef: shownReference(reference), purpose, ...metadata },
})

/** Members with other names in a provider's document are no secret. */
const secretName = /key|secret|token|password/i
/** Lines that every key has are no secret. */
const openLine = /^-----/

/** The texts of a secret that must not be shown. */
const secretTexts = (secret: Secret | undefined, least: number): string[] => {
  if (secret === undefined) return []
  const whole =
    secret.kind === 'ssh-key' || secret.kind === 'signing-key'
      ? [secret.privateKey, ...(secret.kind === 'ssh-key' ? privateLines(secret.privateKey) : [])]
      : secret.kind === 'kubernetes-token'
        ? [secret.token]
        : secret.kind === 'registry-credential'
          ? [secret.password]
          : secret.kind === 'machine-variables'
            ? Object.values(secret.values).map(String)
            : Object.entries(secret.document).flatMap(([name, value]) =>
                typeof value === 'string' && secretName.test(name) ? [value] : [],
              )
  return whole
    .flatMap((text) => text.split(/\r?\n/))
    .filter((line) => line.length >= least && !openLine.test(line))
}

const storedTexts = async (
  db: Db,
  open: (record: Stored) => Promise<Secret>,
  least: number,
): Promise<string[]> => {
  const rows = await db.many(
    Row,
    sql`select kind, id, version, key_id, data_key, content from credentials order by kind, id`,
  )
  const texts: string[] = []
  for (const row of rows) append(texts, secretTexts(await open(row).catch(() => undefined), least))
  return texts
}

/** The key that seals new secrets. @throws Refusal without one, or while the key file cannot be read */
const sealingKey = async (keys: VaultKeys | undefined): Promise<VaultKey> => {
  if (keys === undefined) throw closed()
  // A key that the file no longer holds would seal for nobody.
  await keys.refresh()
  return keys.primary()
}

/** The key that sealed a record. @throws Refusal where the key file lacks it */
const keyOf = async (keys: VaultKeys | undefined, record: Stored): Promise<VaultKey> => {
  const key = await keys?.find(record.keyId)
  if (key !== undefined) return key
  if (keys === undefined) throw closed()
  throw new Refusal(
    'unavailable',
    `the credential ${JSON.stringify(referenceOf(record.kind, record.id))} was sealed with the ` +
      `vault key ${record.keyId}, which the key file of this program does not hold; add it there, or ` +
      'store the credential again',
    { retryAfterSeconds: 30 },
  )
}

/** The record of a reference; undefined where the reference is to the outside. @throws Refusal */
const findRecord = async (db: Db, reference: string): Promise<Stored | undefined> => {
  const named = parsedReference(reference)
  if (named === undefined) return undefined
  const record = await db.maybe(
    Row,
    sql`select kind, id, version, key_id, data_key, content from credentials where kind = ${named.kind}
      and id = ${named.id}`,
  )
  if (record === undefined)
    throw unacceptableAt('', `the credential ${JSON.stringify(reference)} does not exist; store it first`)
  return record
}

/** The secret of a record. @throws Refusal */
const openRecord = async (keys: VaultKeys | undefined, record: Stored): Promise<Secret> => {
  try {
    return JSON.parse(unseal(record, record, await keyOf(keys, record)).toString('utf8')) as Secret
  } catch (error) {
    if (!(error instanceof SealBroken)) throw error
    const reference = JSON.stringify(referenceOf(record.kind, record.id))
    throw unacceptableAt(
      '',
      `the credential ${reference} does not open: its record was changed outside of the ` +
        'service; store it again',
    )
  }
}

const sealSecret = async (
  keys: VaultKeys | undefined,
  secret: Secret,
  id: string,
  version: number,
): Promise<Sealed> =>
  seal(Buffer.from(JSON.stringify(secret)), { kind: secret.kind, id, version }, await sealingKey(keys))

/** Opens and finds secrets, in the vault and outside. Every use is recorded. */
const makeOpener = ({ db, keys, outside, audit }: VaultOptions): SecretOpener & SecretFinder => ({
  async open(reference, use) {
    const record = async (
      outcome: 'succeeded' | 'failed',
      metadata: NewAuditEvent['metadata'],
    ): Promise<void> => audit(usedEvent({ ...use, reference }, outcome, metadata))
    let found: { secret: Secret; version: string }
    try {
      const stored = await findRecord(db, reference)
      found =
        stored === undefined
          ? await readOutside(reference, outside)
          : { secret: await openRecord(keys, stored), version: String(stored.version) }
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
    const stored = await findRecord(db, reference)
    if (stored !== undefined) return { kind: stored.kind, version: String(stored.version) }
    const { secret, version } = await readOutside(reference, outside)
    return { kind: secret.kind, version }
  },
})

/** What a rewrap did; the lists hold references of records that stay as they were. */
interface Rewrapped {
  wrapped: number
  /** Their records were changed outside of the service. */
  broken: string[]
  /** The key file lacks their keys. */
  keyless: string[]
}

/** Wraps every record with the first key of the file, step by step. */
const rewrapAll = async (db: Db, keys: VaultKeys | undefined): Promise<Rewrapped> => {
  const to = await sealingKey(keys)
  const broken: string[] = []
  const keyless: string[] = []
  let wrapped = 0
  let after: Sql = sql``
  for (;;) {
    const rows = await db.many(
      Row,
      sql`select kind, id, version, key_id, data_key, content from credentials
        where key_id <> ${to.id} ${after} order by kind, id limit ${turn}`,
    )
    for (const row of rows) {
      const from = await keys?.find(row.keyId)
      if (from === undefined) {
        keyless.push(referenceOf(row.kind, row.id))
        continue
      }
      try {
        const { keyId, dataKey } = rewrap(row, row, from, to)
        // A record that was replaced or deleted meanwhile is left alone: it has a new seal, or is
        // gone.
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
    if (last === undefined) return { wrapped, broken, keyless }
    after = sql`and (kind, id) > (${last.kind}, ${last.id})`
  }
}

/**
 * The vault: secrets of the table `credentials`, each encrypted with a data key of its own, which a
 * key of the key file encrypts. Kind, id and version are bound to both, so a changed or swapped
 * record does not open.
 */
export const openVault = (options: VaultOptions) => {
  const { db, keys } = options
  return {
    ...makeOpener(options),

    /** Whether there is a key for sealing. */
    ready: keys !== undefined,

    /**
     * Stores a new secret; false when its kind has the id already. @throws Refusal `unavailable`
     * without a key
     */
    async put(tx: Db, id: string, secret: Secret, shown: Shown): Promise<boolean> {
      const { keyId, dataKey, content } = await sealSecret(keys, secret, id, 1)
      const added = await tx.run(
        sql`insert into credentials (kind, id, version, shown, key_id, data_key, content)
            values (${secret.kind}, ${id}, 1, ${JSON.stringify(shown)}, ${keyId}, ${dataKey}, ${content})
              on conflict do nothing`,
      )
      return added === 1
    },

    /**
     * Stores another secret under an existing reference, as its next version. The caller holds the
     * record's lock (`for update`).
     */
    async replace(tx: Db, id: string, secret: Secret, shown: Shown): Promise<void> {
      const version =
        1 +
        (await tx.only(
          z.number(),
          sql`select version from credentials where kind = ${secret.kind} and id = ${id}`,
        ))
      const { keyId, dataKey, content } = await sealSecret(keys, secret, id, version)
      await tx.run(
        sql`update credentials set version = ${version}, shown = ${JSON.stringify(shown)}, key_id =
          ${keyId}, data_key = ${dataKey},
              content = ${content}, changed_at = now() where kind = ${secret.kind} and id = ${id}`,
      )
    },

    /**
     * Every stored secret text, for masking where it must not be recorded; for a text of several
     * lines, each line.
     */
    values: (least = 12): Promise<string[]> =>
      keys === undefined ? Promise.resolve([]) : storedTexts(db, (record) => openRecord(keys, record), least),

    /** Number of records by the id of the key that wraps them. */
    usage: (): Promise<ReadonlyMap<string, number>> => keyUse(db),

    /** The same of keys that the file does not hold, so that their records cannot be opened. */
    async lost(): Promise<[id: string, records: number][]> {
      const held = new Set((await keys?.all())?.map(({ id }) => id))
      return [...(await keyUse(db))].filter(([id]) => !held.has(id))
    },

    /**
     * Wraps every record with the first key of the file; it may break off and run again, beside a
     * running service.
     */
    rewrap: () => rewrapAll(db, keys),
  }
}

export type Vault = ReturnType<typeof openVault>
