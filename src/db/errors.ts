import { Refusal, type Problem } from '../refusal.ts'

/** What a violated constraint means to the caller: where in the document, and what to do. Keyed by the constraint's own name. */
const words: Record<string, Problem> = {
  environments_pkey: { path: 'environment.id', message: 'is taken by another environment; choose another id' },
  environment_versions_pkey: { path: 'version.id', message: 'is taken by another environment version; version ids are global' },
  environment_versions_number: { path: 'version.version', message: 'this number exists already in the environment' },
  runtimes_pkey: { path: 'runtimes', message: 'a runtime id is taken; runtime ids are global across environments' },
  runtimes_name: { path: 'runtimes', message: 'two runtimes of one version have the same name' },
  runtimes_driver: { path: 'runtimes', message: 'driver must be slurm, kubernetes, ssh, local, serverless, simgrid or cloud' },
  runtimes_mode: { path: 'runtimes', message: 'mode must be execution or simulation' },
  resources_pkey: { path: 'resources', message: 'a resource id is taken; resource ids are global across environments' },
  resources_provider_id: { path: 'resources', message: 'two resources of one version have the same providerId' },
  resources_parent: { path: 'resources', message: 'parentResourceId names no resource' },
  resources_version: { path: 'environmentVersionId', message: 'names no environment version' },
  resources_execution_target: { path: 'resources', message: 'executionTarget must be batch, direct or provisioned' },
  resources_not_negative: { path: 'resources', message: 'capacities, speedup, price and overheads must not be negative' },
  resource_runtime_bindings_pkey: { path: 'resourceRuntimeBindings', message: 'a pair of resource and runtime is bound twice' },
  resource_runtime_bindings_resource: { path: 'resourceRuntimeBindings', message: 'resourceId names no resource' },
  resource_runtime_bindings_runtime: { path: 'resourceRuntimeBindings', message: 'runtimeId names no runtime' },
  resource_relations_pkey: { path: 'resourceRelations', message: 'a relation is given twice' },
  resource_relations_source: { path: 'resourceRelations', message: 'sourceResourceId names no resource' },
  resource_relations_target: { path: 'resourceRelations', message: 'targetResourceId names no resource' },
  resource_relations_not_self: { path: 'resourceRelations', message: 'a relation cannot point from a resource to itself' },
  connections_pkey: { path: 'connections', message: 'a connection id is taken; connection ids are global across environments' },
  connections_name: { path: 'connections', message: 'two connections of one environment have the same name' },
  storages_pkey: { path: 'storages', message: 'a storage id is taken; storage ids are global across environments' },
  storages_name: { path: 'storages', message: 'two storages of one version have the same name' },
  storages_capacity: { path: 'storages', message: 'capacityBytes must not be negative' },
  storage_runtime_bindings_pkey: { path: 'storages', message: 'a storage is bound twice to one runtime' },
  storage_runtime_bindings_storage: { path: 'storages', message: 'a runtime binding names a storage of another version' },
  storage_runtime_bindings_runtime: { path: 'storages', message: 'a runtime binding names a runtime that is not of this version' },
  storage_runtime_bindings_one_default: { path: 'storages', message: 'two storages are the default of one runtime; at most one may be' },
  execution_scopes_pkey: { path: 'id', message: 'is taken by another execution scope; choose another id' },
  execution_scope_environments_pkey: { path: 'environmentVersionIds', message: 'names an environment version twice' },
  execution_scope_environments_version: {
    path: 'environmentVersionIds',
    message: 'the environment version does not exist, or an execution scope uses it',
  },
  network_topologies_pkey: { path: 'id', message: 'is taken by another network topology; choose another id' },
  network_topologies_scope: { path: 'executionScopeId', message: 'the execution scope does not exist, or a network topology uses it' },
  network_links_pkey: { path: 'links', message: 'a link id is taken; link ids are global across topologies' },
  network_links_pair: { path: 'links', message: 'two links join the same source and target' },
  network_links_source: { path: 'links', message: 'the resource at one end is used by, or missing for, a network link' },
  network_links_target: { path: 'links', message: 'the resource at one end is used by, or missing for, a network link' },
  workflow_definitions_pkey: { path: 'name', message: 'is taken by another workflow; choose another name (import takes ?name=)' },
  workflow_definitions_external_id: { path: 'name', message: 'is taken by another workflow; choose another name (import takes ?name=)' },
  workflow_versions_pkey: {
    path: 'name',
    message: 'its version id is taken by another workflow; choose another name (import takes ?name=)',
  },
  activity_types_pkey: { path: 'spec.activities', message: 'an activity type id is taken by another workflow' },
  activity_definitions_id: { path: 'spec.activities', message: 'two activities have the same id' },
  activity_resource_profiles_pkey: {
    path: 'activityResourceProfiles',
    message: 'a profile id is taken; profile ids are global across environments',
  },
  activity_resource_profiles_type: {
    path: 'activityResourceProfiles',
    message: 'activityTypeId names no activity type (register the workflow first), or a profile uses the type',
  },
  activity_resource_profiles_resource: { path: 'activityResourceProfiles', message: 'resourceId names no resource' },
  activity_resource_profiles_model: {
    path: 'activityResourceProfiles',
    message: 'a profile of this activity type, resource and model version exists already',
  },
  schedule_plans_pkey: { path: 'plan.id', message: 'is taken by another plan; choose another id' },
  schedule_plans_content: { path: 'workflowVersionId', message: 'the workflow version does not exist, or a plan uses it' },
  schedule_plans_scope: { path: 'executionScopeId', message: 'the execution scope does not exist, or a plan uses it' },
  schedule_plan_assignments_resource: { path: 'assignments', message: 'the resource does not exist, or a plan assignment uses it' },
  planning_sessions_selected_plan: {
    path: '',
    message: 'the plan is the selected plan of a planning session; select another candidate there first',
  },
  planning_sessions_pkey: { path: 'id', message: 'is taken by another planning session; choose another id' },
  planning_sessions_scope: { path: 'executionScopeId', message: 'the execution scope does not exist, or a planning session uses it' },
  planning_sessions_workflow: { path: 'workflowVersionId', message: 'the workflow version does not exist, or a planning session uses it' },
  execution_runs_pkey: { path: 'run.id', message: 'is taken by another run; choose another id' },
  execution_runs_plan: { path: 'run.schedulePlanId', message: 'the plan does not exist, or a run uses it' },
}

