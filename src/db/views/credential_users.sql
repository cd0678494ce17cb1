-- What refers to a credential of the vault, for the credentials' lists and the refusal of their
-- deletion.

create or replace view credential_users as
select c.credential_ref, c.id as connection_id, c.environment_id, c.name, 'connection'::text as kind
from connections c
where c.credential_ref <> ''
union all
select b.credential_ref, b.id, null::identifier, b.id::text, 'build'::text
from artifact_builds b
where b.credential_ref is not null;
