create or replace view provenance.data_locations as
  select id, data_object_instance_id, storage_resource_id, resource_id, execution_run_id, uri, available_at,
    verified_at, status from data_locations;
