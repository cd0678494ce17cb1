-- Orders and filters of lists. Of columns that change at the end of a run alone, or never: an index
-- on others would take the cheap updates (HOT) from the engine.

create index if not exists execution_runs_by_created on execution_runs (created_at, id);
create index if not exists execution_runs_by_finished on execution_runs (coalesce(finished_at, 'infinity'), id);
create index if not exists execution_runs_by_makespan on execution_runs (makespan_seconds, id);
create index if not exists execution_runs_by_cost on execution_runs (cost, id);
create index if not exists execution_runs_by_title on execution_runs (coalesce(title, '') collate "C", id);
create index if not exists schedule_plans_by_makespan on schedule_plans (predicted_makespan_seconds, id);
create index if not exists schedule_plans_by_cost on schedule_plans (predicted_cost, id);
create index if not exists planning_sessions_by_completed on planning_sessions (coalesce(completed_at, 'infinity'), id);

do $$
begin
  create index if not exists execution_runs_titles on execution_runs using gin (
    lower(title collate "default") trigrams.gin_trgm_ops);
exception
  when insufficient_privilege or undefined_file or undefined_object or invalid_schema_name or feature_not_supported then
    raise notice 'pg_trgm is not there: a filter by title reads the whole table';
end $$;
