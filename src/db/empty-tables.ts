import { z } from 'zod'
import { raw, sql, type Db } from './sql.ts'

const kept = [
  'schema_migrations',
  'schema_definitions',
  'instance_archives',
  'instance_activation',
  'instance_cleanups',
  // Machines and networks of this service at a provider carry this reference.
  'cloud_service',
]
/** Tables with rows that stay, and the condition of the others. */
const partly = {
  // The key of the request that empties the tables stays, so that its repetition gets its answer.
  idempotency_keys: sql`status is not null`,
  // The service ships the others.
  machine_configuration_versions: sql`machine_configuration_id in
    (select id from machine_configurations where ownership <> 'system')`,
  machine_configurations: sql`ownership <> 'system'`,
}

/**
 * Empties every table but those of migrations and of archives, in the caller's transaction. Rows
 * that the service ships, and keys of requests under way, stay.
 */
export const emptyTables = async (tx: Db): Promise<void> => {
  const tables = await tx.values(
    z.string(),
    sql`select relname as name from pg_class where relkind = 'r' and relnamespace = 'public'::regnamespace
      and relname <> all(${[...kept, ...Object.keys(partly)]}::text[]) order by 1`,
  )
  await tx.run(raw(`truncate ${tables.map((name) => `"${name}"`).join(', ')}`))
  for (const [table, condition] of Object.entries(partly))
    await tx.run(sql`delete from ${raw(table)} where ${condition}`)
}
