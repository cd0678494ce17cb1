-- Data that somebody brought, and no activity of a run has made, is an object like any other.

alter table data_objects alter column workflow_version_id drop not null;
alter table data_objects alter column producer_activity_id drop not null;
alter table data_object_instances alter column execution_run_id drop not null;
alter table data_object_instances alter column producer_activity_id drop not null;
alter table data_locations alter column execution_run_id drop not null;
create index if not exists data_locations_of_uri on data_locations (uri) where storage_resource_id is not null;
