import type { TestService } from './service.ts'

/** One activity of a test; `run` is a shell command. */
export interface WorldTask {
  name: string
  run?: string
  /** Names of its predecessors. */
  after?: readonly string[]
  /** Declared files of predecessors. */
  inputs?: readonly { from: string; file: string; bytes?: number }[]
  outputs?: readonly string[]
  stage?: 'all' | 'declared'
  keepDisk?: boolean
  cpu?: number
  /** Kubernetes quantity, `16Mi` by default. */
  memory?: string
  image?: string
  /** `command.executable`; replaces the image. */
  executable?: Record<string, unknown>
  metadata?: Record<string, unknown>
  type?: string
  /** Folder below the seed root whose files are put into the work directory. */
  seedPath?: string
  seconds?: number
  environment?: Record<string, string>
  /** Replaces the setting of the world. */
  launch?: 'process' | 'none'
  policy?: { maxAttempts?: number; retryDelaySeconds?: number; timeoutSeconds?: number }
  /**
   * Resource (its number from 0) and core, further cores for a task that takes several; by default
   * lanes are assigned round robin.
   */
  lane?: readonly [resource: number, core: number, ...more: number[]]
}

export interface WorldOptions {
  name: string
  tasks: readonly WorldTask[]
  /** Cores of each resource; one resource of two cores by default. */
  cores?: readonly number[]
  /**
   * The way in which real runs start their tasks: processes of this machine, or no start at all.
   */
  launch?: 'process' | 'none'
  /**
   * Bandwidth of the link between each pair of neighbouring resources; without it, the resources
   * are not connected.
   */
  bandwidthBitsPerSecond?: number
  /** The price of each such link; 0 by default. */
  pricePerByte?: number
  /** Resources get no binding to a runtime of mode execution. */
  unbound?: boolean
  /** Driver of the runtime for real runs. */
  driver?: string
  /** Host whose workers run the processes; the service's own by default. */
  hostId?: string
  /** The place of each resource that is not on this machine. */
  places?: readonly (WorldPlace | undefined)[]
  connections?: readonly Record<string, unknown>[]
  /** Type of each resource if not `local_machine`; such a resource is a batch target. */
  types?: readonly (string | undefined)[]
}

/** Driver and configuration of a resource's runtime. */
export interface WorldPlace {
  driver: 'local' | 'ssh' | 'slurm' | 'kubernetes' | 'serverless'
  configuration: Record<string, unknown>
  capabilities?: Record<string, boolean>
  /** Storages that the place mounts: the mount path by id. */
  storages?: Record<string, string>
}

export interface World {
  name: string
  planId: string
  workflowId: string
  workflowVersionId: string
  resourceIds: string[]
  runtimeId: string
  tasks: readonly WorldTask[]
  assignments: {
    activityId: string
    resourceId: string
    coreId: string
    slotId: string
    orderOnResource: number
    metadata: { runtimeId?: string; coreIds?: string[] }
  }[]
  activityId: (name: string) => string
}

/** Activities in an order in which each follows its predecessors, otherwise as given. */
const inOrder = (tasks: readonly WorldTask[]): WorldTask[] => {
  const ordered: WorldTask[] = []
  const placed = new Set<string>()
  while (ordered.length < tasks.length) {
    const before = ordered.length
    for (const task of tasks) {
      if (placed.has(task.name) || (task.after ?? []).some((name) => !placed.has(name))) continue
      placed.add(task.name)
      ordered.push(task)
    }
    if (ordered.length === before) throw new Error('the activities of this world form a cycle')
  }
  return ordered
}

