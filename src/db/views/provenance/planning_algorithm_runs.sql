create or replace view provenance.planning_algorithm_runs as
  select id, planning_session_id, algorithm, objective, status, progress, candidate_count, failure_reason,
    started_at, completed_at from planning_algorithm_runs;
