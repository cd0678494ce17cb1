create or replace view provenance.workflow_data_dependencies as
  select p.id as producer_activity_id, c.id as consumer_activity_id, d.logical_name, d.size_bytes
  from workflow_data_dependencies d
  join activity_definitions p on p.workflow_version_id = d.workflow_version_id and p.position = d.producer_position
  join activity_definitions c on c.workflow_version_id = d.workflow_version_id
    and c.position = d.consumer_position;
