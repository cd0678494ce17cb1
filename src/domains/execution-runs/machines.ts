import { hash } from 'node:crypto'
import { z } from 'zod'
import { eachInPages, type Turns } from '../../db/each-record.ts'
import { sql, type Db, type Sql } from '../../db/sql.ts'
import type { Engine } from '../../engine.ts'
import { dispatchOperation } from '../../operations/routes.ts'
import { requestCancel } from '../../operations/records.ts'
import { storableJson } from '../../outside-text.ts'
import { Refusal } from '../../refusal.ts'
import { machineToStart } from './machine-start.ts'
import {
  acceptAction,
  addProvisioning,
  configurationFault,
  type AcceptParts,
  type ProvisioningParts,
} from '../cloud/accept.ts'
import { cloudKind } from '../cloud/operation.ts'
import { readTarget } from '../cloud/store.ts'
import type { CapacityTarget } from '../cloud/schemas.ts'

export interface MachineParts extends AcceptParts {
  engine: Pick<Engine, 'start' | 'cancel'>
}

const HeldRow = z.object({
  ordinal: z.number(),
  instanceId: z.string(),
  status: z.string(),
  gone: z.boolean(),
  reason: z.string().optional(),
  /** It took work of the run. */
  used: z.boolean(),
  connectionId: z.string(),
  provider: z.string(),
  region: z.string(),
  projectId: z.string().optional(),
  account: z.string().optional(),
  providerId: z.string().optional(),
  phase: z.string().optional(),
  /** It is being stopped, or was stopped, because the plan of the run says so. */
  rests: z.boolean(),
  /** It is being started. */
  wakes: z.boolean(),
})
/** The last operation of the instance `i`. */
const lastOperation = sql`(select o.kind, o.execution_run_id, o.status in ('queued', 'running') as is_open
  from cloud_operations o where o.instance_id = i.id order by o.created_at desc, o.id desc limit 1)`

/** The instance that a run uses for a target now. */
export type HeldMachine = z.output<typeof HeldRow>

export const heldMachine = (db: Db, runId: string, targetId: string): Promise<HeldMachine | undefined> =>
  db.maybe(
    HeldRow,
    sql`select m.ordinal, m.instance_id, i.status, i.machine_gone as gone, i.failure_reason as reason,
        m.ready_at is not null as used, i.connection_id, i.provider, i.region, i.project_id, i.account, i.provider_id,
        (select o.phase from cloud_operations o where o.instance_id = i.id
          and o.status in ('queued', 'running')) as phase,
        coalesce(l.kind = 'stop' and l.execution_run_id = m.execution_run_id
          and (l.is_open or i.status = 'stopped'), false) as rests,
        coalesce(l.kind = 'start' and l.is_open, false) as wakes
      from run_machines m join cloud_instances i on i.id = m.instance_id
      left join lateral ${lastOperation} l on true
      where m.execution_run_id = ${runId} and m.capacity_target_id = ${targetId} and m.released_at is null`,
  )

/** No work can be given to it any more; another instance takes its place. */
export const isOver = ({ gone, status, rests, wakes }: HeldMachine): boolean =>
  gone ||
  !(['provisioning', 'configuring', 'ready'].includes(status) || (status === 'stopped' && (rests || wakes)))

/** How many instances of the run's generation for a target have failed before they took work. */
export const failedMachines = (db: Db, runId: string, targetId: string): Promise<number> =>
  db.only(
    z.number(),
    sql`select count(*) as count from run_machines m join execution_runs r
        on r.id = m.execution_run_id and r.generation = m.generation where r.id = ${runId}
        and m.capacity_target_id = ${targetId} and m.release_reason = 'failed'`,
  )

/** Records that the instance takes work of the run from now on: no task waits for it any more. */
export const markUsed = async (db: Db, runId: string, targetId: string): Promise<void> => {
  await db.run(sql`update run_machines set ready_at = clock_timestamp() where execution_run_id = ${runId}
    and capacity_target_id = ${targetId} and released_at is null and ready_at is null`)
  await db.run(sql`update task_executions set metadata = nullif(metadata - 'queueReason' - 'waitsFor', '{}')
    where execution_run_id = ${runId} and latest and planned_resource_id = ${targetId}
      and handle_name is null and metadata ->> 'waitsFor' = 'machine'`)
}

const over = sql`('completed', 'failed', 'cancelled')`

