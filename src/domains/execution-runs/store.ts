import { z } from 'zod'
import { fields, jsonObject, time } from '../../db/projection.ts'
import { countUpTo } from '../../db/rows.ts'
import { orderOf } from '../../db/orders.ts'
import { raw, sql, where, type Db, type Sql } from '../../db/sql.ts'
import { inChunks, type Chunks } from '../../http/chunks.ts'
import { countBound } from '../../lists.ts'
import { eventJson } from '../../operations/events.ts'
import { type Problem, unacceptableAt } from '../../refusal.ts'
import { taskExecutionId } from '../../executor/names.ts'
import { storableJson } from '../../outside-text.ts'
import { version } from '../../version.ts'
import { scopesWith } from '../execution-scopes/store.ts'
import { ExecutionRun } from './schemas.ts'
import { liveCounts } from './waiting.ts'

/**
 * The ExecutionRun projection of a row `r`, as JSON made by the server: a read is one round trip
 * and no object per row here.
 */
const runJson = jsonObject({
  ...fields(
    'r',
    `id schedulePlanId mode seed status kind title actorId environmentSnapshotId networkModel simulator
      onFailure generation
     activityCount completedActivityCount failedActivityCount makespanSeconds cost`,
  ),
  cloudCost: 'nullif(r.cloud_cost, 0)',
  ...fields('r', 'budget onBudget'),
  approvedAt: time('r.approved_at'),
  breakdown: jsonObject(
    fields('r', 'computeSeconds transferSeconds queueSeconds interferenceSeconds overheadSeconds'),
  ),
  ...fields('r', 'transferredBytes defaultedDurations'),
  warnings: "coalesce(r.warnings, '[]')",
  ...fields('r', 'failureReason paused'),
  cancelRequestedAt: time('r.cancel_requested_at'),
  createdAt: time('r.created_at'),
  startedAt: time('r.started_at'),
  finishedAt: time('r.finished_at'),
})

/** A session or command of the console (a row `c` of its view) as an ExecutionRun. */
const consoleJson = jsonObject({
  id: 'c.id',
  schedulePlanId: "''",
  ...fields('c', 'mode status kind title resourceId runtimeId connectionId command actorId generation'),
  ...{ seed: '0', onFailure: "'stop'", activityCount: '0', completedActivityCount: '0' },
  failedActivityCount: '0',
  makespanSeconds: 'coalesce(extract(epoch from c.finished_at - c.at)::double precision, 0)',
  cost: '0',
  breakdown:
    '\'{"computeSeconds":0,"transferSeconds":0,"queueSeconds":0,"interferenceSeconds":0,"overheadSeconds":0}\'::json',
  ...{ transferredBytes: '0', defaultedDurations: '0', warnings: "'[]'::json" },
  failureReason: 'case when c.finished_at is not null then c.failure_reason end',
  paused: 'false',
  cancelRequestedAt: time('c.cancel_requested_at'),
  createdAt: time('c.created_at'),
  startedAt: time('c.started_at'),
  finishedAt: time('c.finished_at'),
})

export const taskJson = jsonObject({
  ...fields(
    't',
    `id executionRunId planAssignmentId activityId externalId plannedResourceId allocatedResourceId runtimeId
      connectionId site
     attempt status readyAt dataReadyAt queuedAt startedAt finishedAt runtimeSeconds queueSeconds
       siteQueueSeconds transferSeconds
     transferBytes interferenceSeconds overheadSeconds cost cpuSeconds peakMemoryBytes measuredBy durationSource
       exitCode
     failureClass failureReason`,
  ),
  cloudInstanceId: `case when t.site like 'cloud/%' and t.host_id like 'machine:%' then substr(t.host_id, 9) end`,
  coreIds: 'to_json(t.core_ids)',
  ...fields('t', 'slotId orderOnResource'),
  runtimeReason: `case when t.attempt = 1 then t.runtime_reason else (select f.runtime_reason from task_executions f
    where f.execution_run_id = t.execution_run_id and f.activity_position = t.activity_position and f.attempt = 1) end`,
  metadata: 't.metadata',
})

