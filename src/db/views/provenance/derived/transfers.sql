-- The name of the entity beside that of its table.

create or replace view provenance.transfers as select * from provenance.data_transfer_observations;
