/** The entities of the read model: the fields of each, and the links between them. */

import type { z } from 'zod'
import type { EntityDescriptor } from './schemas.ts'

export type Entity = z.output<typeof EntityDescriptor>

const typeOf = (field: string): Entity['fields'][number]['type'] => {
  if (field === 'id' || field.endsWith('_id')) return 'identifier'
  if (field === 'status' || field === 'outcome') return 'status'
  if (field.endsWith('_at')) return 'datetime'
  if (field.endsWith('_bytes') || field === 'bytes') return 'bytes'
  if (field.endsWith('_seconds')) return 'duration'
  if (field === 'cost' || field.endsWith('_cost')) return 'currency'
  if (['schedulable', 'declared', 'discovered', 'predicted_feasible'].includes(field)) return 'boolean'
  if (
    ['cpu_cores', 'version', 'priority', 'progress', 'candidate_count', 'attempt', 'exit_code'].includes(
      field,
    )
  )
    return 'number'
  return 'text'
}

const labelOf = (name: string): string => {
  const text = name
    .replaceAll('_', ' ')
    .replace(/\bid\b/, 'ID')
    .replace(/\bcpu\b/, 'CPU')
  return text[0]?.toUpperCase() + text.slice(1)
}

/** `fields`: names in their order, each with the entity to which it leads, if any: `run_id:runs`. */
const entity = (name: string, table: string, description: string, fields: string): Entity => {
  const described = fields.split(/\s+/).map((field) => field.split(':') as [string, string?])
  const links = described.flatMap(([field, targetEntity]) =>
    targetEntity === undefined ? [] : [{ field, targetEntity, targetField: 'id' as const }],
  )
  return {
    name,
    table,
    label: labelOf(name),
    description,
    fields: described.map(([field]) => ({ name: field, label: labelOf(field), type: typeOf(field) })),
    ...(links.length === 0 ? {} : { links }),
  }
}

export const catalogue: readonly Entity[] = [
  entity('environments', 'environments', 'Places that can run work', 'id name description status created_at'),
  entity(
    'resources',
    'resources',
    'Machines, partitions and nodes of environments',
    'id environment_version_id parent_resource_id:resources name type cpu_cores memory_bytes schedulable',
  ),
  entity(
    'execution_scopes',
    'execution_scopes',
    'Sets of environments that a plan may use',
    'id name network_topology_id',
  ),
  entity(
    'workflows',
    'workflow_definitions',
    'Workflows by name',
    'id external_id name namespace created_at',
  ),
  entity(
    'workflow_versions',
    'workflow_versions',
    'What a workflow was at a time; also versions that came inside a plan or run',
    'id workflow_id:workflows version definition_hash status created_at',
  ),
  entity(
    'activities',
    'activity_definitions',
    'Steps of workflow versions; versions of one workflow share their ids',
    'id workflow_version_id:workflow_versions external_id name kind priority',
  ),
  entity(
    'planning_sessions',
    'planning_sessions',
    'Requests for plans',
    `id workflow_version_id:workflow_versions execution_scope_id:execution_scopes status progress
      candidate_count selected_plan_id:plans created_at completed_at`,
  ),
  entity(
    'plans',
    'schedule_plans',
    'Which activity runs where and in which order',
    `id workflow_version_id:workflow_versions execution_scope_id:execution_scopes source algorithm
      objective status predicted_makespan_seconds predicted_cost predicted_feasible created_at`,
  ),
  entity(
    'runs',
    'execution_runs',
    'Executions and simulations of plans',
    'id schedule_plan_id:plans mode status makespan_seconds cost started_at finished_at created_at',
  ),
  entity(
    'task_executions',
    'task_executions',
    'Attempts of activities in runs',
    `id execution_run_id:runs activity_id:activities planned_resource_id:resources
      allocated_resource_id:resources attempt status runtime_seconds queue_seconds transfer_seconds
      transfer_bytes interference_seconds overhead_seconds cost`,
  ),
  entity(
    'data_objects',
    'data_objects',
    'Files that activities make, whatever the run',
    `id workflow_version_id:workflow_versions producer_activity_id:activities logical_name
      relative_path declared`,
  ),
  entity(
    'data_instances',
    'data_object_instances',
    'Files as an attempt left them',
    `id data_object_id:data_objects execution_run_id:runs producer_activity_id:activities relative_path
      size_bytes checksum media_type discovered created_at`,
  ),
  entity(
    'data_uses',
    'data_uses',
    'Files that an attempt was given: declared by the workflow, or staged with everything that a predecessor left',
    `id execution_run_id:runs task_execution_id:task_executions data_object_instance_id:data_instances
      data_object_id producer_task_execution_id consumer_activity_id basis relative_path size_bytes
      checksum`,
  ),
  entity(
    'transfers',
    'data_transfer_observations',
    'What moved between the resources of two activities',
    `id execution_run_id:runs data_object_id:data_objects data_object_instance_id:data_instances
      producer_activity_id:activities consumer_activity_id:activities source_resource_id:resources
      target_resource_id:resources bytes status duration_seconds cost`,
  ),
  entity(
    'audit_events',
    'audit_events',
    'What was done to the service, by whom',
    'id event_type environment_id resource_id execution_id outcome summary occurred_at',
  ),
]

