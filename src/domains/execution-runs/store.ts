import { z } from 'zod'
import { fields, jsonObject, time } from '../../db/projection.ts'
import { countUpTo } from '../../db/rows.ts'
import { raw, sql, where, type Db, type Sql } from '../../db/sql.ts'
import { countBound } from '../../http/paging.ts'
import { unacceptable, type Problem } from '../../refusal.ts'
import { intentName, taskExecutionId } from '../../executor/names.ts'
import { version } from '../../version.ts'
import { recordRunEnd, recordRunStart } from './audit.ts'
import { ExecutionRun, runStates } from './schemas.ts'
import { chargeWindows } from './windows.ts'
import { liveCounts } from './waiting.ts'

/** The ExecutionRun projection of a row `r`, as JSON made by the server: a read is one round trip and no object per row here. */
const runJson = jsonObject({
  ...fields(
    'r',
    `id schedulePlanId mode seed status kind title actorId environmentSnapshotId networkModel simulator onFailure generation
     activityCount completedActivityCount failedActivityCount makespanSeconds cost`,
  ),
  breakdown: jsonObject(fields('r', 'computeSeconds transferSeconds queueSeconds interferenceSeconds overheadSeconds')),
  ...fields('r', 'transferredBytes defaultedDurations'),
  warnings: "coalesce(r.warnings, '[]')",
  ...fields('r', 'failureReason paused'),
  cancelRequestedAt: time('r.cancel_requested_at'),
  createdAt: time('r.created_at'),
  startedAt: time('r.started_at'),
  finishedAt: time('r.finished_at'),
})

const taskJson = jsonObject({
  ...fields(
    't',
    `id executionRunId planAssignmentId activityId externalId plannedResourceId allocatedResourceId runtimeId connectionId site
     attempt status readyAt dataReadyAt queuedAt startedAt finishedAt runtimeSeconds queueSeconds siteQueueSeconds transferSeconds
     transferBytes interferenceSeconds overheadSeconds cost cpuSeconds peakMemoryBytes measuredBy durationSource exitCode
     failureClass failureReason`,
  ),
  coreIds: 'to_json(t.core_ids)',
  ...fields('t', 'slotId orderOnResource'),
  runtimeReason: `case when t.attempt = 1 then t.runtime_reason else (select f.runtime_reason from task_executions f
    where f.execution_run_id = t.execution_run_id and f.activity_position = t.activity_position and f.attempt = 1) end`,
  metadata: 't.metadata',
})

const transferJson = jsonObject({
  ...fields(
    'd',
    `id executionRunId producerActivityId consumerActivityId sourceResourceId targetResourceId bytes status startedAt finishedAt
     durationSeconds cost strategy route`,
  ),
  logicalBytes: 'd.bytes',
  ...fields('d', 'networkBytes filesTransferred'),
})

const handleJson = jsonObject({
  id: 't.id',
  runId: 't.execution_run_id',
  activityId: 't.activity_id',
  resourceId: 't.planned_resource_id',
  runtimeId: 't.runtime_id',
  name: 't.handle_name',
  externalId: 't.external_id_at_site',
  startedAt: 't.handle_started_at',
  finishedAt: 't.finished_at',
  exitCode: 't.exit_code',
  failure: 't.failure_reason',
  status: `case t.status when 'preparing' then 'starting' when 'queued' then 'starting' when 'running' then 'running'
    when 'completed' then 'completed' when 'failed' then 'failed' else 'stopped' end`,
  artifacts: 't.artifacts',
  metadata: "json_build_object('hostId', t.host_id)",
})

const eventJson = jsonObject({
  id: 'e.sequence::text',
  ...fields('e', 'sequence eventType aggregateType aggregateId payload'),
  occurredAt: time('e.occurred_at'),
})

const outputJson = jsonObject(
  fields('o', 'id dataObjectId executionRunId producerActivityId attempt relativePath sizeBytes checksum mediaType discovered'),
)

