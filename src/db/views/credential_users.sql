-- What refers to a credential of the vault, for the credentials' lists and the refusal of their
-- deletion.

create or replace view credential_users as
select c.credential_ref, c.id as connection_id, c.environment_id, c.name, 'connection'::text as kind
from connections c
where c.credential_ref <> ''
union all
select b.credential_ref, b.id, null::identifier, b.id::text, 'build'::text
from artifact_builds b
where b.credential_ref is not null
union all
select i.ssh_credential_ref, i.id, i.environment_id, i.name, 'instance'::text
from cloud_instances i
where i.ssh_credential_ref is not null
union all
select s.credential_reference, s.id, v.environment_id, s.name, 'storage'::text
from storages s
join environment_versions v on v.id = s.environment_version_id
where s.credential_reference <> '' and s.configuration -> 'signed' = 'true'::jsonb
union all
select r.configuration ->> 'credentialRef', r.id, v.environment_id, r.name, 'runtime'::text
from runtimes r
join environment_versions v on v.id = r.environment_version_id
where r.driver = 'serverless' and r.configuration ->> 'credentialRef' <> ''
union all
select r.configuration #>> '{slurmrestd,credentialRef}', r.id, v.environment_id, r.name, 'runtime'::text
from runtimes r
join environment_versions v on v.id = r.environment_version_id
where r.driver = 'slurm' and r.configuration #>> '{slurmrestd,credentialRef}' <> ''
union all
-- A binding's configuration stands over that of its runtime.
select distinct b.configuration ->> 'credentialRef', r.id, v.environment_id, r.name, 'runtime'::text
from resource_runtime_bindings b
join runtimes r on r.id = b.runtime_id
join environment_versions v on v.id = r.environment_version_id
where r.driver = 'serverless' and b.configuration ->> 'credentialRef' <> ''
  and b.configuration ->> 'credentialRef' is distinct from r.configuration ->> 'credentialRef'
union all
select distinct b.configuration #>> '{slurmrestd,credentialRef}', r.id, v.environment_id, r.name, 'runtime'::text
from resource_runtime_bindings b
join runtimes r on r.id = b.runtime_id
join environment_versions v on v.id = r.environment_version_id
where r.driver = 'slurm' and b.configuration #>> '{slurmrestd,credentialRef}' <> ''
  and b.configuration #>> '{slurmrestd,credentialRef}' is distinct from
    r.configuration #>> '{slurmrestd,credentialRef}';
