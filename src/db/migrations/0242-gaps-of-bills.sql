-- When an instance had no machine: a retry makes another one after the end of the first, and the disks of both count.

alter table cloud_instances add column if not exists billing_gaps tstzmultirange not null default '{}';
