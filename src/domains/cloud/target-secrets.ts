import { createHash } from 'node:crypto'
import { z } from 'zod'
import { sql, type Db } from '../../db/sql.ts'
import type { SecretOpener } from '../../vault/secret.ts'
import { referenceOf, type Vault } from '../../vault/vault.ts'
import { dropCredential } from '../credentials/store.ts'
import { mask, masked, secretsIn, unmaskedBy } from '../environments/secrets.ts'
import type { TargetMachineConfiguration } from './schemas.ts'

/**
 * The secret variables of a target's playbooks are one record of the vault. The row of the target
 * holds their mask in their places.
 */

const kind = 'machine-variables'
const idOf = (targetId: string): string =>
  `target-${createHash('sha256').update(targetId).digest('hex').slice(0, 32)}`

/** The variables of each configuration, by its place. */
const variablesIn = (given: readonly TargetMachineConfiguration[]): unknown[] =>
  given.map(({ variables }) => variables)

const withVariables = (
  given: readonly TargetMachineConfiguration[],
  variables: readonly unknown[],
): TargetMachineConfiguration[] =>
  given.map((one, place) =>
    one.variables === undefined ? one : { ...one, variables: variables[place] as Record<string, unknown> },
  )

/**
 * Puts the secret variables of a new target into the vault.
 * @returns the configurations as the row may hold them
 * @throws Refusal 503 where there are secrets and the vault has no key
 */
export const hideVariables = async (
  tx: Db,
  vault: Pick<Vault, 'put'>,
  targetId: string,
  given: readonly TargetMachineConfiguration[],
): Promise<TargetMachineConfiguration[]> => {
  const secrets = secretsIn(variablesIn(given))
  if (secrets.size === 0) return [...given]
  const values = Object.fromEntries([...secrets].map(([path, value]) => [path, value as string | number]))
  await vault.put(tx, idOf(targetId), { kind, values }, {})
  return withVariables(given, masked(variablesIn(given)))
}

/**
 * The configurations of a target with the secret variables from the vault.
 * @throws Refusal 422 where the vault has them no more, as after an import of an archive
 */
export const openVariables = async (
  vault: SecretOpener,
  targetId: string,
  environmentId: string,
  given: readonly TargetMachineConfiguration[],
): Promise<TargetMachineConfiguration[]> => {
  if (![...secretsIn(variablesIn(given)).values()].includes(mask)) return [...given]
  const use = { actor: 'service', purpose: 'configure a machine', environmentId }
  const secret = await vault.open(referenceOf(kind, idOf(targetId)), use)
  const values = secret.kind === kind ? secret.values : {}
  return withVariables(given, unmaskedBy(variablesIn(given), new Map(Object.entries(values))))
}

/** Removes a target's secret variables from the vault. */
export const deleteVariables = async (tx: Db, targetId: string): Promise<void> => {
  await dropCredential(tx, kind, idOf(targetId))
}

const HeldRow = z.object({ id: z.string(), configurations: z.array(z.custom<TargetMachineConfiguration>()) })

/**
 * Moves secret variables that an earlier version kept in rows into the vault.
 * @returns how many targets had some
 */
export const moveVariables = (db: Db, vault: Pick<Vault, 'put'>): Promise<number> =>
  db.transaction(async (tx) => {
    const rows = await tx.many(
      HeldRow,
      sql`select id, machine_configurations as configurations from cloud_capacity_targets t
        where enabled and machine_configurations::text like '%"variables"%'
          and not exists (select from credentials c where c.kind = ${kind}
            and c.id = 'target-' || left(encode(sha256(convert_to(t.id, 'UTF8')), 'hex'), 32))
        order by id limit 1000 for update skip locked`,
    )
    let moved = 0
    for (const { id, configurations } of rows) {
      const values = [...secretsIn(variablesIn(configurations)).values()]
      if (values.every((value) => value === mask)) continue
      const hidden = await hideVariables(tx, vault, id, configurations)
      await tx.run(sql`update cloud_capacity_targets set machine_configurations = ${JSON.stringify(hidden)}::jsonb
        where id = ${id}`)
      moved++
    }
    return moved
  })
