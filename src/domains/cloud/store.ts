import { z } from 'zod'
import { columnsOf, time } from '../../db/projection.ts'
import { readPage } from '../../db/rows.ts'
import { empty, sql, type Db } from '../../db/sql.ts'
import type { Page } from '../../http/paging.ts'
import { ranges } from '../../ranges.ts'
import { missing, pathIdProblems, Refusal, unacceptable } from '../../refusal.ts'
import { bindResource, cloudRuntimeOf, retireResource } from '../environments/provisioned.ts'
import { Resource } from '../environments/schemas.ts'
import { lockInventory, requireEnvironment } from '../environments/store.ts'
import { putResource, readResource } from '../resources/store.ts'
import { deleteVariables, hideVariables } from './target-secrets.ts'
import { builtProviders } from './clouds.ts'
import { notBuilt } from '../../not-built.ts'
import type { Vault } from '../../vault/vault.ts'
import { pricesOf, type TargetPrices } from './prices.ts'
import { targetProblems, withBuiltIn } from './target-rules.ts'
import {
  CapacityTarget,
  expectedSeconds,
  type NewCapacityTarget,
  type TargetConfiguration,
} from './schemas.ts'

const columns = columnsOf(CapacityTarget, 't', {
  memoryMiB: 't.memory_mib',
  // Earlier versions kept a blank zone.
  fixedZone: "nullif(t.fixed_zone, '')",
  createdAt: time('t.created_at'),
})

/** The enabled targets of an environment by name. */
export const listTargets = (db: Db, environmentId: string, page: Page) =>
  readPage(db, CapacityTarget, {
    select: columns,
    from: sql`cloud_capacity_targets t where t.environment_id = ${environmentId} and t.enabled`,
    order: sql`t.name collate "C", t.id`,
    page,
  })

/** A target, deleted or not; undefined where there is none. `lock`: until the transaction ends. */
export const readTarget = (db: Db, id: string, lock = false): Promise<CapacityTarget | undefined> =>
  db.maybe(
    CapacityTarget,
    sql`select ${columns} from cloud_capacity_targets t where t.id = ${id} ${lock ? sql`for update` : empty}`,
  )

const mebibyte = 1_048_576

/** The resource that stands for a target in plans. */
const resourceOf = (
  id: string,
  versionId: string,
  target: NewCapacityTarget,
  { pricePerHour, diskPricePerGiBMonth }: TargetPrices,
): Resource => {
  const { diskSizeGiB, idleSeconds } = (target.configuration ?? {}) as TargetConfiguration
  const pricePerSecond = pricePerHour / 3_600
  return Resource.parse({
    ...{ id, environmentVersionId: versionId, type: 'cloud_vm', name: target.name, providerId: id },
    ...{ executionTarget: 'provisioned', tier: 'cloud', region: target.region, zone: target.fixedZone ?? '' },
    architecture: target.architecture,
    cpuCores: Math.max(1, Math.floor(target.vcpu)),
    cpuCapacity: target.vcpu,
    memoryBytes: target.memoryMiB * mebibyte,
    // A price below the least counts as none.
    pricePerSecond: pricePerSecond < ranges.money.least ? 0 : pricePerSecond,
    schedulable: true,
    metadata: {
      capacityTargetId: id,
      providerMachineType: target.providerMachineType,
      maximumInstances: target.maximumInstances,
      lifecyclePolicy: target.lifecyclePolicy,
      provisioningMode: target.provisioningMode,
      ...(diskPricePerGiBMonth === 0 ? {} : { diskPricePerGiBMonth }),
      ...(diskSizeGiB === undefined ? {} : { diskSizeGiB }),
      ...(idleSeconds === undefined ? {} : { idleSeconds }),
      ...Object.fromEntries(
        expectedSeconds.flatMap((name) => {
          const value = target.configuration?.[name]
          return value === undefined ? [] : [[name, value]]
        }),
      ),
    },
  })
}

export interface TargetParts {
  db: Db
  vault: Pick<Vault, 'put'>
}

/** Takes a target out of lists and plans. Its record stays for its instances. */
const disable = async (tx: Db, id: string): Promise<void> => {
  await tx.run(sql`update cloud_capacity_targets set enabled = false where id = ${id}`)
  await deleteVariables(tx, id)
  await retireResource(tx, id)
}

