create or replace view provenance.activity_dependencies as
  select a.id as activity_id, b.id as depends_on_activity_id, d.dependency_type
  from activity_dependencies d
  join activity_definitions a on a.workflow_version_id = d.workflow_version_id and a.position = d.activity_position
  join activity_definitions b on b.workflow_version_id = d.workflow_version_id
    and b.position = d.depends_on_position;
