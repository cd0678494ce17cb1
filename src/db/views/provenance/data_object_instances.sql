create or replace view provenance.data_object_instances as
  select id, data_object_id, execution_run_id, producer_activity_id, attempt, relative_path, size_bytes,
    checksum, media_type, discovered, created_at
  from data_object_instances;
