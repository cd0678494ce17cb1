-- Secrets of the credential routes, each sealed under a data key of its own (`content`), that wrapped under a key of the vault's key file
-- (`data_key`); kind, id and version are bound to both. Nothing of a secret is in `shown`.
create table credentials (
  kind text collate "C" not null constraint credentials_kind check (kind in ('ssh-key', 'kubernetes-token', 'cloud-credential')),
  id identifier not null,
  version integer not null,
  shown jsonb not null,
  key_id text not null,
  data_key bytea not null,
  content bytea not null,
  created_at timestamptz not null default now(),
  changed_at timestamptz not null default now(),
  -- To the minute.
  last_used_at timestamptz,
  constraint credentials_pkey primary key (kind, id)
);

-- Who uses a credential is asked whenever one is listed or deleted.
create index connections_credential on connections (credential_ref) where credential_ref <> '';
