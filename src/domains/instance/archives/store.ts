import { z } from 'zod'
import { dropArchiveSchema, isMigrated, type Filling } from '../../../db/archive-schema.ts'
import { raw, sql, type Db } from '../../../db/sql.ts'
import { missing, Refusal, existing } from '../../../refusal.ts'
import { version } from '../../../version.ts'
import { readSystemInstance } from '../store.ts'
import { Contents, counted, type Manifest } from './manifest.ts'
import { newestMigration } from '../../../db/migrations.ts'

/** The instance that this installation works for. */
export const defaultId = 'default'

export const InstanceProjection = z.strictObject({
  id: z.string(),
  name: z.string(),
  description: z.string().optional(),
  source: z.enum(['local', 'imported', 'export']),
  status: z.enum(['active', 'snapshot']),
  readOnly: z.boolean(),
  credentialsSet: z.boolean(),
  importedAt: z.string().optional(),
  exportedAt: z.string().optional(),
  lastOpenedAt: z.string().optional(),
  schemaVersion: z.int().optional(),
  akoflowVersion: z.string().optional(),
  contents: Contents.optional(),
})
export type InstanceProjection = z.output<typeof InstanceProjection>

const Row = z.object({
  id: z.string(),
  name: z.string(),
  description: z.string().optional(),
  exportedAt: z.string(),
  importedAt: z.string(),
  lastOpenedAt: z.string().optional(),
  schemaVersion: z.number(),
  serviceVersion: z.string(),
  contents: Contents,
  active: z.boolean(),
})

const archives = sql`select a.id, a.name, a.description, a.exported_at, a.imported_at, a.last_opened_at,
    a.schema_version, a.service_version, a.contents, c.instance_id is not null as active
  from instance_archives a left join instance_activation c on c.instance_id = a.id`

const projected = ({ active, serviceVersion, ...row }: z.output<typeof Row>): InstanceProjection => ({
  ...row,
  akoflowVersion: serviceVersion,
  source: 'imported',
  status: active ? 'active' : 'snapshot',
  readOnly: true,
  credentialsSet: false,
})

const readDefault = async (db: Db): Promise<InstanceProjection> => {
  // One after the other: within a transaction they share one connection.
  const instance = await readSystemInstance(db)
  const any = await db.only(z.boolean(), sql`select exists (select from instance_activation) as any`)
  const contents = await db.one(
    Contents,
    sql`select ${raw(
      Object.entries(counted)
        .map(([name, table]) => `(select count(*) from ${table}) as ${name}`)
        .join(', '),
    )}`,
  )
  const schemaVersion = await newestMigration()
  return {
    id: defaultId,
    name: 'Default instance',
    ...(instance?.description === undefined ? {} : { description: instance.description }),
    source: 'local',
    status: any ? 'snapshot' : 'active',
    readOnly: false,
    credentialsSet: true,
    schemaVersion,
    akoflowVersion: version,
    contents,
  }
}

/** The default instance, then the imported ones, newest first; 1,000 at most. */
export const listSystemInstances = async (db: Db): Promise<InstanceProjection[]> => [
  await readDefault(db),
  ...(await db.many(Row, sql`${archives} order by a.imported_at desc, a.id limit 1000`)).map(projected),
]

export const readArchive = async (db: Db, id: string): Promise<InstanceProjection> => {
  if (id === defaultId) return readDefault(db)
  const row = existing(await db.maybe(Row, sql`${archives} where a.id = ${id}`), 'instance', id)
  return projected(row)
}

/** Records an archive, in the transaction that fills its schema. */
export const insertArchive = (
  filling: Pick<Filling, 'record'>,
  { id, schema, manifest }: { id: string; schema: string; manifest: Manifest },
): Promise<void> => {
  const { instance } = manifest
  return filling.record(
    sql`insert into public.instance_archives (id, schema_name, name, description, exported_at,
        schema_version, service_version, contents)
      values (${id}, ${schema}, ${`Imported ${instance.name} instance`}, ${instance.description},
        ${manifest.exportedAt}, ${manifest.schemaVersion}, ${instance.akoflowVersion},
        ${JSON.stringify(manifest.contents)})`,
  )
}

const Active = z.object({ id: z.string(), schema: z.string() })

/** The archive that the API reads; undefined while it is the default instance. */
export const readActive = (db: Db): Promise<z.output<typeof Active> | undefined> =>
  db.maybe(
    Active,
    sql`select a.id, a.schema_name as schema from instance_activation c
      join instance_archives a on a.id = c.instance_id`,
  )

/** The installation's own records are read again where this archive was. */
export const deactivate = (db: Db, id: string): Promise<number> =>
  db.run(sql`delete from instance_activation where instance_id = ${id}`)

/** Makes the API read another instance. */
export const activate = (db: Db, id: string): Promise<InstanceProjection> =>
  db.transaction(async (tx) => {
    if (id === defaultId) await tx.run(sql`delete from instance_activation`)
    else {
      const schema = await tx.value(
        z.string(),
        sql`update instance_archives set last_opened_at = now() where id = ${id} returning schema_name`,
      )
      if (schema === undefined) throw missing('instance', id)
      if (!(await isMigrated(tx, schema)))
        throw new Refusal(
          'conflict',
          `instance ${id} could not be brought to this version, as the log of the start says; delete it and ` +
            'import it again',
        )
      await tx.run(
        sql`insert into instance_activation (instance_id) values (${id})
          on conflict (singleton) do update set instance_id = excluded.instance_id, activated_at = now()`,
      )
    }
    return readArchive(tx, id)
  })

const Schema = z.object({ schema: z.string(), active: z.boolean() })

/** Removes an archive and everything in it. */
export const removeArchive = (db: Db, id: string): Promise<void> =>
  db.transaction(async (tx) => {
    if (id === defaultId)
      throw new Refusal('conflict', 'the default instance cannot be deleted; POST /factory-reset/ empties it')
    const found = existing(
      await tx.maybe(
        Schema,
        sql`select a.schema_name as schema, exists (select from instance_activation c
        where c.instance_id = a.id) as active from instance_archives a where a.id = ${id} for update`,
      ),
      'instance',
      id,
    )
    if (found.active) throw new Refusal('conflict', `instance ${id} is activated; activate another one first`)
    await tx.run(sql`delete from instance_archives where id = ${id}`)
    for (const statement of dropArchiveSchema(found.schema)) await tx.run(statement)
  })
