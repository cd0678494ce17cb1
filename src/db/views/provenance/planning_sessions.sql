create or replace view provenance.planning_sessions as
  select id, workflow_version_id, execution_scope_id, network_topology_id, status, algorithms, progress,
    candidate_count, selected_candidate_id, selected_plan_id,
    deadline_seconds, budget, failure_reason, created_at, started_at, completed_at from planning_sessions;
