create or replace view provenance.workflow_versions as
  select id, workflow_id, version, definition_hash, status, created_at from workflow_versions;
