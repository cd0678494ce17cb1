-- Checks of connections, as documents of environments show them.

create or replace view recorded_connection_checks as
select k.id, k.connection_id, k.status, k.message, k.latency_ms, k.checked_at, k.metadata
from connection_checks k;
