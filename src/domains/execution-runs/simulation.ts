import { z } from 'zod'
import { sql, type Db } from '../../db/sql.ts'
import { durationSources } from '../../schedulers/problem.ts'
import type { Compute } from '../../compute/compute.ts'
import { networkModels } from '../../simulator/channel.ts'
import type { SimulationResult } from '../../simulator/simulate.ts'
import { versionsByIds } from '../environments/store.ts'
import { planAssignments } from '../schedule-plans/store.ts'
import {
  availability,
  lifecycleOf,
  withOverheads,
  type MachineSetups,
  type TaskOverheads,
} from '../schedule-plans/lifecycle.ts'
import type { LifecycleAction } from '../schedule-plans/schemas.ts'
import { networkModelOf, overflow } from '../schedule-plans/prediction.ts'
import {
  placementOf,
  plannedRuntime,
  problemOf,
  type PlannedLink,
  type PlannedProfile,
  type PlannedResource,
} from '../schedule-plans/problem.ts'
import { plannedGraph } from '../schedule-plans/graph.ts'
import type { TransferRoute } from '../../executor/journal.ts'
import { dataTransferId } from '../../executor/names.ts'
import type { RecordRef } from '../../operations/kind.ts'
import { idOfRun } from './operation.ts'

const Accepted = z.object({
  schedulePlanId: z.string(),
  lifecycleActions: z.array(z.custom<LifecycleAction>()).optional(),
  overheads: z.custom<TaskOverheads>().optional(),
  setups: z.custom<MachineSetups>().optional(),
  contentVersionId: z.string(),
  status: z.string(),
  generation: z.number(),
  networkModel: z.enum(networkModels).optional(),
  resources: z.array(z.custom<PlannedResource>()),
  networkTopology: z.looseObject({ links: z.array(z.custom<PlannedLink>()) }).optional(),
  activityProfiles: z.array(z.custom<PlannedProfile>()),
  executionScope: z.looseObject({ environmentVersionIds: z.array(z.string()) }),
})

/**
 * Plays a run's plan in the built-in simulator and records tasks, transfers and events as an
 * execution would, in simulated seconds from 0. It uses the network model chosen at the run's
 * acceptance. One transaction, so a crash leaves the run unchanged; a second call on a recorded run
 * changes nothing.
 */
export const playRun = async (
  db: Db,
  compute: Compute,
  of: RecordRef,
  signal: AbortSignal,
): Promise<void> => {
  const accepted = await db.maybe(
    Accepted,
    sql`select r.schedule_plan_id, p.lifecycle_actions,
      p.metadata -> 'taskOverheadSeconds' as overheads, p.metadata -> 'machineSetupSeconds' as setups,
      r.content_version_id, r.status, r.generation,
      r.network_model, s.resources, s.network_topology, s.activity_profiles, s.execution_scope
      from execution_runs r join run_snapshots s on s.execution_run_id = r.id
      join schedule_plans p on p.id = r.schedule_plan_id where r.id = ${idOfRun(of)}`,
  )
  if (accepted?.status !== 'running') return
  const [graph, tasks, versions] = await Promise.all([
    plannedGraph(db, accepted.contentVersionId),
    planAssignments(db, accepted.schedulePlanId),
    versionsByIds(db, accepted.executionScope.environmentVersionIds),
  ])
  const problem = problemOf({
    graph,
    resources: withOverheads(accepted.resources, accepted.overheads ?? {}),
    versions,
    profiles: accepted.activityProfiles,
    links: accepted.networkTopology?.links,
    runtimes: tasks.map(plannedRuntime),
    availability: availability(
      accepted.resources,
      new Map(),
      accepted.lifecycleActions,
      accepted.setups ?? {},
    ),
  })
  const placed = placementOf(problem, tasks)
  const model = networkModelOf(accepted.networkModel, versions)
  const played = await compute.simulate({ problem, placed, model }, { signal })
  const beyond = played.state === 'completed' ? overflow(problem, placed, played) : undefined
  const result: SimulationResult = beyond === undefined ? played : { state: 'failed', reason: beyond }
  const sources = problem.activities.map(
    (_, i) =>
      durationSources[
        problem.durationSource[i * problem.resources.length + (placed[i]?.resource ?? 0)] as number
      ] as string,
  )
  const cloudCost =
    result.state === 'failed'
      ? 0
      : lifecycleOf(accepted.schedulePlanId, {
          ...{ resources: accepted.resources, measured: new Map(), actions: accepted.lifecycleActions },
          tasks: result.tasks.map(({ startedAt, finishedAt }, i) => ({
            ...{ resourceId: tasks[i]!.resourceId, startAt: startedAt, finishAt: finishedAt },
          })),
        }).cost
  await record(
    db,
    { of, cloudCost },
    result,
    tasks.map((task) => task.activityId),
    tasks.map((task) => task.resourceId),
    sources,
  )
}

const simulatedStrategy = 'direct-runtime'

const ProgressRow = z.object({
  status: z.string(),
  sequence: z.number(),
  done: z.boolean(),
  cancelled: z.boolean(),
})

