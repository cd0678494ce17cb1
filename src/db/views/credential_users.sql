-- What refers to a credential of the vault, for the credentials' lists and the refusal of their deletion.

create or replace view credential_users as
select c.credential_ref, c.id as connection_id, c.environment_id, c.name
from connections c
where c.credential_ref <> '';