/** The documents of a world, as a user would write them. */
export const worldDocuments = (options: WorldOptions) => {
  const { name, tasks } = options
  const cores = options.cores ?? [2]
  const resourceIds = cores.map((_, i) => `${name}-host-${String(i + 1)}`)
  const runtimeId = options.launch === 'none' ? `${name}-none` : `${name}-local`
  const lanes = cores.flatMap((count, resource) =>
    Array.from({ length: count }, (_, core) => [resource, core] as const),
  )
  const activityId = (task: string): string => `${name}-${task}`
  const places = cores.flatMap((_, i) => {
    const place = options.places?.[i]
    return place === undefined ? [] : [{ ...place, resource: i, id: `${name}-place-${String(i + 1)}` }]
  })
  const storageIds = [...new Set(places.flatMap(({ storages }) => Object.keys(storages ?? {})))]
  const workflow = {
    name,
    spec: {
      namespace: 'tests',
      image: 'debian:12-slim',
      activities: tasks.map((task) => ({
        name: task.name,
        ...(task.environment === undefined && task.executable === undefined
          ? { run: task.run ?? 'true' }
          : {
              command: {
                entrypoint: 'sh',
                arguments: ['-c', task.run ?? 'true'],
                environment: task.environment ?? {},
                executable: task.executable ?? {
                  source: { type: 'oci', reference: task.image ?? 'debian:12-slim' },
                  delivery: { strategy: 'auto' },
                },
              },
            }),
        cpuLimit: String(task.cpu ?? 1),
        memoryLimit: task.memory ?? '16Mi',
        ...(task.image === undefined ? {} : { image: task.image }),
        ...(task.metadata === undefined ? {} : { metadata: task.metadata }),
        ...(task.after === undefined ? {} : { dependsOn: [...task.after] }),
        ...(task.outputs === undefined ? {} : { expectedOutputs: [...task.outputs] }),
        ...(task.stage === undefined ? {} : { stage: task.stage }),
        ...(task.keepDisk === undefined ? {} : { keepDisk: task.keepDisk }),
        ...(task.seedPath === undefined ? {} : { workspaceSeedPath: task.seedPath }),
        ...(task.type === undefined ? {} : { activityType: task.type }),
        ...(task.policy === undefined ? {} : { policy: task.policy }),
        ...(task.seconds === undefined
          ? {}
          : { simulation: { model: 'deterministic', durationSeconds: task.seconds } }),
      })),
      dataDependencies: tasks.flatMap((task) =>
        (task.inputs ?? []).map(({ from, file, bytes }) => ({
          producerActivity: from,
          consumerActivity: task.name,
          logicalName: file,
          sizeBytes: bytes ?? 1,
        })),
      ),
    },
  }
  const environment = {
    environment: { id: name, name, status: 'ready' },
    version: {
      id: `${name}-env-v1`,
      environmentId: name,
      version: 1,
      status: 'published',
      networkModel: 'static-links',
      interferenceModel: 'none',
      costModel: 'per-second',
      configurationHash: name,
    },
    runtimes: [
      {
        id: `${name}-local`,
        name: 'Processes',
        driver: options.driver ?? 'local',
        mode: 'execution',
        role: 'compute',
        ...(options.hostId === undefined ? {} : { configuration: { hostId: options.hostId } }),
      },
      {
        id: `${name}-none`,
        name: 'Nothing',
        driver: 'local',
        mode: 'execution',
        role: 'compute',
        configuration: { launch: 'none' },
      },
      { id: `${name}-sim`, name: 'Simulation', driver: 'simgrid', mode: 'simulation', role: 'simulation' },
      ...places.map(({ id, driver, configuration, capabilities = {} }) => ({
        ...{ id, name: id, driver, mode: 'execution', role: 'compute', configuration, capabilities },
      })),
    ],
    connections: (options.connections ?? []).map((connection) => ({ ...connection, environmentId: name })),
    storages: storageIds.map((id) => ({
      id: `${name}-${id}`,
      name: id,
      type: 'nfs',
      endpoint: `/${id}`,
      shared: true,
      runtimeBindings: places.flatMap((place) =>
        place.storages?.[id] === undefined
          ? []
          : [{ runtimeId: place.id, hostPath: place.storages[id], containerPath: `/${id}` }],
      ),
    })),
    resources: cores.map((count, i) => ({
      id: resourceIds[i],
      executionTarget: options.types?.[i] === undefined ? 'direct' : 'batch',
      type: options.types?.[i] ?? 'local_machine',
      name: `Host ${String(i + 1)}`,
      providerId: options.types?.[i] === 'hpc_partition' ? 'main' : resourceIds[i],
      cpuCores: count,
      cpuCapacity: count,
      memoryBytes: 2 ** 34,
      storageBytes: 2 ** 34,
      computeSpeedup: 1,
      pricePerSecond: 0.001,
      schedulable: true,
    })),
    resourceRuntimeBindings: resourceIds.flatMap((resourceId, i) => [
      ...places
        .filter(({ resource }) => resource === i)
        .map(({ id }) => ({ resourceId, runtimeId: id, enabled: true })),
      { resourceId, runtimeId: `${name}-local`, enabled: options.unbound !== true },
      { resourceId, runtimeId: `${name}-none`, enabled: options.unbound !== true },
      { resourceId, runtimeId: `${name}-sim`, enabled: true },
    ]),
  }
  const scope = { id: `${name}-scope`, name, environmentVersionIds: [`${name}-env-v1`] }
  const bandwidth = options.bandwidthBitsPerSecond
  const topology = {
    id: `${name}-network`,
    name,
    version: 1,
    executionScopeId: scope.id,
    links: (bandwidth === undefined ? [] : resourceIds.slice(1)).map((target, i) => ({
      id: `${name}-link-${String(i + 1)}`,
      sourceResourceId: resourceIds[i],
      targetResourceId: target,
      bandwidthBitsPerSecond: bandwidth,
      latencySeconds: 0,
      pricePerByte: options.pricePerByte ?? 0,
      bidirectional: true,
    })),
  }
  const assignments = inOrder(tasks).map((task, i) => {
    const [resource, ...taken] = task.lane ?? (lanes[i % lanes.length] as (typeof lanes)[number])
    const placed = places.find((place) => place.resource === resource)?.id
    const coreIds = taken.map((core) => `core-${String(core)}`)
    const named =
      task.launch === undefined
        ? (placed ?? runtimeId)
        : task.launch === 'none'
          ? `${name}-none`
          : `${name}-local`
    return {
      activityId: activityId(task.name),
      resourceId: resourceIds[resource] as string,
      coreId: coreIds[0] as string,
      slotId: 'default',
      orderOnResource: i + 1,
      metadata: {
        ...(options.unbound === true ? {} : { runtimeId: named }),
        ...(coreIds.length > 1 ? { coreIds } : {}),
      },
    }
  })
  const plan = {
    id: `${name}-plan`,
    workflowVersionId: `${name}-v1`,
    executionScopeId: scope.id,
    networkTopologyId: topology.id,
    source: 'imported',
    algorithm: 'manual',
    assignments,
  }
  const world: World = {
    name,
    planId: plan.id,
    workflowId: name,
    workflowVersionId: `${name}-v1`,
    resourceIds,
    runtimeId,
    tasks,
    assignments,
    activityId,
  }
  return { environment, scope, topology, workflow, plan, world }
}

