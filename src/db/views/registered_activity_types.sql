-- Activity types of registered workflows, to which profiles of resources refer.

create or replace view registered_activity_types as
select t.id from activity_types t;
