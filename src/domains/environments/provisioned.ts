import { z } from 'zod'
import { sql, type Db } from '../../db/sql.ts'

const CloudRuntimeRow = z.object({
  versionId: z.string(),
  runtimeId: z.string().nullish(),
  simulationRuntimeId: z.string().nullish(),
})

/**
 * The highest version of an environment, its first runtime with the driver `cloud`, and its first
 * runtime of mode `simulation`.
 */
export const cloudRuntimeOf = (
  db: Db,
  environmentId: string,
): Promise<z.output<typeof CloudRuntimeRow> | undefined> =>
  db.maybe(
    CloudRuntimeRow,
    sql`select v.id as version_id, (select r.id from runtimes r where r.environment_version_id = v.id
        and r.driver = 'cloud' order by r.position, r.id limit 1) as runtime_id,
        (select r.id from runtimes r where r.environment_version_id = v.id and r.mode = 'simulation'
          order by r.position, r.id limit 1) as simulation_runtime_id
      from environment_versions v where v.environment_id = ${environmentId} order by v.version desc limit 1`,
  )

/** Binds a resource to a runtime of the same version, after its existing bindings. */
export const bindResource = (
  tx: Db,
  of: { resourceId: string; runtimeId: string; versionId: string },
): Promise<number> =>
  tx.run(sql`insert into resource_runtime_bindings (resource_id, runtime_id, environment_version_id, position, enabled)
    values (${of.resourceId}, ${of.runtimeId}, ${of.versionId},
      (select coalesce(max(position) + 1, 0) from resource_runtime_bindings
        where environment_version_id = ${of.versionId}), true)`)

/** Makes a resource unschedulable: no later plan uses it. */
export const retireResource = (tx: Db, id: string): Promise<number> =>
  tx.run(sql`update resources set schedulable = false where id = ${id}`)
