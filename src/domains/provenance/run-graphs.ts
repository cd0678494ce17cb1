import type { Db } from '../../db/sql.ts'
import { adjacency, RunGraph, type GraphFile, type GraphTask, type RunShape } from './run-graph.ts'

/** Graphs of runs that are kept between questions, at most so many bytes of them. */
const keptBytes = 256 * 1024 * 1024

interface Kept {
  graph: RunGraph
  generation: number
  /** Events of the run that the graph has seen. Everything that changes a graph is committed with an event of its run. */
  sequence: number
}

const taskColumns = `t.id, t.activity_id as "activityId", t.activity_position as position, t.attempt, t.status = 'completed' as completed, t.handle_name is not null as given`

const shapeOf = async (db: Db, versionId: string): Promise<RunShape> => {
  const [size] = await db.prepared<{ positions: number }>(
    'graph_positions',
    'select coalesce(max(position), -1) + 1 as positions from activity_definitions where workflow_version_id = $1',
    [versionId],
  )
  const [edges] = await db.prepared<{ before: number[] | null; after: number[] | null }>(
    'graph_edges',
    'select array_agg(depends_on_position) as before, array_agg(activity_position) as after from activity_dependencies where workflow_version_id = $1',
    [versionId],
  )
  const declared = await db.prepared<{ consumer: number; producer: number | null; name: string | null }>(
    'graph_declared',
    `select a.position as consumer, d.producer_position as producer, d.logical_name as name from activity_definitions a
     left join workflow_data_dependencies d on d.workflow_version_id = a.workflow_version_id and d.consumer_position = a.position
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
  return { positions, before: adjacency(positions, after, before), after: adjacency(positions, before, after), declaredOnly }
}

// Joined with their tasks here, not there: of a run that has just grown PostgreSQL knows too little to plan a join.
const filesText = `select i.id, i.relative_path as path, i.producer_activity_id as "activityId", i.attempt from data_object_instances i
  where i.execution_run_id = $1`

/**
 * The graphs of runs, each as the database has it at the moment of the question: the number of the run's last event tells whether anything is new,
 * and the events since then which tasks it is about. So the graphs are right whoever wrote, also another daemon.
 */
export const openRunGraphs = () => {
  const kept = new Map<string, Kept>()

  const load = async (tx: Db, runId: string, run: { versionId: string; generation: number; sequence: number }): Promise<Kept> => {
    const graph = new RunGraph(await shapeOf(tx, run.versionId))
    const tasks = await tx.prepared<GraphTask>(
      'graph_tasks',
      `select ${taskColumns} from task_executions t where t.execution_run_id = $1 order by t.activity_position, t.attempt`,
      [runId],
    )
    graph.putTasks(tasks)
    graph.putFiles(await tx.prepared<GraphFile>('graph_files', filesText, [runId]))
    return { graph, generation: run.generation, sequence: run.sequence }
  }

  /** Brings a graph to the run's last event. */
  const follow = async (tx: Db, runId: string, known: Kept, sequence: number): Promise<void> => {
    const events = await tx.prepared<{ type: string; id: string }>(
      'graph_events',
      'select aggregate_type as type, aggregate_id as id from run_events where execution_run_id = $1 and sequence > $2 and sequence <= $3',
      [runId, known.sequence, sequence],
    )
    // An event of the run itself may be about all of its tasks.
    const all = events.some(({ type }) => type === 'execution_run')
    const ids = [...new Set(events.map(({ id }) => id))]
    const tasks = await tx.prepared<GraphTask>(
      all ? 'graph_tasks' : 'graph_changed_tasks',
      all
        ? `select ${taskColumns} from task_executions t where t.execution_run_id = $1 order by t.activity_position, t.attempt`
        : `select ${taskColumns} from task_executions t where t.id = any($1::text[]) order by t.activity_position, t.attempt`,
      [all ? runId : ids],
    )
    known.graph.putTasks(tasks)
    const changed = new Set(ids)
    const activities = tasks.filter(({ id }) => changed.has(id)).map(({ activityId }) => activityId)
    const byActivity = `${filesText} and i.producer_activity_id = any($2::text[])`
    known.graph.putFiles(await tx.prepared<GraphFile>('graph_changed_files', byActivity, [runId, activities]))
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

  return {
    /** The graph of a run, or undefined for no such run. To be called in a transaction that sees one state of the database. */
    async of(tx: Db, runId: string): Promise<RunGraph | undefined> {
      const [run] = await tx.prepared<{ versionId: string; generation: number; sequence: number }>(
        'graph_run',
        'select content_version_id as "versionId", generation, last_event_sequence as sequence from execution_runs where id = $1',
        [runId],
      )
      if (run === undefined) {
        kept.delete(runId)
        return undefined
      }
      let known = kept.get(runId)
      kept.delete(runId)
      // A transaction may see less than an earlier one of another connection did.
      if (known === undefined || known.generation !== run.generation || known.sequence > run.sequence) known = await load(tx, runId, run)
      else if (known.sequence < run.sequence) await follow(tx, runId, known, run.sequence)
      kept.set(runId, known)
      forget()
      return known.graph
    },
  }
}
export type RunGraphs = ReturnType<typeof openRunGraphs>
