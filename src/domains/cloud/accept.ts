import { randomUUID } from 'node:crypto'
import { z } from 'zod'
import { makeSshKey } from '../../clients/ssh/keys.ts'
import { sql, type Db, type Sql } from '../../db/sql.ts'
import { notBuilt } from '../../not-built.ts'
import { Refusal, existing, unacceptableAt } from '../../refusal.ts'
import { referenceOf, type Vault } from '../../vault/vault.ts'
import { requireEnvironment } from '../environments/store.ts'
import { builtProviders, canStop, connectionOf, type CloudConnection } from './clouds.ts'
import { programsFault, wantedConfigurations } from './configurations.ts'
import { keyIdOf } from './instance-keys.ts'
import type { InstanceAction, NewProvisioning } from './instance-schemas.ts'
import { knownConfiguration, type CapacityTarget, type TargetConfiguration } from './schemas.ts'
import { pricesOf } from './prices.ts'
import { readTarget } from './store.ts'

export interface AcceptParts {
  db: Db
  vault: Pick<Vault, 'put'>
  /** Networks that may reach SSH where a target names none. */
  cloudSshSourceRanges: readonly string[]
  /** The run that needs it; absent: a person asks. */
  executionRunId?: string
  /** No run uses the instance `i`, as SQL; absent: no stopped machine is taken. */
  unused?: Sql
}
/** Within a transaction. */
export type ProvisioningParts = Omit<AcceptParts, 'db'> & {
  /** Of `configurationFault`, asked before the transaction. */
  fault: Refusal | undefined
}

export const cloudOperationIdOf = (newId: string): string => `cloud-run-${newId}`

const monthSeconds = 730 * 3_600

/** The members that the service knows of a target's configuration. */
export const configurationOf = (target: CapacityTarget | undefined): TargetConfiguration =>
  knownConfiguration(target?.configuration)

/** Networks that may reach SSH of a target's machines. */
export const sourceRanges = (target: CapacityTarget, others: readonly string[]): readonly string[] => {
  const { sshSourceRanges = [] } = configurationOf(target)
  return sshSourceRanges.length > 0 ? sshSourceRanges : others
}

const requireRanges = (target: CapacityTarget, others: readonly string[]): void => {
  const ranges = sourceRanges(target, others)
  if (ranges.length === 0)
    throw unacceptableAt(
      'capacityTargetId',
      'no networks are named that may reach SSH of the machine; give configuration.sshSourceRanges of ' +
        'the target, or SERVICE_CLOUD_SSH_SOURCE_RANGES',
    )
  if (ranges.some((range) => range.endsWith('/0')) && configurationOf(target).allowPublicSsh !== true)
    throw unacceptableAt(
      'capacityTargetId',
      'every address would reach SSH of the machine; the target must have allowPublicSsh: true',
    )
}

/**
 * The connection over which a target's machines are made.
 * @throws Refusal 422 where there is none, 503 for a provider that is not built
 */
export const requireProvider = (tx: Db, target: CapacityTarget): Promise<CloudConnection> => {
  const { provider, environmentId } = target
  if (!builtProviders.has(provider)) throw notBuilt(`machines of ${provider}`, 'use aws or gcp')
  return connectionOf(tx, environmentId, { provider, connectionId: configurationOf(target).connectionId })
}

const ActiveRow = z.object({ id: z.string(), kind: z.string(), isCancelled: z.boolean() })
type ActiveRow = z.output<typeof ActiveRow>

const activeColumns = sql`id, kind, cancel_requested_at is not null as is_cancelled`

/** An open operation for an equal request; none that is to be cancelled, since it does not do what is asked for. */
const equalProvisioning = (tx: Db, request: string) =>
  tx.maybe(
    ActiveRow,
    sql`select ${activeColumns} from cloud_operations where kind = 'provision' and status in ('queued', 'running')
      and cancel_requested_at is null and request = ${request}::jsonb order by created_at, id limit 1`,
  )

const InstanceRow = z.object({
  id: z.string(),
  status: z.string(),
  hasAddress: z.boolean(),
  capacityTargetId: z.string(),
  environmentId: z.string(),
})

const instanceColumns = sql`i.id, i.status, coalesce(i.public_address, i.private_address) is not null as has_address,
  i.capacity_target_id, i.environment_id`