const locationJson = jsonObject(fields('l', 'id dataObjectInstanceId resourceId executionRunId uri status'))

/** Above this many activities the detail carries counts and no arrays; the paged reads hold them. Of files it has as many. */
const detailLimit = 10_000
/** Events in a detail, from the first one on, as in the paged read that holds the others. */
const detailEvents = 1_000

const small = `r.activity_count <= ${String(detailLimit)}`
/** SQL: a list of every row below the limit of activities, above it `<name>Total`. `condition` must hold for the rows of `from`. */
const listOrTotal = (name: string, from: string, condition: string, json: string, order: string): string =>
  `case when ${small} then ',"${name}":' || (select coalesce(json_agg(${json} order by ${order}), '[]')::text from ${from} where ${condition})
    else ',"${name}Total":' || (select count(*) from ${from} where ${condition}) end`
/** SQL: the first `limit` rows, with `<name>Truncated` and `<name>Total` where there are more. */
const listBegin = (name: string, from: string, condition: string, json: string, order: string, limit: number): string => {
  const alias = from.slice(from.lastIndexOf(' ') + 1)
  return `',"${name}":' || (select coalesce(json_agg(${json} order by ${order}), '[]')::text
      from (select * from ${from} where ${condition} order by ${order} limit ${String(limit)}) ${alias})
    || case when ${more(from, condition, limit)} then ',"${name}Truncated":true,"${name}Total":' || (select count(*) from ${from} where ${condition}) else '' end`
}
const more = (from: string, condition: string, limit: number): string =>
  `exists (select from ${from} where ${condition} offset ${String(limit)})`

const eventsOf = ['run_events e', 'e.execution_run_id = r.id'] as const
const objectsOf = ['data_object_instances o', 'o.execution_run_id = r.id'] as const
const locationsOf = ['data_locations l', 'l.execution_run_id = r.id'] as const
const cut = [`not (${small})`, more(...eventsOf, detailEvents), more(...objectsOf, detailLimit), more(...locationsOf, detailLimit)]

const detailText = `select '{"run":' || (${runJson})::text
  || ${listOrTotal('activities', 'task_executions t', 't.execution_run_id = r.id and (t.latest or $2)', taskJson, 't.activity_position, t.attempt')}
  || ${listOrTotal('dataTransfers', 'data_transfer_observations d', 'd.execution_run_id = r.id', transferJson, 'd.started_at, d.id')}
  || ${listOrTotal('handles', 'task_executions t', 't.execution_run_id = r.id and t.handle_name is not null', handleJson, 't.handle_started_at, t.id')}
  || ${listBegin('events', ...eventsOf, eventJson, 'e.sequence', detailEvents)}
  || ${listBegin('dataObjects', ...objectsOf, outputJson, 'o.id', detailLimit)}
  || ${listBegin('dataLocations', ...locationsOf, locationJson, 'l.id', detailLimit)}
  || ',"artifactMaterializations":[],"artifactTransferRuns":[]}' as body, r.status, r.generation, ${cut.join(' or ')} as cut,
  case when r.status in ('created', 'running') then ${liveCounts} end as live
  from execution_runs r where r.id = $1`

/** What an open run counts, read with its record. */
export interface LiveCounts {
  completed: number
  sites: { site: string; completed: number; running: number }[]
  waitsFor: { site: string; reason: string; activities: number; since?: number }[]
}

interface RunDetailText {
  body: string
  status: string
  generation: number
  cut: boolean
  /** Of an open run. */
  live: LiveCounts | null
}

/** The whole detail as JSON text, or undefined; `cut` where one of its lists is not whole. */
export const readRunDetail = async (db: Db, runId: string, allAttempts: boolean): Promise<RunDetailText | undefined> => {
  const [row] = await db.prepared<RunDetailText>('run_detail', detailText, [runId, allAttempts])
  return row
}

const Json = <T extends z.ZodType>(schema: T) => z.object({ body: schema })

