import { z } from 'zod'
import { array, fields, object, time } from '../../db/projection.ts'
import { countUpTo, readIds, readTexts } from '../../db/rows.ts'
import { raw, sql, type Db } from '../../db/sql.ts'
import type { Page } from '../../http/paging.ts'
import { existing, pathIdProblems, unacceptable, unacceptableAt } from '../../refusal.ts'
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

const document = sql`${raw(configurationObject)}::json`

/** Ids of configurations by name; `total` is counted to one above `countBound`. */
export const listMachineConfigurations = (db: Db, page: Page) =>
  readIds(db, { from: sql`machine_configurations c`, order: sql`c.name collate "C", c.id`, page })

/** These configurations as JSON texts, each with its versions. */
export const machineConfigurationTexts = (db: Db, ids: readonly string[]): Promise<string[]> =>
  readTexts(db, ids, {
    document: configurationObject,
    from: 'join machine_configurations c on c.id = asked.id',
  })

/** @throws Refusal `missing` */
export const readMachineConfiguration = async (
  db: Db,
  id: string,
): Promise<z.output<typeof MachineConfiguration>> =>
  existing(
    await db.value(
      MachineConfiguration,
      sql`select ${document} from machine_configurations c where c.id = ${id}`,
    ),
    'machine configuration',
    id,
  )

/** Stores a configuration without versions. */
export const createMachineConfiguration = async (
  db: Db,
  { id, name, description, enabled }: NewMachineConfiguration & { id: string },
): Promise<void> => {
  await db.run(sql`insert into machine_configurations (id, name, description, enabled)
    values (${id}, ${name}, ${description}, ${enabled})`)
}

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
    const ownership = existing(
      await tx.value(
        z.string(),
        sql`select ownership from machine_configurations where id = ${configurationId} for update`,
      ),
      'machine configuration',
      configurationId,
    )
    if (ownership === 'system')
      throw unacceptableAt(
        '',
        `the machine configuration ${JSON.stringify(configurationId)} comes with the service; ` +
          'make one of your own',
      )
    const next = await tx.only(
      z.number(),
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
      throw unacceptableAt(
        '',
        `the machine configuration has ${String(mostVersions)} versions; make another configuration`,
      )
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
