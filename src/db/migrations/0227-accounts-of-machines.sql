-- The provider's account that a machine was asked for in: a connection that leads to another one does
-- not show the machine, which says nothing about it.

alter table cloud_instances add column if not exists account text;