/** One run without its parts. */
export const readRun = async (db: Db, runId: string): Promise<ExecutionRun | undefined> =>
  (await db.maybe(Json(ExecutionRun), sql`select ${raw(runJson)} as body from execution_runs r where r.id = ${runId}`))?.body

export interface RunFilter {
  kind?: string | undefined
  mode?: string | undefined
  status?: string | undefined
}

/** One more row than the page, newest first, and the number of all (counted to 10,001). */
export const listRuns = async (
  db: Db,
  filter: RunFilter,
  limit: number,
  offset: number,
): Promise<{ rows: { run: ExecutionRun }[]; total: number }> => {
  const condition = where(
    filter.kind === undefined ? undefined : sql`r.kind = ${filter.kind}`,
    filter.mode === undefined ? undefined : sql`r.mode = ${filter.mode}`,
    filter.status === undefined ? undefined : sql`r.status = ${filter.status}`,
  )
  const order = raw('coalesce(r.started_at, r.created_at) desc, r.id desc')
  const rows = await db.many(
    Json(ExecutionRun),
    sql`select ${raw(runJson)} as body from (select r.* from execution_runs r ${condition} order by ${order} limit ${limit} offset ${offset}) r order by ${order}`,
  )
  const total = await countUpTo(db, sql`execution_runs r ${condition}`, countBound)
  return { rows: rows.map(({ body }) => ({ run: body })), total }
}

const Row = z.record(z.string(), z.unknown())
const parts = {
  activities: { json: taskJson, from: 'task_executions t', of: 't.execution_run_id', order: 't.activity_position, t.attempt' },
  'data-transfers': { json: transferJson, from: 'data_transfer_observations d', of: 'd.execution_run_id', order: 'd.started_at, d.id' },
  handles: { json: handleJson, from: 'task_executions t', of: 't.execution_run_id', order: 't.handle_started_at, t.id' },
  events: { json: eventJson, from: 'run_events e', of: 'e.execution_run_id', order: 'e.sequence' },
  outputs: { json: outputJson, from: 'data_object_instances o', of: 'o.execution_run_id', order: 'o.relative_path, o.id' },
} as const
export type RunPart = keyof typeof parts

/** A page of one of a run's lists, one row more than asked for; `total` is counted to 10,001. */
export const listRunPart = async (
  db: Db,
  part: RunPart,
  runId: string,
  options: {
    limit: number
    offset: number
    attempts?: 'latest' | 'all'
    status?: string | undefined
    activityId?: string
    afterSequence?: number
  },
): Promise<{ rows: Record<string, unknown>[]; total: number }> => {
  const { json, from, of, order } = parts[part]
  const alias = from.slice(from.lastIndexOf(' ') + 1)
  const condition = where(
    sql`${raw(of)} = ${runId}`,
    part === 'activities' && options.attempts !== 'all' && raw('t.latest'),
    part === 'handles' && raw('t.handle_name is not null'),
    part === 'activities' && options.status !== undefined && sql`t.status = ${options.status}`,
    part === 'outputs' && options.activityId !== undefined && sql`o.producer_activity_id = ${options.activityId}`,
    part === 'events' && options.afterSequence !== undefined && sql`e.sequence > ${options.afterSequence}`,
  )
  // The page's rows first: next to `order by … limit` the server would make the document of every row of the run.
  const rows = await db.many(
    Json(Row),
    sql`select ${raw(json)} as body from (select ${raw(alias)}.* from ${raw(from)} ${condition} order by ${raw(order)} limit ${options.limit} offset ${options.offset}) ${raw(alias)} order by ${raw(order)}`,
  )
  const total = await countUpTo(db, sql`${raw(from)} ${condition}`, countBound)
  return { rows: rows.map(({ body }) => body), total }
}

const Attempt = z.object({
  id: z.string(),
  activityPosition: z.number(),
  activityId: z.string(),
  externalId: z.string(),
  attempt: z.number(),
  status: z.string(),
  resourceId: z.string(),
  runtimeId: z.string().optional(),
  name: z.string().optional(),
  hostId: z.string().optional(),
  directory: z.string().optional(),
})

