create or replace view provenance.network_topologies as
  select id, name, version, execution_scope_id, created_at from network_topologies;
