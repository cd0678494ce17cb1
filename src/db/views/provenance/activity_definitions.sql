create or replace view provenance.activity_definitions as
  select id, workflow_version_id, activity_type_id, external_id, name, kind, capabilities, command_spec,
    resource_requirements, service_spec, simulation_spec, policy,
    priority from activity_definitions;