const RankedAttempt = Attempt.extend({ rank: z.number() })

/**
 * An attempt of an activity with the handle of its effect: `attempt` given, else the latest. The activity by any form of its id: the exact
 * one, the one in the run's plan, the external id, or either of the last two with the workflow's id before it or without it.
 * @throws Refusal `unacceptable` where several activities have the given external id
 */
export const findAttempt = async (db: Db, runId: string, activityId: string, attempt: number | undefined) => {
  const positions = (condition: Sql) =>
    sql`array(select d.position from activity_definitions d where d.workflow_version_id = v.id and ${condition})`
  const [found, other] = await db.many(
    RankedAttempt,
    sql`select t.id, t.activity_position, t.activity_id, t.external_id, t.attempt, t.status, t.planned_resource_id as resource_id, t.runtime_id, t.handle_name as name, t.host_id, t.directory,
        case when t.activity_position = any(f.exact) then 0 when t.activity_id = ${activityId} then 1 when t.external_id = ${activityId} then 2 when t.activity_position = any(f.longer) then 3
          when t.activity_position = any(f.shorter) then 4 else 5 end as rank
      from execution_runs r join workflow_versions v on v.id = r.content_version_id
      cross join lateral (select case when starts_with(${activityId}, v.workflow_id || '-') then substr(${activityId}, length(v.workflow_id) + 2) end as short) s
      cross join lateral (select ${positions(sql`d.id = ${activityId}`)} as exact, ${positions(sql`d.id = v.workflow_id || '-' || ${activityId}`)} as longer,
        ${positions(sql`d.id = s.short`)} as shorter) f
      join task_executions t on t.execution_run_id = r.id
      where r.id = ${runId} and (t.activity_id = ${activityId} or t.external_id = ${activityId} or t.external_id = s.short or t.activity_position = any(f.exact || f.longer || f.shorter))
        and ${attempt === undefined ? raw('t.latest') : sql`t.attempt = ${attempt}`}
      order by rank, t.activity_position limit 2`,
  )
  if (found !== undefined && other?.rank === found.rank)
    throw unacceptable([
      { path: 'activityId', message: `${JSON.stringify(activityId)} names several activities by their externalId; give the activity's id` },
    ])
  return found
}

export interface NewRun {
  id: string
  schedulePlanId: string
  contentVersionId: string
  mode: string
  seed: number
  title: string | undefined
  actorId: string
  hostId: string
  networkModel: string | undefined
  warnings: readonly Problem[]
  /** As its plan counted. */
  defaultedDurations: number
  simulator: string | undefined
  onFailure: string
  snapshot: {
    resources: unknown
    runtimes: unknown
    runtimeBindings: unknown
    executionScope: unknown
    networkTopology: unknown
    activityProfiles: unknown
    storageMounts: unknown
    documentsHash: string
  }
  /** By position of the activity in the content version. */
  runtimeIds: readonly string[]
  /** Why a task has another runtime than is asked for, by position. */
  runtimeReasons: readonly (string | undefined)[]
  /** Where each task runs, by position; absent in a simulation. */
  places: readonly { site: string; connectionId?: string }[] | undefined
  /** Ids as the caller wrote them, by position. */
  activityIds: readonly string[]
}

