-- The name of the entity beside that of its table.

create or replace view provenance.workflows as select * from provenance.workflow_definitions;
