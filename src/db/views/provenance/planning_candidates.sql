create or replace view provenance.planning_candidates as
  select id, planning_session_id, algorithm_run_id, algorithm, objective, rank, pareto_optimal, dominated,
    feasible, predicted_makespan_seconds, predicted_cost, plan,
    fingerprint, created_at from planning_candidates;
