-- The host that a discovery through a local connection describes: that of its request. Null for the others.

alter table connection_discoveries add column if not exists host_id text;
