import type { ConstraintTexts } from '../../db/errors.ts'

/** The meaning of violated constraints of this domain's tables for the caller. */
export const environmentConstraints: ConstraintTexts = {
  environments_pkey: {
    path: 'environment.id',
    message: 'is taken by another environment; choose another id',
  },
  environment_versions_pkey: {
    path: 'version.id',
    message: 'is taken by another environment version; version ids are global, choose another id',
  },
  environment_versions_number: {
    path: 'version.version',
    message: 'is the number of another version of the environment; choose a higher one',
  },
  runtimes_pkey: {
    path: 'runtimes',
    message: 'hold an id that is taken; runtime ids are global across environments, choose another id',
  },
  runtimes_name: {
    path: 'runtimes',
    message: 'hold a name twice; give each runtime of a version its own name',
  },
  runtimes_driver: {
    path: 'runtimes',
    message: 'hold an unknown driver; use slurm, kubernetes, ssh, local, serverless, simgrid or cloud',
  },
  runtimes_mode: { path: 'runtimes', message: 'hold an unknown mode; use execution or simulation' },
  resources_pkey: {
    path: 'resources',
    message: 'hold an id that is taken; resource ids are global across environments, choose another id',
  },
  resources_provider_id: {
    path: 'resources',
    message: 'hold a providerId twice; give each resource of a version its own',
  },
  resources_parent: {
    path: 'resources',
    message: 'hold a parentResourceId that names no resource; name a resource, or leave it out',
  },
  resources_version: {
    path: 'environmentVersionId',
    message: 'names no environment version; register the environment first',
  },
  resources_execution_target: {
    path: 'resources',
    message: 'hold an unknown executionTarget; use batch, direct or provisioned',
  },
  resources_not_negative: {
    path: 'resources',
    message: 'hold a negative capacity, speedup, price or overhead; use 0 or more',
  },
  resource_runtime_bindings_pkey: {
    path: 'resourceRuntimeBindings',
    message: 'hold a pair of resource and runtime twice; list it once',
  },
  resource_runtime_bindings_resource: {
    path: 'resourceRuntimeBindings',
    message: 'hold a resourceId that names no resource; name a resource of the environment',
  },
  resource_runtime_bindings_runtime: {
    path: 'resourceRuntimeBindings',
    message: 'hold a runtimeId that names no runtime; name a runtime of the environment',
  },
  resource_relations_pkey: { path: 'resourceRelations', message: 'hold a relation twice; list it once' },
  resource_relations_source: {
    path: 'resourceRelations',
    message: 'hold a sourceResourceId that names no resource; name a resource of the environment',
  },
  resource_relations_target: {
    path: 'resourceRelations',
    message: 'hold a targetResourceId that names no resource; name a resource of the environment',
  },
  resource_relations_not_self: {
    path: 'resourceRelations',
    message: 'hold a relation from a resource to itself; name two resources',
  },
  connections_pkey: {
    path: 'connections',
    message: 'hold an id that is taken; connection ids are global across environments, choose another id',
  },
  connections_name: {
    path: 'connections',
    message: 'hold a name twice; give each connection of an environment its own name',
  },
  storages_pkey: {
    path: 'storages',
    message: 'hold an id that is taken; storage ids are global across environments, choose another id',
  },
  storages_name: {
    path: 'storages',
    message: 'hold a name twice; give each storage of a version its own name',
  },
  storages_capacity: { path: 'storages', message: 'hold a negative capacityBytes; use 0 or more' },
  storage_runtime_bindings_pkey: {
    path: 'storages',
    message: 'hold a binding twice; bind a storage to a runtime once',
  },
  storage_runtime_bindings_storage: {
    path: 'storages',
    message: 'hold a runtime binding of another version’s storage; bind storages of this version',
  },
  storage_runtime_bindings_runtime: {
    path: 'storages',
    message: 'hold a runtime binding to a runtime of another version; bind to runtimes of this version',
  },
  storage_runtime_bindings_one_default: {
    path: 'storages',
    message: 'hold two defaults of one runtime; make at most one storage its default',
  },
  activity_resource_profiles_pkey: {
    path: 'activityResourceProfiles',
    message: 'hold an id that is taken; profile ids are global across environments, choose another id',
  },
  activity_resource_profiles_type: {
    path: 'activityResourceProfiles',
    message:
      'hold an activityTypeId that names no activity type (register the workflow first), or a profile uses the type',
  },
  activity_resource_profiles_resource: {
    path: 'activityResourceProfiles',
    message: 'hold a resourceId that names no resource; name a resource of the environment',
  },
  activity_resource_profiles_model: {
    path: 'activityResourceProfiles',
    message: 'hold a profile of an activity type, resource and model version that has one; list it once',
  },
}