/** A stopped machine of the target without an open operation, which no run uses. */
const stoppedInstance = (tx: Db, targetId: string, instanceId: string | undefined, unused: Sql) =>
  tx.maybe(
    InstanceRow,
    sql`select ${instanceColumns} from cloud_instances i
      where capacity_target_id = ${targetId} and status = 'stopped'
        and (${instanceId ?? null}::text is null or id = ${instanceId ?? null})
        and not exists (select from cloud_operations o where o.instance_id = i.id and o.status in ('queued', 'running'))
        and ${unused} order by created_at, id limit 1 for update`,
  )

/** Operations take some minutes: a client asks again after this long. */
const againSeconds = 10

const LivingRow = z.object({ living: z.number(), ending: z.number() })

export const requireRoom = async (tx: Db, { id, maximumInstances }: CapacityTarget): Promise<void> => {
  const { living, ending } = await tx.one(
    LivingRow,
    sql`select count(*) as living, count(*) filter (where exists (select from cloud_operations o
      where o.instance_id = i.id and o.status in ('queued', 'running')
        and (o.kind = 'destroy' and o.cancel_requested_at is null
          or o.kind = 'provision' and o.cancel_requested_at is not null))) as ending
      from cloud_instances i where capacity_target_id = ${id} and status <> 'destroyed' and not machine_gone`,
  )
  if (living < maximumInstances) return
  const most = `the target ${JSON.stringify(id)} has ${String(living)} instances that may cost money, which is its most`
  const extra = { state: 'maximum-instances' }
  if (ending > 0)
    throw new Refusal('conflict', `${most}, and ${String(ending)} of them will end; wait for that`, {
      extra,
      retryAfterSeconds: againSeconds,
    })
  const remedy = 'destroy one, or raise maximumInstances with another target'
  throw new Refusal('conflict', `${most}; ${remedy}`, { extra })
}

interface NewOperation {
  kind: string
  environmentId: string
  targetId: string
  instanceId: string
  request: string
  over?: boolean
  newId: string
  executionRunId?: string | undefined
}

/** The record is the intent: it is committed before the request to the provider. */
const addOperation = async (tx: Db, given: NewOperation): Promise<string> => {
  const id = cloudOperationIdOf(given.newId)
  const done = given.over === true
  await tx.run(sql`insert into cloud_operations (id, kind, status, phase, environment_id, capacity_target_id,
      instance_id, execution_run_id, request, started_at, finished_at, dispatched_at)
    values (${id}, ${given.kind}, ${done ? 'completed' : 'queued'}, ${done ? 'completed' : 'queued'},
      ${given.environmentId}, ${given.targetId}, ${given.instanceId},
      ${given.executionRunId ?? null}, ${given.request}::jsonb,
      ${done ? sql`now()` : sql`null`}, ${done ? sql`now()` : sql`null`}, ${done ? sql`now()` : sql`null`})`)
  return id
}

/** A target that machines can be made of. @throws Refusal 422, 503 */
export const usableTarget = async (
  tx: Db,
  environmentId: string,
  { capacityTargetId: id }: NewProvisioning,
): Promise<CapacityTarget> => {
  const target = await readTarget(tx, id, true)
  const say = (message: string): Refusal => unacceptableAt('capacityTargetId', message)
  if (target?.environmentId !== environmentId)
    throw say(`${JSON.stringify(id)} is no capacity target of the environment; create it first`)
  if (!target.enabled)
    throw say(`the capacity target ${JSON.stringify(id)} is disabled or was deleted; name another one`)
  if (!builtProviders.has(target.provider)) throw notBuilt(`machines of ${target.provider}`, 'use aws or gcp')
  return target
}

/**
 * The refusal where playbooks of the target cannot run, because a program is missing here. It starts
 * programs, so no transaction may be open.
 */
export const configurationFault = async (db: Db, targetId: string): Promise<Refusal | undefined> => {
  const target = await readTarget(db, targetId)
  const wanted = wantedConfigurations(target?.machineConfigurations ?? [])
  return wanted.length === 0 ? undefined : programsFault()
}