/** Violations that are an answer 409 instead of 422 (duplicates of run ids only). */
const conflicts = new Set(['execution_runs_pkey'])

/** Connection refused, reset, timed out; server starting, stopping or crashed; too many connections. */
const away = new Set([
  'ECONNREFUSED',
  'ECONNRESET',
  'EPIPE',
  'ETIMEDOUT',
  'ENOTFOUND',
  '57P01',
  '57P02',
  '57P03',
  '53300',
  '08006',
  '08001',
  '08003',
  '08004',
  '25P03',
])

interface PgError {
  code?: string
  constraint?: string
  message?: string
  table?: string
}

/** True for an error that says that PostgreSQL cannot be reached now; asking again later may work. */
export const databaseAway = (error: unknown): boolean => {
  const { code, message } = error as PgError
  if (code !== undefined && away.has(code)) return true
  return /Connection terminated|connection timeout|timeout exceeded when trying to connect|Client has encountered a connection error/.test(
    message ?? '',
  )
}

/** Turns what PostgreSQL says into a refusal, or undefined when it is a fault of ours. */
export const refusalOf = (error: unknown): Refusal | undefined => {
  if (databaseAway(error))
    return new Refusal('unavailable', 'the database cannot be reached now; try again', { retryAfterSeconds: 2, cause: error })
  const { code, constraint, table } = error as PgError
  if (code === undefined) return undefined
  if (code === '23505' || code === '23503' || code === '23514' || code === '23502' || code === '23P01') {
    const known = constraint === undefined ? undefined : words[constraint]
    if (known === undefined && code !== '23503') return undefined
    const detail = known ?? { path: '', message: `the record is used by ${(table ?? 'another record').replaceAll('_', ' ')}` }
    return new Refusal(
      constraint !== undefined && conflicts.has(constraint) ? 'conflict' : 'unacceptable',
      detail.path === '' ? detail.message : `${detail.path}: ${detail.message}`,
      {
        details: [detail],
        cause: error,
      },
    )
  }
  if (code === '40001' || code === '40P01' || code === '55P03')
    return new Refusal('unavailable', 'another request holds the same records; try again', { retryAfterSeconds: 1, cause: error })
  if (code === '53100')
    return new Refusal('unavailable', 'the database has no disk space left; free some and try again', {
      retryAfterSeconds: 30,
      cause: error,
    })
  return undefined
}
