import { z } from 'zod'
import { eachInPages, type Turns } from '../../db/each-record.ts'
import { raw, sql, type Db } from '../../db/sql.ts'
import { EpochTime, Id, Paid } from '../../http/schema.ts'
import { secondsIn, type Span } from '../../spans.ts'
import { billingEndOf, billingGapsOf, computeSecondsOf, computeSpansOf } from '../cloud/billing.ts'
import { plannedLife, type CloudCost } from '../schedule-plans/lifecycle.ts'
import type { LifecycleAction } from '../schedule-plans/schemas.ts'
import { computeOf, sharesOf } from './machine-shares.ts'
import { windowMoney, windowsOf } from './windows.ts'

const Money = z.strictObject({
  seconds: z.number().describe('in which the machine runs'),
  diskSeconds: z.number().describe('in which the machine and its disk exist'),
  compute: Paid,
  disk: Paid,
  money: z.number().describe('compute + disk'),
})
type Money = z.output<typeof Money>

/** What a run paid for its machines, beside the cost in its plan. */
export const Receipt = z
  .strictObject({
    executionRunId: Id,
    currency: z.string().optional(),
    final: z.boolean().describe('all machines of the run are gone'),
    instances: z.array(
      z.strictObject({
        instanceId: Id,
        capacityTargetId: Id,
        status: z.string(),
        acquiredAt: EpochTime,
        releasedAt: EpochTime.optional(),
        releaseReason: z.string().optional(),
        planned: Money.nullable().describe('null: the plan does not have this machine'),
        actual: Money.nullable().describe('null: the provider never made it'),
      }),
    ),
    sum: z.strictObject({
      planned: Money.nullable().describe('null: known of no machine'),
      actual: Money.nullable().describe('null: known of no machine'),
    }),
    run: z
      .strictObject({
        planned: z.number().nullable().describe('null: the plan could not be predicted'),
        actual: Paid,
      })
      .describe('the cost of the run with all of its tasks, in units of currency'),
    warnings: z.array(z.string()),
  })
  .meta({ id: 'RunReceipt' })
export type Receipt = z.output<typeof Receipt>

const Spans = z.array(z.object({ from: z.number(), to: z.number() }))
const UseRow = z.object({
  runId: z.string(),
  ordinal: z.number(),
  targetId: z.string(),
  instanceId: z.string(),
  acquiredAt: z.number(),
  releasedAt: z.number().optional(),
  releaseReason: z.string().optional(),
  status: z.string(),
  gone: z.boolean(),
  madeAt: z.number().optional(),
  overAt: z.number().optional(),
  computeSeconds: z.number(),
  /** When its machine has run; present in uses of the run that is asked for. */
  computeSpans: Spans.optional(),
  /** When it had no machine; present alike. */
  billingGaps: Spans.optional(),
  pricePerSecond: z.number(),
  diskPricePerSecond: z.number(),
  now: z.number(),
})
type UseRow = z.output<typeof UseRow>

/** All uses of the instances that a run has used, by any run. */
const usesOf = (db: Db, runId: string): Promise<UseRow[]> =>
  db.many(
    UseRow,
    sql`select m.execution_run_id as run_id, m.ordinal, m.capacity_target_id as target_id, m.instance_id,
        extract(epoch from m.acquired_at)::double precision as acquired_at,
        extract(epoch from m.released_at)::double precision as released_at, m.release_reason,
        i.status, i.machine_gone as gone,
        extract(epoch from i.billing_started_at)::double precision as made_at,
        extract(epoch from ${raw(billingEndOf('i'))})::double precision as over_at,
        ${raw(computeSecondsOf('i'))} as compute_seconds,
        case when m.execution_run_id = ${runId} then ${raw(computeSpansOf('i'))} end as compute_spans,
        case when m.execution_run_id = ${runId} then ${raw(billingGapsOf('i'))} end as billing_gaps,
        i.compute_price_per_second as price_per_second, i.disk_price_per_second,
        extract(epoch from now())::double precision as now
      from run_machines m join cloud_instances i on i.id = m.instance_id
      where m.instance_id in (select instance_id from run_machines where execution_run_id = ${runId})
      order by m.acquired_at, m.ordinal limit 10000`,
  )

/** The share of a run in one instance; null where the provider never made it. `all`: as `usesOf`. */
const actualOf = (runId: string, instance: string, all: readonly UseRow[]): Money | null => {
  const uses = all.filter(({ instanceId }) => instanceId === instance)
  const one = uses.find((use) => use.runId === runId)
  if (one?.madeAt === undefined) return null
  const life = { from: one.madeAt, to: one.overAt ?? one.now }
  const own = sharesOf(
    life,
    uses.map((use) => ({ runId: use.runId, from: use.acquiredAt, to: use.releasedAt })),
  ).get(runId)
  if (own === undefined) return { seconds: 0, diskSeconds: 0, compute: 0, disk: 0, money: 0 }
  const ran = computeOf(life, one.computeSpans ?? [], one.computeSeconds)
  const ownIn = (spans: readonly Span[]): number => spans.reduce((sum, span) => sum + secondsIn(own, span), 0)
  const computed = ownIn(ran)
  const existed = ownIn([life]) - ownIn(one.billingGaps ?? [])
  const compute = computed * one.pricePerSecond
  const disk = existed * one.diskPricePerSecond
  return { seconds: computed, diskSeconds: existed, compute, disk, money: compute + disk }
}

const PlanRow = z.object({
  cost: z.number(),
  predicted: z.number().optional(),
  warned: z.array(z.string()),
  actions: z.array(z.custom<LifecycleAction>()).optional(),
  cloudCost: z.record(z.string(), z.custom<CloudCost>()).optional(),
})

