/** An environment whose resources have consoles: each is bound to one runtime. */
export const consoleEnvironment = (
  name: string,
  places: Readonly<
    Record<
      string,
      { driver: string; configuration?: Record<string, unknown>; enabled?: boolean; type?: string }
    >
  >,
  connections: readonly object[] = [],
) => ({
  environment: { id: name, name, status: 'ready' },
  version: {
    ...{
      id: `${name}-v1`,
      environmentId: name,
      version: 1,
      status: 'published',
      networkModel: 'static-links',
    },
    ...{ interferenceModel: 'none', costModel: 'per-second', configurationHash: name },
  },
  runtimes: Object.entries(places).map(([id, { driver, configuration = {} }]) => ({
    ...{ id: `${id}-runtime`, name: id, driver, mode: 'execution', role: 'compute', configuration },
  })),
  connections: connections.map((connection) => ({ ...connection, environmentId: name })),
  resources: Object.entries(places).map(([id, { type = 'local_machine' }]) => ({
    ...{
      id,
      name: id,
      providerId: id,
      executionTarget: 'direct',
      type,
      cpuCores: 2,
      cpuCapacity: 2,
    },
    ...{
      memoryBytes: 2 ** 34,
      storageBytes: 2 ** 34,
      computeSpeedup: 1,
      pricePerSecond: 0,
      schedulable: true,
    },
  })),
  resourceRuntimeBindings: Object.entries(places).map(([id, { enabled = true }]) => ({
    resourceId: id,
    runtimeId: `${id}-runtime`,
    enabled,
  })),
})
