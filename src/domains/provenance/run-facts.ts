import type { Db } from '../../db/sql.ts'
import { Refusal } from '../../refusal.ts'
import { openRunGraphs } from './run-graphs.ts'

/** The facts of one run, for its exports. Times are RFC 3339 in UTC, and absent for simulations. */
export interface RunFacts {
  run: RunFact
  workflow: { id: string; versionId: string; version: number; name: string; hash: string }
  activities: ActivityFact[]
  dependencies: { from: number; to: number }[]
  attempts: AttemptFact[]
  files: FileFact[]
  /** Input files of attempts, by the ids of both. */
  uses: { task: string; file: string }[]
  resources: { id: string; name: string; type: string }[]
}

interface RunFact {
  id: string
  planId: string
  mode: 'real' | 'simulation' | 'interactive'
  status: string
  title: string | null
  actorId: string | null
  serviceVersion: string | null
  createdAt: string
  startedAt: string | null
  finishedAt: string | null
  makespanSeconds: number
  cost: number
  failureReason: string | null
}

interface ActivityFact {
  position: number
  id: string
  externalId: string
  name: string
  typeId: string
  typeName: string
  image: string | null
  command: Record<string, unknown>
}

export interface AttemptFact {
  id: string
  position: number
  /** The id that the run's plan uses. */
  activityId: string
  attempt: number
  status: string
  resourceId: string
  runtimeId: string | null
  startedAt: string | null
  finishedAt: string | null
  runtimeSeconds: number
  cpuSeconds: number | null
  peakMemoryBytes: number | null
  cost: number
  exitCode: number | null
  failureReason: string | null
  image: string | null
  imageDigest: string | null
}

export interface FileFact {
  id: string
  objectId: string
  /** Id of the attempt that made it. */
  task: string
  activityId: string
  attempt: number
  path: string
  sizeBytes: number
  checksum: string | null
  mediaType: string | null
}

const time = (expression: string, as: string): string =>
  `to_char(${expression} at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.MS"+00:00"') as "${as}"`
const clock = (column: string, as: string): string =>
  time(`case when r.mode <> 'simulation' then to_timestamp(t.${column}) end`, as)

const runText = `select r.id, r.schedule_plan_id as "planId", r.mode, r.status, r.title, r.actor_id as
  "actorId", r.service_version as "serviceVersion",
    ${time('r.created_at', 'createdAt')}, ${time('r.started_at', 'startedAt')},
      ${time('r.finished_at', 'finishedAt')}, r.makespan_seconds as "makespanSeconds", r.cost,
    r.failure_reason as "failureReason", v.id as "versionId", v.workflow_id as "workflowId", v.version,
      v.definition_hash as hash, d.name as "workflowName"
  from execution_runs r join workflow_versions v on v.id = r.content_version_id left
    join workflow_definitions d on d.id = v.workflow_id where r.id = $1`

const activitiesText = `select a.position, a.id, a.external_id as "externalId", a.name, a.activity_type_id as
  "typeId", coalesce(y.name, a.activity_type_id) as "typeName",
    coalesce(a.command_spec ->> 'image', nullif(y.default_image, '')) as image, a.command_spec - 'environment'
      as command
  from activity_definitions a left join activity_types y on y.id = a.activity_type_id
    where a.workflow_version_id = $1 order by a.position`

const attemptsText = `select t.id, t.activity_position as position, t.activity_id as "activityId", t.attempt,
  t.status, t.planned_resource_id as "resourceId", t.runtime_id as "runtimeId",
    ${clock('started_at', 'startedAt')}, ${clock('finished_at', 'finishedAt')}, t.runtime_seconds as
      "runtimeSeconds", t.cpu_seconds as "cpuSeconds",
    t.peak_memory_bytes as "peakMemoryBytes", t.cost, t.exit_code as "exitCode", t.failure_reason as
      "failureReason", t.metadata ->> 'image' as image,
    t.metadata ->> 'imageDigest' as "imageDigest"
  from task_executions t join execution_runs r on r.id = t.execution_run_id where t.execution_run_id = $1
    order by t.activity_position, t.attempt`

const filesText = `select i.id, i.data_object_id as "objectId", t.id as task, i.producer_activity_id as
  "activityId", i.attempt, i.relative_path as path, i.size_bytes as "sizeBytes",
    i.checksum, i.media_type as "mediaType"
  from data_object_instances i
  join task_executions t on t.execution_run_id = i.execution_run_id and t.activity_id = i.producer_activity_id
    and t.attempt = i.attempt
  where i.execution_run_id = $1 order by t.activity_position, i.attempt, i.relative_path collate "C"`

/**
 * The most uses of files in one export. A step without files between thousands of producers and
 * thousands of consumers makes a use of each pair.
 */
const mostUses = 500_000

/**
 * All facts of a run at one moment, or undefined for no such run. Environments of commands are left
 * out: they may hold secrets.
 */
export const readRunFacts = (db: Db, runId: string): Promise<RunFacts | undefined> =>
  db.snapshot(async (tx) => {
    type Head = RunFact & {
      versionId: string
      workflowId: string
      version: number
      hash: string
      workflowName: string | null
    }
    const [head] = await tx.prepared<Head>('facts_run', runText, [runId])
    if (head === undefined) return undefined
    const { versionId, workflowId, version, hash, workflowName, ...run } = head
    const activities = await tx.prepared<ActivityFact>('facts_activities', activitiesText, [versionId])
    const dependencies = await tx.prepared<{ from: number; to: number }>(
      'facts_dependencies',
      'select depends_on_position as from, activity_position as to from activity_dependencies where ' +
        'workflow_version_id = $1 order by 2, 1',
      [versionId],
    )
    const attempts = await tx.prepared<AttemptFact>('facts_attempts', attemptsText, [runId])
    const files = await tx.prepared<FileFact>('facts_files', filesText, [runId])
    // The view gives the same pairs, and takes minutes for all of a large run.
    const uses = files.length === 0 ? [] : ((await openRunGraphs().of(tx, runId))?.uses(mostUses) ?? [])
    if (uses.length > mostUses)
      throw new Refusal(
        'unacceptable',
        `run ${JSON.stringify(runId)} has more than ${String(mostUses)} uses of files by its tasks, and an ` +
          'export holds no more; ask for them in parts with POST /provenance/sql/ from data_uses',
      )
    const resources = await tx.prepared<{ id: string; name: string; type: string }>(
      'facts_resources',
      `select x.id, x.name, coalesce(x.type, '') as type from run_snapshots s cross
        join jsonb_to_recordset(s.resources) as x (id text, name text, type text)
       where s.execution_run_id = $1 and x.id in (select planned_resource_id from task_executions
         where execution_run_id = $1)`,
      [runId],
    )
    return {
      run,
      workflow: { id: workflowId, versionId, version, name: workflowName ?? workflowId, hash },
      ...{ activities, dependencies, attempts, files, uses, resources },
    }
  })