/** The plan's facts about the machine of a target; null where the plan has none. */
const plannedOf = (plan: z.output<typeof PlanRow>, targetId: string): Money | null => {
  const cost = new Map(Object.entries(plan.cloudCost ?? {})).get(targetId)
  const life = plannedLife(plan.actions ?? [], targetId)
  const { askedAt, runsFrom, gone } = life
  if (cost === undefined || askedAt === undefined || runsFrom === undefined || gone === undefined) return null
  const over = gone.earliestStart + gone.expectedDuration
  const compute = cost.compute + cost.idle
  return {
    seconds: over - runsFrom - secondsIn(life.pauses, { from: runsFrom, to: over }),
    diskSeconds: over - askedAt,
    ...{ compute, disk: cost.disk, money: compute + cost.disk },
  }
}

const sumOf = (all: readonly (Money | null)[]): Money | null => {
  const known = all.filter((one) => one !== null)
  if (known.length === 0) return null
  const sum = { seconds: 0, diskSeconds: 0, compute: 0, disk: 0, money: 0 }
  for (const one of known) for (const key of Object.keys(sum) as (keyof Money)[]) sum[key] += one[key]
  return sum
}

/** The receipt of a run; undefined where there is no such run. */
export const readReceipt = async (
  db: Db,
  runId: string,
  currency: string | undefined,
): Promise<Receipt | undefined> => {
  const plan = await db.maybe(
    PlanRow,
    sql`select r.cost, case when p.prediction_failure is null then p.predicted_cost end as predicted,
        array(select w ->> 'path' || ' ' || (w ->> 'message') from jsonb_array_elements(coalesce(r.warnings, '[]')) w
          where w ->> 'path' = 'run.budget') as warned,
        p.lifecycle_actions as actions, p.metadata -> 'cloudCost' as cloud_cost
      from execution_runs r join schedule_plans p on p.id = r.schedule_plan_id where r.id = ${runId}`,
  )
  if (plan === undefined) return undefined
  const uses = await usesOf(db, runId)
  const own = uses.filter((use) => use.runId === runId)
  const reported = new Set<string>()
  const instances = own.map((use) => {
    // The plan has one machine of a target; what took its place was not planned.
    const isFirst = !reported.has(use.targetId)
    reported.add(use.targetId)
    return {
      ...{ instanceId: use.instanceId, capacityTargetId: use.targetId, status: use.status },
      ...{ acquiredAt: use.acquiredAt, releasedAt: use.releasedAt, releaseReason: use.releaseReason },
      planned: isFirst ? plannedOf(plan, use.targetId) : null,
      actual: actualOf(runId, use.instanceId, uses),
    }
  })
  const free = own.filter(({ pricePerSecond }) => pricePerSecond === 0).map(({ targetId }) => targetId)
  return {
    executionRunId: runId,
    ...(currency === undefined ? {} : { currency }),
    final: own.every(({ gone, status }) => gone || status === 'destroyed'),
    instances,
    sum: {
      planned: sumOf(instances.map(({ planned }) => planned)),
      actual: sumOf(instances.map(({ actual }) => actual)),
    },
    run: { planned: plan.predicted ?? null, actual: plan.cost },
    warnings: [
      ...plan.warned,
      ...new Set(
        free.map((id) => `neither the target ${id} nor its catalog has a price: its machines count 0`),
      ),
    ],
  }
}

/**
 * The money of a run's machines beside its tasks' own costs, so far: what they cost it, less the
 * windows that the tasks are charged for (with `whole` nothing less). 0 for a run without machines.
 */
export const cloudCostOf = async (
  db: Db,
  runId: string,
  { whole = false }: { whole?: boolean } = {},
): Promise<number> => {
  const used = await db.only(
    z.boolean(),
    sql`select exists (select from run_machines where execution_run_id = ${runId}) as used`,
  )
  if (!used) return 0
  const uses = await usesOf(db, runId)
  const instances = new Set(uses.filter((use) => use.runId === runId).map(({ instanceId }) => instanceId))
  let money = 0
  for (const id of instances) money += actualOf(runId, id, uses)?.money ?? 0
  if (whole) return money
  return money - windowMoney((await windowsOf(db, runId)).filter(({ onMachines }) => onMachines))
}

const SettledRow = z.object({ id: z.string() })

/**
 * Runs that ended before their machines did get their whole cost once the machines are gone.
 * One that cannot be settled waits for its next turn.
 */
export const settleCosts = async (
  db: Db,
  turns: Turns<{ id: string }>,
  signal?: AbortSignal,
): Promise<void> => {
  const due = (after: string, limit: number) =>
    db.many(
      SettledRow,
      sql`select distinct m.execution_run_id as id from run_machines m
      join execution_runs r on r.id = m.execution_run_id and r.status in ('completed', 'failed', 'cancelled')
      where not m.settled and not exists (
        select from run_machines o join cloud_instances i on i.id = o.instance_id
        where o.execution_run_id = m.execution_run_id
          and (o.released_at is null or not (i.machine_gone or i.status = 'destroyed')))
        and m.execution_run_id > ${after} order by 1 limit ${limit}`,
    )
  const settle = ({ id }: z.output<typeof SettledRow>): Promise<void> =>
    db.transaction(async (tx) => {
      const locked = await tx.maybe(
        SettledRow,
        sql`select id from execution_runs where id = ${id} and status in ('completed', 'failed', 'cancelled')
          for update skip locked`,
      )
      if (locked === undefined) return
      const cost = await cloudCostOf(tx, id)
      await tx.run(sql`update execution_runs set cost = cost - cloud_cost + ${cost}, cloud_cost = ${cost}
        where id = ${id}`)
      await tx.run(sql`update run_machines set settled = true where execution_run_id = ${id}`)
    })
  await eachInPages(turns, due, settle, signal)
}