/** The run, its tasks (from the plan's assignments, on the server) and its snapshot; the caller's transaction. */
export const insertRun = async (tx: Db, run: NewRun): Promise<void> => {
  await tx.run(sql`insert into execution_runs (id, schedule_plan_id, content_version_id, mode, seed, title, actor_id, host_id, network_model, warnings, defaulted_durations, simulator, on_failure, activity_count, service_version)
    values (${run.id}, ${run.schedulePlanId}, ${run.contentVersionId}, ${run.mode}, ${run.seed}, ${run.title ?? null}, ${run.actorId}, ${run.hostId}, ${run.networkModel ?? null},
      ${run.warnings.length === 0 ? null : JSON.stringify(run.warnings)}, ${run.defaultedDurations},
      ${run.simulator ?? null}, ${run.onFailure}, ${run.activityIds.length}, ${version})`)
  const { snapshot } = run
  const json = (value: unknown): string => JSON.stringify(value ?? null)
  await tx.run(sql`insert into run_snapshots (execution_run_id, resources, runtimes, runtime_bindings, execution_scope, network_topology, activity_profiles, storage_mounts, documents_hash)
    values (${run.id}, ${json(snapshot.resources)}, ${json(snapshot.runtimes)}, ${json(snapshot.runtimeBindings)}, ${json(snapshot.executionScope)},
      ${snapshot.networkTopology === undefined ? null : json(snapshot.networkTopology)}, ${json(snapshot.activityProfiles)}, ${json(snapshot.storageMounts)}, ${snapshot.documentsHash})`)
  await tx.run(sql`insert into task_executions (id, execution_run_id, activity_position, plan_assignment_id, activity_id, external_id, planned_resource_id, runtime_id, runtime_reason, site, connection_id, core_ids, slot_id, order_on_resource)
    select given.id, ${run.id}, a.activity_position, a.id, given.activity_id, d.external_id, a.resource_id, given.runtime_id, given.runtime_reason, given.site, given.connection_id,
      case when jsonb_typeof(a.metadata -> 'coreIds') = 'array' and a.metadata -> 'coreIds' <> '[]' then array(select jsonb_array_elements_text(a.metadata -> 'coreIds')) else array[a.core_id] end, a.slot_id, a.order_on_resource
    from unnest(${run.activityIds.map((activityId) => taskExecutionId(run.id, activityId, 1))}::text[], ${run.activityIds}::text[], ${run.runtimeIds}::text[], ${run.runtimeIds.map((_id, i) => run.runtimeReasons[i] ?? null)}::text[],
      ${run.activityIds.map((_id, i) => run.places?.[i]?.site ?? null)}::text[], ${run.activityIds.map((_id, i) => run.places?.[i]?.connectionId ?? null)}::text[]) with ordinality as given (id, activity_id, runtime_id, runtime_reason, site, connection_id, number)
    join schedule_plan_assignments a on a.schedule_plan_id = ${run.schedulePlanId} and a.activity_position = given.number - 1
    join activity_definitions d on d.workflow_version_id = ${run.contentVersionId} and d.position = a.activity_position`)
}

const RunGenerationRow = z.object({ id: z.string(), generation: z.number() })

/** Runs accepted (or opened again) while the engine was away, oldest first. */
export const undispatchedRuns = (db: Db, limit: number) =>
  db.many(
    RunGenerationRow,
    sql`select id, generation from execution_runs where dispatched_at is null and status in ('created', 'running') order by created_at, id limit ${limit}`,
  )

/** Runs that are open in the record and had a workflow, oldest first. */
export const openRuns = (db: Db, limit: number) =>
  db.many(
    RunGenerationRow,
    sql`select id, generation from execution_runs where status in ('created', 'running') and dispatched_at is not null order by created_at, id limit ${limit}`,
  )

/** Whether the run is open in this generation. */
export const isRunOpen = async (db: Db, id: string, generation: number): Promise<boolean> =>
  (await db.maybe(
    RunGenerationRow,
    sql`select id, generation from execution_runs where id = ${id} and generation = ${generation} and status in ('created', 'running')`,
  )) !== undefined

export const markRunDispatched = (db: Db, runId: string) =>
  db.run(sql`update execution_runs set dispatched_at = now() where id = ${runId} and dispatched_at is null`)

const Requested = z.object({
  id: z.string(),
  status: z.enum(runStates),
  generation: z.number(),
  dispatchedAt: z.string().optional(),
  cancelled: z.boolean(),
})

