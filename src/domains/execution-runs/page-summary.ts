import { z } from 'zod'
import { sql, type Db } from '../../db/sql.ts'
import type { PageSummary } from '../../operations/kind.ts'

const SummaryRow = z.object({
  workflow: z.string(),
  scope: z.string().optional(),
  planId: z.string(),
  mode: z.string(),
  activities: z.number(),
  promised: z.number(),
})

/** Seconds with three significant digits, enough for operators. */
const seconds = (value: number): string =>
  `${value >= 100 ? String(Math.round(value)) : String(Number(value.toPrecision(3)))} s`

/** A run's summary on Temporal's page: "mosaic on lab, real, 78 activities, promised 95 s". */
export const runPageSummary = async (db: Db, runId: string): Promise<PageSummary | undefined> => {
  const row = await db.maybe(
    SummaryRow,
    sql`select coalesce(nullif(d.name, ''), v.workflow_id) as workflow, s.name as scope, r.schedule_plan_id as
      plan_id, r.mode, r.activity_count as activities,
          p.predicted_makespan_seconds as promised
        from execution_runs r join schedule_plans p on p.id = r.schedule_plan_id join workflow_versions v
          on v.id = r.content_version_id
        left join workflow_definitions d on d.id = v.workflow_id left join execution_scopes s
          on s.id = p.execution_scope_id
        where r.id = ${runId}`,
  )
  if (row === undefined) return undefined
  const { workflow, scope, planId, mode, activities, promised } = row
  const place = scope === undefined ? '' : ` on ${scope}`
  const promise = promised > 0 ? `, promised ${seconds(promised)}` : ''
  return {
    line: `${workflow}${place}, ${mode}, ${String(activities)} activities${promise}`,
    path: `/execution-runs/${encodeURIComponent(runId)}/`,
    attributes: { WorkflowName: workflow, PlanId: planId },
  }
}
