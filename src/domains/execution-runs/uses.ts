import { sql } from '../../db/sql.ts'
import type { Use } from '../../db/uses.ts'
import type { ArtifactUse } from '../artifacts/versions.ts'
import type { EnvironmentUse } from '../environments/users.ts'
import type { PlanUse } from '../schedule-plans/store.ts'
import type { WorkflowUse } from '../workflow-definitions/store.ts'

export const runsOfEnvironment: EnvironmentUse = {
  kind: 'execution run',
  ids: ({ versions }) =>
    sql`select run.id::text from execution_runs run join schedule_plans plan on plan.id = run.schedule_plan_id
        where plan.execution_scope_id in
          (select execution_scope_id from execution_scope_environments where environment_version_id in (${versions}))`,
}

export const dataOfEnvironment: EnvironmentUse = {
  kind: 'data location',
  ids: ({ versions }) =>
    sql`select id::text from data_locations where storage_resource_id in (select id from storages
      where environment_version_id in (${versions}))
        and status <> 'deleted'`,
}

/** Runs whose snapshot pins a variant of the version, or the build. */
export const runsOfArtifact: ArtifactUse = {
  kind: 'execution run',
  ids: (target) =>
    'buildId' in target
      ? sql`select execution_run_id::text from run_snapshots
          where executables -> 'pins' @> jsonb_build_array(jsonb_build_object('buildId', ${target.buildId}::text))`
      : sql`select s.execution_run_id::text from run_snapshots s
          join artifact_variants n on n.artifact_version_id = ${target.versionId}
          where s.executables -> 'pins' @> jsonb_build_array(jsonb_build_object('variantId', n.id::text))`,
}

export const runsOfWorkflow: WorkflowUse = {
  kind: 'run',
  ids: (versionId) => sql`select id::text from execution_runs where content_version_id = ${versionId}`,
}

export const runsOfPlan: PlanUse = { constraint: 'execution_runs_plan', text: 'a run executes it' }

/** The records that prevent the deletion of a run; the target is the run's id. */
export const usesOfRun: readonly Use<string>[] = [
  {
    // Their location names the run as the origin of bytes that are still there.
    kind: 'promoted data object',
    ids: (runId) => sql`select i.data_object_id::text from data_locations l join data_object_instances i
      on i.id = l.data_object_instance_id where l.execution_run_id = ${runId}
        and l.storage_resource_id is not null and l.status = 'available'`,
  },
  {
    kind: 'open cloud operation',
    ids: (runId) => sql`select id::text from cloud_operations where execution_run_id = ${runId}
      and status in ('queued', 'running')`,
  },
  {
    kind: 'cloud instance',
    ids: (runId) => sql`select id::text from cloud_instances where execution_run_id = ${runId}
      and not machine_gone`,
  },
]
