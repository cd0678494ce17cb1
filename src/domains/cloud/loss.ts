import { z } from 'zod'
import { sql, type Db } from '../../db/sql.ts'
import type { Machine } from '../../drivers/cloud/contract.ts'
import { recordAudit } from '../audit-events/store.ts'
import { dropCredential } from '../credentials/store.ts'
import { billingEnds, computeEnds } from './billing.ts'
import type { Clouds, MachinePlace } from './clouds.ts'
import { keyIdOf } from './instance-keys.ts'

/** An instance as far as its provider is asked about it. */
export interface WatchedInstance extends MachinePlace {
  providerId: string
}

/** A machine that takes no work any more, without a request of this service. */
export interface Loss {
  reason: string
  /** It was stopped only: it and its disk are there, and it can be started. */
  stays: boolean
}

/** States in which a machine takes no work any more, with their words. */
const ends: Partial<Record<Machine['state'], string>> = {
  stopping: 'is being stopped',
  stopped: 'was stopped',
  ending: 'is being ended',
  gone: 'was ended',
}

/**
 * Asks the provider about a machine that is in use, together with all others of this process.
 * @returns why it is lost; undefined: it is there; `unseen`: the provider does not show it
 * @throws CloudError, Refusal where there is no answer
 */
export const lookAtInstance = async (
  clouds: Clouds,
  { providerId, ...place }: WatchedInstance,
): Promise<Loss | 'unseen' | undefined> => {
  const cloud = await clouds.at(place)
  const machine = await cloud.look(providerId)
  if (machine === undefined) return 'unseen'
  const word = ends[machine.state]
  if (word === undefined) return undefined
  const cause = machine.reason === undefined ? '' : ` (${machine.reason})`
  return {
    reason: `the machine ${providerId} ${word} at its provider${cause}`,
    stays: machine.state === 'stopping' || machine.state === 'stopped',
  }
}

const isIdle = sql`status = 'ready' and not machine_gone and not exists (select from cloud_operations o
  where o.instance_id = cloud_instances.id and o.status in ('queued', 'running'))`

const LostRow = z.object({
  environmentId: z.string(),
  connectionId: z.string(),
  executionId: z.string().optional(),
  externalId: z.string().optional(),
})

/**
 * Records that a machine is gone or stopped without a request of this service, also in the audit.
 * What is gone costs nothing from now on, and its key is deleted; what is stopped costs its disk.
 * @returns whether this changed the record
 */
export const recordLost = (db: Db, instanceId: string, { reason, stays }: Loss): Promise<boolean> =>
  db.transaction(async (tx) => {
    const changes = stays
      ? sql`status = 'stopped', ${computeEnds}`
      : sql`status = 'failed', machine_gone = true, ssh_credential_ref = null, ssh_public_key = null, ${billingEnds}`
    const lost = await tx.maybe(
      LostRow,
      sql`update cloud_instances set failure_reason = ${reason}, public_address = null,
          private_address = null, ${changes} where id = ${instanceId} and ${isIdle}
        returning environment_id, connection_id, execution_run_id as execution_id, provider_id as external_id`,
    )
    if (lost === undefined) return false
    if (!stays) await dropCredential(tx, 'ssh-key', keyIdOf(instanceId))
    await recordAudit(tx, {
      ...{ eventType: 'cloud.instance.lost', actorId: 'service', actorType: 'service', outcome: 'failed' },
      ...lost,
      summary: `cloud instance ${instanceId} lost: ${reason}`,
      metadata: { instanceId },
    })
    return true
  })

const LivingRow = z.object({
  id: z.string(),
  connectionId: z.string(),
  region: z.string(),
  projectId: z.string().nullish(),
  providerId: z.string(),
})

/**
 * Looks at the machines of an environment that are ready and that people have made: those of runs
 * are watched by their runs. `failed` gets the error of one machine; the others are looked at all
 * the same.
 * @returns the instances whose machines were ended or stopped by others
 */
export const noteLosses = async (
  { db, clouds }: { db: Db; clouds: Clouds },
  environmentId: string,
  failed: (error: unknown) => void,
): Promise<{ instanceId: string; reason: string }[]> => {
  const living = await db.many(
    LivingRow,
    sql`select id, connection_id, region, project_id, provider_id from cloud_instances
      where environment_id = ${environmentId} and execution_run_id is null and provider_id is not null and ${isIdle}
      order by id limit 10000`,
  )
  const losses: { instanceId: string; reason: string }[] = []
  const look = async (one: z.output<typeof LivingRow>): Promise<void> => {
    const seen = await lookAtInstance(clouds, one)
    // EC2 shows an ended machine for an hour and no longer; one that is ready was seen before.
    const loss =
      seen === 'unseen'
        ? { reason: `the provider shows the machine ${one.providerId} no more`, stays: false }
        : seen
    if (loss !== undefined && (await recordLost(db, one.id, loss)))
      losses.push({ instanceId: one.id, reason: loss.reason })
  }
  // At once, because the provider is asked about all of them together.
  await Promise.all(living.map((one) => look(one).catch(failed)))
  return losses
}
