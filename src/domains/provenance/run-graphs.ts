import type { Db } from '../../db/sql.ts'
import { runIdentity } from '../execution-runs/identity.ts'
import { neighboursOf, RunGraph, type GraphFile, type GraphTask, type RunShape } from './run-graph.ts'

/** Graphs of runs are cached between requests, with at most this many bytes in total. */
const keptBytes = 256 * 1024 * 1024

interface Kept {
  graph: RunGraph
  generation: number
  /**
   * Number of the run's events that the graph includes. Every change of a graph is committed with
   * an event of its run.
   */
  sequence: number
}

const taskColumns =
  't.id, t.activity_id as "activityId", t.activity_position as position, t.attempt, t.status = ' +
  `'completed' as completed, t.handle_name is not null as given`

const shapeOf = async (db: Db, versionId: string): Promise<RunShape> => {
  const [size] = await db.prepared<{ positions: number }>(
    'graph_positions',
    'select coalesce(max(position), -1) + 1 as positions from activity_definitions where workflow_version_id = $1',
    [versionId],
  )
  const [edges] = await db.prepared<{ before: number[] | null; after: number[] | null }>(
    'graph_edges',
    'select array_agg(depends_on_position) as before, array_agg(activity_position) as after from ' +
      'activity_dependencies where workflow_version_id = $1',
    [versionId],
  )
  const declared = await db.prepared<{ consumer: number; producer: number | null; name: string | null }>(
    'graph_declared',
    `select a.position as consumer, d.producer_position as producer, d.logical_name as name from activity_definitions a
     left join workflow_data_dependencies d on d.workflow_version_id = a.workflow_version_id
       and d.consumer_position = a.position
     where a.workflow_version_id = $1 and a.metadata ->> 'stage' = 'declared'`,
    [versionId],
  )
  const positions = size?.positions ?? 0
  const before = Int32Array.from(edges?.before ?? [])
  const after = Int32Array.from(edges?.after ?? [])
  const declaredOnly = new Map<number, { producer: number; name: string }[]>()
  for (const { consumer, producer, name } of declared) {
    const names = declaredOnly.get(consumer) ?? []
    if (producer !== null && name !== null) names.push({ producer, name })
    declaredOnly.set(consumer, names)
  }
  return {
    positions,
    before: neighboursOf(positions, after, before),
    after: neighboursOf(positions, before, after),
    declaredOnly,
  }
}

// The join with the tasks happens here. For a run that has just grown, PostgreSQL lacks the
// statistics to plan one.
const filesText = `select i.id, i.relative_path as path, i.producer_activity_id as "activityId", i.attempt
  from data_object_instances i
  where i.execution_run_id = $1`

interface RunOf {
  id: string
  run: string
}

export type InRun = 'task_executions' | 'data_instances'

const byRun = async (db: Db, entity: InRun, ids: readonly string[]): Promise<Map<string, string[]>> => {
  const table = entity === 'task_executions' ? 'task_executions' : 'data_object_instances'
  const rows = await db.prepared<RunOf>(
    `run_of_${table}`,
    `select id, execution_run_id as run from ${table} where id = any($1::text[])`,
    [ids],
  )
  const runs = new Map<string, string[]>()
  for (const { id, run } of rows) {
    const list = runs.get(run) ?? []
    list.push(id)
    runs.set(run, list)
  }
  return runs
}

/**
 * The graphs of runs, each as the database has it at the moment of the request. The number of the
 * run's last event shows whether the graph is current, and later events name the changed tasks. So
 * the graphs are right after writes of any daemon.
 */
