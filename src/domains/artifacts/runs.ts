import { z } from 'zod'
import { existing } from '../../refusal.ts'
import { readPage } from '../../db/rows.ts'
import { sql, type Db } from '../../db/sql.ts'
import type { Page } from '../../http/paging.ts'
import { BuildError } from '../../drivers/build/errors.ts'
import type { ArtifactStore } from '../../drivers/build/store.ts'
import type { Verification } from '../../drivers/build/verify.ts'
import { ArtifactBuild, BuildBase, BuildRun, LiveBuild } from './schemas.ts'
import { addVariant, holdBytes } from './store.ts'

/** A run keeps this many characters of its log: the last ones. */
export const keptLog = 65_536

const columns = sql`id, artifact_build_id, case when status = 'running' then step else status end as status,
  output_variant_id, output_digest, logs, error, started_at, finished_at, created_at, bases`
const RunRow = BuildRun.omit({ live: true })

export const readRun = async (db: Db, id: string): Promise<z.output<typeof RunRow>> =>
  existing(await db.maybe(RunRow, sql`select ${columns} from build_runs where id = ${id}`), 'build run', id)

/** Newest first. */
export const listRuns = (db: Db, buildId: string, page: Page) =>
  readPage(db, RunRow, {
    select: columns,
    from: sql`build_runs where artifact_build_id = ${buildId}`,
    order: sql`created_at desc, id desc`,
    page,
  })

/** A run of a build to accept; `newId` is the UUID in the id of a new one. */
export interface WantedRun {
  buildId: string
  newId: string
  fresh: boolean
}

export const runIdOf = (newId: string): string => `build-run-${newId}`

/**
 * Accepts a run of a build, or returns the open run of that build. The run goes to the host that
 * has the context.
 */
export const acceptRun = (
  db: Db,
  { buildId, newId, fresh, hostId }: WantedRun & { hostId: string },
): Promise<{ id: string; isNew: boolean }> =>
  db.transaction(async (tx) => {
    existing(
      await tx.value(z.string(), sql`select id from artifact_builds where id = ${buildId} for update`),
      'build',
      buildId,
    )
    const open = await tx.value(
      z.string(),
      sql`select id from build_runs where artifact_build_id = ${buildId} and status in ('queued', 'running')`,
    )
    if (open !== undefined) return { id: open, isNew: false }
    const id = runIdOf(newId)
    await tx.run(
      sql`insert into build_runs (id, artifact_build_id, fresh, host_id)
          select ${id}, b.id, ${fresh}, coalesce(c.host_id, ${hostId}) from artifact_builds b
            left join build_contexts c on c.digest = b.context_digest where b.id = ${buildId}`,
    )
    return { id, isNew: true }
  })

const WorkRow = ArtifactBuild.extend({
  runId: z.string(),
  generation: z.number(),
  fresh: z.boolean(),
  hostId: z.string(),
  imageId: z.string().nullish(),
  open: z.boolean(),
})
/** A run with its build. */
export type BuildWork = z.output<typeof WorkRow>

export const readWork = (db: Db, runId: string): Promise<BuildWork | undefined> =>
  db.maybe(
    WorkRow,
    sql`select b.*, r.id as run_id, r.generation, r.fresh, r.host_id, r.image_id, r.status in ('queued',
      'running') as open
        from (select id, artifact_version_id, source_type, image, context_digest, recipe_path, recipe_digest,
          target_format, target_os, target_architecture, build_arguments, network, credential_ref, cache_key,
          created_at
          from artifact_builds) b join build_runs r on r.artifact_build_id = b.id where r.id = ${runId}`,
  )

const jsonOf = (bases: readonly BuildBase[] | null | undefined): string | null =>
  bases == null ? null : JSON.stringify(bases)

