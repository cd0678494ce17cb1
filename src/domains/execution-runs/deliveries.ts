import { basename, dirname } from 'node:path'
import { z } from 'zod'
import { sql, type Db } from '../../db/sql.ts'
import { archiveImageId } from '../../drivers/build/archive.ts'
import type { ArtifactStore } from '../../drivers/build/store.ts'
import { DriverError } from '../../drivers/runtime/contract/driver.ts'
import type { ArtifactBytes } from '../../drivers/transfer/artifacts.ts'
import type { ArtifactHooks } from '../../executor/drivers.ts'
import { labelOf, type PinnedExecutable, type RunExecutables } from '../../executor/executables.ts'
import {
  newestRunOf,
  recordBegun,
  recordDelivered,
  recordUndelivered,
  type Delivered,
} from '../artifacts/deliveries.ts'

export interface DeliveryParts {
  db: Db
  artifactStore: ArtifactStore
  hostId: string
  /** Seconds since the epoch. */
  clock: () => number
}

const TaskRow = z.object({ position: z.number(), activityId: z.string(), resourceId: z.string() })

const taskNamed = (db: Db, runId: string, name: string) =>
  db.maybe(
    TaskRow,
    sql`select activity_position as position, activity_id, planned_resource_id as resource_id from task_executions
        where execution_run_id = ${runId} and handle_name = ${name}`,
  )

/** The bytes that a completed run of a build made; undefined while none has completed. */
const builtBytes = async (db: Db, pin: PinnedExecutable, hostId: string) => {
  const { buildId = '', expectedDigest } = pin
  const run = await newestRunOf(db, buildId)
  if (run === undefined || run.status === 'queued' || run.status === 'running') return undefined
  const refuse = (fault: string): never => {
    throw new DriverError('refused', `the build ${buildId} of its image ${fault}`)
  }
  if (run.status !== 'completed' || run.digest == null)
    return refuse(
      `is ${run.status}${run.error == null ? '' : `: ${run.error}`}; start it again, then retry the run`,
    )
  if (run.hostId !== hostId) return refuse(`was made on the host ${run.hostId}, whose store is not here`)
  if (expectedDigest !== undefined && expectedDigest !== run.digest)
    return refuse(`made ${run.digest}, and expectedDigest is ${expectedDigest}; correct one of them`)
  return { digest: run.digest, imageId: run.imageId ?? undefined, variantId: run.variantId ?? undefined }
}

/**
 * How the executables of a run come to its sites, with records of it; undefined for a run without
 * executables.
 */
