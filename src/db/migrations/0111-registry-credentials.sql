-- Logins of image registries, and the builds that pull with them; the key that signs provenance.

alter table credentials drop constraint if exists credentials_kind;
alter table credentials add constraint credentials_kind
  check (kind in ('ssh-key', 'kubernetes-token', 'cloud-credential', 'registry-credential', 'signing-key'));
alter table artifact_builds add column if not exists credential_ref text;
create index if not exists artifact_builds_of_credential on artifact_builds (credential_ref)
  where credential_ref is not null;
