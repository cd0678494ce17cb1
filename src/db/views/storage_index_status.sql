-- How far the index of each storage is, for the storages of environments.

create or replace view storage_index_status as
select distinct on (r.storage_id) r.storage_id,
  case when r.status = 'queued' then 'running' else r.status end as status,
  r.indexed_entries, r.error as message,
  (select max(d.finished_at) from storage_index_runs d
    where d.storage_id = r.storage_id and d.status = 'completed') as last_indexed_at
from storage_index_runs r order by r.storage_id, r.created_at desc, r.id desc;