/** Whether open tasks of two runs share a lane of the target. */
const lanesMeet = (runId: string, targetId: string): Sql => sql`exists (
  select from run_machines m
  join task_executions t on t.execution_run_id = m.execution_run_id and t.latest
    and t.planned_resource_id = ${targetId} and t.status not in ${over}
  join task_executions o on o.execution_run_id = ${runId} and o.latest
    and o.planned_resource_id = ${targetId} and o.status not in ${over} and o.slot_id = t.slot_id
    and (o.core_ids && t.core_ids or (o.core_ids = '{}' and t.core_ids = '{}'))
  where m.instance_id = i.id and m.released_at is null)`

/** An instance of the target that is there or on its way, and whose lanes the run can use. */
const sharedInstance = (tx: Db, runId: string, targetId: string) =>
  tx.value(
    z.string(),
    sql`select i.id from cloud_instances i where i.capacity_target_id = ${targetId} and not i.machine_gone
      and (i.status = 'ready' or (i.status in ('provisioning', 'configuring') and i.execution_run_id is not null))
      and not exists (select from cloud_operations o where o.instance_id = i.id
        and o.status in ('queued', 'running') and (o.kind in ('stop', 'destroy') or o.cancel_requested_at is not null))
      and not ${lanesMeet(runId, targetId)}
      order by i.status = 'ready' desc, i.created_at, i.id limit 1 for update of i`,
  )

/** Why no instance can be had now. */
const whoHasThem = async (tx: Db, { id, maximumInstances }: CapacityTarget): Promise<string> => {
  const users = await tx.values(
    z.string(),
    sql`select distinct m.execution_run_id as run_id from run_machines m
      where m.capacity_target_id = ${id} and m.released_at is null order by 1 limit 4`,
  )
  const named = users.slice(0, 3)
  const who =
    named.length === 0
      ? 'none of them can be used by a run'
      : `in use by run ${named.join(', ')}${users.length > 3 ? ' and others' : ''}`
  return `${id} has all of its ${String(maximumInstances)} instances: ${who}`
}

const RunRow = z.object({ effectKey: z.string(), generation: z.number(), ordinal: z.number() })

/** The same for the same run, target and ordinal at any time: the machine is never made twice. */
const nameOf = (effectKey: string, targetId: string, ordinal: number): string =>
  hash('sha256', JSON.stringify([effectKey, targetId, ordinal])).slice(0, 32)

const isFull = (error: unknown): boolean =>
  error instanceof Refusal && error.extra['state'] === 'maximum-instances'

/** Another instance for a run, or undefined where the target has its most. */
const provisionFor = async (
  tx: Db,
  parts: ProvisioningParts,
  runId: string,
  target: CapacityTarget,
  { effectKey, ordinal }: z.output<typeof RunRow>,
): Promise<{ instanceId: string; operationId: string } | undefined> => {
  const key = nameOf(effectKey, target.id, ordinal)
  const body = {
    capacityTargetId: target.id,
    name: `${target.name.slice(0, 200).toWellFormed()}-${key.slice(0, 8)}`,
    instanceId: `cloud-instance-${key}`,
  }
  try {
    const own = { ...parts, executionRunId: runId }
    const operationId = await addProvisioning(tx, own, target.environmentId, body)
    return { instanceId: body.instanceId, operationId }
  } catch (error) {
    if (isFull(error)) return undefined
    throw error
  }
}

/**
 * Gives a run an instance of a target: the one it has, a stopped one where its plan has a `start`,
 * one whose lanes are free, or another one up
 * to the target's `maximumInstances`. The record comes before the request to the provider.
 * @returns the reason for a wait where there is none now
 * @throws Refusal where the target can have none
 */
