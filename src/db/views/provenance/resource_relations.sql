create or replace view provenance.resource_relations as
  select environment_version_id, source_resource_id, target_resource_id, relation_type from resource_relations;
