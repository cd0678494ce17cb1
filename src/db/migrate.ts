import { migrateArchives, type OldArchive } from './archive-schema.ts'
import { applyDefinitions } from './definitions.ts'
import { readMigrations } from './migrations.ts'
import type { Database } from './pool.ts'

/** An arbitrary 64-bit number. Every version of the service has to use the same one. */
const lock = 7_355_608_151

/**
 * Brings the database to the newest schema: each migration in its own transaction, then functions
 * and views, all under one advisory lock, so that any number of programs may start at once. Refuses
 * a database that a newer version of the service has migrated.
 * @returns `old`: the archives that could not be migrated
 */
export const migrate = async (db: Database): Promise<{ from: number; to: number; old: OldArchive[] }> => {
  const migrations = await readMigrations()
  const newest = migrations.at(-1)?.number ?? 0
  // Without deadlines: a migration may take minutes, and other programs wait for the lock meanwhile.
  const client = await db.session()
  try {
    await client.query('select pg_advisory_lock($1)', [lock])
    // A migration that waits for a reader of a table holds up all who come after it.
    await client.query("set lock_timeout = '60s'")
    await client.query(
      'create table if not exists schema_migrations (number integer primary key, name text not ' +
        'null, hash text not null, applied_at timestamptz not null default now())',
    )
    const applied = (
      await client.query<{ number: number; name: string; hash: string }>(
        'select number, name, hash from schema_migrations order by number',
      )
    ).rows
    const from = applied.at(-1)?.number ?? 0
    if (from > newest) {
      throw new Error(
        `the database has schema ${String(from)}, this program knows up to ${String(newest)}: start ` +
          'the newer version of the service, or restore a backup made by this one',
      )
    }
    for (const row of applied) {
      const known = migrations.find((migration) => migration.number === row.number)
      if (known !== undefined && known.hash !== row.hash) {
        throw new Error(
          `migration ${row.name} was applied with other text than this program holds: the database ` +
            'belongs to another build',
        )
      }
    }
    for (const migration of migrations.filter((candidate) => candidate.number > from)) {
      await client.query('begin')
      try {
        await client.query(migration.text)
        await client.query('insert into schema_migrations (number, name, hash) values ($1, $2, $3)', [
          migration.number,
          migration.name,
          migration.hash,
        ])
        await client.query('commit')
      } catch (error) {
        await client.query('rollback')
        throw new Error(`migration ${migration.name} failed`, { cause: error })
      }
    }
    await applyDefinitions(client, newest > from)
    const old = await migrateArchives(client)
    return { from, to: newest, old }
  } finally {
    // Its end frees the lock.
    await client.end().catch(() => undefined)
  }
}