const addInstance = async (
  tx: Db,
  { vault, executionRunId }: ProvisioningParts,
  given: { target: CapacityTarget; connection: CloudConnection; body: NewProvisioning; region: string },
): Promise<string> => {
  const { target, connection, body, region } = given
  const id = body.instanceId ?? `cloud-instance-${randomUUID()}`
  const name = body.name ?? `${target.name.slice(0, 200).toWellFormed()}-${randomUUID().slice(0, 8)}`
  const key = makeSshKey(`orrery ${id}`)
  const keyId = keyIdOf(id)
  const { pricePerHour, diskPricePerGiBMonth } = await pricesOf(tx, target.environmentId, target)
  const { diskSizeGiB = 0, diskType, projectId = '', sshUsername = 'akoflow' } = configurationOf(target)
  const disk =
    diskSizeGiB === 0
      ? null
      : JSON.stringify({ sizeGiB: diskSizeGiB, ...(diskType === undefined ? {} : { type: diskType }) })
  await tx.run(sql`insert into cloud_instances (id, capacity_target_id, environment_id, connection_id, provider, name,
      status, region, project_id, ssh_username, ssh_credential_ref, ssh_public_key, disk, compute_price_per_second,
      disk_price_per_second, execution_run_id)
    values (${id}, ${target.id}, ${target.environmentId}, ${connection.id}, ${target.provider}, ${name},
      'provisioning', ${region}, nullif(${projectId}, ''), ${body.sshUsername ?? sshUsername},
      ${referenceOf('ssh-key', keyId)}, ${key.publicKey}, ${disk}::jsonb, ${pricePerHour / 3_600},
      ${(diskPricePerGiBMonth * diskSizeGiB) / monthSeconds}, ${executionRunId ?? null})`)
  const { publicKey, fingerprint } = key
  const added = await vault.put(
    tx,
    keyId,
    { kind: 'ssh-key', privateKey: key.privateKey },
    { publicKey, fingerprint },
  )
  if (!added) throw unacceptableAt('instanceId', 'an instance of this id has a key already; choose another')
  return id
}

/**
 * Accepts a machine of a target: an equal request that is under way, a stopped machine to start, or
 * a new machine.
 * @param newId the UUID in the id of a new operation
 * @returns the id of the operation
 * @throws Refusal 404, 409, 422, 503
 */
export const acceptProvisioning = async (
  parts: AcceptParts,
  environmentId: string,
  body: NewProvisioning,
  newId?: string,
): Promise<string> => {
  const fault = await configurationFault(parts.db, body.capacityTargetId)
  return parts.db.transaction((tx) => addProvisioning(tx, { ...parts, fault }, environmentId, body, newId))
}

/** The same within a transaction. */
export const addProvisioning = async (
  tx: Db,
  parts: ProvisioningParts,
  environmentId: string,
  body: NewProvisioning,
  newId: string = randomUUID(),
): Promise<string> => {
  await requireEnvironment(tx, environmentId)
  const target = await usableTarget(tx, environmentId, body)
  const { provider } = target
  const { connectionId } = configurationOf(target)
  const connection = await connectionOf(tx, environmentId, { provider, connectionId })
  requireRanges(target, parts.cloudSshSourceRanges)
  const region = target.region === '' ? (connection.region ?? '') : target.region
  if (region === '')
    throw unacceptableAt(
      'capacityTargetId',
      'neither the target nor its connection (configuration.region) names a region; give one',
    )
  const request = JSON.stringify(body)
  const equal = await equalProvisioning(tx, request)
  if (equal !== undefined) return equal.id
  const { executionRunId, unused } = parts
  const of = { kind: 'provision', newId, environmentId, targetId: target.id, request, executionRunId }
  const stopped =
    body.name === undefined && unused !== undefined
      ? await stoppedInstance(tx, target.id, body.instanceId, unused)
      : undefined
  if (stopped !== undefined) {
    // The machine is the person's from now on: what runs have left is ended.
    await tx.run(sql`update cloud_instances set execution_run_id = null where id = ${stopped.id}`)
    return addOperation(tx, { ...of, instanceId: stopped.id })
  }
  if (body.instanceId !== undefined) await refuseTaken(tx, body.instanceId)
  await requireRoom(tx, target)
  if (parts.fault !== undefined) throw parts.fault
  const instanceId = await addInstance(tx, parts, { target, connection, body, region })
  return addOperation(tx, { ...of, instanceId })
}

const refuseTaken = async (tx: Db, instanceId: string): Promise<void> => {
  const active = await activeOf(tx, instanceId)
  if (active !== undefined) throw busy(instanceId, active, active.kind)
  const taken = await tx.run(sql`select from cloud_instances where id = ${instanceId}`)
  if (taken > 0)
    throw unacceptableAt(
      'instanceId',
      `${JSON.stringify(instanceId)} is taken by another instance; choose another id`,
    )
}

