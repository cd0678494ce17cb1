-- What a run does outside is named after a key of its own, not after its id, which another service or an earlier data folder may have given as well.

alter table execution_runs add column effect_key text;
update execution_runs set effect_key = id;
alter table execution_runs alter column effect_key set default gen_random_uuid()::text, alter column effect_key set not null;
