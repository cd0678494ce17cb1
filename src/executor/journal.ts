import { openBackoff } from '../pacing/backoff.ts'
import { databaseAway, isDeadlock } from '../db/errors.ts'
import type { Db } from '../db/sql.ts'
import { DriverError, type OutputManifest } from '../drivers/runtime/contract/driver.ts'
import { storableJson } from '../outside-text.ts'

/**
 * Thrown by the next commit of a worker that has lost its lease (frozen, cut off, replaced). The
 * commit has changed nothing.
 */
export class LeasePassedOn extends Error {
  constructor(options?: ErrorOptions) {
    super('another worker has taken this site of the run over', options)
    this.name = 'LeasePassedOn'
  }
}

export interface TaskEnd {
  id: string
  activityId: string
  attempt: number
  status: 'completed' | 'failed' | 'cancelled'
  readyAt: number
  startedAt: number | null
  finishedAt: number
  runtimeSeconds: number
  queueSeconds: number
  overheadSeconds: number
  transferSeconds: number
  transferBytes: number
  cost: number
  cpuSeconds: number | null
  peakMemoryBytes: number | null
  measuredBy: string
  exitCode: number | null
  failureClass: string | null
  failureReason: string | null
  manifest: OutputManifest | null
  /** Time in the site's own queue; null where it has none. */
  siteQueueSeconds: number | null
  /** The site's facts about where it ran: node, image digest, Pod …; null where it gives none. */
  place: Readonly<Record<string, unknown>> | null
  /** The site's own name for it; null where it is not known. */
  externalId: string | null
  /** A failure after which the activity is not retried. */
  final: boolean
  /** Its place among the starts and ends of the step. */
  order: number
  /** The order of its start, and its name at the site, where the step holds both. */
  startOrder?: number
  name?: string
  /** The task that has these lanes from now on; null: they are free. */
  heir: string | null
}

/** A task whose intent was committed ahead of its turn has been started. */
export interface TaskStart {
  id: string
  name: string
  readyAt: number
  startedAt: number
  order: number
}

export interface TaskRetry {
  id: string
  after: string
  attempt: number
  userAttempts: number
  /** Number of attempts that the site has ended at its own time limit. */
  walltimeExtensions: number
  readyAt: number
  notBefore: number
}

/** The reasons for which a task can wait that could start, or that its site has. */
export const waitKinds = ['cores', 'lane', 'site', 'login', 'data', 'retry', 'queue', 'machine'] as const
export type WaitKind = (typeof waitKinds)[number]

export interface TaskStateChange {
  id: string
  /** Absent: unchanged. */
  status?: 'ready' | 'queued' | 'preparing' | 'running'
  /** True for a task with a committed intent; false for one without. */
  atSite: boolean
  readyAt?: number
  queuedAt?: number
  /** Why it waits; empty: the wait is over. */
  reason?: string
  /** The kind of its wait; present with each reason. */
  waitsFor?: WaitKind
  /** Since when the site has not answered about it, if that is the reason. */
  silentSince?: number
  /** Seconds for which holders of the site asked meanwhile, without an answer. */
  silentFor?: number
  /** Its program has ended: the cores of the host are free. */
  freesCores?: boolean
  externalId?: string
}

export interface TaskIntent {
  id: string
  name: string
  directory: string | null
  host: string
  readyAt: number
  startedAt: number
  /** None where it gets them from the task before it. */
  lanes: (readonly [resourceId: string, coreId: string, slotId: string])[]
  /** Must not start before its predecessors have completed and its lanes are its own. */
  ahead: boolean
}

export interface TaskOutput {
  id: string
  objectId: string
  versionId: string
  /** Among the activity's expected outputs. */
  declared: boolean
  activityId: string
  attempt: number
  /** As people see it; `pathBytes`: its bytes in base64, where it is no text. */
  path: string
  pathBytes: string | null
  sizeBytes: number
  checksum: string | null
  uri: string
  resourceId: string
}

/**
 * The way of the data: links of the topology, the strategy and its reason; `from` and `to` are
 * sites.
 */
export interface TransferRoute {
  links: readonly string[]
  strategy: string
  reason: string
  from: string
  to: string
}

export interface TaskTransfer {
  id: string
  producer: string
  consumer: string
  source: string
  target: string
  bytes: number
  networkBytes: number
  filesTransferred: number
  strategy: string
  route: TransferRoute
  startedAt: number
  finishedAt: number
  cost: number
}

/** An effect that could not be stopped and still has to be. */
export interface Leftover {
  name: string
  words: string
}

