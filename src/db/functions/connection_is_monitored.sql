-- Whether a connection has the members that a check needs, so that a monitor checks it.

create or replace function connection_is_monitored(p_type text, p_endpoint text, p_credential_ref text)
returns boolean
language sql immutable
as $$
  select p_type = 'local' or (p_type in ('ssh', 'kubernetes') and p_endpoint <> '')
    or (p_type = 'cloud' and p_credential_ref <> '')
$$;
