-- The name of the entity beside that of its table.

create or replace view provenance.data_instances as select * from provenance.data_object_instances;