/** The events at a site since the last commit, and the tasks that it should start next. */
export interface JournalEntry {
  /** Ids of tasks with intents ahead that will not start on them. */
  takenBack: string[]
  starts: TaskStart[]
  ends: TaskEnd[]
  retries: TaskRetry[]
  states: TaskStateChange[]
  intents: TaskIntent[]
  outputs: TaskOutput[]
  transfers: TaskTransfer[]
  leftovers: Leftover[]
}

export interface CommitResult {
  /** Intents whose lanes are all held now: only these may take effect. */
  acquired: string[]
  /**
   * For the others: the task that holds one of their lanes; empty: another task holds a core of the
   * host, and all lanes of the plan are free.
   */
  holders: Record<string, string> | null
  cancelled: boolean
  paused: boolean
  failed: number
  run_status: string
}

const commitText = 'select * from commit_site($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)'
const json = (items: readonly unknown[]): string | null => (items.length === 0 ? null : storableJson(items))

/**
 * PostgreSQL takes 256 MiB in one document of jsonb, which may be a third larger than its text.
 * Within so many files no document comes near, as the longest path has 4,095 bytes.
 */
const filesAtOnce = 20_000
/** Bytes of ends in one call. */
const endsAtOnce = 64 * 1024 * 1024
/** Bytes of one manifest: a longer one does not list all its files. */
const manifestAtMost = 160 * 1024 * 1024

const emptyStep: JournalEntry = {
  ...{ takenBack: [], starts: [], ends: [], retries: [], states: [], intents: [] },
  ...{ outputs: [], transfers: [], leftovers: [] },
}

const lengthOf = (value: unknown): number => Buffer.byteLength(JSON.stringify(value))

/** The end with as many files in its manifest as one document takes, and its length in bytes. */
const fitting = (end: TaskEnd, most: number): { end: TaskEnd; length: number } => {
  const { manifest } = end
  if (manifest === null) return { end, length: lengthOf(end) }
  const files: OutputManifest['files'] = []
  let sum = lengthOf({ ...end, manifest: { ...manifest, files } })
  // One by one: a string cannot hold the longest lists.
  for (const file of manifest.files) {
    const length = lengthOf(file) + 1
    if (sum + length > most) break
    sum += length
    files.push(file)
  }
  if (files.length === manifest.files.length) return { end, length: sum }
  const left = manifest.files.length - files.length
  const words = `the last ${left.toLocaleString('en')} files are on record as data objects, and not listed here`
  const shortened = { ...manifest, files, warnings: [...(manifest.warnings ?? []), words] }
  return { end: { ...end, manifest: shortened }, length: sum }
}

/** Ends in their order, in lists of at most so many bytes; one end may have more. */
const endsInParts = (ends: readonly TaskEnd[], { atOnce, most }: StepLimits): TaskEnd[][] => {
  const lists: TaskEnd[][] = []
  let sum = Infinity
  for (const one of ends.toSorted((a, b) => a.order - b.order)) {
    const { end, length } = fitting(one, most)
    sum += length
    if (sum > atOnce) {
      lists.push([])
      sum = length
    }
    lists.at(-1)?.push(end)
  }
  return lists
}

/** Bytes of ends in one call, and of one manifest. */
interface StepLimits {
  atOnce: number
  most: number
}

/**
 * The entry in parts that PostgreSQL takes, to be written in one transaction: outputs, ends by their
 * order with the starts before them, and last all the rest.
 */
export const stepParts = (
  entry: JournalEntry,
  limits: StepLimits = { atOnce: endsAtOnce, most: manifestAtMost },
): { before: JournalEntry[]; last: JournalEntry } => {
  const { outputs, ends, takenBack } = entry
  const listed = ends.reduce((sum, { manifest }) => sum + (manifest?.files.length ?? 0), 0)
  if (Math.max(outputs.length, listed) <= filesAtOnce) return { before: [], last: entry }
  const before: JournalEntry[] = []
  for (let at = 0; at < outputs.length; at += filesAtOnce)
    before.push({ ...emptyStep, outputs: outputs.slice(at, at + filesAtOnce) })
  // What is taken back is free for the heirs of the first end.
  if (takenBack.length > 0) before.push({ ...emptyStep, takenBack })
  let { starts } = entry
  const lists = endsInParts(ends, limits)
  const rest = lists.pop() ?? []
  for (const some of lists) {
    const until = some.at(-1)?.order ?? 0
    before.push({ ...emptyStep, ends: some, starts: starts.filter(({ order }) => order < until) })
    starts = starts.filter(({ order }) => order >= until)
  }
  return { before, last: { ...entry, outputs: [], takenBack: [], starts, ends: rest } }
}

/**
 * Writes one durable step of a site. Idempotent: after a lost answer the same entry may be written
 * again.
 */
