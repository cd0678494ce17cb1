-- Work directories of deleted runs, until their sites have removed them. The run's rows are gone, so
-- each row holds what is needed to reach the site.

create table if not exists site_removals (
  id bigint generated always as identity,
  site text not null collate "C",
  -- Machine whose workers remove it, where the site is one without a connection.
  host_id text,
  execution_run_id text not null,
  -- The folder of the run below the site's root.
  scope text not null,
  names text[] not null,
  facts jsonb not null,
  since timestamptz not null default now(),
  tries integer not null default 0,
  next_try_at timestamptz not null default now(),
  last_error text,
  constraint site_removals_pkey primary key (id)
);
create index if not exists site_removals_due on site_removals (next_try_at);

-- Without them the deletion of a run or session reads these tables once for each of its rows.
create index if not exists data_locations_of_instance on data_locations (data_object_instance_id);
create index if not exists planning_candidates_of_algorithm_run on planning_candidates (algorithm_run_id);
create index if not exists site_leftovers_of_run on site_leftovers (execution_run_id);