export const deliveryHooks = (
  { db, artifactStore, hostId, clock }: DeliveryParts,
  runId: string,
  executables: RunExecutables | undefined,
  scope: string,
): ArtifactHooks | undefined => {
  if (executables === undefined) return undefined
  const pins = new Map(executables.pins.map((pin) => [pin.id, pin]))
  const ready = new Map<string, ArtifactBytes & { variantId?: string | undefined }>()
  /** Images at sites that are on record. */
  const recorded = new Set<string>()
  const pinNamed = (id: string): PinnedExecutable => {
    const pin = pins.get(id)
    if (pin === undefined) throw new Error(`the run ${runId} has no executable ${id}`)
    return pin
  }

  const bytesOf = async (pin: PinnedExecutable) => {
    const made =
      pin.digest === undefined
        ? await builtBytes(db, pin, hostId)
        : { digest: pin.digest, imageId: pin.imageId, variantId: pin.variantId }
    if (made === undefined) return undefined
    const { digest } = made
    const how = {
      format: pin.format,
      label: labelOf({ ...pin, digest }),
      strategy: pin.strategy,
      reason: pin.reason,
    }
    if (pin.file !== undefined) return { ...made, ...how, ...pin.file, sizeBytes: pin.sizeBytes ?? 0 }
    const sizeBytes = await artifactStore.sizeOf('images', digest)
    if (sizeBytes === undefined)
      throw new DriverError(
        'refused',
        `the store of ${hostId} lost ${digest}; build it again with ?fresh=true`,
      )
    const path = artifactStore.pathOf('images', digest)
    const imageId =
      pin.format === 'sif'
        ? undefined
        : (made.imageId ??
          (await archiveImageId(artifactStore.read('images', digest) as AsyncIterable<Buffer>)))
    return {
      ...{ ...made, ...how, sizeBytes, imageId, at: `local@${hostId}` },
      ...{ directory: dirname(path), path: basename(path) },
    }
  }
  const deliveredOf = async (
    name: string,
    pin: PinnedExecutable,
    digest: string,
    destinationPath: string,
  ) => {
    const task = await taskNamed(db, runId, name)
    return {
      ...{ runId, site: pin.site, digest, destinationPath, activityId: task?.activityId },
      ...{
        resourceId: task?.resourceId ?? pin.resourceId,
        variantId: ready.get(pin.id)?.variantId ?? pin.variantId,
      },
    } satisfies Delivered
  }

  return {
    scope,
    brings: (site) => executables.pins.some((pin) => pin.site === site && pin.image === undefined),

    async ready(id) {
      const known = ready.get(id)
      if (known !== undefined) return known
      const bytes = await bytesOf(pinNamed(id))
      if (bytes !== undefined) ready.set(id, bytes)
      return bytes
    },

    async begun(name, id, facts) {
      const delivered = await deliveredOf(name, pinNamed(id), facts.digest, facts.path)
      await db.transaction(async (tx) => {
        // The end of a run ends its deliveries: it waits for this, or this sees it.
        const open = await tx.value(
          z.string(),
          sql`select id from execution_runs where id = ${delivered.runId} and status in ('created', 'running')
            for share`,
        )
        if (open !== undefined) await recordBegun(tx, delivered, facts)
      })
    },

    async delivered(names, id, facts) {
      const delivered = await deliveredOf(names[0] ?? '', pinNamed(id), facts.digest, facts.path)
      await recordDelivered(db, delivered, facts.networkBytes > 0 || facts.bytes > 0 ? facts : undefined)
      const now = clock()
      await db.run(
        sql`update task_executions set metadata = coalesce(metadata, '{}') || jsonb_build_object(
            'preparationFinishedAt', ${now}::float8, 'preparationSeconds', ${now}::float8 - handle_started_at)
          where execution_run_id = ${runId} and handle_name = any(${[...names]}::text[])
            and status not in ('completed', 'failed', 'cancelled')`,
      )
    },

    async failed(name, id, error) {
      const pin = pinNamed(id)
      const digest = ready.get(id)?.digest ?? pin.digest
      if (digest === undefined) return
      await recordUndelivered(db, await deliveredOf(name, pin, digest, `artifacts of ${pin.site}`), {
        ...{ strategy: pin.strategy, reason: pin.reason, failure: error.message, at: clock() },
      })
    },

    async ran(name, { detail = {}, state }) {
      const { pullSeconds = 0, imageDigest: digest, image = '' } = detail
      if (digest === undefined || (pullSeconds === 0 && recorded.has(digest))) return
      const task = await taskNamed(db, runId, name)
      const pin = executables.pins[executables.of[task?.position ?? -1] ?? -1]
      if (pin?.image === undefined || state.state !== 'ended') return
      recorded.add(digest)
      const finishedAt = state.startedAt - (detail.coldStartSeconds ?? 0)
      const moved = {
        ...{
          strategy: 'destination-pull',
          reason: pin.reason,
          bytes: detail.imageBytes ?? 0,
          networkBytes: 0,
        },
        ...{ startedAt: finishedAt - pullSeconds, finishedAt },
      }
      await recordDelivered(
        db,
        await deliveredOf(name, pin, digest, image),
        pullSeconds > 0 ? moved : undefined,
      )
    },
  }
}
