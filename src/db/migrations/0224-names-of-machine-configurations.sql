-- A machine configuration is known by its id: two may have one name.

alter table machine_configurations drop constraint if exists machine_configurations_name;
