create or replace view provenance.schedule_plans as
  select id, workflow_version_id, execution_scope_id, network_topology_id, source, algorithm,
    algorithm_version, objective, status, deadline_seconds, budget,
    predicted_makespan_seconds, predicted_cost, predicted_feasible, created_at from schedule_plans;
