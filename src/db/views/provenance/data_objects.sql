create or replace view provenance.data_objects as
  select id, workflow_version_id, producer_activity_id, logical_name, relative_path, declared from data_objects;
