-- A factory reset whose files are out of the way removes no later ones, however long its workflows take.

alter table instance_cleanups add column if not exists files_aside boolean not null default false;