/** The open operation of an instance. */
export const activeOf = (tx: Db, instanceId: string) =>
  tx.maybe(
    ActiveRow,
    sql`select ${activeColumns} from cloud_operations
      where instance_id = ${instanceId} and status in ('queued', 'running')`,
  )

/** The refusal while an instance is under an operation. */
export const busy = (id: string, { kind, isCancelled }: ActiveRow, state: string): Refusal =>
  new Refusal(
    'conflict',
    `the instance ${JSON.stringify(id)} is under ${kind}` +
      (isCancelled
        ? ', which is being cancelled; wait for its end'
        : '; wait for the end of that, or cancel it'),
    { extra: { state }, retryAfterSeconds: againSeconds },
  )

/** States in which an action begins, and the state in which the action has no effect. */
const possible: Readonly<Record<InstanceAction, { from: readonly string[]; done?: string }>> = {
  start: { from: ['stopped'], done: 'ready' },
  stop: { from: ['ready'], done: 'stopped' },
  destroy: {
    from: ['provisioning', 'configuring', 'ready', 'stopped', 'destroying', 'failed'],
    done: 'destroyed',
  },
  validate: { from: ['ready'] },
  configure: { from: ['ready', 'failed'] },
}

const TargetRow = z.object({ capacityTargetId: z.string() })

/** As `configurationFault`, of the target of an instance. */
const instanceFault = async (db: Db, instanceId: string): Promise<Refusal | undefined> => {
  const of = await db.maybe(
    TargetRow,
    sql`select capacity_target_id from cloud_instances where id = ${instanceId}`,
  )
  return of === undefined ? undefined : configurationFault(db, of.capacityTargetId)
}

/** @throws Refusal 409 for the stop of a machine that its provider cannot stop */
const refuseStop = async (tx: Db, instanceId: string, targetId: string): Promise<void> => {
  const target = await readTarget(tx, targetId)
  if (target === undefined || canStop(target)) return
  throw new Refusal(
    'conflict',
    `the instance ${JSON.stringify(instanceId)} is a spot machine of ${target.provider}, which cannot be ` +
      'stopped; destroy it',
    { extra: { state: 'spot' } },
  )
}

/**
 * Accepts an action on an instance, or finds the equal one that is under way. `configure` is accepted
 * outside of transactions alone.
 * @returns the id of the operation
 * @throws Refusal 404, 409 with the state, 503 for an action that is not built
 */
export const acceptAction = async (
  db: Db,
  instanceId: string,
  action: InstanceAction,
  { executionRunId, newId = randomUUID() }: { executionRunId?: string | undefined; newId?: string } = {},
): Promise<string> => {
  const fault = action === 'configure' ? await instanceFault(db, instanceId) : undefined
  return db.transaction(async (tx) => {
    const found = existing(
      await tx.maybe(
        InstanceRow,
        sql`select ${instanceColumns} from cloud_instances i where i.id = ${instanceId} for update`,
      ),
      'cloud instance',
      instanceId,
    )
    const active = await activeOf(tx, instanceId)
    if (active?.kind === action && !active.isCancelled) return active.id
    if (active !== undefined) throw busy(instanceId, active, found.status)
    const { from, done } = possible[action]
    const of = {
      ...{ kind: action, environmentId: found.environmentId, targetId: found.capacityTargetId, instanceId },
      request: JSON.stringify({ instanceId, action }),
      newId,
      executionRunId,
    }
    if (found.status === done) return addOperation(tx, { ...of, over: true })
    if (!from.includes(found.status))
      throw new Refusal(
        'conflict',
        `the instance ${JSON.stringify(instanceId)} is ${found.status}: ${action} is possible while ` +
          `it is ${from.join(', ')}`,
        { extra: { state: found.status } },
      )
    if (action === 'stop') await refuseStop(tx, instanceId, found.capacityTargetId)
    if (action === 'configure') {
      if (!found.hasAddress)
        throw new Refusal(
          'conflict',
          `the instance ${JSON.stringify(instanceId)} has no address: its machine was never reached or ` +
            'is gone; destroy it and provision another',
          { extra: { state: found.status } },
        )
      if (fault !== undefined) throw fault
    }
    return addOperation(tx, of)
  })
}
