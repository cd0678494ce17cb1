-- The name of the entity beside that of its table.

create or replace view provenance.plans as select * from provenance.schedule_plans;
