-- A build run records the images that its build took, with the digest that each had then.

alter table build_runs add column if not exists bases jsonb;
