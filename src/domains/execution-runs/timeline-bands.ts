import { z } from 'zod'
import { sql, type Db } from '../../db/sql.ts'
import { invalid } from '../../refusal.ts'
import { infrastructureCategories, type TimelineInput } from './timeline.ts'

const Header = z.object({
  id: z.string(),
  schedulePlanId: z.string(),
  status: z.string(),
  mode: z.string(),
  title: z.string().optional(),
  makespanSeconds: z.number(),
  cost: z.number(),
  startedAt: z.number().optional(),
  acceptedAt: z.number(),
  wallSeconds: z.number().optional(),
  origin: z.number().optional(),
})
const Bar = z.object({
  activityId: z.string(),
  name: z.string(),
  type: z.string(),
  lane: z.string(),
  resource: z.string(),
  readyAt: z.number().optional(),
  queuedAt: z.number().optional(),
  startAt: z.number(),
  finishAt: z.number(),
  status: z.string().optional(),
  attempt: z.number().optional(),
  cost: z.number(),
  transferSeconds: z.number(),
  overheadSeconds: z.number(),
  preparedAt: z.number().optional(),
  preparationSeconds: z.number().optional(),
})

const header = (db: Db, runId: string) =>
  db.maybe(
    Header,
    sql`select r.id, r.schedule_plan_id, r.status, r.mode, r.title, r.makespan_seconds, r.cost, extract(epoch
      from r.started_at)::float8 as started_at, extract(epoch from r.created_at)::float8 as accepted_at,
      extract(epoch from coalesce(r.finished_at, clock_timestamp()) - r.started_at)::float8 as wall_seconds,
      case when r.mode = 'simulation' then 0 else extract(epoch from r.started_at)::float8 end as origin
    from execution_runs r where r.id = ${runId}`,
  )

/** Attempts of a run as bars, in seconds from its start. A running attempt ends now. */
const attempts = (db: Db, runId: string, origin: number) =>
  db.many(
    Bar,
    sql`select t.activity_id, t.external_id as name, d.activity_type_id as type, coalesce(t.core_ids[1], '')
      || t.slot_id as lane, t.planned_resource_id as resource,
      t.ready_at - ${origin}::float8 as ready_at, t.queued_at - ${origin}::float8 as queued_at, t.started_at -
        ${origin}::float8 as start_at,
      greatest(coalesce(t.finished_at, extract(epoch from clock_timestamp())), t.started_at) -
        ${origin}::float8 as finish_at, t.status, t.attempt, t.cost, t.transfer_seconds, t.overhead_seconds,
      (t.metadata ->> 'preparationFinishedAt')::float8 - ${origin}::float8 as prepared_at,
      (t.metadata ->> 'preparationSeconds')::float8 as preparation_seconds
    from task_executions t join execution_runs r on r.id = t.execution_run_id
    join activity_definitions d on d.workflow_version_id = r.content_version_id and d.position = t.activity_position
    where t.execution_run_id = ${runId} and t.started_at is not null order by t.started_at, t.id`,
  )

const planned = (db: Db, runId: string) =>
  db.many(
    Bar,
    sql`select a.activity_id, d.external_id as name, d.activity_type_id as type, a.core_id || a.slot_id as
      lane, a.resource_id as resource, a.predicted_ready_at as ready_at,
      a.predicted_start_at as start_at, greatest(a.predicted_finish_at, a.predicted_start_at) as finish_at,
        a.predicted_cost as cost, a.predicted_transfer_seconds as transfer_seconds,
      greatest(0, a.predicted_finish_at - a.predicted_start_at - a.predicted_runtime_seconds) as overhead_seconds
    from execution_runs r join schedule_plan_assignments a on a.schedule_plan_id = r.schedule_plan_id
    join activity_definitions d on d.workflow_version_id = r.content_version_id and d.position = a.activity_position
    where r.id = ${runId} order by a.predicted_start_at, a.activity_position`,
  )

