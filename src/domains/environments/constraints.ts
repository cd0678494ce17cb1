import { textsAt, type ConstraintTexts } from '../../db/errors.ts'

export const environmentConstraints: ConstraintTexts = {
  ...textsAt('environment.id', {
    environments_pkey: 'is taken by another environment; choose another id',
  }),
  ...textsAt('version.id', {
    environment_versions_pkey:
      'is taken by another environment version; version ids are global, choose another id',
  }),
  ...textsAt('version.version', {
    environment_versions_number: 'is the number of another version of the environment; choose a higher one',
  }),
  ...textsAt('runtimes', {
    runtimes_pkey: 'hold an id that is taken; runtime ids are global across environments, choose another id',
    runtimes_name: 'hold a name twice; give each runtime of a version its own name',
    runtimes_driver:
      'hold an unknown driver; use slurm, kubernetes, ssh, local, serverless, simgrid or cloud',
    runtimes_mode: 'hold an unknown mode; use execution or simulation',
  }),
  ...textsAt('resources', {
    resources_pkey:
      'hold an id that is taken; resource ids are global across environments, choose another id',
    resources_provider_id: 'hold a providerId twice; give each resource of a version its own',
    resources_parent: 'hold a parentResourceId that names no resource; name a resource, or leave it out',
    resources_execution_target: 'hold an unknown executionTarget; use batch, direct or provisioned',
    resources_not_negative: 'hold a negative capacity, speedup, price or overhead; use 0 or more',
  }),
  ...textsAt('environmentVersionId', {
    resources_version: 'names no environment version; register the environment first',
  }),
  ...textsAt('resourceRuntimeBindings', {
    resource_runtime_bindings_pkey: 'hold a pair of resource and runtime twice; list it once',
    resource_runtime_bindings_resource:
      'hold a resourceId that names no resource; name a resource of the environment',
    resource_runtime_bindings_runtime:
      'hold a runtimeId that names no runtime; name a runtime of the environment',
  }),
  ...textsAt('resourceRelations', {
    resource_relations_pkey: 'hold a relation twice; list it once',
    resource_relations_source:
      'hold a sourceResourceId that names no resource; name a resource of the environment',
    resource_relations_target:
      'hold a targetResourceId that names no resource; name a resource of the environment',
    resource_relations_not_self: 'hold a relation from a resource to itself; name two resources',
  }),
  ...textsAt('connections', {
    connections_pkey:
      'hold an id that is taken; connection ids are global across environments, choose another id',
    connections_name: 'hold a name twice; give each connection of an environment its own name',
  }),
  ...textsAt('storages', {
    storages_pkey: 'hold an id that is taken; storage ids are global across environments, choose another id',
    storages_name: 'hold a name twice; give each storage of a version its own name',
    storages_capacity: 'hold a negative capacityBytes; use 0 or more',
    storage_runtime_bindings_pkey: 'hold a binding twice; bind a storage to a runtime once',
    storage_runtime_bindings_storage:
      'hold a runtime binding of another version’s storage; bind storages of this version',
    storage_runtime_bindings_runtime:
      'hold a runtime binding to a runtime of another version; bind to runtimes of this version',
    storage_runtime_bindings_one_default:
      'hold two defaults of one runtime; make at most one storage its default',
  }),
  ...textsAt('activityResourceProfiles', {
    activity_resource_profiles_pkey:
      'hold an id that is taken; profile ids are global across environments, choose another id',
    activity_resource_profiles_type:
      'hold an activityTypeId that names no activity type (register the workflow first), or a profile uses the type',
    activity_resource_profiles_resource:
      'hold a resourceId that names no resource; name a resource of the environment',
    activity_resource_profiles_model:
      'hold a profile of an activity type, resource and model version that has one; list it once',
  }),
}
