-- Google's project of a machine, where its target names one; null: that of the connection.
alter table cloud_instances add column if not exists project_id text;