export const openRunGraphs = () => {
  /** By the identities of runs. */
  const kept = new Map<string, Kept>()

  const load = async (
    tx: Db,
    runId: string,
    run: { versionId: string; generation: number; sequence: number },
  ): Promise<Kept> => {
    const graph = new RunGraph(await shapeOf(tx, run.versionId))
    const tasks = await tx.prepared<GraphTask>(
      'graph_tasks',
      `select ${taskColumns} from task_executions t where t.execution_run_id = $1 order by ` +
        't.activity_position, t.attempt',
      [runId],
    )
    graph.putTasks(tasks)
    graph.putFiles(await tx.prepared<GraphFile>('graph_files', filesText, [runId]))
    return { graph, generation: run.generation, sequence: run.sequence }
  }

  /**
   * Brings a graph to the run's last event. Its facts and their number change together, because
   * older snapshots may still hold the graph.
   */
  const follow = async (tx: Db, runId: string, known: Kept, sequence: number): Promise<void> => {
    const events = await tx.prepared<{ type: string; id: string }>(
      'graph_events',
      `select aggregate_type as type, aggregate_id as id from operation_events
        where kind = 'execution-run' and operation_id = $1 and sequence > $2 and sequence <= $3`,
      [runId, known.sequence, sequence],
    )
    // An event of the run itself may concern all of its tasks.
    const all = events.some(({ type }) => type === 'execution_run')
    const ids = [...new Set(events.map(({ id }) => id))]
    const tasks = await tx.prepared<GraphTask>(
      all ? 'graph_tasks' : 'graph_changed_tasks',
      all
        ? `select ${taskColumns} from task_executions t where t.execution_run_id = $1 order by ` +
            't.activity_position, t.attempt'
        : `select ${taskColumns} from task_executions t where t.id = any($1::text[]) order by ` +
            't.activity_position, t.attempt',
      [all ? runId : ids],
    )
    const changed = new Set(ids)
    const activities = tasks.filter(({ id }) => changed.has(id)).map(({ activityId }) => activityId)
    const byActivity = `${filesText} and i.producer_activity_id = any($2::text[])`
    const files = await tx.prepared<GraphFile>('graph_changed_files', byActivity, [runId, activities])
    known.graph.putTasks(tasks)
    known.graph.putFiles(files)
    known.sequence = sequence
  }

  const forget = (): void => {
    let total = 0
    for (const { graph } of kept.values()) total += graph.bytes
    for (const [id, { graph }] of kept) {
      if (total <= keptBytes) return
      total -= graph.bytes
      kept.delete(id)
    }
  }

  const current = async (tx: Db, runId: string): Promise<Kept | undefined> => {
    const [run] = await tx.prepared<{
      identity: string
      versionId: string
      generation: number
      sequence: number
    }>(
      'graph_run',
      `select ${runIdentity} as identity, content_version_id as "versionId", generation,
        last_event_sequence as sequence from execution_runs where id = $1`,
      [runId],
    )
    if (run === undefined) return undefined
    let known = kept.get(run.identity)
    kept.delete(run.identity)
    // A transaction may see an older state than an earlier one on another connection.
    if (known === undefined || known.generation !== run.generation || known.sequence > run.sequence)
      known = await load(tx, runId, run)
    else if (known.sequence < run.sequence) await follow(tx, runId, known, run.sequence)
    kept.set(run.identity, known)
    forget()
    return known
  }

  return {
    /**
     * The graph of a run, or undefined for no such run. The caller's transaction has to see one
     * state of the database.
     */
    of: async (tx: Db, runId: string): Promise<RunGraph | undefined> => (await current(tx, runId))?.graph,

    /** The graphs for one transaction that sees one state: each run is looked up once. */
    seenBy(tx: Db) {
      const seen = new Map<string, { known: Kept; sequence: number }>()
      const isCurrent = ({ known, sequence }: { known: Kept; sequence: number }): boolean =>
        known.sequence === sequence
      return {
        async of(runId: string): Promise<RunGraph | undefined> {
          const before = seen.get(runId)
          // A later transaction may have brought the graph further.
          if (before !== undefined && isCurrent(before)) return before.known.graph
          const known = await current(tx, runId)
          if (known !== undefined) seen.set(runId, { known, sequence: known.sequence })
          return known?.graph
        },
        /** Ids of tasks or files by their run. */
        async byRun(entity: InRun, ids: readonly string[]): Promise<Map<string, string[]>> {
          const runs = new Map<string, string[]>()
          let rest = ids
          for (const [runId, before] of seen) {
            if (!isCurrent(before)) continue
            const { graph } = before.known
            const inside = rest.filter((id) => graph.has(entity, id))
            if (inside.length === 0) continue
            runs.set(runId, inside)
            rest = rest.filter((id) => !graph.has(entity, id))
          }
          if (rest.length > 0)
            for (const [runId, others] of await byRun(tx, entity, rest))
              runs.set(runId, [...(runs.get(runId) ?? []), ...others])
          return runs
        },
      }
    },
  }
}
export type RunGraphs = ReturnType<typeof openRunGraphs>
export type GraphsSeen = ReturnType<RunGraphs['seenBy']>
