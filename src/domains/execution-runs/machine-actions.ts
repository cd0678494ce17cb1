import { z } from 'zod'
import { sql, type Db } from '../../db/sql.ts'
import { notBuilt } from '../../not-built.ts'
import { unacceptable } from '../../refusal.ts'
import { canStop } from '../cloud/clouds.ts'
import type { PlanHeader } from '../schedule-plans/store.ts'

/** Lifecycle actions of plans that a run cannot carry out. */

const refuseVolumes = ({ lifecycleActions = [] }: PlanHeader): void => {
  const volume = lifecycleActions.find(({ action }) => action.endsWith('-volume'))
  if (volume !== undefined)
    throw notBuilt(
      `lifecycle action ${volume.action} of the plan (${JSON.stringify(volume.id)})`,
      'plan without volumes of a provider',
    )
}

/**
 * The playbooks and checks of a target are part of the making of its machine.
 * @throws Refusal 503 for a second configuration or validation of a target in a plan
 */
const refuseRepeated = ({ lifecycleActions = [] }: PlanHeader): void => {
  const seen = new Set<string>()
  for (const { id, action, capacityTargetId } of lifecycleActions) {
    if (action !== 'configure' && action !== 'validate') continue
    const key = JSON.stringify([action, capacityTargetId])
    if (seen.has(key))
      throw notBuilt(
        `a second ${action} of the target ${JSON.stringify(capacityTargetId)} in a plan (${JSON.stringify(id)})`,
        'leave it out: a machine is configured and validated once, when it is made',
      )
    seen.add(key)
  }
}

/**
 * @throws Refusal 422 for a `start` of an instance whose machine is gone, or that the target does not
 *   have
 */
const refuseUnknownInstances = async (tx: Db, { lifecycleActions = [] }: PlanHeader): Promise<void> => {
  const named = lifecycleActions.flatMap(({ action, cloudInstanceId: id = '', capacityTargetId }, at) =>
    action === 'start' && id !== '' ? [{ at, id, capacityTargetId }] : [],
  )
  const living = await tx.values(
    z.string(),
    sql`select i.id from jsonb_to_recordset(${JSON.stringify(named)}::jsonb) as a(id text, "capacityTargetId" text)
      join cloud_instances i on i.id = a.id and i.capacity_target_id = a."capacityTargetId"
      where not i.machine_gone and i.status <> 'destroyed'`,
  )
  const known = new Set(living)
  const problems = named
    .filter(({ id }) => !known.has(id))
    .map(({ at, id, capacityTargetId }) => ({
      path: `lifecycleActions.${String(at)}.cloudInstanceId`,
      message:
        `${JSON.stringify(id)} is no instance of ${JSON.stringify(capacityTargetId)} with a machine; name one, or ` +
        'leave it out for any',
    }))
  if (problems.length > 0) throw unacceptable(problems)
}

const ModeRow = z.object({ id: z.string(), provider: z.string(), provisioningMode: z.string() })

/** @throws Refusal 422 for a `stop` at a target whose provider cannot stop its machines */
const refuseStops = async (tx: Db, { lifecycleActions = [] }: PlanHeader): Promise<void> => {
  const stops = lifecycleActions.flatMap(({ action, capacityTargetId }, at) =>
    action === 'stop' ? [{ at, capacityTargetId }] : [],
  )
  if (stops.length === 0) return
  const rows = await tx.many(
    ModeRow,
    sql`select id, provider, provisioning_mode from cloud_capacity_targets
      where id = any(${stops.map(({ capacityTargetId }) => capacityTargetId)}::text[])`,
  )
  const cannot = new Set(rows.filter((row) => !canStop(row)).map(({ id }) => id))
  const problems = stops
    .filter(({ capacityTargetId }) => cannot.has(capacityTargetId))
    .map(({ at, capacityTargetId }) => ({
      path: `lifecycleActions.${String(at)}.action`,
      message:
        `stop is not possible at ${JSON.stringify(capacityTargetId)}, whose machines are spot machines of aws; ` +
        'leave it out, or plan on a target with the provisioningMode standard',
    }))
  if (problems.length > 0) throw unacceptable(problems)
}

/**
 * @throws Refusal 503 for a volume, and for a second configuration or validation of a target; 422
 *   for a `start` of an instance that the target does not have, and a `stop` of spot machines that
 *   cannot be stopped
 */
export const refuseActions = async (tx: Db, plan: PlanHeader): Promise<void> => {
  refuseVolumes(plan)
  refuseRepeated(plan)
  await refuseUnknownInstances(tx, plan)
  await refuseStops(tx, plan)
}
