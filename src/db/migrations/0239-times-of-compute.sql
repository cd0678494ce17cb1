-- When the machine of an instance ran: each of these times is paid for by the run that had the machine then.

alter table cloud_instances add column if not exists compute_spans tstzmultirange not null default '{}';
