create or replace view provenance.execution_scopes as
  select id, name, network_topology_id from execution_scopes;