/**
 * Stores a target with its resource and the resource's binding, all or none.
 * @returns its id
 * @throws Refusal 404 for the environment, 422, 503 for a provider that is not built
 */
export const createTarget = (
  { db, vault }: TargetParts,
  environmentId: string,
  target: NewCapacityTarget & { id: string },
): Promise<void> =>
  db.transaction(async (tx) => {
    await requireEnvironment(tx, environmentId)
    if (!builtProviders.has(target.provider))
      throw notBuilt(`machines of ${target.provider}`, 'use aws or gcp')
    await lockInventory(tx)
    const runtime = await cloudRuntimeOf(tx, environmentId)
    const problems = [
      ...pathIdProblems('environmentId', target.environmentId, environmentId),
      ...((await readResource(tx, target.id)) === undefined
        ? []
        : [{ path: 'id', message: `${JSON.stringify(target.id)} is the id of a resource; choose another` }]),
      ...(await targetProblems(tx, target)),
    ]
    if (runtime?.runtimeId == null)
      problems.push({
        path: '',
        message:
          `environment ${JSON.stringify(environmentId)} has no runtime with the driver cloud; ` +
          'register one with it, so that tasks can be given to the machines',
      })
    if (runtime?.runtimeId == null || problems.length > 0) throw unacceptable(problems)
    const { id } = target
    const configurations = await hideVariables(tx, vault, id, withBuiltIn(target.machineConfigurations))
    const json = (value: unknown): string | null => (value === undefined ? null : JSON.stringify(value))
    await tx.run(sql`insert into cloud_capacity_targets (id, environment_id, name, provider, provider_machine_type,
        image_reference, region, fixed_zone, zone_policy, architecture, vcpu, memory_mib, provisioning_mode,
        maximum_instances, lifecycle_policy, configuration, machine_configurations, enabled)
      values (${id}, ${environmentId}, ${target.name}, ${target.provider}, ${target.providerMachineType},
        ${target.imageReference}, ${target.region}, ${target.fixedZone ?? null}, ${target.zonePolicy},
        ${target.architecture}, ${target.vcpu}, ${target.memoryMiB}, ${target.provisioningMode},
        ${target.maximumInstances}, ${target.lifecyclePolicy}, ${json(target.configuration)}::jsonb,
        ${json(configurations)}::jsonb, ${target.enabled})`)
    const prices = await pricesOf(tx, environmentId, target)
    await putResource(tx, resourceOf(id, runtime.versionId, target, prices))
    const { versionId, simulationRuntimeId } = runtime
    await bindResource(tx, { resourceId: id, runtimeId: runtime.runtimeId, versionId })
    // So plans on the target can be rehearsed.
    if (simulationRuntimeId != null)
      await bindResource(tx, { resourceId: id, runtimeId: simulationRuntimeId, versionId })
    if (!target.enabled) await disable(tx, id)
  })

const LivingRow = z.object({ id: z.string(), status: z.string() })

/**
 * The oldest instance that may cost money. A failed instance whose machine still exists counts too.
 */
const livingInstance = (tx: Db, targetId: string): Promise<z.output<typeof LivingRow> | undefined> =>
  tx.maybe(
    LivingRow,
    sql`select id, status from cloud_instances where capacity_target_id = ${targetId} and status <> 'destroyed'
      and not machine_gone order by created_at, id limit 1`,
  )

/**
 * Removes a target from plans. Its record stays for its instances.
 * @throws Refusal 404, 409 while an instance may cost money
 */
export const deleteTarget = (db: Db, id: string): Promise<void> =>
  db.transaction(async (tx) => {
    const target = await readTarget(tx, id, true)
    if (target?.enabled !== true) throw missing('capacity target', id)
    const living = await livingInstance(tx, id)
    if (living !== undefined)
      throw new Refusal(
        'conflict',
        `the instance ${JSON.stringify(living.id)} of the target is ${living.status} and may cost money; ` +
          'destroy it first',
        { extra: { state: living.status } },
      )
    await lockInventory(tx)
    await disable(tx, id)
  })
