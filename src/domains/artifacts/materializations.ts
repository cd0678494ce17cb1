import { z } from 'zod'
import { readPage } from '../../db/rows.ts'
import { sql, where, type Db } from '../../db/sql.ts'
import type { Page } from '../../http/paging.ts'
import { unacceptable, type Problem } from '../../refusal.ts'
import { Materialization, type NewMaterialization } from './schemas.ts'

// An image that an engine pulled by itself is named by its digest.
const columns = sql`id, run_id, activity_id, coalesce(variant_id, digest) as variant_id, digest, resource_id,
  environment_id, destination_path, status, verified_digest`

/** The materializations of artifacts, oldest first. */
export const listMaterializations = (db: Db, page: Page, runId: string | undefined) =>
  readPage(db, Materialization, {
    select: columns,
    from: sql`artifact_materializations ${where(runId !== undefined && sql`run_id = ${runId}`)}`,
    order: sql`created_at, id`,
    page,
  })

const FoundRow = z.object({
  digest: z.string().nullish(),
  pulled: z.boolean(),
  resource: z.boolean(),
  environment: z.boolean(),
})

/** Records a materialization, or its newest state. @throws Refusal 422 with all problems */
export const putMaterialization = async (
  db: Db,
  given: z.output<typeof NewMaterialization>,
): Promise<z.output<typeof Materialization>> => {
  const { runId = null, activityId = null, environmentId = null } = given
  const found = await db.one(
    FoundRow,
    sql`select (select digest from artifact_variants where id = ${given.variantId}) as digest,
      not exists (select from artifact_variants where id = ${given.variantId})
        and exists (select from artifact_materializations where variant_id is null and digest = ${given.variantId})
        as pulled,
      exists (select from resources where id = ${given.resourceId}) as resource,
      exists (select from environment_versions where id = ${environmentId}) as environment`,
  )
  const problems: Problem[] = []
  const unknown = (path: string, value: string) =>
    problems.push({ path, message: `${JSON.stringify(value)} is unknown` })
  const digest = found.digest ?? (found.pulled ? given.variantId : undefined)
  if (digest === undefined) unknown('variantId', given.variantId)
  else if (digest !== given.digest)
    problems.push({ path: 'digest', message: `is not that of the variant, which has ${digest}` })
  if (!found.resource) unknown('resourceId', given.resourceId)
  if (environmentId !== null && !found.environment) unknown('environmentId', environmentId)
  if (given.status === 'committed' && given.verifiedDigest !== given.digest)
    problems.push({ path: 'verifiedDigest', message: 'must be equal to digest where status is committed' })
  if (problems.length > 0) throw unacceptable(problems)
  return db.one(
    Materialization,
    sql`insert into artifact_materializations (id, run_id, activity_id, variant_id, digest, resource_id,
        environment_id, destination_path, status, verified_digest)
      values (${given.id}, ${runId}, ${activityId},
        ${found.digest == null ? null : given.variantId}, ${given.digest}, ${given.resourceId},
        ${environmentId}, ${given.destinationPath}, ${given.status}, ${given.verifiedDigest ?? null})
      on conflict on constraint artifact_materializations_pkey do update set
        run_id = excluded.run_id, activity_id = excluded.activity_id, variant_id = excluded.variant_id,
        digest = excluded.digest, resource_id = excluded.resource_id, environment_id = excluded.environment_id,
        destination_path = excluded.destination_path, status = excluded.status,
        verified_digest = excluded.verified_digest, updated_at = now()
      returning ${columns}`,
  )
}