/** Records the progress of an open run. */
export const recordStep = (
  db: Db,
  id: string,
  given: {
    step: string
    live: z.output<typeof LiveBuild>
    logs: string
    imageId?: string | undefined
    bases?: readonly BuildBase[] | undefined
  },
): Promise<number> =>
  db.run(
    sql`update build_runs set step = ${given.step}, live = ${JSON.stringify(given.live)}, logs = ${given.logs},
      image_id = coalesce(${given.imageId ?? null}, image_id), bases = coalesce(${jsonOf(given.bases)}, bases)
      where id = ${id} and status = 'running'`,
  )

export const readLogs = async (db: Db, id: string): Promise<string> =>
  (await db.value(z.string().nullish(), sql`select logs from build_runs where id = ${id}`)) ?? ''

/** The step and progress that an open run has recorded. */
export const readLive = (db: Db, id: string): Promise<z.output<typeof LiveBuild> | undefined> =>
  db.value(LiveBuild.optional(), sql`select live from build_runs where id = ${id} and status = 'running'`)

const OutputRow = z.object({
  status: z.string(),
  digest: z.string().nullish(),
  format: z.string(),
  hostId: z.string(),
  /** Of the image in the engine: of the source, or of what a recipe has become. */
  imageId: z.string().nullish(),
  /** The program that packed it, with its version. */
  packer: z.string().nullish(),
})
export const readOutput = (db: Db, runId: string) =>
  db.maybe(
    OutputRow,
    sql`select r.status, r.output_digest as digest, b.target_format as format, r.host_id, r.image_id,
          r.packer
        from build_runs r join artifact_builds b on b.id = r.artifact_build_id where r.id = ${runId}`,
  )

const EarlierRow = z.object({
  digest: z.string(),
  imageId: z.string().nullish(),
  sizeBytes: z.number(),
  packer: z.string().nullish(),
  bases: z.array(BuildBase).nullish(),
})
/** The output of the newest completed run of a build on a host. */
export const earlierOutput = (db: Db, { id, hostId, runId }: Pick<BuildWork, 'id' | 'hostId' | 'runId'>) =>
  db.maybe(
    EarlierRow,
    sql`select output_digest as digest, image_id, output_bytes as size_bytes, packer, bases
          from build_runs
        where artifact_build_id = ${id} and host_id = ${hostId} and status = 'completed' and id <> ${runId}
          order by created_at desc, id desc limit 1`,
  )

/** The line of a run's log where it needs no build. */
export const reuseText = (digest: string): string => `an earlier run of this build made ${digest}`

/**
 * Records the output of a run, its variant and its place, in one transaction. A cancel that was
 * recorded before wins: nothing is published. @throws Error then; the workflow is cancelled, too;
 * BuildError where the bytes were removed meanwhile
 */
export const publishOutput = (
  { db, artifactStore }: { db: Db; artifactStore: Pick<ArtifactStore, 'sizeOf'> },
  work: BuildWork,
  {
    digest,
    sizeBytes,
    verification,
    packer,
    imageId,
    bases,
  }: z.output<typeof EarlierRow> & { verification?: Verification },
): Promise<void> =>
  db.transaction(async (tx) => {
    await holdBytes(tx, digest)
    if ((await artifactStore.sizeOf('images', digest)) === undefined)
      throw new BuildError(`the store lost ${digest} before it was published; try again`, { passes: true })
    const variantId = await addVariant(tx, {
      ...{ artifactVersionId: work.artifactVersionId, format: work.targetFormat },
      ...{ architecture: work.targetArchitecture, digest, sizeBytes, verification },
      ...{ endpointId: `artifact-store@${work.hostId}`, uri: `artifact://images/${digest.slice(7)}` },
    })
    const published = await tx.run(
      sql`update build_runs set output_variant_id = ${variantId}, output_digest = ${digest},
          output_bytes = ${sizeBytes}, packer = ${packer ?? null},
          image_id = coalesce(image_id, ${imageId ?? null}), bases = coalesce(bases, ${jsonOf(bases)})
        where id = ${work.runId} and status = 'running' and cancel_requested_at is null`,
    )
    if (published === 0) throw new Error(`the build run ${work.runId} is over or was asked to end`)
  })
