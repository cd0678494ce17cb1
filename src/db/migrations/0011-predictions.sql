-- The simulator's answer for every plan: under which network model, what the document predicted itself, and which durations nothing gave.

alter table schedule_plans
  -- Null: a plan of before, whose prediction is its author's.
  add column network_model text,
  -- Why the plan cannot run at all.
  add column prediction_failure text,
  add column contention_free_makespan_seconds double precision,
  add column submitted_prediction jsonb,
  add column defaulted_durations bigint not null default 0;

alter table schedule_plan_assignments add column duration_source text, add column submitted_prediction jsonb;

update schedule_plan_assignments set duration_source = metadata ->> 'durationSource' where metadata ? 'durationSource'
  and metadata ->> 'durationSource' in ('baseRuntime', 'profile', 'simulation', 'flops', 'plan', 'default');
update schedule_plans p set defaulted_durations = c.number
  from (select schedule_plan_id, count(*) as number from schedule_plan_assignments where duration_source = 'default' group by 1) c
  where p.id = c.schedule_plan_id;

alter table planning_sessions add column network_model text, add column warnings jsonb;
alter table planning_candidates
  -- Null: a candidate of before, whose figures are those of its algorithm.
  add column contention_free_makespan_seconds double precision,
  add column defaulted_durations bigint not null default 0;
-- Its plan holds the rule of each duration by number; 5 is the default.
update planning_candidates c set defaulted_durations = (select count(*) from jsonb_array_elements(c.plan -> 'source') as s(rule) where s.rule = '5');

alter table execution_runs add column warnings jsonb;
-- Why a task has another runtime than its plan or its workflow names; of the first attempt, those after it keep the runtime.
alter table task_executions add column runtime_reason text;
