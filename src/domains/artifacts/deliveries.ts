import { hash } from 'node:crypto'
import { z } from 'zod'
import { sql, type Db, type Sql } from '../../db/sql.ts'
import type { DeliveryFacts } from '../../drivers/transfer/artifacts.ts'

/** Where executables were brought for runs, and how: written while runs are executed. */

/** The materialization of a digest at a site for a run. */
export interface Delivered {
  runId: string
  site: string
  /** Whose task needed it first. */
  activityId: string | undefined
  resourceId: string
  variantId: string | undefined
  digest: string
  /** A path at the site, or the name of the image in its engine. */
  destinationPath: string
}

type Moved = Omit<DeliveryFacts, 'digest' | 'path'>

const short = (...parts: readonly string[]): string => hash('sha256', JSON.stringify(parts)).slice(0, 40)

/** The same for every process that brings the same bytes to the same place for the same run. */
export const materializationId = ({ runId, site, digest }: Pick<Delivered, 'runId' | 'site' | 'digest'>) =>
  `materialization-${short(runId, site, digest)}`
const transferRunId = (materialization: string): string => `artifact-transfer-${short(materialization)}`

/** The row of a delivery that is not complete; what follows says what becomes of an earlier one. */
const placeOf = (given: Delivered, status: 'transferring' | 'failed'): Sql =>
  sql`insert into artifact_materializations (id, run_id, activity_id, variant_id, digest, resource_id, site,
      destination_path, status)
    values (${materializationId(given)}, ${given.runId}, ${given.activityId ?? null},
      (select id from artifact_variants where id = ${given.variantId ?? ''}), ${given.digest},
      ${given.resourceId}, ${given.site}, ${given.destinationPath}, ${status})
    on conflict on constraint artifact_materializations_pkey do update set`

/** Records a delivery whose bytes begin to move; its end replaces that. */
export const recordBegun = (
  db: Db,
  given: Delivered,
  { strategy, reason, startedAt }: Pick<Moved, 'strategy' | 'reason' | 'startedAt'>,
): Promise<void> =>
  db.transaction(async (tx) => {
    const id = materializationId(given)
    await tx.run(sql`${placeOf(given, 'transferring')} status = 'transferring',
          destination_path = excluded.destination_path, updated_at = now()
          where artifact_materializations.status <> 'committed'`)
    await tx.run(
      sql`insert into artifact_transfer_runs (id, materialization_id, execution_run_id, activity_id, strategy,
          reason, status, started_at)
        values (${transferRunId(id)}, ${id}, ${given.runId}, ${given.activityId ?? null}, ${strategy}, ${reason},
          'running', ${startedAt})
        on conflict on constraint artifact_transfer_runs_pkey do update set status = 'running',
          strategy = excluded.strategy, reason = excluded.reason, started_at = excluded.started_at,
          finished_at = null, failure_reason = null where artifact_transfer_runs.status <> 'completed'`,
    )
  })

/** Ends the deliveries of a run that is over before their bytes have arrived. */
export const endDeliveries = async (tx: Db, runId: string): Promise<void> => {
  // Only the service names a site; the others are records of users.
  await tx.run(
    sql`update artifact_materializations set status = 'failed', updated_at = now()
        where run_id = ${runId} and status = 'transferring' and site is not null`,
  )
  await tx.run(
    sql`update artifact_transfer_runs set status = 'failed', finished_at = extract(epoch from clock_timestamp()),
          failure_reason = 'the run ended before its bytes had arrived'
        where execution_run_id = ${runId} and status = 'running'`,
  )
}

/** Records a delivery that has succeeded; `moved`: with the transfer that brought the bytes. */
export const recordDelivered = (db: Db, given: Delivered, moved: Moved | undefined): Promise<void> =>
  db.transaction(async (tx) => {
    const id = materializationId(given)
    await tx.run(
      sql`insert into artifact_materializations (id, run_id, activity_id, variant_id, digest, resource_id, site,
          destination_path, status, verified_digest)
        values (${id}, ${given.runId}, ${given.activityId ?? null},
          (select id from artifact_variants where id = ${given.variantId ?? ''}), ${given.digest},
          ${given.resourceId}, ${given.site}, ${given.destinationPath}, 'committed', ${given.digest})
        on conflict on constraint artifact_materializations_pkey do update set status = 'committed',
          destination_path = excluded.destination_path, verified_digest = excluded.verified_digest,
          updated_at = now() where artifact_materializations.status <> 'committed'`,
    )
    if (moved === undefined) {
      // Its bytes were at the site already, under another path.
      await tx.run(
        sql`delete from artifact_transfer_runs where id = ${transferRunId(id)} and status = 'running'`,
      )
      return
    }
    await tx.run(
      sql`insert into artifact_transfer_runs (id, materialization_id, execution_run_id, activity_id, strategy,
          reason, status, bytes, network_bytes, started_at, finished_at)
        values (${transferRunId(id)}, ${id}, ${given.runId}, ${given.activityId ?? null}, ${moved.strategy},
          ${moved.reason}, 'completed', ${moved.bytes}, ${moved.networkBytes}, ${moved.startedAt},
          ${moved.finishedAt})
        on conflict on constraint artifact_transfer_runs_pkey do update set status = 'completed',
          strategy = excluded.strategy, reason = excluded.reason, bytes = excluded.bytes,
          network_bytes = excluded.network_bytes, started_at = excluded.started_at,
          finished_at = excluded.finished_at, failure_reason = null
          where artifact_transfer_runs.status <> 'completed'`,
    )
  })

/** Records a delivery that has failed; a later success replaces it. */
export const recordUndelivered = (
  db: Db,
  given: Delivered,
  { strategy, reason, failure, at }: { strategy: string; reason: string; failure: string; at: number },
): Promise<void> =>
  db.transaction(async (tx) => {
    const id = materializationId(given)
    await tx.run(sql`${placeOf(given, 'failed')} status = 'failed', updated_at = now()
          where artifact_materializations.status = 'transferring'`)
    await tx.run(
      sql`insert into artifact_transfer_runs (id, materialization_id, execution_run_id, activity_id, strategy,
          reason, status, started_at, finished_at, failure_reason)
        values (${transferRunId(id)}, ${id}, ${given.runId}, ${given.activityId ?? null}, ${strategy}, ${reason},
          'failed', ${at}, ${at}, ${failure})
        on conflict on constraint artifact_transfer_runs_pkey do update set status = 'failed',
          failure_reason = excluded.failure_reason, finished_at = excluded.finished_at
          where artifact_transfer_runs.status <> 'completed'`,
    )
  })

const BuiltRow = z.object({
  status: z.string(),
  error: z.string().nullish(),
  digest: z.string().nullish(),
  sizeBytes: z.number().nullish(),
  imageId: z.string().nullish(),
  variantId: z.string().nullish(),
  hostId: z.string(),
})
export type BuiltRun = z.output<typeof BuiltRow>

/** The newest completed run of a build, else its newest run; undefined: it was never started. */
export const newestRunOf = (db: Db, buildId: string): Promise<BuiltRun | undefined> =>
  db.maybe(
    BuiltRow,
    sql`select status, error, output_digest as digest, output_bytes as size_bytes, image_id,
        output_variant_id as variant_id, host_id from build_runs where artifact_build_id = ${buildId}
        order by (status = 'completed') desc, created_at desc, id desc limit 1`,
  )

/** Deletes the transfers of a run that is being deleted. What they brought stays recorded. */
export const forgetDeliveries = async (tx: Db, runId: string): Promise<void> => {
  await tx.run(sql`delete from artifact_transfer_runs where execution_run_id = ${runId}`)
}