export const acquireMachine = async (
  parts: MachineParts,
  runId: string,
  targetId: string,
): Promise<{ waits: string } | undefined> => {
  const fault = await configurationFault(parts.db, targetId)
  const made = await parts.db.transaction(async (tx) => {
    const target = await readTarget(tx, targetId, true)
    if (target === undefined)
      throw new Refusal('missing', `the capacity target ${JSON.stringify(targetId)} is gone`)
    if ((await heldMachine(tx, runId, targetId)) !== undefined) return undefined
    const run = await tx.one(
      RunRow,
      sql`select r.effect_key, r.generation, 1 + coalesce((select max(ordinal) from run_machines m
          where m.execution_run_id = r.id and m.capacity_target_id = ${targetId}), 0)::integer as ordinal
        from execution_runs r where r.id = ${runId}`,
    )
    const stopped = await machineToStart(tx, runId, targetId)
    const shared = stopped ?? (await sharedInstance(tx, runId, targetId))
    const own =
      stopped !== undefined
        ? {
            instanceId: stopped,
            operationId: await acceptAction(tx, stopped, 'start', { executionRunId: runId }),
          }
        : shared === undefined
          ? await provisionFor(tx, { ...parts, fault }, runId, target, run)
          : undefined
    const instanceId = shared ?? own?.instanceId
    if (instanceId === undefined) return { waits: await whoHasThem(tx, target) }
    await tx.run(sql`insert into run_machines (execution_run_id, capacity_target_id, ordinal, instance_id,
        generation)
      values (${runId}, ${targetId}, ${run.ordinal}, ${instanceId}, ${run.generation})`)
    return { operationId: own?.operationId }
  })
  if (made === undefined) return undefined
  if ('waits' in made) return { waits: made.waits }
  if (made.operationId !== undefined)
    await dispatchOperation({ ...parts, kind: cloudKind }, { id: made.operationId, generation: 1 })
  return undefined
}

/**
 * Asks for the stop or the start of a run's machine of a target. A stop is asked for where no task
 * of the run can start there and no other run uses the machine.
 * @returns false where it is not asked for
 */
export const turnMachine = async (
  parts: Pick<MachineParts, 'db' | 'engine'>,
  runId: string,
  targetId: string,
  action: 'stop' | 'start',
): Promise<boolean> => {
  const ask = async (tx: Db): Promise<string | undefined> => {
    const held = await heldMachine(tx, runId, targetId)
    if (held === undefined || isOver(held)) return undefined
    // No other run takes it from here on.
    await tx.run(sql`select from cloud_instances where id = ${held.instanceId} for update`)
    if (action === 'stop') {
      const others = await tx.run(sql`select from run_machines where instance_id = ${held.instanceId}
        and released_at is null and execution_run_id <> ${runId}`)
      const { inFlight, ready } = await machineNeed(tx, runId, targetId)
      if (others > 0 || inFlight > 0 || ready > 0) return undefined
    }
    return acceptAction(tx, held.instanceId, action, { executionRunId: runId })
  }
  const id = await parts.db.transaction(ask).catch((error: unknown) => {
    // A person acts on the machine: the run sees what comes of that.
    if (error instanceof Refusal && error.code === 'conflict') return undefined
    throw error
  })
  if (id !== undefined) await dispatchOperation({ ...parts, kind: cloudKind }, { id, generation: 1 })
  return id !== undefined
}

/** The run uses its instance of the target no more; without a target: all of its instances. */
export const releaseMachines = async (
  db: Db,
  runId: string,
  { targetId, reason }: { targetId?: string; reason: string },
): Promise<void> => {
  await db.run(sql`update run_machines set released_at = clock_timestamp(), release_reason = ${reason}
    where execution_run_id = ${runId} and released_at is null
      and (${targetId ?? null}::text is null or capacity_target_id = ${targetId ?? null})`)
}

/** Whether an instance of the target ends with the last task that is planned there. */
export const endsWithTasks = async (db: Db, targetId: string): Promise<boolean> =>
  ((await readTarget(db, targetId))?.lifecyclePolicy ?? '') === 'destroy-after-execution'

const UnusedRow = z.object({
  id: z.string(),
  runId: z.string().optional(),
  operationId: z.string().optional(),
})

/** Seconds for which a machine that is kept stays without use. */
const idleSeconds = 900
/** After a destroy that failed, the next is asked for this much later. */
const againSeconds = 30

/** When a run gave the instance `i` back last. */
const lastReleased = sql`(select max(m.released_at) from run_machines m where m.instance_id = i.id)`
/** Seconds for which a machine of the target `t` stays without use. */
const targetIdle = sql`coalesce(jsonb_path_query_first(t.configuration,
  '$.idleSeconds ? (@ >= 0 && @ <= 31536000)')::double precision, ${idleSeconds})`
/**
 * Whether a time lies within so many seconds before now. A time that is yet to come does not: the
 * clock was set back, and a machine without use would cost money until that time has passed again.
 */
const isWithin = (at: Sql, seconds: Sql): Sql =>
  sql`coalesce(${at} between clock_timestamp() - make_interval(secs => ${seconds}) and clock_timestamp(), false)`
/** Whether an operation of the instance `i`, other than its end, has ended within its idle time. */
const wasOperated = sql`exists (select from cloud_operations o where o.instance_id = i.id and o.kind <> 'destroy'
  and ${isWithin(sql`o.finished_at`, targetIdle)})`