const Phase = z.object({
  operationId: z.string(),
  category: z.enum(infrastructureCategories),
  status: z.string(),
  from: z.number(),
  to: z.number(),
})

/** The steps of operations on the run's machines; a provisioning ends with the wait for a login. */
const phasesOfMachines = (db: Db, runId: string, origin: number) =>
  db.many(
    Phase,
    sql`with timed as (
        select o.id, o.kind, o.status, o.started_at, coalesce(o.finished_at, clock_timestamp()) as over_at,
          (select e.occurred_at from operation_events e where e.kind = 'cloud-operation' and e.operation_id = o.id
            and e.event_type = 'cloud.ssh.waiting' order by e.sequence limit 1) as login_at
        from cloud_operations o where o.execution_run_id = ${runId} and o.started_at is not null
          and o.kind in ('provision', 'start', 'stop', 'destroy') order by o.created_at limit 1000
      )
      select id as operation_id, 'infrastructure-' || kind as category, status,
        extract(epoch from started_at)::float8 - ${origin}::float8 as from,
        extract(epoch from coalesce(login_at, over_at))::float8 - ${origin}::float8 as to from timed
      union all
      select id, 'connection-validation', status, extract(epoch from login_at)::float8 - ${origin}::float8,
        extract(epoch from over_at)::float8 - ${origin}::float8 from timed where login_at is not null
      order by 4, 1`,
  )

/** Refuses a run that has no bars beside those of `run`. @throws Refusal 400 */
const assertBeside = (run: z.output<typeof Header>, other: z.output<typeof Header>): void => {
  const trouble =
    other.schedulePlanId !== run.schedulePlanId
      ? `is a run of plan ${other.schedulePlanId}; name one of ${run.schedulePlanId}`
      : other.mode === run.mode && other.id !== run.id
        ? `is a run in mode ${run.mode} too; name one in the other mode`
        : undefined
  if (trouble !== undefined)
    throw invalid(`with: ${other.id} ${trouble}`, [{ path: 'with', message: trouble }])
}

/**
 * The timeline of a run: the plan, the run itself, and, given another run of the plan (`withRun`),
 * that run. @throws Refusal 400 where that one is of another plan or of the same mode
 */
export const timelineOf = async (
  db: Db,
  runId: string,
  withRun: string | undefined,
): Promise<TimelineInput | undefined> => {
  const [run, other] = await Promise.all([
    header(db, runId),
    withRun === undefined ? undefined : header(db, withRun),
  ])
  if (run === undefined || (withRun !== undefined && other === undefined)) return undefined
  if (other !== undefined) assertBeside(run, other)
  const plannedBars = await planned(db, runId)
  const bands: TimelineInput['bands'] = plannedBars.some((bar) => bar.finishAt > 0)
    ? [{ label: 'planned', bars: plannedBars }]
    : []
  const runs = [run, ...(other === undefined ? [] : [other])].sort(
    (a, b) => Number(b.mode === 'simulation') - Number(a.mode === 'simulation'),
  )
  for (const shown of runs) {
    const label = shown.mode === 'simulation' ? ('simulated' as const) : ('measured' as const)
    if (bands.some((band) => band.label === label)) continue
    bands.push({ label, bars: await attempts(db, shown.id, shown.origin ?? 0) })
  }
  const infrastructure = run.mode === 'simulation' ? [] : await phasesOfMachines(db, runId, run.origin ?? 0)
  return {
    title: run.title ?? run.id,
    ...(infrastructure.length === 0 ? {} : { infrastructure }),
    run: {
      id: run.id,
      status: run.status,
      mode: run.mode,
      ...(run.mode === 'simulation' ? {} : { acceptedAt: run.acceptedAt }),
      ...(run.mode === 'simulation' || run.startedAt === undefined ? {} : { startedAt: run.startedAt }),
      ...(run.mode === 'simulation' || run.wallSeconds === undefined ? {} : { wallSeconds: run.wallSeconds }),
      makespanSeconds: run.makespanSeconds,
      cost: run.cost,
    },
    bands,
  }
}
