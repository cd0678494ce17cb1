create or replace view provenance.environments as
  select id, name, description, status, created_at from environments;
