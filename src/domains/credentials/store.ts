import { z } from 'zod'
import { countUpTo } from '../../db/rows.ts'
import { sql, type Db, type Sql } from '../../db/sql.ts'
import type { Page } from '../../http/paging.ts'
import { missing, Refusal, unacceptable, type Problem } from '../../refusal.ts'
import type { SecretKind } from '../../vault/secret.ts'
import { referenceOf } from '../../vault/vault.ts'

/** The noun of each kind in sentences. */
export const nouns: Record<SecretKind, string> = {
  'ssh-key': 'SSH key',
  'kubernetes-token': 'Kubernetes token',
  'cloud-credential': 'cloud credential',
  'registry-credential': 'registry credential',
  'signing-key': 'signing key',
  'machine-variables': 'secret variables of playbooks',
}

/** What frees a credential, by what uses it. */
const remedies: Readonly<Record<string, string>> = {
  instance: 'destroy that',
  storage: 'give the storage another credential',
  runtime: 'give the runtime another credential',
}

/** The most connections that a credential, or the refusal of its deletion, names. */
const usersShown = 100

const users = sql`(select coalesce(json_agg(case u.kind when 'build' then json_build_object('buildId', u.connection_id)
    else json_build_object(u.kind || 'Id', u.connection_id, 'environmentId', u.environment_id, 'name', u.name) end
    order by u.connection_id), '[]')
  from (select connection_id, environment_id, name, kind from credential_users
    where credential_ref = 'vault:' || c.kind || '/' || c.id
        order by connection_id limit ${usersShown}) u)`

/** The row as its answer, without the secret in the vault. */
const document = sql`jsonb_strip_nulls(c.shown || jsonb_build_object('id', c.id, 'credentialRef', 'vault:' ||
  c.kind || '/' || c.id, 'version', c.version,
  'createdAt', to_jsonb(c.created_at at time zone 'utc') #>> '{}' || 'Z', 'changedAt', to_jsonb(c.changed_at
    at time zone 'utc') #>> '{}' || 'Z',
  'lastUsedAt', to_jsonb(date_trunc('minute', c.last_used_at at time zone 'utc')) #>> '{}' || 'Z', 'usedBy', ${users}))`

const read = async <T extends z.ZodType>(
  db: Db,
  schema: T,
  kind: SecretKind,
  rest: Sql,
): Promise<z.output<T>[]> => {
  const documents = await db.values(
    z.unknown(),
    sql`select ${document} as document from credentials c where c.kind = ${kind} ${rest}`,
  )
  return documents.map((one) => schema.parse(one))
}

/** Credentials of a kind by id; `total` is counted to one above `countBound`. */
export const listCredentials = async <T extends z.ZodType>(
  db: Db,
  schema: T,
  kind: SecretKind,
  page: Page,
): Promise<{ rows: z.output<T>[]; total: number }> => ({
  rows: await read(db, schema, kind, sql`order by c.id limit ${page.limit} offset ${page.offset}`),
  total: await countUpTo(db, sql`credentials where kind = ${kind}`),
})

/** @throws Refusal `missing` */
export const readCredential = async <T extends z.ZodType>(
  db: Db,
  schema: T,
  kind: SecretKind,
  id: string,
): Promise<z.output<T>> => {
  const [found] = await read(db, schema, kind, sql`and c.id = ${id}`)
  if (found === undefined) throw missing(nouns[kind], id)
  return found
}

/** The problem of an id that is in use, or none. */
export const takenProblems = async (db: Db, kind: SecretKind, id: string): Promise<Problem[]> => {
  const taken = await db.only(
    z.boolean(),
    sql`select exists (select from credentials where kind = ${kind} and id = ${id}) as taken`,
  )
  return taken
    ? [
        {
          path: 'id',
          message:
            `${JSON.stringify(id)} is taken by another ${nouns[kind]}; choose another id, or replace ` +
            'that with PUT',
        },
      ]
    : []
}

const UseRow = z.object({ connectionId: z.string(), environmentId: z.string().nullish(), kind: z.string() })

/**
 * Deletes a credential that nothing refers to.
 * @throws Refusal `missing`, `unacceptable` with what does
 */
export const deleteCredential = (db: Db, kind: SecretKind, id: string): Promise<void> =>
  db.transaction(async (tx) => {
    const held = await tx.run(sql`select from credentials where kind = ${kind} and id = ${id} for update`)
    if (held === 0) throw missing(nouns[kind], id)
    const using = await tx.many(
      UseRow,
      sql`select connection_id, environment_id, kind from credential_users
          where credential_ref = ${referenceOf(kind, id)} order by connection_id limit ${usersShown}`,
    )
    if (using.length > 0)
      throw unacceptable(
        using.map((connection) => ({
          path: '',
          message:
            connection.kind !== 'connection'
              ? `the ${nouns[kind]} is used by the ${connection.kind} ${JSON.stringify(connection.connectionId)}; ` +
                `${remedies[connection.kind] ?? 'delete that'} first`
              : `the ${nouns[kind]} is used by connection ${JSON.stringify(connection.connectionId)} of ` +
                `environment ${JSON.stringify(connection.environmentId)}; give that another credential first`,
        })),
      )
    await tx.run(sql`delete from credentials where kind = ${kind} and id = ${id}`)
  })

/** As `deleteCredential`, of one that may be gone already; one that something else refers to stays. */
export const dropCredential = async (tx: Db, kind: SecretKind, id: string): Promise<void> => {
  try {
    await deleteCredential(tx, kind, id)
  } catch (error) {
    if (!(error instanceof Refusal) || !['missing', 'unacceptable'].includes(error.code)) throw error
  }
}

/**
 * Locks a credential that another secret is to come under, until the transaction ends.
 * @throws Refusal `missing`; `conflict` where a living machine accepts the present secret alone
 */
export const holdReplaceable = async (tx: Db, kind: SecretKind, id: string): Promise<void> => {
  const held = await tx.run(sql`select from credentials where kind = ${kind} and id = ${id} for update`)
  if (held === 0) throw missing(nouns[kind], id)
  const instance = await tx.value(
    z.string(),
    sql`select connection_id as id from credential_users
        where credential_ref = ${referenceOf(kind, id)} and kind = 'instance' order by connection_id limit 1`,
  )
  if (instance !== undefined)
    throw new Refusal(
      'conflict',
      `the ${nouns[kind]} ${JSON.stringify(id)} is the only one that the machine of the cloud instance ` +
        `${JSON.stringify(instance)} accepts; destroy that first, or store the new one under another id`,
    )
}

/**
 * Whether a connection may refer to a credential. Locks the record until the transaction ends, so
 * that no other transaction deletes it in between.
 * @returns false where there is none
 */
export const holdCredential = async (tx: Db, reference: string): Promise<boolean> =>
  (await tx.run(
    sql`select from credentials c where ${reference} = 'vault:' || c.kind || '/' || c.id for key share`,
  )) > 0

/**
 * As `holdCredential`, of all that an environment, as it is written already, uses. References to
 * missing credentials count for nothing.
 */
export const holdCredentialsOf = async (tx: Db, environmentId: string): Promise<void> => {
  await tx.run(
    sql`select from credentials c join credential_users u on u.credential_ref = 'vault:' || c.kind || '/' || c.id
        where u.environment_id = ${environmentId} order by c.kind, c.id for key share of c`,
  )
}
