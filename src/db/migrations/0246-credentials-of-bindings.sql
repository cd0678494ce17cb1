-- Who uses a credential is asked for each credential of a list. A reference may be any text.
create index if not exists bindings_of_credential on resource_runtime_bindings
  using hash ((configuration ->> 'credentialRef')) where configuration ->> 'credentialRef' is not null;
create index if not exists bindings_of_slurm_credential on resource_runtime_bindings
  using hash ((configuration #>> '{slurmrestd,credentialRef}'))
  where configuration #>> '{slurmrestd,credentialRef}' is not null;