/** A machine that can be used again, as it is or after a start or a configuration. */
const isUsable = sql`(i.status = 'ready' or i.status = 'stopped' and i.failure_reason is null
  or i.status = 'failed' and i.ready_at is not null)`

/** No run uses the instance `i`. */
export const unusedByRuns = sql`not exists (select from run_machines m
  where m.instance_id = i.id and m.released_at is null)`

/**
 * Instances that were made for runs and that no run uses. Under `keep` they stay for the idle time
 * after their last use or operation, also where a person has stopped them. A machine that its
 * provider has stopped does not stay: the run that lost it may need its place. `operation_id`: it
 * is being made.
 */
const unusedInstances = (db: Db, after: string, limit: number) =>
  db.many(
    UnusedRow,
    sql`select i.id, i.execution_run_id as run_id,
        (select o.id from cloud_operations o where o.instance_id = i.id and o.status in ('queued', 'running')
          and o.kind = 'provision' and o.cancel_requested_at is null) as operation_id
      from cloud_instances i join cloud_capacity_targets t on t.id = i.capacity_target_id
      where i.execution_run_id is not null and not i.machine_gone and i.status <> 'destroyed' and ${unusedByRuns}
        and not exists (select from cloud_operations o where o.instance_id = i.id
          and (o.status in ('queued', 'running') and (o.kind <> 'provision' or o.cancel_requested_at is not null)
            or o.kind = 'destroy' and o.status in ('failed', 'cancelled')
              and ${isWithin(sql`o.finished_at`, sql`${againSeconds}::double precision`)}))
        and not (t.lifecycle_policy = 'keep' and ${isUsable}
          and (${isWithin(lastReleased, targetIdle)} or ${wasOperated}))
        and i.id > ${after} order by i.id limit ${limit}`,
  )

/**
 * Instances that users made, that never became ready or failed, and that no user has configured or
 * ended within the idle time of their target. Their machines may exist and cost money. An instance
 * that was ready before its last start or stop failed is excluded: its disk may hold data of its
 * user. A repeated provisioning counts as a start.
 */
const forgottenInstances = (db: Db, after: string, limit: number) =>
  db.many(
    UnusedRow,
    sql`select i.id from cloud_instances i join cloud_capacity_targets t on t.id = i.capacity_target_id
      where i.execution_run_id is null and i.status not in ('ready', 'stopped', 'destroyed')
        and not i.machine_gone and ${unusedByRuns}
        and not (i.ready_at is not null
          and exists (select from ${lastOperation} l where l.kind in ('start', 'stop', 'provision')))
        and not exists (select from cloud_operations o where o.instance_id = i.id
          and (o.status in ('queued', 'running') or ${isWithin(sql`o.finished_at`, targetIdle)}))
        and i.id > ${after} order by i.id limit ${limit}`,
  )

/** Instances of people that a run has started, and that no run uses: they are stopped again. */
const borrowedInstances = (db: Db, after: string, limit: number) =>
  db.many(
    UnusedRow,
    sql`select i.id from cloud_instances i where i.execution_run_id is null and i.status = 'ready'
      and not i.machine_gone and ${unusedByRuns}
      and exists (select from ${lastOperation} l where l.kind = 'start' and l.execution_run_id is not null)
      and not exists (select from cloud_operations o where o.instance_id = i.id and o.status in ('queued', 'running'))
      and i.id > ${after} order by i.id limit ${limit}`,
  )

/**
 * Whether a machine lives, a run has one whose cost is not settled, or a run with a budget to watch is open. Where
 * none is so, no round over machines and budgets finds anything.
 */
export const anyToKeep = (db: Db): Promise<boolean> =>
  db.only(
    z.boolean(),
    sql`select exists (select from cloud_instances where not machine_gone and status <> 'destroyed')
      or exists (select from run_machines where not settled)
      or exists (select from execution_runs where on_budget in ('ask', 'stop') and status in ('created', 'running'))
      as any`,
  )

/** Locks the instance; undefined where a run has taken it meanwhile. */
const stillUnused = (tx: Db, id: string) =>
  tx.value(
    z.string(),
    sql`select i.id from cloud_instances i where i.id = ${id} and not i.machine_gone and ${unusedByRuns}
      for update skip locked`,
  )

