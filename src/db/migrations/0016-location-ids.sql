-- A location has an id of its own: it was that of the file's instance.

update data_locations set id = 'location-' || md5(data_object_instance_id || ' ' || coalesce(resource_id, '')) where id = data_object_instance_id;

-- The function is long, and one expression of it changes.
do $$
declare
  present text;
  changed text;
begin
  select pg_get_functiondef(p.oid) into strict present from pg_proc p where p.pronamespace = 'public'::regnamespace and p.prosrc like '%insert into data_locations%';
  changed := replace(present, 'select x.id, x.id, x."resourceId", p_run, x.uri',
    'select ''location-'' || md5(x.id || '' '' || coalesce(x."resourceId", '''')), x.id, x."resourceId", p_run, x.uri');
  if changed not like '%location-%' then
    raise exception 'the function that records outputs does not read as expected';
  end if;
  execute changed;
end $$;
