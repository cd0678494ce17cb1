-- Search finds artifacts, their materializations, runs by the resources and runtimes of their tasks, and scopes by their environments.

-- Ids, one a line.
alter table execution_runs add column if not exists searched_places text;
alter table execution_scopes add column if not exists searched_environments text;

update execution_runs r set searched_places = (
  select string_agg(distinct place, chr(10)) from task_executions t, unnest(array[t.planned_resource_id, t.runtime_id]) place
    where t.execution_run_id = r.id)
  where searched_places is null;
update execution_scopes s set searched_environments = (
  select string_agg(e.environment_version_id, chr(10) order by e.environment_version_id) from execution_scope_environments e
    where e.execution_scope_id = s.id)
  where searched_environments is null;

do $$
begin
  -- The expressions are those of src/domains/search/kinds.ts.
  drop index if exists execution_runs_texts;
  create index execution_runs_texts on execution_runs using gin (
    lower((chr(10) || coalesce(id, '') || chr(10) || coalesce(title, '') || chr(10) || coalesce(searched_places, '') || chr(10) || coalesce(failure_reason, '') || chr(10) || coalesce(status, '') || chr(10)) collate "default") trigrams.gin_trgm_ops);
  drop index if exists execution_scopes_texts;
  create index execution_scopes_texts on execution_scopes using gin (
    lower((chr(10) || coalesce(id, '') || chr(10) || coalesce(name, '') || chr(10) || coalesce(network_topology_id, '') || chr(10) || coalesce(searched_environments, '') || chr(10)) collate "default") trigrams.gin_trgm_ops);
  create index if not exists artifact_versions_texts on artifact_versions using gin (
    lower((chr(10) || coalesce(artifact_id, '') || chr(10) || coalesce(id, '') || chr(10) || coalesce(name, '') || chr(10) || coalesce(version, '') || chr(10)) collate "default") trigrams.gin_trgm_ops);
  create index if not exists artifact_materializations_texts on artifact_materializations using gin (
    lower((chr(10) || coalesce(id, '') || chr(10) || coalesce(variant_id, '') || chr(10) || coalesce(digest, '') || chr(10) || coalesce(resource_id, '') || chr(10) || coalesce(run_id, '') || chr(10) || coalesce(activity_id, '') || chr(10) || coalesce(destination_path, '') || chr(10) || coalesce(status, '') || chr(10)) collate "default") trigrams.gin_trgm_ops);
exception
  when insufficient_privilege or undefined_object or invalid_schema_name then
    raise notice 'pg_trgm is not there: search reads whole tables';
end $$;