/**
 * Records the wish to cancel; a run that no workflow has opened yet is cancelled at once. Returns the state it is in afterwards;
 * undefined for an unknown run. From then on no effect starts: the executor sees the wish under the lock of the run's row.
 */
export const requestCancel = (
  db: Db,
  runId: string,
  /** Called in the transaction of the first request; false keeps the run as it is. */
  first: (tx: Db, run: z.output<typeof Requested>) => Promise<boolean> = () => Promise.resolve(true),
) =>
  db.transaction(async (tx) => {
    const run = await tx.maybe(
      Requested,
      sql`select id, status, generation, dispatched_at, cancel_requested_at is not null as cancelled from execution_runs where id = ${runId} for update`,
    )
    if (run === undefined || (run.status !== 'created' && run.status !== 'running')) return run
    if (!run.cancelled && !(await first(tx, run))) return run
    await tx.run(sql`update execution_runs set cancel_requested_at = coalesce(cancel_requested_at, now()) where id = ${runId}`)
    if (run.status === 'created') {
      await closeRun(tx, runId)
      return { ...run, status: 'cancelled' as const }
    }
    return run
  })

const Opened = z.object({
  status: z.enum(runStates),
  mode: z.string(),
  generation: z.number(),
  activityCount: z.number(),
  cancelRequestedAt: z.string().optional(),
})

/** created → running with its first event, once; a run asked to be cancelled before is closed instead. */
export const openRun = (db: Db, runId: string, generation: number) =>
  db.transaction(async (tx) => {
    const run = await tx.maybe(
      Opened,
      sql`select status, mode, generation, activity_count, cancel_requested_at from execution_runs where id = ${runId} for update`,
    )
    if (run === undefined || run.generation !== generation) return undefined
    if (run.status !== 'created') return run
    if (run.cancelRequestedAt !== undefined) {
      await closeRun(tx, runId)
      return { ...run, status: 'cancelled' as const }
    }
    await tx.run(
      sql`update execution_runs set status = 'running', started_at = clock_timestamp(), dispatched_at = coalesce(dispatched_at, now()) where id = ${runId}`,
    )
    await appendRunEvent(tx, runId, 'execution.run.started', { mode: run.mode, generation })
    await recordRunStart(tx, runId, generation)
    return { ...run, status: 'running' as const }
  })

/** The next event of a run, numbered under the lock of its row. */
export const appendRunEvent = (tx: Db, runId: string, type: string, payload: unknown) =>
  tx.run(sql`with numbered as (update execution_runs set last_event_sequence = last_event_sequence + 1 where id = ${runId} returning last_event_sequence)
    insert into run_events (execution_run_id, sequence, event_type, aggregate_type, aggregate_id, payload)
    select ${runId}, last_event_sequence, ${type}, 'execution_run', ${runId}, ${JSON.stringify(payload)}::jsonb from numbered`)

const AttemptRow = z.object({ activityPosition: z.number(), attempt: z.number() })

const EffectKeyRow = z.object({ effectKey: z.string() })

/**
 * Stops an open run that the engine cannot go on with: nothing starts any more, and the run will be closed as failed for `reason`.
 * Answers the names of what is still alive on this host.
 */
export const abandonRun = (db: Db, runId: string, hostId: string, reason: string): Promise<string[]> =>
  db.transaction(async (tx) => {
    await tx.run(
      sql`update execution_runs set failure_reason = coalesce(failure_reason, ${reason}), cancel_requested_at = coalesce(cancel_requested_at, now()) where id = ${runId} and status = 'running'`,
    )
    const { effectKey } = await tx.one(EffectKeyRow, sql`select effect_key from execution_runs where id = ${runId}`)
    // Also what waits in a site's queue, and what was intended ahead of its turn.
    const alive = await tx.many(
      AttemptRow,
      sql`select activity_position, attempt from task_executions
        where execution_run_id = ${runId} and host_id = ${hostId} and (handle_name is not null or ahead) and status not in ('completed', 'failed', 'cancelled')`,
    )
    return alive.map(({ activityPosition, attempt }) => intentName(effectKey, activityPosition, attempt))
  })