/** Stores a world over HTTP: environment, scope, topology, workflow and an imported plan. */
export const makeWorld = async (
  service: Pick<TestService, 'post'>,
  options: WorldOptions,
): Promise<World> => {
  const { environment, scope, topology, workflow, plan, world } = worldDocuments(options)
  await service.post('/environments/', environment)
  await service.post('/execution-scopes/', scope)
  await service.post('/network-topologies/', topology)
  await service.post('/workflow-definitions/import/', workflow)
  await service.post('/schedule-plans/import/', { plan })
  return world
}

/** All pages of a list of a run. */
export const allOf = async (service: Pick<TestService, 'get'>, path: string): Promise<any[]> => {
  const items: any[] = []
  for (let page = 1; ; page++) {
    const answer = await service.get(
      `${path}${path.includes('?') ? '&' : '?'}page=${String(page)}&pageSize=500`,
    )
    items.push(...answer.items)
    if (!answer.hasNext) return items
  }
}

/**
 * The API's whole record of a run, for a checker: workflow, plan, run, all attempts, all events.
 */
export const recordOf = async (service: Pick<TestService, 'get'>, runId: string) => {
  const path = `/execution-runs/${encodeURIComponent(runId)}`
  const detail = await service.get(`${path}/?attempts=all`)
  const plan = await service.get(`/schedule-plans/${encodeURIComponent(detail.run.schedulePlanId)}/`)
  return {
    run: detail.run,
    plan: plan.plan ?? plan,
    activities: await allOf(service, `${path}/activities/?attempts=all`),
    handles: await allOf(service, `${path}/handles/`),
    events: await allOf(service, `${path}/events/`),
  }
}

export type RunRecord = Awaited<ReturnType<typeof recordOf>>

/** Pairs of activity ids: predecessor and successor. */
export const dependenciesOf = (world: World): [string, string][] =>
  world.tasks.flatMap((task) =>
    (task.after ?? []).map((needed): [string, string] => [
      world.activityId(needed),
      world.activityId(task.name),
    ]),
  )
