/**
 * The operation ids of the routes that name none themselves. Generated clients use them as method
 * names, so a published id stays.
 */
const ids: Record<string, Partial<Record<'GET' | 'POST' | 'PUT' | 'DELETE', string>>> = {
  '/environments/{environmentId}/cloud-capacity-targets/': {
    GET: 'listCapacityTargets',
    POST: 'createCapacityTarget',
  },
  '/cloud-capacity-targets/{targetId}/': { DELETE: 'deleteCapacityTarget' },
  '/environments/{environmentId}/cloud-instances/': {
    GET: 'listCloudInstances',
    POST: 'createCloudInstance',
  },
  '/environments/{environmentId}/cloud-provisioning/': { POST: 'provisionCloud' },
  '/cloud-instances/{instanceId}/': { GET: 'getCloudInstance' },
  '/environments/{environmentId}/cloud-orphans/': { GET: 'listCloudOrphans' },
  '/environments/{environmentId}/cloud-orphans/sweep/': { POST: 'sweepCloudOrphans' },
  '/cloud-instances/{instanceId}/provisioning-log/': { GET: 'getProvisioningLog' },
  '/cloud-instances/{instanceId}/{action}/': { POST: 'steerCloudInstance' },
  '/cloud-operations/': { GET: 'listCloudOperations' },
  '/environments/{environmentId}/cloud-catalog/': { GET: 'getCloudCatalog' },
  '/environments/{environmentId}/cloud-catalog/refresh/': { POST: 'refreshCloudCatalog' },
}

/** The id of a route's operation; undefined where the table lacks it. */
export const operationIdOf = (method: string, path: string): string | undefined =>
  ids[path]?.[method as 'GET']