const transferJson = jsonObject({
  ...fields(
    'd',
    `id executionRunId producerActivityId consumerActivityId sourceResourceId targetResourceId bytes status
      startedAt finishedAt
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

export const outputJson = jsonObject(
  fields(
    'o',
    'id dataObjectId executionRunId producerActivityId attempt relativePath pathBytes sizeBytes checksum ' +
      'mediaType discovered',
  ),
)

const locationJson = jsonObject(
  fields('l', 'id dataObjectInstanceId storageResourceId resourceId executionRunId uri status'),
)

const materializationJson = jsonObject({
  ...fields('m', 'id runId activityId'),
  variantId: 'coalesce(m.variant_id, m.digest)',
  ...fields('m', 'digest resourceId environmentId destinationPath status verifiedDigest'),
})

const artifactTransferJson = jsonObject(
  fields(
    'f',
    `id materializationId executionRunId activityId strategy reason status bytes networkBytes startedAt finishedAt
      failureReason`,
  ),
)

/**
 * Above this many activities the detail holds counts instead of arrays; the paged routes hold the
 * arrays. The same limit applies to files.
 */
const detailLimit = 10_000
/** The first events in a detail. The paged route holds the others. */
const detailEvents = 1_000

const small = `r.activity_count <= ${String(detailLimit)}`
/** The way in which SQL writes lists: expressions that `||` puts one behind the other. */
interface Writing {
  text: (text: string) => string
  /** A list of the rows of `from`, the first `limit` of them where that is given. */
  list: (from: string, condition: string, json: string, order: string, limit?: number) => string
  nothing: string
}
const aliasOf = (from: string): string => from.slice(from.lastIndexOf(' ') + 1)
const rowsOf = (from: string, condition: string, order: string, limit: number | undefined): string =>
  limit === undefined
    ? `${from} where ${condition}`
    : `(select * from ${from} where ${condition} order by ${order} limit ${String(limit)}) ${aliasOf(from)}`

/** One text. */
const asText: Writing = {
  text: (text) => text,
  list: (from, condition, json, order, limit) =>
    `(select coalesce(json_agg(${json} order by ${order}), '[]')::text
      from ${rowsOf(from, condition, order, limit)})`,
  nothing: "''",
}

/**
 * Rows of a piece of a list. At this size a piece fits the buffer of the client's parser, which
 * grows by copies.
 */
const pieceRows = 100
/** An array of texts, of which a row of the answer holds one: a long text is decoded in one go. */
const asPieces: Writing = {
  text: (text) => `array[${text}]`,
  list: (from, condition, json, order, limit) => {
    const alias = aliasOf(from)
    return `array['['] || coalesce((select array_agg(piece.body order by piece.k) from (
      select one.k, case when one.k = 0 then '' else ',' end || string_agg(one.body, ',' order by one.n) as body
      from (select (${alias}.n - 1) / ${String(pieceRows)} as k, ${alias}.n, (${json})::text as body
        from (select ${alias}.*, row_number() over (order by ${order}) as n
          from ${rowsOf(from, condition, order, limit)}) ${alias}) one group by one.k) piece), '{}') || array[']']`
  },
  nothing: "'{}'",
}

/** A list of a run: its rows with their alias, the column of the run's id, their JSON and order. */
interface ListOfRun {
  from: string
  of: string
  only: string | undefined
  json: string
  order: string
}
const listOf = (
  from: string,
  json: string,
  order: string,
  { of = `${aliasOf(from)}.execution_run_id`, only }: { of?: string; only?: string } = {},
): ListOfRun => ({ from, of, only, json, order })
const lists = {
  activities: listOf('task_executions t', taskJson, 't.activity_position, t.attempt'),
  dataTransfers: listOf('data_transfer_observations d', transferJson, 'd.started_at, d.id'),
  handles: listOf('task_executions t', handleJson, 't.handle_started_at, t.id', {
    only: 't.handle_name is not null',
  }),
  events: listOf('operation_events e', eventJson, 'e.sequence', {
    of: 'e.operation_id',
    only: `e.kind = 'execution-run'`,
  }),
  dataObjects: listOf('data_object_instances o', outputJson, 'o.id'),
  dataLocations: listOf('data_locations l', locationJson, 'l.id'),
  artifactMaterializations: listOf('artifact_materializations m', materializationJson, 'm.id', {
    of: 'm.run_id',
  }),
  artifactTransferRuns: listOf('artifact_transfer_runs f', artifactTransferJson, 'f.id'),
}
type ListName = keyof typeof lists

/** The condition for the rows of a run `r`. */
const ofRun = ({ of, only }: ListOfRun): string => `${of} = r.id${only === undefined ? '' : ` and ${only}`}`

/** SQL: a list of every row up to the limit of activities, `<name>Total` above it. */
const listOrTotal = ({ text, list }: Writing, name: ListName, also = ''): string => {
  const { from, json, order } = lists[name]
  const condition = ofRun(lists[name]) + also
  return `case when ${small} then ${text(`',"${name}":'`)} || ${list(from, condition, json, order)}
    else ${text(`',"${name}Total":' || (select count(*) from ${from} where ${condition})`)} end`
}
/** SQL: the first `limit` rows, with `<name>Truncated` and `<name>Total` where there are more. */
const listBegin = ({ text, list, nothing }: Writing, name: ListName, limit = detailLimit): string => {
  const { from, json, order } = lists[name]
  const condition = ofRun(lists[name])
  const total = `',"${name}Truncated":true,"${name}Total":' || (select count(*) from ${from} where ${condition})`
  return `${text(`',"${name}":'`)} || ${list(from, condition, json, order, limit)}
    || case when ${hasMore(name, limit)} then ${text(total)} else ${nothing} end`
}
const hasMore = (name: ListName, limit: number): string =>
  `exists (select from ${lists[name].from} where ${ofRun(lists[name])} offset ${String(limit)})`

const cut = [
  `not (${small})`,
  hasMore('events', detailEvents),
  hasMore('dataObjects', detailLimit),
  hasMore('dataLocations', detailLimit),
]

/** SQL: the detail up to its last brace. */
const detailOf = (writing: Writing): string =>
  [
    writing.text(`'{"run":' || (${runJson})::text`),
    listOrTotal(writing, 'activities', ' and (t.latest or $2)'),
    listOrTotal(writing, 'dataTransfers'),
    listOrTotal(writing, 'handles'),
    listBegin(writing, 'events', detailEvents),
    listBegin(writing, 'dataObjects'),
    listBegin(writing, 'dataLocations'),
    listBegin(writing, 'artifactMaterializations'),
    listBegin(writing, 'artifactTransferRuns'),
  ].join('\n  || ')

/** SQL: what is read with the detail. */
const besideDetail = `r.status, r.generation,
    ${cut.join(' or ')} as cut,
    exists (select from cloud_operations o where o.execution_run_id = r.id) as infrastructure,
  case when r.status in ('created', 'running') then ${liveCounts} end as live`

/**
 * Up to this many activities the detail is one text: the fastest read. A longer text would hold up
 * the event loop, and is read in pieces.
 */
const textActivities = 2_000
const detailText = `select case when r.activity_count <= ${String(textActivities)} then ${detailOf(asText)} end as body,
  ${besideDetail} from execution_runs r where r.id = $1`
const detailPieces = `with d as materialized (select ${besideDetail} from execution_runs r where r.id = $1)
  select piece.body, d.* from execution_runs r,
    unnest(${detailOf(asPieces)}) with ordinality as piece (body, n) left join d on piece.n = 1 where r.id = $1`

/** Counts of an open run, read with its record. */
export interface LiveCounts {
  completed: number
  sites: { site: string; completed: number; running: number }[]
  waitsFor: { site: string; kind?: string; reason: string; activities: number; since?: number }[]
}

interface RunDetailText {
  /** Up to the last brace. */
  body: string | Chunks
  status: string
  generation: number
  cut: boolean
  /** Operations at cloud providers were made for it. */
  infrastructure: boolean
  /** Present for an open run. */
  live: LiveCounts | null
}

/**
 * The whole detail as JSON text without its last brace, or undefined; `cut` where one of its lists is
 * not complete.
 */
export const readRunDetail = async (
  db: Db,
  runId: string,
  allAttempts: boolean,
): Promise<RunDetailText | undefined> => {
  const values = [runId, allAttempts]
  const [found] = await db.prepared<RunDetailText & { body: string | null }>('run_detail', detailText, values)
  if (found === undefined || found.body !== null) return found
  const rows = await db.prepared<RunDetailText & { body: string }>('run_detail_pieces', detailPieces, values)
  const [first] = rows
  return first && { ...first, body: await inChunks(rows.map(({ body }) => body)) }
}

/** One run without its parts. */
export const readExecutionRun = (db: Db, runId: string): Promise<ExecutionRun | undefined> =>
  db.value(ExecutionRun, sql`select ${raw(runJson)} from execution_runs r where r.id = ${runId}`)

/** A session or command of the console as a run of the feed. */
export const readConsoleRun = (db: Db, id: string): Promise<ExecutionRun | undefined> =>
  db.value(ExecutionRun, sql`select ${raw(consoleJson)} from console_runs c where c.id = ${id}`)

/** The orders of the list; `startedAt` of a run that has not started is its acceptance. */
export const runOrders = {
  startedAt: 'coalesce(r.started_at, r.created_at)',
  createdAt: 'r.created_at',
  finishedAt: "coalesce(r.finished_at, 'infinity')",
  makespanSeconds: 'r.makespan_seconds',
  cost: 'r.cost',
  title: `coalesce(r.title, '') collate "C"`,
}
export const usualRunOrder = '-startedAt'

/** The same orders of sessions and commands of the console. */
const consoleOrders: Readonly<Record<keyof typeof runOrders, string>> = {
  startedAt: 'c.at',
  createdAt: 'c.created_at',
  finishedAt: "coalesce(c.finished_at, 'infinity')",
  makespanSeconds: 'coalesce(extract(epoch from c.finished_at - c.at)::double precision, 0)',
  cost: '0::double precision',
  title: 'c.title collate "C"',
}

export interface RunFilter {
  kind?: string | undefined
  mode?: string | undefined
  status?: string | undefined
  planId?: string | undefined
  workflowId?: string | undefined
  environmentId?: string | undefined
  /** Part of the title, in any case. */
  title?: string | undefined
  /** Accepted at this time or later; before this time. RFC 3339. */
  since?: string | undefined
  until?: string | undefined
  /** A name of `runOrders`, descending with `-` before it. */
  sort?: string | undefined
}

/** The conditions that rows of runs and of the console share; `row`: their alias. */
const commonConditions = (row: string, { kind, mode, status, since, until }: RunFilter) => [
  kind !== undefined && sql`${raw(row)}.kind = ${kind}`,
  mode !== undefined && sql`${raw(row)}.mode = ${mode}`,
  status !== undefined && sql`${raw(row)}.status = ${status}`,
  since !== undefined && sql`${raw(row)}.created_at >= ${since}`,
  until !== undefined && sql`${raw(row)}.created_at < ${until}`,
]

/** The filter for sessions and commands of the console; undefined where none can match. */
const consoleCondition = (filter: RunFilter): Sql | undefined => {
  const { kind, planId, workflowId, environmentId } = filter
  if (kind === 'workflow' || [planId, workflowId, environmentId].some((id) => id !== undefined))
    return undefined
  return where(
    ...commonConditions('c', filter),
    filter.title !== undefined && sql`position(lower(${filter.title}) in lower(c.title)) > 0`,
  )
}

/**
 * Runs, and sessions and commands of the console: one more row than the page, in the order asked
 * for, and the number of all (counted to 10,001).
 */
export const listExecutionRuns = async (
  db: Db,
  filter: RunFilter,
  limit: number,
  offset: number,
): Promise<{ rows: { run: ExecutionRun }[]; total: number }> => {
  const { planId, workflowId, environmentId, title } = filter
  const condition = where(
    ...commonConditions('r', filter),
    planId !== undefined && sql`r.schedule_plan_id = ${planId}`,
    workflowId !== undefined &&
      sql`r.content_version_id in (select id from workflow_versions where workflow_id = ${workflowId})`,
    environmentId !== undefined &&
      sql`r.schedule_plan_id in (select p.id from schedule_plans p
        where p.execution_scope_id in (${scopesWith(environmentId)}))`,
    title !== undefined &&
      sql`lower(r.title collate "default") like lower(${`%${title.replace(/[\\%_]/g, '\\$&')}%`})`,
  )
  const sort = filter.sort ?? usualRunOrder
  const order = orderOf(runOrders, sort, 'r')
  const key = sort.replace('-', '') as keyof typeof runOrders
  const way = raw(sort.startsWith('-') ? 'desc' : 'asc')
  const consoles = consoleCondition(filter)
  // Only the rows of the page become documents.
  const rows = await db.values(
    ExecutionRun,
    consoles === undefined
      ? sql`select ${raw(runJson)} as body from (select r.* from execution_runs r ${condition} order by ${order}
          limit ${limit} offset ${offset}) r order by ${order}`
      : sql`select coalesce(${raw(`(select ${runJson} from execution_runs r where f.run and r.id = f.id)`)},
            ${raw(`(select ${consoleJson} from console_runs c where not f.run and c.id = f.id)`)}) as body
          from (select * from (
              (select r.id, ${raw(runOrders[key])} as key, true as run from execution_runs r ${condition}
                order by ${order} limit ${limit + offset})
              union all
              (select c.id, ${raw(consoleOrders[key])}, false from console_runs c ${consoles}
                order by ${orderOf(consoleOrders, sort, 'c')} limit ${limit + offset})) both_kinds
            order by key ${way}, id ${way} limit ${limit} offset ${offset}) f order by f.key ${way}, f.id ${way}`,
  )
  const runs = await countUpTo(db, sql`execution_runs r ${condition}`, countBound)
  const others = consoles === undefined ? 0 : await countUpTo(db, sql`console_runs c ${consoles}`, countBound)
  return { rows: rows.map((run) => ({ run })), total: Math.min(runs + others, countBound + 1) }
}

const Row = z.record(z.string(), z.unknown())
/** The paged lists, by the last part of their paths. */
const parts = {
  activities: lists.activities,
  'data-transfers': lists.dataTransfers,
  handles: lists.handles,
  outputs: { ...lists.dataObjects, order: 'o.relative_path, o.id' },
}
export type RunPart = keyof typeof parts

/** A page of one of a run's lists, one row more than requested; `total` is counted to 10,001. */
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
  },
): Promise<{ rows: Record<string, unknown>[]; total: number }> => {
  const { json, from, of, only, order } = parts[part]
  const alias = aliasOf(from)
  const condition = where(
    sql`${raw(of)} = ${runId}`,
    only !== undefined && raw(only),
    part === 'activities' && options.attempts !== 'all' && raw('t.latest'),
    part === 'activities' && options.status !== undefined && sql`t.status = ${options.status}`,
    part === 'outputs' &&
      options.activityId !== undefined &&
      sql`o.producer_activity_id = ${options.activityId}`,
  )
  // The page's rows are selected first: next to `order by … limit` the server would build the
  // document of every row of the run.
  const rows = await db.values(
    Row,
    sql`select ${raw(json)} as body from (select ${raw(alias)}.* from ${raw(from)} ${condition}
      order by ${raw(order)} limit ${options.limit} offset ${options.offset}) ${raw(alias)} order by ${raw(order)}`,
  )
  const total = await countUpTo(db, sql`${raw(from)} ${condition}`, countBound)
  return { rows, total }
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
  /** The host that keeps copies of its files, and their directory there. */
  keptOn: z.string().optional(),
  keptDirectory: z.string().optional(),
})

const RankedAttempt = Attempt.extend({ rank: z.number() })

/**
 * An attempt of an activity with the handle of its effect: `attempt` if given, else the latest. The
 * activity may be given by any form of its id: the exact one, the one in the run's plan, the
 * external id, or either of the last two with or without the workflow's id as prefix.
 * @throws Refusal `unacceptable` where several activities have the given external id
 */
export const findAttempt = async (db: Db, runId: string, activityId: string, attempt: number | undefined) => {
  const positions = (condition: Sql) =>
    sql`array(select d.position from activity_definitions d where d.workflow_version_id = v.id and ${condition})`
  const [found, other] = await db.many(
    RankedAttempt,
    sql`select t.id, t.activity_position, t.activity_id, t.external_id, t.attempt, t.status,
      t.planned_resource_id as resource_id, t.runtime_id, t.handle_name as name, t.host_id, t.directory,
      t.metadata ->> 'keptOn' as kept_on, t.metadata ->> 'keptAt' as kept_directory,
        case when t.activity_position = any(f.exact) then 0 when t.activity_id = ${activityId} then 1
          when t.external_id = ${activityId} then 2 when t.activity_position = any(f.longer) then 3
          when t.activity_position = any(f.shorter) then 4 else 5 end as rank
      from execution_runs r join workflow_versions v on v.id = r.content_version_id
      cross join lateral (select case when starts_with(${activityId}, v.workflow_id || '-') then
        substr(${activityId}, length(v.workflow_id) + 2) end as short) s
      cross join lateral (select ${positions(sql`d.id = ${activityId}`)} as exact,
        ${positions(sql`d.id = v.workflow_id || '-' || ${activityId}`)} as longer,
        ${positions(sql`d.id = s.short`)} as shorter) f
      join task_executions t on t.execution_run_id = r.id
      where r.id = ${runId} and (t.activity_id = ${activityId} or t.external_id = ${activityId}
        or t.external_id = s.short or t.activity_position = any(f.exact || f.longer || f.shorter))
        and ${attempt === undefined ? raw('t.latest') : sql`t.attempt = ${attempt}`}
      order by rank, t.activity_position limit 2`,
  )
  if (found !== undefined && other?.rank === found.rank)
    throw unacceptableAt(
      'activityId',
      `${JSON.stringify(activityId)} names several activities by their externalId; give the activity's id`,
    )
  return found
}

/** The newest started attempt of an activity; undefined where none was started. */
export const newestStarted = (db: Db, runId: string, position: number): Promise<number | undefined> =>
  db.value(
    z.number(),
    sql`select attempt from task_executions where execution_run_id = ${runId}
        and activity_position = ${position} and handle_name is not null and directory is not null
          order by attempt desc limit 1`,
  )

/** Whether an attempt has ended, or does not exist. */
export const isAttemptOver = async (
  db: Db,
  runId: string,
  position: number,
  attempt: number,
): Promise<boolean> =>
  (await db.value(
    z.number(),
    sql`select attempt from task_executions where execution_run_id = ${runId}
      and activity_position = ${position} and attempt = ${attempt}
        and status not in ('completed', 'failed', 'cancelled')`,
  )) === undefined

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
  /** As counted by its plan. */
  defaultedDurations: number
  simulator: string | undefined
  onFailure: string
  budget?: number | undefined
  onBudget?: string | undefined
  snapshot: {
    resources: unknown
    runtimes: unknown
    runtimeBindings: unknown
    executionScope: unknown
    networkTopology: unknown
    activityProfiles: unknown
    storageMounts: unknown
    executables?: unknown
    documentsHash: string
  }
  /** By position of the activity in the content version. */
  runtimeIds: readonly string[]
  /** Why a task has another runtime than the requested one, by position. */
  runtimeReasons: readonly (string | undefined)[]
  /** The site of each task, by position; absent in a simulation. */
  places: readonly { site: string; connectionId?: string }[] | undefined
  /** Ids as the caller wrote them, by position. */
  activityIds: readonly string[]
}

