-- Google's project of a machine, where its target names one; null: that of the connection.
alter table cloud_instances add column if not exists project_id text;

-- Who uses a credential is asked for each credential of a list. A reference may be any text.
create index if not exists cloud_instances_of_credential on cloud_instances (ssh_credential_ref)
  where ssh_credential_ref is not null;
create index if not exists storages_of_credential on storages using hash (credential_reference)
  where credential_reference <> '';

-- An entry of an index has at most 2,704 bytes: too few for a resource, a core and a slot of 255
-- characters of four bytes each.
alter table lane_leases drop constraint if exists lane_leases_pkey;
create unique index if not exists lane_leases_lane on lane_leases (md5(resource_id), core_id, md5(slot_id));
