import { z } from 'zod'
import { sql } from '../../db/sql.ts'
import type { EnvironmentUse, KeptResources } from '../environments/users.ts'

/** Machines that may cost money prevent the deletion of their environment and connection. */
export const instancesOfEnvironment: EnvironmentUse = {
  kind: 'cloud instance that may cost money',
  ids: ({ versions }) => sql`select i.id::text from cloud_instances i
    where i.environment_id in (select environment_id from environment_versions where id in (${versions}))
      and i.status <> 'destroyed' and not i.machine_gone`,
}

/** Targets are deleted by themselves, which takes them out of plans first. */
export const targetsOfEnvironment: EnvironmentUse = {
  kind: 'cloud capacity target',
  onlyDeletion: true,
  ids: ({ versions }) => sql`select t.id::text from cloud_capacity_targets t
    where t.environment_id in (select environment_id from environment_versions where id in (${versions}))
      and t.enabled`,
}

const IdRow = z.object({ id: z.string() })

/** The resources of enabled targets are theirs and not the document's. */
export const resourcesOfTargets: KeptResources = async (tx, environmentId) =>
  (
    await tx.many(
      IdRow,
      sql`select id::text as id from cloud_capacity_targets where environment_id = ${environmentId} and enabled`,
    )
  ).map(({ id }) => id)