const record = (
  db: Db,
  { of, cloudCost }: { of: RecordRef; cloudCost: number },
  result: SimulationResult,
  activityIds: string[],
  resourceIds: string[],
  sources: string[],
): Promise<void> =>
  db.transaction(async (tx) => {
    const runId = of.id
    const run = await tx.maybe(
      ProgressRow,
      sql`select status, last_event_sequence as sequence, completed_activity_count > 0
        or failure_reason is not null as done, cancel_requested_at is not null as cancelled
        from execution_runs where id = ${idOfRun(of)} for update`,
    )
    if (run?.status !== 'running' || run.done || run.cancelled) return
    if (result.state === 'failed') {
      await tx.run(sql`update execution_runs set failure_reason = ${result.reason} where id = ${runId}`)
      return
    }
    const { tasks, transfers } = result
    const positions = tasks.map((task) => task.activity)
    const routeOf = ({ links, producer, consumer }: (typeof transfers)[number]): TransferRoute => ({
      ...{ links, strategy: simulatedStrategy, reason: 'simulated: the fastest route for its size' },
      from: resourceIds[producer] as string,
      to: resourceIds[consumer] as string,
    })
    const column = <Name extends keyof (typeof tasks)[number]>(name: Name) => tasks.map((task) => task[name])
    await tx.run(sql`update task_executions t set status = 'completed', allocated_resource_id =
      t.planned_resource_id, ready_at = g.ready_at, data_ready_at = g.data_ready_at,
        queued_at = g.data_ready_at, started_at = g.started_at, finished_at = g.finished_at, runtime_seconds =
          g.runtime, queue_seconds = g.queue, transfer_seconds = g.transfer,
        transfer_bytes = g.bytes, interference_seconds = g.interference, overhead_seconds = g.overhead, cost =
          g.cost, duration_source = g.source, measured_by = 'simulated'
      from unnest(${positions}::int[], ${column('readyAt')}::float8[], ${column('dataReadyAt')}::float8[],
        ${column('startedAt')}::float8[], ${column('finishedAt')}::float8[],
        ${column('runtimeSeconds')}::float8[], ${column('queueSeconds')}::float8[],
          ${column('transferSeconds')}::float8[], ${column('transferBytes')}::bigint[],
        ${column('interferenceSeconds')}::float8[], ${column('overheadSeconds')}::float8[],
          ${column('cost')}::float8[], ${positions.map((i) => sources[i])}::text[])
        as g (position, ready_at, data_ready_at, started_at, finished_at, runtime, queue, transfer, bytes,
          interference, overhead, cost, source)
      where t.execution_run_id = ${runId} and t.activity_position = g.position and t.latest`)
    if (transfers.length > 0) {
      const idOf = ({ producer, consumer }: (typeof transfers)[number]): string =>
        dataTransferId(runId, activityIds[producer] as string, activityIds[consumer] as string)
      await tx.run(sql`insert into data_transfer_observations (id, execution_run_id, producer_activity_id,
        consumer_activity_id, source_resource_id, target_resource_id, bytes,
          network_bytes, strategy, route, started_at, finished_at, duration_seconds, cost)
        select g.id, ${runId}, g.producer, g.consumer, g.source, g.target, g.bytes, g.bytes,
          ${simulatedStrategy}, g.route, g.started_at, g.finished_at,
          g.finished_at - g.started_at, g.cost
        from unnest(${transfers.map(idOf)}::text[],
          ${transfers.map((t) => activityIds[t.producer])}::text[],
            ${transfers.map((t) => activityIds[t.consumer])}::text[],
          ${transfers.map((t) => resourceIds[t.producer])}::text[],
            ${transfers.map((t) => resourceIds[t.consumer])}::text[], ${transfers.map((t) => t.bytes)}::bigint[],
          ${transfers.map((t) => JSON.stringify(routeOf(t)))}::jsonb[],
            ${transfers.map((t) => t.startedAt)}::float8[], ${transfers.map((t) => t.finishedAt)}::float8[],
          ${transfers.map((t) => t.cost)}::float8[]) as g (id, producer, consumer, source, target, bytes,
            route, started_at, finished_at, cost)`)
    }
    // In simulated order. At one instant tasks end before others start, and one without a duration
    // does both in its turn.
    await tx.run(sql`insert into operation_events (kind, operation_id, sequence, event_type, aggregate_type,
      aggregate_id, payload)
      select 'execution-run', ${runId}, ${run.sequence} + row_number() over (order by e.at, e.turn,
        e.position, e.kind), e.type, 'activity_execution', e.id,
        jsonb_build_object('activityId', e.activity_id, 'at', e.at)
      from (select t.id, t.activity_id, t.activity_position as position, t.started_at as at,
          case when t.finished_at > t.started_at then 2 else 1 end as turn, 1 as kind, 'activity.started' as type
        from task_executions t where t.execution_run_id = ${runId} and t.latest
        union all select t.id, t.activity_id, t.activity_position, t.finished_at,
          case when t.finished_at > t.started_at then 0 else 1 end, 2, 'activity.completed'
        from task_executions t where t.execution_run_id = ${runId} and t.latest) e`)
    await tx.run(sql`update execution_runs set completed_activity_count = ${tasks.length}, cost =
      ${result.cost + cloudCost}, cloud_cost = ${cloudCost},
      last_event_sequence = last_event_sequence + ${2 * tasks.length},
      defaulted_durations = ${positions.filter((i) => sources[i] === 'default').length} where id = ${runId}`)
  })
