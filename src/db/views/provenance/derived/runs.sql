-- The name of the entity beside that of its table.

create or replace view provenance.runs as select * from provenance.execution_runs;