const Closed = z.object({ status: z.enum(runStates), completed: z.number() })

const RunEndRow = z.object({ status: z.enum(runStates), completed: z.number(), reason: z.string().optional() })
/** State of a run, how many of its activities completed, and why it failed. */
export type RunEnd = z.output<typeof RunEndRow>

export const readRunEnd = (db: Db, runId: string): Promise<RunEnd> =>
  db.one(
    RunEndRow,
    sql`select status, completed_activity_count as completed, failure_reason as reason from execution_runs where id = ${runId}`,
  )

const SettlementRow = z.object({
  status: z.enum(runStates),
  generation: z.number(),
  cancelled: z.boolean(),
  completed: z.number(),
  total: z.number(),
  mode: z.string(),
})

/**
 * Sums up and ends an open run, in the caller's transaction or one of its own: completed when all activities are, cancelled when that
 * was asked for, else failed. What never ran becomes cancelled; leases go. A run that is over already is only read,
 * and so is one that has been opened again since `generation`: this was not meant.
 */
export const closeRun = (db: Db, runId: string, generation?: number) =>
  db.transaction(async (tx) => {
    const run = await tx.one(
      SettlementRow,
      sql`select status, generation, cancel_requested_at is not null and failure_reason is null as cancelled, completed_activity_count as completed, activity_count as total, mode from execution_runs where id = ${runId} for update`,
    )
    const reopened = generation !== undefined && generation !== run.generation
    if (reopened || (run.status !== 'created' && run.status !== 'running')) return { status: run.status, completed: run.completed }
    const status = run.completed === run.total ? 'completed' : run.cancelled ? 'cancelled' : 'failed'
    // Among them intents that never took effect: recorded, then not given to their executor because the run was being cancelled.
    await tx.run(sql`update task_executions set status = 'cancelled', finished_at = case when handle_name is null then finished_at else extract(epoch from clock_timestamp()) end,
      failure_reason = coalesce(failure_reason, ${status === 'cancelled' ? 'the run was cancelled' : 'not run: the run failed before'})
      where execution_run_id = ${runId} and status not in ('completed', 'failed', 'cancelled')`)
    if (run.mode === 'real') await chargeWindows(tx, runId)
    await tx.run(sql`update execution_runs r set status = ${status}, finished_at = clock_timestamp(), makespan_seconds = s.makespan, cost = case when r.mode = 'simulation' then r.cost else s.cost end,
        compute_seconds = s.compute, transfer_seconds = s.transfer, queue_seconds = s.queue, interference_seconds = s.interference, overhead_seconds = s.overhead, transferred_bytes = s.bytes,
        failure_reason = coalesce(r.failure_reason, case when ${status} = 'failed' then s.reason when ${status} = 'cancelled' then 'cancelled on request' end)
      from (select coalesce(max(t.finished_at) - min(t.started_at), 0) as makespan, coalesce(sum(t.cost), 0) as cost, coalesce(sum(t.runtime_seconds), 0) as compute,
          coalesce(sum(t.transfer_seconds), 0) as transfer, coalesce(sum(t.queue_seconds), 0) as queue, coalesce(sum(t.interference_seconds), 0) as interference,
          coalesce(sum(t.overhead_seconds), 0) as overhead, coalesce(sum(t.transfer_bytes), 0) as bytes,
          (array_agg(t.failure_reason order by t.finished_at) filter (where t.status = 'failed' and t.latest))[1] as reason
        from task_executions t where t.execution_run_id = ${runId}) s
      where r.id = ${runId}`)
    await tx.run(sql`delete from lane_leases where execution_run_id = ${runId}`)
    await tx.run(sql`delete from site_leases where execution_run_id = ${runId}`)
    await appendRunEvent(tx, runId, `execution.run.${status}`, { completed: run.completed, total: run.total })
    await recordRunEnd(tx, runId, status)
    return Closed.parse({ status, completed: run.completed })
  })
