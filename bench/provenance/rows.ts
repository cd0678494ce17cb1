import { sql, type Db } from '../../src/db/sql.ts'

/**
 * A workflow and one run of it, inserted directly as rows: a benchmark or a test can query them
 * without waiting for programs.
 */
export interface RecordedRun {
  /** Prefix of every id. */
  name: string
  /** Activities by position; names are `a<position>`. */
  activities: number
  /** Positions of a predecessor and its successor. */
  edges: readonly (readonly [from: number, to: number])[]
  /** Files of each activity; 1 where absent. */
  files?: (position: number) => number
  /** The declared files of activities that take only declared files. */
  declared?: ReadonlyMap<number, readonly { producer: number; name: string }[]>
}

const at = (n: number): string => `a${String(n)}`

export const filePath = (position: number, n: number): string => `out/${at(position)}-${String(n)}.dat`
export const taskId = (run: string, position: number): string => `${run}-run:${run}-${at(position)}`
export const fileId = (run: string, position: number, n: number): string =>
  `file-${run}-${String(position)}-${String(n)}`

/** Writes environment, scope, workflow, plan and a completed real run. */
export const recordRun = (
  db: Db,
  { name, activities, edges, files = () => 1, declared }: RecordedRun,
): Promise<void> =>
  db.transaction(async (tx) => {
    const positions = Array.from({ length: activities }, (_, n) => n)
    const version = `${name}-v1`
    const run = `${name}-run`
    await tx.run(
      sql`insert into environments (id, name, status) values (${name}, ${name}, 'ready') on conflict do nothing`,
    )
    await tx.run(
      sql`insert into environment_versions (id, environment_id, version) values (${`${name}-env`}, ${name}, 1)`,
    )
    await tx.run(sql`insert into resources (id, environment_version_id, name, provider_id, type, cpu_cores,
      price_per_second)
      values (${`${name}-host`}, ${`${name}-env`}, ${`Host of ${name}`}, 'host', 'local_machine', 4, 0.001)`)
    await tx.run(
      sql`insert into execution_scopes (id, name) values (${`${name}-scope`}, ${`Scope of ${name}`})`,
    )
    await tx.run(
      sql`insert into execution_scope_environments (execution_scope_id, environment_version_id)
        values (${`${name}-scope`}, ${`${name}-env`})`,
    )
    await tx.run(
      sql`insert into workflow_definitions (id, external_id, name, namespace)
        values (${name}, ${name}, ${`Workflow ${name}`}, 'bench')`,
    )
    await tx.run(sql`insert into workflow_versions (id, workflow_id, version, definition_hash, activity_count,
      dependency_count)
      values (${version}, ${name}, 1, 'sha256:0', ${activities}, ${edges.length})`)
    await tx.run(
      sql`insert into activity_types (id, workflow_id, name, default_image)
        values (${`${name}-type`}, ${name}, 'Type', 'debian:12-slim')`,
    )
    await tx.run(sql`insert into activity_definitions (workflow_version_id, position, id, activity_type_id,
      external_id, name, capabilities, command_spec, resource_requirements, policy, metadata)
      select ${version}, p, ${name} || '-a' || p, ${`${name}-type`}, 'a' || p, 'Activity ' || p, '["real"]',
        '{"entrypoint":"true"}', '{"cpu":1,"memoryBytes":1}', '{}',
        case when p = any(${[...(declared?.keys() ?? [])]}::int[]) then '{"stage":"declared"}'::jsonb end
      from unnest(${positions}::int[]) p`)
    await tx.run(sql`insert into activity_dependencies (workflow_version_id, activity_position, depends_on_position)
      select ${version}, t, f from unnest(${edges.map(([from]) => from)}::int[],
        ${edges.map(([, to]) => to)}::int[]) as e (f, t) on conflict do nothing`)
    const names = [...(declared ?? [])].flatMap(([consumer, list]) =>
      list.map((one) => ({ consumer, ...one })),
    )
    await tx.run(sql`insert into workflow_data_dependencies (workflow_version_id, producer_position,
      consumer_position, logical_name, size_bytes)
      select ${version}, p, c, n, 1 from unnest(${names.map((one) => one.producer)}::int[],
        ${names.map((one) => one.consumer)}::int[], ${names.map((one) => one.name)}::text[]) as d (p, c, n)`)
    await tx.run(sql`insert into schedule_plans (id, workflow_version_id, content_version_id,
      execution_scope_id, source, algorithm, assignment_count, predicted_feasible)
      values (${`${name}-plan`}, ${version}, ${version}, ${`${name}-scope`}, 'manual', 'heft', ${activities}, true)`)
    await tx.run(sql`insert into execution_runs (id, schedule_plan_id, content_version_id, mode, status,
      activity_count, completed_activity_count, actor_id, service_version,
        started_at, finished_at, makespan_seconds, last_event_sequence)
      values (${run}, ${`${name}-plan`}, ${version}, 'real', 'completed', ${activities}, ${activities},
        'bench', '0.0.0', now() - interval '1 minute', now(), 60, ${activities})`)
    await tx.run(sql`insert into task_executions (id, execution_run_id, activity_position, plan_assignment_id,
      activity_id, external_id, planned_resource_id, allocated_resource_id,
        runtime_id, status, handle_name, handle_started_at, ready_at, started_at, finished_at,
          runtime_seconds, cost, exit_code)
      select ${`${run}:${name}`} || '-a' || p, ${run}, p, 'x' || p, ${name} || '-a' || p, 'a' || p,
        ${`${name}-host`}, ${`${name}-host`}, ${`${name}-rt`}, 'completed', 't' || p,
        p, p, p, p + 1, 1, 0.001, 0 from unnest(${positions}::int[]) p`)
    const made = positions.flatMap((p) => Array.from({ length: files(p) }, (_, n) => ({ p, n })))
    for (let i = 0; i < made.length; i += 100_000) {
      const part = made.slice(i, i + 100_000)
      const given = sql`unnest(${part.map(({ p }) => p)}::int[], ${part.map(({ n }) => n)}::int[]) as f (p, n)`
      await tx.run(sql`insert into data_objects (id, workflow_version_id, producer_activity_id, logical_name,
        relative_path)
        select 'data-' || ${name} || '-' || p || '-' || n, ${version}, ${name} || '-a' || p, 'out/a' || p ||
          '-' || n || '.dat', 'out/a' || p || '-' || n || '.dat' from ${given}`)
      await tx.run(sql`insert into data_object_instances (id, data_object_id, execution_run_id,
        producer_activity_id, relative_path, size_bytes, checksum)
        select 'file-' || ${name} || '-' || p || '-' || n, 'data-' || ${name} || '-' || p || '-' || n, ${run},
          ${name} || '-a' || p, 'out/a' || p || '-' || n || '.dat', 10, 'sha256:' || md5(p || ' ' || n)
        from ${given}`)
    }
    await tx.run(sql`insert into operation_events (operation_id, sequence, event_type, aggregate_type, aggregate_id)
      select ${run}, p + 1, 'activity.completed', 'activity_execution', ${`${run}:${name}`} || '-a' || p
        from unnest(${positions}::int[]) p`)
    // The server's own maintenance would do this within a minute.
    if (activities >= 1_000) await tx.run(sql`analyze`)
  })
