-- Search over the texts of records, by trigrams. Without the right to make the extension everything works, and a search reads whole tables.

create schema if not exists trigrams;

do $$
begin
  create extension if not exists pg_trgm schema trigrams;

  -- Each text stands on a line of its own, in lower case, so that its beginning and its end can be asked for (src/domains/search/kinds.ts).
  create index if not exists workflow_definitions_texts on workflow_definitions using gin (
    lower((chr(10) || coalesce(id, '') || chr(10) || coalesce(external_id, '') || chr(10) || coalesce(name, '') || chr(10) || coalesce(namespace, '') || chr(10)) collate "default") trigrams.gin_trgm_ops);
  create index if not exists execution_runs_texts on execution_runs using gin (
    lower((chr(10) || coalesce(id, '') || chr(10) || coalesce(title, '') || chr(10) || coalesce(failure_reason, '') || chr(10) || coalesce(status, '') || chr(10)) collate "default") trigrams.gin_trgm_ops);
  create index if not exists environments_texts on environments using gin (
    lower((chr(10) || coalesce(id, '') || chr(10) || coalesce(name, '') || chr(10) || coalesce(description, '') || chr(10) || coalesce(status, '') || chr(10)) collate "default") trigrams.gin_trgm_ops);
  create index if not exists resources_texts on resources using gin (
    lower((chr(10) || coalesce(id, '') || chr(10) || coalesce(name, '') || chr(10) || coalesce(provider_id, '') || chr(10) || coalesce(region, '') || chr(10) || coalesce(zone, '') || chr(10) || coalesce(type, '') || chr(10)) collate "default") trigrams.gin_trgm_ops);
  create index if not exists schedule_plans_texts on schedule_plans using gin (
    lower((chr(10) || coalesce(id, '') || chr(10) || coalesce(algorithm, '') || chr(10) || coalesce(objective, '') || chr(10) || coalesce(workflow_version_id, '') || chr(10) || coalesce(execution_scope_id, '') || chr(10)) collate "default") trigrams.gin_trgm_ops);
  create index if not exists execution_scopes_texts on execution_scopes using gin (
    lower((chr(10) || coalesce(id, '') || chr(10) || coalesce(name, '') || chr(10) || coalesce(network_topology_id, '') || chr(10)) collate "default") trigrams.gin_trgm_ops);
exception
  when insufficient_privilege or undefined_file or feature_not_supported then
    raise notice 'pg_trgm cannot be made by this login: search reads whole tables';
end $$;
