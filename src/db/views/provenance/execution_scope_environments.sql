create or replace view provenance.execution_scope_environments as
  select execution_scope_id, environment_version_id from execution_scope_environments;
