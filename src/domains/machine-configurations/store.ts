import { z } from 'zod'
import { array, fields, object, time } from '../../db/projection.ts'
import { countUpTo } from '../../db/rows.ts'
import { raw, sql, type Db, type Sql } from '../../db/sql.ts'
import { countBound, type Page } from '../../http/paging.ts'
import { missing, pathIdProblems, unacceptable } from '../../refusal.ts'
import {
  MachineConfiguration,
  type NewMachineConfiguration,
  type NewMachineConfigurationVersion,
} from './schemas.ts'

const versionObject = object(
  {
    ...fields('v', 'id machineConfigurationId version status playbookYaml contentSha256'),
    createdAt: time('v.created_at'),
  },
  {
    compatibility: 'v.compatibility::text',
    variablesSchema: 'v.variables_schema::text',
    validationChecks: 'v.validation_checks::text',
  },
)

/** Of a row `c` of machine_configurations. */
const configurationObject = object(
  {
    ...fields('c', 'id name ownership enabled'),
    description: "nullif(c.description, '')",
    createdAt: time('c.created_at'),
    updatedAt: time('c.updated_at'),
  },
  {
    versions: array(
      versionObject,
      'machine_configuration_versions v where v.machine_configuration_id = c.id',
      'v.version desc',
    ),
  },
)

const Row = z.object({ document: MachineConfiguration })
type Document = z.output<typeof MachineConfiguration>
const selected = (from: Sql): Sql => sql`select ${raw(configurationObject)}::json as document from ${from}`

/** Configurations by name, each with its versions; `total` is counted to one above `countBound`. */
export const listMachineConfigurations = async (
  db: Db,
  page: Page,
): Promise<{ rows: Document[]; total: number }> => {
  const rows = await db.many(
    Row,
    selected(
      sql`machine_configurations c order by c.name collate "C", c.id limit ${page.limit} offset ${page.offset}`,
    ),
  )
  return {
    rows: rows.map(({ document }) => document),
    total: await countUpTo(db, sql`machine_configurations`, countBound),
  }
}

/** @throws Refusal `missing` */
export const readMachineConfiguration = async (db: Db, id: string): Promise<Document> => {
  const row = await db.maybe(Row, selected(sql`machine_configurations c where c.id = ${id}`))
  if (row === undefined) throw missing('machine configuration', id)
  return row.document
}

/** Stores a configuration without versions. */
export const createMachineConfiguration = async (
  db: Db,
  { id, name, description, enabled }: NewMachineConfiguration & { id: string },
): Promise<void> => {
  await db.run(sql`insert into machine_configurations (id, name, description, enabled)
    values (${id}, ${name}, ${description}, ${enabled})`)
}

const Owned = z.object({ ownership: z.string() })
const Next = z.object({ version: z.number() })

/** The limit of versions per configuration: each answer holds all of them. */
const mostVersions = 100

/**
 * Adds a version that never changes.
 * @throws Refusal `missing` for the configuration, `unacceptable` for one that the service ships
 */
export const addConfigurationVersion = (
  db: Db,
  configurationId: string,
  given: NewMachineConfigurationVersion & { id: string; contentSha256: string },
): Promise<void> =>
  db.transaction(async (tx) => {
    const strange = pathIdProblems('machineConfigurationId', given.machineConfigurationId, configurationId)
    if (strange.length > 0) throw unacceptable(strange)
    const owned = await tx.maybe(
      Owned,
      sql`select ownership from machine_configurations where id = ${configurationId} for update`,
    )
    if (owned === undefined) throw missing('machine configuration', configurationId)
    if (owned.ownership === 'system')
      throw unacceptable([
        {
          path: '',
          message:
            `the machine configuration ${JSON.stringify(configurationId)} comes with the service; ` +
            'make one of your own',
        },
      ])
    const { version: next } = await tx.one(
      Next,
      sql`select coalesce(max(version), 0) + 1 as version from machine_configuration_versions
        where machine_configuration_id = ${configurationId}`,
    )
    if (
      (await countUpTo(
        tx,
        sql`machine_configuration_versions where machine_configuration_id = ${configurationId}`,
        mostVersions,
      )) >= mostVersions
    )
      throw unacceptable([
        {
          path: '',
          message: `the machine configuration has ${String(mostVersions)} versions; make another configuration`,
        },
      ])
    const json = (value: unknown): string | null => (value === undefined ? null : JSON.stringify(value))
    await tx.run(sql`insert into machine_configuration_versions
        (id, machine_configuration_id, version, status, playbook_yaml, content_sha256, compatibility,
          variables_schema, validation_checks)
      values (${given.id}, ${configurationId},
        ${given.version ?? next}, ${given.status}, ${given.playbookYaml},
        ${given.contentSha256}, ${json(given.compatibility)}::jsonb, ${json(given.variablesSchema)}::jsonb,
          ${json(given.validationChecks)}::jsonb)`)
    await tx.run(sql`update machine_configurations set updated_at = now() where id = ${configurationId}`)
  })
