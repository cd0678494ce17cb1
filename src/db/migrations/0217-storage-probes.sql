-- The last answer of a storage to the question whether it can be reached. Null: it was not asked.

alter table storages add column if not exists probe jsonb;
