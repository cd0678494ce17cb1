create or replace view provenance.workflow_definitions as
  select id, external_id, name, namespace, created_at from workflow_definitions;