export const commitSite = async (
  db: Db,
  runId: string,
  site: string,
  epoch: number,
  entry: JournalEntry,
): Promise<CommitResult> => {
  const write = async (tx: Db, part: JournalEntry): Promise<CommitResult> => {
    const values = [
      runId,
      site,
      epoch,
      json(part.ends),
      json(part.retries),
      json(part.states),
      json(part.intents),
      json(part.outputs),
      json(part.transfers),
      json(part.leftovers),
      json(part.takenBack),
      json(part.starts),
    ]
    const [row] = await tx.prepared<CommitResult>('commit_site', commitText, values)
    if (row === undefined) throw new Error('commit_site gave no row')
    return row
  }
  const { before, last } = stepParts(entry)
  try {
    if (before.length === 0) return await write(db, last)
    return await db.transaction(async (tx) => {
      for (const part of before) await write(tx, part)
      return write(tx, last)
    })
  } catch (error) {
    if ((error as { code?: string }).code === 'OR001') throw new LeasePassedOn({ cause: error })
    throw error
  }
}

/**
 * Takes the site over: from now on only commits with the returned epoch count. `before`: the holder
 * before, where it had not left the site. `seen`: the last event of the run; tasks that are loaded
 * later have all ends up to it. The first epoch is the time in microseconds: a holder from
 * before a deletion of the run must not commit to the next run of its id.
 */
export const claimSite = async (
  db: Db,
  runId: string,
  site: string,
  holder: string,
): Promise<{ epoch: number; before: string | undefined; seen: number }> => {
  const [row] = await db.prepared<{ epoch: number; before: string | null; seen: number }>(
    'claim_site',
    `with known as (select l.holder from site_leases l where l.execution_run_id = $1 and l.site = $2)
     insert into site_leases (execution_run_id, site, epoch, holder)
       values ($1, $2, extract(epoch from clock_timestamp()) * 1000000, $3)
     on conflict (execution_run_id, site) do update set epoch = site_leases.epoch + 1, holder =
       excluded.holder, renewed_at = clock_timestamp()
     returning epoch, (select nullif(k.holder, '') from known k) as before,
       (select r.last_event_sequence::float8 from execution_runs r where r.id = $1) as seen`,
    [runId, site, holder],
  )
  if (row === undefined) throw new Error('claim_site gave no row')
  return { epoch: row.epoch, before: row.before ?? undefined, seen: row.seen }
}

/** Leaves a site in order: the next holder then takes it over from no other. */
export const leaveSite = async (db: Db, runId: string, site: string, epoch: number): Promise<void> => {
  await db.prepared(
    'leave_site',
    `update site_leases set holder = '' where execution_run_id = $1 and site = $2 and epoch = $3`,
    [runId, site, epoch],
  )
}

export interface LoadedTask {
  id: string
  position: number
  activity_id: string
  external_id: string
  resource_id: string
  runtime_id: string
  attempt: number
  /** Its first attempt in the generation of its run: earlier ones spend none of its patience. */
  first_attempt: number
  user_attempts: number
  status: string
  core_ids: string[]
  slot_id: string
  order_on_resource: number
  ready_at: number | null
  queued_at: number | null
  started_at: number | null
  finished_at: number | null
  not_before: number | null
  /** Its intent is committed; `ahead`: ahead of its turn, and no start is on record. */
  intended: boolean
  ahead: boolean
  walltime_extensions: number
  /** Attempts of the generation before it that were lost, maybe by their own doing. */
  suspects: number
  /**
   * Where the latest attempt of an earlier holder is or was; null for one that this holder
   * intended.
   */
  host_id?: string | null
  silent_since: number | null
  /** As `silentFor` of a state. */
  silent_for?: number | null
}

export interface LoadedRun {
  tasks: LoadedTask[]
  from: Int32Array
  to: Int32Array
}

/** SQL: the attempts of a row `t` of `task_executions` in the generation of its run. */
const ofGeneration = `from task_executions e where e.execution_run_id = t.execution_run_id
  and e.activity_position = t.activity_position and e.generation = t.generation`

/** SQL: the columns of a `LoadedTask`, of a row `t`. */
export const taskColumns = `t.id, t.activity_position as position, t.activity_id, t.external_id,
  t.planned_resource_id as resource_id, t.runtime_id, t.attempt, t.user_attempts, t.status, t.core_ids, t.slot_id,
  t.order_on_resource, t.ready_at, t.queued_at, t.started_at, t.finished_at, t.not_before,
  t.handle_name is not null as intended, t.ahead, t.walltime_extensions, t.host_id,
  (t.metadata ->> 'silentSince')::double precision as silent_since,
  (t.metadata ->> 'silentFor')::double precision as silent_for,
  case when t.attempt = 1 then 1 else (select min(e.attempt) ${ofGeneration}) end as first_attempt,
  case when t.attempt = 1 then 0 else (select count(*)::integer ${ofGeneration}
    and e.attempt < t.attempt and e.metadata @> '{"suspect": true}') end as suspects`

