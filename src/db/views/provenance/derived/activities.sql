-- The name of the entity beside that of its table.

create or replace view provenance.activities as select * from provenance.activity_definitions;
