-- The machines around a candidate's tasks: their actions, and what they cost beside the tasks.
alter table planning_candidates add column if not exists lifecycle jsonb;
