import { z } from 'zod'
import { readPage } from '../../db/rows.ts'
import { raw, sql, where, type Db, type Sql } from '../../db/sql.ts'
import type { Page } from '../../http/paging.ts'
import { unacceptable, unacceptableAt, type Problem } from '../../refusal.ts'
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

const sent = [
  ...['run_id', 'activity_id', 'variant_id', 'digest', 'resource_id', 'environment_id', 'destination_path'],
  ...['status', 'verified_digest'],
]
const sentOf = (row: string): Sql => raw(`(${sent.map((column) => `${row}.${column}`).join(', ')})`)

const FoundRow = z.object({
  digest: z.string().nullish(),
  pulled: z.boolean(),
  resource: z.boolean(),
  environment: z.boolean(),
  run: z.boolean(),
})

/**
 * Records a materialization, or its newest state.
 * @param isRun whether a run of the id exists, as SQL
 * @throws Refusal 422 with all problems, and for the change of a record of the service
 */
export const putMaterialization = async (
  { db, isRun }: { db: Db; isRun: (id: string) => Sql },
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
      exists (select from environment_versions where id = ${environmentId}) as environment,
      ${runId === null ? sql`true` : isRun(runId)}
        or exists (select from artifact_materializations where id = ${given.id} and run_id = ${runId}) as run`,
  )
  const problems: Problem[] = []
  const unknown = (path: string, value: string) =>
    problems.push({ path, message: `${JSON.stringify(value)} is unknown` })
  const digest = found.digest ?? (found.pulled ? given.variantId : undefined)
  // The record of a run that was deleted keeps its id.
  if (!found.run) unknown('runId', runId ?? '')
  if (digest === undefined) unknown('variantId', given.variantId)
  else if (digest !== given.digest)
    problems.push({ path: 'digest', message: `is not that of the variant, which has ${digest}` })
  if (!found.resource) unknown('resourceId', given.resourceId)
  if (environmentId !== null && !found.environment) unknown('environmentId', environmentId)
  if (given.status === 'committed' && given.verifiedDigest !== given.digest)
    problems.push({ path: 'verifiedDigest', message: 'must be equal to digest where status is committed' })
  if (problems.length > 0) throw unacceptable(problems)
  // Only the service names a site. Its own records can be sent back, and stay as they are.
  const stored = await db.maybe(
    Materialization,
    sql`insert into artifact_materializations (id, run_id, activity_id, variant_id, digest, resource_id,
        environment_id, destination_path, status, verified_digest)
      values (${given.id}, ${runId}, ${activityId},
        ${found.digest == null ? null : given.variantId}, ${given.digest}, ${given.resourceId},
        ${environmentId}, ${given.destinationPath}, ${given.status}, ${given.verifiedDigest ?? null})
      on conflict on constraint artifact_materializations_pkey do update set
        (${raw(sent.join(', '))}) = ${sentOf('excluded')}, updated_at = now()
      where artifact_materializations.site is null
        or ${sentOf('artifact_materializations')} is not distinct from ${sentOf('excluded')}
      returning ${columns}`,
  )
  if (stored === undefined)
    throw unacceptableAt(
      'id',
      `${JSON.stringify(given.id)} is a record of the service, of what its runs brought; choose another id`,
    )
  return stored
}