/** The latest attempt of every task by position, and the control edges. */
export const loadRun = async (db: Db, runId: string, contentVersionId: string): Promise<LoadedRun> => {
  const tasks = db.prepared<LoadedTask>(
    'load_run_tasks',
    `select ${taskColumns} from task_executions t where t.execution_run_id = $1 and t.latest
      order by t.activity_position`,
    [runId],
  )
  const edges = db.prepared<{ from: number[] | null; to: number[] | null }>(
    'load_run_edges',
    `select array_agg(depends_on_position order by activity_position, depends_on_position) as
      from, array_agg(activity_position order by activity_position, depends_on_position) as to
     from activity_dependencies where workflow_version_id = $1`,
    [contentVersionId],
  )
  const [loaded, [lists]] = await Promise.all([tasks, edges])
  return { tasks: loaded, from: Int32Array.from(lists?.from ?? []), to: Int32Array.from(lists?.to ?? []) }
}

/** A task that is over, at any site; `sequence` is that of its event. */
export interface ForeignEnd {
  sequence: number
  position: number
  /** Of its last attempt, whose files its successors take. */
  id: string
  attempt: number
  status: string
  finished_at: number | null
}

/**
 * Tasks of the run that are over, with events after this one. Each end is read once: all ends at
 * every step would be 100,000 rows a step at the end of a run of 100,000 tasks.
 */
export const loadEnds = (db: Db, runId: string, after: number): Promise<ForeignEnd[]> =>
  db.prepared<ForeignEnd>(
    'foreign_ends',
    `select e.sequence::float8 as sequence, t.activity_position as position, t.id, t.attempt, t.status,
       t.finished_at from operation_events e join task_executions t on t.id = e.aggregate_id
     where e.kind = 'execution-run' and e.operation_id = $1 and e.sequence > $2
       and e.event_type in ('activity.completed', 'activity.failed', 'activity.cancelled')
       and t.latest and t.status in ('completed', 'failed', 'cancelled') order by e.sequence`,
    [runId, after],
  )

/** Whether a run was asked to end, or is over: nothing may start any more; and whether it is paused. */
export const loadFlags = async (db: Db, runId: string): Promise<{ stopping: boolean; paused: boolean }> => {
  const [run] = await db.prepared<{ stopping: boolean; paused: boolean }>(
    'run_flags',
    `select cancel_requested_at is not null or status <> 'running' as stopping, paused from execution_runs
      where id = $1`,
    [runId],
  )
  return run ?? { stopping: true, paused: false }
}

/** Cores of a host that the intents of tasks have leased, as numbers, by id of the task. */
export const loadCores = async (
  db: Db,
  hostId: string,
  taskIds: readonly string[],
): Promise<Map<string, number[]>> => {
  const rows = await db.prepared<{ id: string; core: string }>(
    'cores_held',
    'select task_execution_id as id, core_id as core from lane_leases where task_execution_id = ' +
      'any($1::text[]) and resource_id = $2',
    [taskIds, `@host/${hostId}`],
  )
  const held = new Map<string, number[]>()
  for (const { id, core } of rows) held.set(id, [...(held.get(id) ?? []), Number(core.replace('core-', ''))])
  return held
}

/** Recorded transfers of these ids. */
export const loadTransfers = (db: Db, ids: readonly string[]): Promise<TaskTransfer[]> =>
  ids.length === 0
    ? Promise.resolve([])
    : db.prepared<TaskTransfer>(
        'load_transfers',
        `select id, producer_activity_id as producer, consumer_activity_id as consumer, source_resource_id as
          source, target_resource_id as target, bytes::float8 as bytes,
           coalesce(network_bytes, 0)::float8 as "networkBytes", coalesce(files_transferred, 0)::float8 as
             "filesTransferred", strategy, route, started_at as "startedAt",
           finished_at as "finishedAt", cost
         from data_transfer_observations where id = any($1::text[])`,
        [ids],
      )

/**
 * Repeats `work` while PostgreSQL is unavailable, or after a deadlock (two steps that freed and took
 * each other's lanes): a site outlives both, and running tasks go on meanwhile.
 */
export const outlastingOutage = async <T>(work: () => Promise<T>, signal: AbortSignal): Promise<T> => {
  for (const backoff = openBackoff({ firstMs: 50, longestMs: 2_000 }); ;) {
    try {
      return await work()
    } catch (error) {
      // The words of a site may look like those of a database that is away.
      if (error instanceof DriverError) throw error
      if (!(databaseAway(error) || isDeadlock(error)) || signal.aborted) throw error
      await backoff.pause()
    }
  }
}