export const entityNamed = (name: string): Entity | undefined => catalogue.find((one) => one.name === name)

/** Further tables that statements may read, beside those of the entities. */
const otherTables =
  `environment_versions resource_snapshots resource_relations execution_scope_environments network_topologies
    network_links activity_types
  activity_dependencies workflow_data_dependencies activity_resource_profiles schedule_plan_assignments
    planning_algorithm_runs planning_candidates
  activity_lifecycle_events data_locations attempts`.split(/\s+/)

/**
 * The table behind each name that a statement may read: the table's own name and, where it differs,
 * the name of its entity.
 */
export const readableNames: ReadonlyMap<string, string> = new Map([
  ...otherTables.map((table) => [table, table] as const),
  ...catalogue.flatMap(({ name, table }) => [[table, table] as const, [name, table] as const]),
])

/** The columns of everything that a statement may read. */
export const columnNames: ReadonlySet<string> = new Set(
  `activity_id activity_name activity_type activity_type_id actor_id actor_type algorithm
    algorithm_run_id algorithm_version algorithms allocated_resource_id application architecture attempt
    available available_at bandwidth_bits_per_second basis bidirectional boot_overhead_seconds budget
    bytes candidate_count capabilities captured_at checksum command_spec completed_at compute_speedup
    configuration_hash connection_id consumer_activity_id container_overhead_seconds core_id cost
    cost_model cpu_capacity cpu_cores cpu_intensity cpu_seconds cpu_used cpu_utilization created_at
    data_object_id data_object_instance_id data_ready_at deadline_seconds declared default_image
    definition_hash dependency_type depends_on_activity_id description discovered disk_read_bps
    disk_read_bytes disk_write_bps disk_write_bytes dominated duration_seconds energy_joules
    environment_id environment_snapshot_id environment_version_id error event_type execution_id
    execution_run_id execution_scope_id execution_target exit_code external_id failure_class
    failure_reason feasible fingerprint finished_at id image image_digest input_digest inputs
    interference_model interference_seconds io_intensity kind latency_seconds logical_name
    makespan_seconds max_concurrent_transfers media_type memory_bytes memory_intensity memory_used_bytes
    mode model_version name namespace network_in_bps network_intensity network_model network_out_bps
    network_topology_id objective occurred_at order_on_resource outcome outputs overhead_seconds
    parent_resource_id pareto_optimal peak_memory_bytes phase plan plan_assignment_id
    planned_resource_id planning_session_id policy predicted_cost predicted_feasible predicted_finish_at
    predicted_makespan_seconds predicted_ready_at predicted_runtime_seconds predicted_start_at
    predicted_transfer_seconds price_per_byte price_per_second priority producer_activity_id
    producer_task_execution_id progress provider_id published_at queue_length queue_seconds queued_at
    rank ready_at region relation_type relative_path resource_id resource_requirements runtime_id
    runtime_seconds runtime_stddev_seconds sample_size schedulable schedule_plan_id seed
    selected_candidate_id selected_plan_id service_spec service_version session_id sharing_policy
    simulation_spec site size_bytes slot_id source source_resource_id started_at status storage_bytes
    storage_resource_id summary target_resource_id task_execution_id tier topology_id transfer_bytes
    transfer_seconds transferred_bytes type uri verified_at version workflow_id workflow_version_id zone`.split(
    /\s+/,
  ),
)
