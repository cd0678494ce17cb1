import { z } from 'zod'
import { sql, type Db } from '../../db/sql.ts'
import type { OperationKind, PageSummary } from '../../operations/kind.ts'
import { endOperation } from '../../operations/records.ts'

const SummaryRow = z.object({
  workflow: z.string(),
  scope: z.string(),
  algorithms: z.array(z.object({ id: z.string() })),
})

/** The summary of a session on Temporal's page: "plan mosaic on lab with heft". */
const sessionPageSummary = async (db: Db, id: string): Promise<PageSummary | undefined> => {
  const row = await db.maybe(
    SummaryRow,
    sql`select coalesce(nullif(d.name, ''), v.workflow_id) as workflow, c.name as scope, s.algorithms
      from planning_sessions s
        join workflow_versions v on v.id = s.workflow_version_id join execution_scopes c on c.id = s.execution_scope_id
        left join workflow_definitions d on d.id = v.workflow_id where s.id = ${id}`,
  )
  if (row === undefined) return undefined
  const { workflow, scope, algorithms } = row
  return {
    line: `plan ${workflow} on ${scope} with ${algorithms.map((one) => one.id).join(', ')}`,
    path: `/planning-sessions/${encodeURIComponent(id)}/`,
    attributes: { WorkflowName: workflow },
  }
}

/**
 * Planning sessions as operations. A cancel ends a session at once: later results of its algorithms
 * are discarded.
 */
export const sessionKind: OperationKind<'planningSession'> = {
  name: 'planning-session',
  workflow: 'planningSession',
  noun: 'planning session',
  idInLog: 'sessionId',
  table: 'planning_sessions',
  columns: { finished_at: 'completed_at' },
  states: { accepted: 'queued', running: 'running' },
  events: 'planning.session',
  cancelEnds: 'open',
  pageSummary: sessionPageSummary,
  audit: (id, change) => ({
    eventType:
      change === 'cancelled' || change === 'workflow-restarted'
        ? `planning-session.${change}`
        : `planning.session.${change}`,
    sessionId: id,
  }),
  end: async (tx, of, end) => {
    await tx.run(sql`update planning_algorithm_runs set status = 'cancelled', failure_reason =
      'the session was cancelled', completed_at = clock_timestamp()
      where planning_session_id = ${of.id} and status in ('queued', 'running')`)
    await endOperation(tx, sessionKind, of, end)
  },
}
