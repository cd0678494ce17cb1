-- Who uses a credential is asked for each credential of a list. A reference may be any text.
create index if not exists runtimes_of_credential on runtimes using hash ((configuration ->> 'credentialRef'))
  where driver = 'serverless';
create index if not exists runtimes_of_slurm_credential on runtimes
  using hash ((configuration #>> '{slurmrestd,credentialRef}')) where driver = 'slurm';
