import { z } from 'zod'
import { sql, type Db, type Sql } from '../../db/sql.ts'
import type { Machine } from '../../drivers/cloud/contract.ts'
import { recordAudit } from '../audit-events/store.ts'
import { dropCredential } from '../credentials/store.ts'
import { askedBillingBegins, billingEnds, computeEnds } from './billing.ts'
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

/** What its provider has made of a machine that should run; undefined where it runs or may run yet. */
export const lossOf = ({ id, state, reason }: Machine): Loss | undefined => {
  const word = ends[state]
  if (word === undefined) return undefined
  const cause = reason === undefined ? '' : ` (${reason})`
  return {
    reason: `the machine ${id} ${word} at its provider${cause}`,
    stays: state === 'stopping' || state === 'stopped',
  }
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
  return machine === undefined ? 'unseen' : lossOf(machine)
}

/** The machine of the instance `i` may exist, and no operation is at work on it. */
const isAtRest = sql`i.status in ('ready', 'stopped', 'failed') and not i.machine_gone
  and not exists (select from cloud_operations o where o.instance_id = i.id and o.status in ('queued', 'running'))`

const LostRow = z.object({
  environmentId: z.string(),
  connectionId: z.string(),
  executionId: z.string().optional(),
  externalId: z.string().optional(),
})

/**
 * Records that a machine is gone or stopped without a request of this service, also in the audit.
 * What is gone costs nothing from now on, and its key is deleted; what is stopped costs its disk. A
 * failed instance stays failed, because a stopped one could be started, and would take work as it is.
 * An instance that has another machine meanwhile, from a retry, is not concerned.
 * @returns whether this changed the record
 */
export const recordLost = (
  db: Db,
  { instanceId, providerId }: { instanceId: string; providerId: string },
  { reason, stays }: Loss,
): Promise<boolean> =>
  db.transaction(async (tx) => {
    const changes = stays
      ? sql`status = case when status = 'failed' then status else 'stopped' end, failure_reason = case
          when status = 'failed' then failure_reason else ${reason} end, ${computeEnds}`
      : sql`status = 'failed', machine_gone = true, failure_reason = concat_ws('; ',
          case when status = 'failed' then failure_reason end, ${reason}::text),
          ssh_credential_ref = null, ssh_public_key = null, ${billingEnds}`
    const concerned = stays
      ? sql`${isAtRest} and (status = 'ready' or status = 'failed' and compute_started_at is not null)`
      : isAtRest
    const lost = await tx.maybe(
      LostRow,
      sql`update cloud_instances i set public_address = null, private_address = null, ${changes}
        where id = ${instanceId} and provider_id = ${providerId} and ${concerned}
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

const FoundRow = LostRow.extend({ instanceId: z.string() })

/**
 * Records the machines of failed instances whose providers gave no answer about them: their ids, and
 * their bills, from the requests on. Like each failed instance, such an instance can be retried and
 * destroyed. Of two machines of an instance one is recorded, and the other one is an orphan; a stopped
 * one is not recorded.
 */
export const recordFound = async (db: Db, machines: readonly Machine[]): Promise<void> => {
  const running = machines.filter((machine) => lossOf(machine) === undefined)
  if (running.length === 0) return
  await db.transaction(async (tx) => {
    const found = await tx.many(
      FoundRow,
      sql`update cloud_instances i set provider_id = m.id, zone = m.zone, ${askedBillingBegins},
          failure_reason = concat_ws('; ', failure_reason, 'its machine ' || m.id ||
            ' was found later and costs money; retry the operation, or destroy the instance')
        from unnest(${running.map(({ id }) => id)}::text[], ${running.map(({ zone }) => zone ?? null)}::text[],
          ${running.map(({ reference }) => reference ?? null)}::text[]) as m (id, zone, reference)
        where i.reference::text = m.reference and i.provider_id is null and ${isAtRest}
        returning environment_id, connection_id, execution_run_id as execution_id, provider_id as external_id,
          i.id as instance_id`,
    )
    for (const { instanceId, ...of } of found)
      await recordAudit(tx, {
        ...{ eventType: 'cloud.instance.found', outcome: 'succeeded', ...of },
        ...{ actorId: 'service', actorType: 'service' },
        summary: `machine ${of.externalId ?? ''} of the failed cloud instance ${instanceId} found`,
        metadata: { instanceId },
      })
  })
}

const LivingRow = z.object({
  id: z.string(),
  status: z.string(),
  connectionId: z.string(),
  provider: z.string(),
  region: z.string(),
  projectId: z.string().nullish(),
  account: z.string().nullish(),
  providerId: z.string(),
})

/** Records the account of a machine that an earlier version made: the one that shows it. */
const keepAccount = async (db: Db, clouds: Clouds, one: z.output<typeof LivingRow>): Promise<void> => {
  const account = await (await clouds.at(one)).account()
  await db.run(sql`update cloud_instances set account = ${account}
    where id = ${one.id} and provider_id = ${one.providerId} and account is null`)
}

/** A provider may show a new machine this much later, in seconds. */
const unseenSeconds = 600

/**
 * Looks at the machines of an environment that may exist: those that people have made, and those of
 * runs that no run uses; the others are watched by their runs. `failed` gets the error of one
 * machine; the others are looked at all the same.
 * @param parts `unused`: no run uses the instance `i`, as SQL
 * @returns the instances whose machines were ended or stopped by others
 */
export const noteLosses = async (
  { db, clouds, unused }: { db: Db; clouds: Clouds; unused: Sql },
  environmentId: string,
  failed: (error: unknown) => void,
): Promise<{ instanceId: string; reason: string }[]> => {
  const living = await db.many(
    LivingRow,
    sql`select i.id, i.status, i.connection_id, i.provider, i.region, i.project_id, i.account, i.provider_id
      from cloud_instances i where i.environment_id = ${environmentId} and i.provider_id is not null and ${isAtRest}
        and (i.execution_run_id is null or ${unused})
        and (i.ready_at is not null or i.asked_at < clock_timestamp() - make_interval(secs => ${unseenSeconds}))
      order by i.id limit 10000`,
  )
  const losses: { instanceId: string; reason: string }[] = []
  const look = async (one: z.output<typeof LivingRow>): Promise<void> => {
    const seen = await lookAtInstance(clouds, one)
    if (seen !== 'unseen' && one.account == null) await keepAccount(db, clouds, one)
    // An account that an earlier version did not record may be another one, which shows no machine.
    if (seen === 'unseen' && one.account == null && one.status !== 'ready') return
    // EC2 shows an ended machine for an hour and no longer; these were seen before.
    const loss =
      seen === 'unseen'
        ? { reason: `the provider shows the machine ${one.providerId} no more`, stays: false }
        : seen
    if (loss !== undefined && (await recordLost(db, { ...one, instanceId: one.id }, loss)))
      losses.push({ instanceId: one.id, reason: loss.reason })
  }
  // At once, because the provider is asked about all of them together.
  await Promise.all(living.map((one) => look(one).catch(failed)))
  return losses
}