/** Asks for the end, or the stop, of one unused instance. @returns the operation to start or to cancel */
const endUnused = (
  db: Db,
  { id, runId, operationId }: z.output<typeof UnusedRow>,
  action: 'stop' | 'destroy',
) =>
  db.transaction(async (tx) => {
    if ((await stillUnused(tx, id)) === undefined) return undefined
    if (operationId === undefined)
      return { start: await acceptAction(tx, id, action, { executionRunId: runId }) }
    const by = { actorId: 'service', reason: 'no run needs the machine any more' }
    const found = await requestCancel(tx, cloudKind, { id: operationId }, by)
    return found?.status === 'running' ? { cancel: operationId } : undefined
  })

/**
 * Ends what runs have left: machines of runs that are over, and idle ones whose time has come; and
 * machines that failed long ago. Stops those of people that runs have started. Any number of
 * processes may do so at once. One whose end cannot be asked for waits for its next turn.
 * @returns how many ends and stops were asked for
 */
export const endUnusedMachines = async (
  parts: Pick<MachineParts, 'db' | 'engine'>,
  turns: Turns<{ id: string }>,
  signal?: AbortSignal,
): Promise<number> => {
  const { db, engine } = parts
  await db.run(sql`update run_machines m set released_at = clock_timestamp(), release_reason = 'run-over'
    from execution_runs r where m.released_at is null and r.id = m.execution_run_id and r.status in ${over}`)
  let ended = 0
  const end = async (unused: z.output<typeof UnusedRow>, action: 'stop' | 'destroy'): Promise<void> => {
    const asked = await endUnused(db, unused, action)
    ended += asked === undefined ? 0 : 1
    if (asked?.start !== undefined)
      await dispatchOperation({ db, engine, kind: cloudKind }, { id: asked.start, generation: 1 })
    if (asked?.cancel !== undefined) await engine.cancel(cloudKind, asked.cancel, 1).catch(() => false)
  }
  for (const [list, action] of [
    [unusedInstances, 'destroy'],
    [forgottenInstances, 'destroy'],
    [borrowedInstances, 'stop'],
  ] as const)
    await eachInPages(
      turns,
      (after, limit) => list(db, after, limit),
      (one) => end(one, action),
      signal,
    )
  return ended
}

const NeedRow = z.object({
  status: z.string(),
  stopping: z.boolean(),
  paused: z.boolean(),
  open: z.number(),
  ready: z.number(),
  inFlight: z.number(),
})
/** What a run needs of a target now. */
export interface MachineNeed {
  /** Nothing more will start: the run is over, cancelled, or stops after a failure. */
  over: boolean
  paused: boolean
  /** Tasks at the target that are not over, and those of them whose predecessors are. */
  open: number
  ready: number
  /** Attempts whose end is not on record. */
  inFlight: number
}

/** Whether all predecessors of a task `t` of a run `r` have completed. */
const isReady = sql`not exists (
  select from activity_dependencies d join task_executions p on p.execution_run_id = r.id and p.latest
    and p.activity_position = d.depends_on_position
  where d.workflow_version_id = r.content_version_id and d.activity_position = t.activity_position
    and p.status <> 'completed')`

export const machineNeed = async (db: Db, runId: string, targetId: string): Promise<MachineNeed> => {
  const row = await db.one(
    NeedRow,
    sql`select r.status, r.paused,
        r.cancel_requested_at is not null or (r.on_failure = 'stop' and r.failed_activity_count > 0) as stopping,
        count(t.id) as open, count(t.id) filter (where t.handle_name is not null) as in_flight,
        count(t.id) filter (where ${isReady}) as ready
      from execution_runs r left join task_executions t on t.execution_run_id = r.id and t.latest
        and t.planned_resource_id = ${targetId} and t.status not in ${over}
      where r.id = ${runId} group by r.id`,
  )
  const { paused, open, ready, inFlight, status, stopping } = row
  return { over: status !== 'running' || stopping, paused, open, ready, inFlight }
}

/** Shows why tasks wait that could start if their machine were there; `markUsed` ends it. */
export const showMachineWait = async (
  db: Db,
  runId: string,
  targetId: string,
  reason: string,
): Promise<void> => {
  const facts = storableJson({ queueReason: reason, waitsFor: 'machine' })
  await db.run(sql`update task_executions t set metadata = coalesce(t.metadata, '{}') || ${facts}::jsonb
    from execution_runs r where r.id = ${runId} and t.execution_run_id = r.id and t.latest
      and t.planned_resource_id = ${targetId} and t.status not in ${over} and t.handle_name is null
      and t.metadata ->> 'queueReason' is distinct from ${reason} and ${isReady}`)
}
