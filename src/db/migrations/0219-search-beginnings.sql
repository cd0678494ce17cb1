-- Searches for one and two letters find beginnings of texts in the index too: every line of an indexed text begins with a mark.

do $$
begin
  -- The expressions are those of src/domains/search/kinds.ts.
  drop index if exists workflow_definitions_texts;
  create index workflow_definitions_texts on workflow_definitions using gin (
    replace(lower((chr(10) || coalesce(id, '') || chr(10) || coalesce(external_id, '') || chr(10) || coalesce(name, '') || chr(10) || coalesce(namespace, '') || chr(10)) collate "default"), chr(10), chr(10) || 'qq') trigrams.gin_trgm_ops);
  drop index if exists execution_runs_texts;
  create index execution_runs_texts on execution_runs using gin (
    replace(lower((chr(10) || coalesce(id, '') || chr(10) || coalesce(title, '') || chr(10) || coalesce(searched_places, '') || chr(10) || coalesce(failure_reason, '') || chr(10) || coalesce(status, '') || chr(10)) collate "default"), chr(10), chr(10) || 'qq') trigrams.gin_trgm_ops);
  drop index if exists artifact_versions_texts;
  create index artifact_versions_texts on artifact_versions using gin (
    replace(lower((chr(10) || coalesce(artifact_id, '') || chr(10) || coalesce(id, '') || chr(10) || coalesce(name, '') || chr(10) || coalesce(version, '') || chr(10)) collate "default"), chr(10), chr(10) || 'qq') trigrams.gin_trgm_ops);
  drop index if exists environments_texts;
  create index environments_texts on environments using gin (
    replace(lower((chr(10) || coalesce(id, '') || chr(10) || coalesce(name, '') || chr(10) || coalesce(description, '') || chr(10) || coalesce(status, '') || chr(10)) collate "default"), chr(10), chr(10) || 'qq') trigrams.gin_trgm_ops);
  drop index if exists resources_texts;
  create index resources_texts on resources using gin (
    replace(lower((chr(10) || coalesce(id, '') || chr(10) || coalesce(name, '') || chr(10) || coalesce(provider_id, '') || chr(10) || coalesce(region, '') || chr(10) || coalesce(zone, '') || chr(10) || coalesce(type, '') || chr(10)) collate "default"), chr(10), chr(10) || 'qq') trigrams.gin_trgm_ops);
  drop index if exists schedule_plans_texts;
  create index schedule_plans_texts on schedule_plans using gin (
    replace(lower((chr(10) || coalesce(id, '') || chr(10) || coalesce(algorithm, '') || chr(10) || coalesce(objective, '') || chr(10) || coalesce(workflow_version_id, '') || chr(10) || coalesce(execution_scope_id, '') || chr(10)) collate "default"), chr(10), chr(10) || 'qq') trigrams.gin_trgm_ops);
  drop index if exists execution_scopes_texts;
  create index execution_scopes_texts on execution_scopes using gin (
    replace(lower((chr(10) || coalesce(id, '') || chr(10) || coalesce(name, '') || chr(10) || coalesce(network_topology_id, '') || chr(10) || coalesce(searched_environments, '') || chr(10)) collate "default"), chr(10), chr(10) || 'qq') trigrams.gin_trgm_ops);
  drop index if exists artifact_materializations_texts;
  create index artifact_materializations_texts on artifact_materializations using gin (
    replace(lower((chr(10) || coalesce(id, '') || chr(10) || coalesce(variant_id, '') || chr(10) || coalesce(digest, '') || chr(10) || coalesce(resource_id, '') || chr(10) || coalesce(run_id, '') || chr(10) || coalesce(activity_id, '') || chr(10) || coalesce(destination_path, '') || chr(10) || coalesce(status, '') || chr(10)) collate "default"), chr(10), chr(10) || 'qq') trigrams.gin_trgm_ops);
exception
  when insufficient_privilege or undefined_object or invalid_schema_name then
    raise notice 'pg_trgm is not there: search reads whole tables';
end $$;