/**
 * The run, its tasks (from the plan's assignments, on the server) and its snapshot; the caller's
 * transaction.
 */
export const insertRun = async (tx: Db, run: NewRun): Promise<void> => {
  const onBudget = run.budget === undefined ? null : (run.onBudget ?? 'refuse')
  await tx.run(sql`insert into execution_runs (id, schedule_plan_id, content_version_id, mode, seed, title,
    actor_id, host_id, network_model, warnings, defaulted_durations, simulator, on_failure, budget, on_budget,
      activity_count, service_version, searched_places)
    values (${run.id}, ${run.schedulePlanId}, ${run.contentVersionId}, ${run.mode}, ${run.seed},
      ${run.title ?? null}, ${run.actorId}, ${run.hostId}, ${run.networkModel ?? null},
      ${run.warnings.length === 0 ? null : storableJson(run.warnings)}, ${run.defaultedDurations},
      ${run.simulator ?? null}, ${run.onFailure}, ${run.budget ?? null}, ${onBudget},
      ${run.activityIds.length}, ${version},
      (select string_agg(place, chr(10)) from (
        select resource_id as place from schedule_plan_assignments where schedule_plan_id = ${run.schedulePlanId}
        union select unnest(${[...new Set(run.runtimeIds)]}::text[])) places))`)
  const { snapshot } = run
  const json = (value: unknown): string => storableJson(value ?? null)
  await tx.run(sql`insert into run_snapshots (execution_run_id, resources, runtimes, runtime_bindings,
    execution_scope, network_topology, activity_profiles, storage_mounts, documents_hash, executables)
    values (${run.id}, ${json(snapshot.resources)}, ${json(snapshot.runtimes)},
      ${json(snapshot.runtimeBindings)}, ${json(snapshot.executionScope)},
      ${snapshot.networkTopology === undefined ? null : json(snapshot.networkTopology)},
        ${json(snapshot.activityProfiles)}, ${json(snapshot.storageMounts)}, ${snapshot.documentsHash},
        ${snapshot.executables === undefined ? null : json(snapshot.executables)})`)
  await tx.run(sql`insert into task_executions (id, execution_run_id, activity_position, plan_assignment_id,
    activity_id, external_id, planned_resource_id, runtime_id, runtime_reason, site, connection_id, core_ids,
      slot_id, order_on_resource)
    select given.id, ${run.id}, a.activity_position, a.id, given.activity_id, d.external_id, a.resource_id,
      given.runtime_id, given.runtime_reason, given.site, given.connection_id,
      case when jsonb_typeof(a.metadata -> 'coreIds') = 'array'
        and a.metadata -> 'coreIds' <> '[]' then array(select jsonb_array_elements_text(a.metadata ->
          'coreIds')) else array[a.core_id] end, a.slot_id, a.order_on_resource
    from unnest(${run.activityIds.map((activityId) => taskExecutionId(run.id, activityId, 1))}::text[],
      ${run.activityIds}::text[], ${run.runtimeIds}::text[],
        ${run.runtimeIds.map((_id, i) => run.runtimeReasons[i] ?? null)}::text[],
      ${run.activityIds.map((_id, i) => run.places?.[i]?.site ?? null)}::text[],
        ${run.activityIds.map((_id, i) => run.places?.[i]?.connectionId ?? null)}::text[]) with ordinality as
          given (id, activity_id, runtime_id, runtime_reason, site, connection_id, number)
    join schedule_plan_assignments a on a.schedule_plan_id = ${run.schedulePlanId}
      and a.activity_position = given.number - 1
    join activity_definitions d on d.workflow_version_id = ${run.contentVersionId}
      and d.position = a.activity_position`)
}
