-- Secret variables of playbooks are in the vault, one record for each capacity target.
alter table credentials drop constraint credentials_kind;
alter table credentials add constraint credentials_kind check (kind in
  ('ssh-key', 'kubernetes-token', 'cloud-credential', 'registry-credential', 'signing-key', 'machine-variables'));

-- When a process last began to look for machines without a record: one does so for all.
alter table cloud_service add column if not exists swept_at timestamptz;
