create or replace view provenance.environment_versions as
  select id, environment_id, version, status, network_model, interference_model, cost_model,
    configuration_hash, created_at, published_at from environment_versions;
