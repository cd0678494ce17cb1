import fc from './fast-check.ts'

/**
 * The documents that a user writes to plan one workflow on one scope. The caller gives the ids, so
 * that many sets fit in one database.
 */
export interface PlanningDocuments {
  workflow: {
    name: string
    spec: { namespace: string; activities: WorkflowActivity[]; dataDependencies: DataDependency[] }
  }
  environment: {
    environment: { id: string; name: string }
    version: { id: string; version: number; status: string; costModel: string }
    resources: ResourceDocument[]
    activityResourceProfiles: {
      id: string
      activityTypeId: string
      resourceId: string
      runtimeSeconds: number
    }[]
  }
  scope: { id: string; name: string; environmentVersionIds: string[] }
  topology:
    | { id: string; name: string; version: number; executionScopeId: string; links: LinkDocument[] }
    | undefined
}

export interface WorkflowActivity {
  name: string
  activityType: string
  cpuLimit: string
  memoryLimit: string
  dependsOn: string[]
  resourceSelector?: string
  simulation: { durationSeconds: number }
}

interface DataDependency {
  producerActivity: string
  consumerActivity: string
  logicalName: string
  sizeBytes: number
}

export interface ResourceDocument {
  id: string
  name: string
  providerId: string
  type: string
  executionTarget: string
  cpuCores: number
  cpuCapacity: number
  memoryBytes: number
  computeSpeedup: number
  pricePerSecond: number
  bootOverheadSeconds: number
  containerOverheadSeconds: number
  schedulable: boolean
}

export interface LinkDocument {
  id: string
  sourceResourceId: string
  targetResourceId: string
  bandwidthBitsPerSecond: number
  latencySeconds: number
  pricePerByte: number
  bidirectional: boolean
}

const eighths = (max: number): fc.Arbitrary<number> => fc.integer({ min: 0, max: max * 8 }).map((n) => n / 8)

/**
 * Workflows with several roots, zero durations, wide and memory-hungry tasks, selectors, profiles
 * for some pairs; sites of different speed and price, opaque queues, provisioned machines; a star
 * of links around a switch that runs no task, or no network.
 */
export const planningDocuments = (key: string, maxActivities = 14): fc.Arbitrary<PlanningDocuments> =>
  fc
    .record({
      n: fc.integer({ min: 1, max: maxActivities }),
      resources: fc.array(
        fc.record({
          cores: fc.integer({ min: 1, max: 4 }),
          memory: fc.integer({ min: 2, max: 8 }),
          speedup: fc.constantFrom(0, 0.5, 1, 2, 4),
          price: fc.constantFrom(0, 0.001, 0.01),
          boot: eighths(3),
          container: eighths(1),
          kind: fc.constantFrom('direct', 'direct', 'batch', 'provisioned', 'queue'),
        }),
        { minLength: 1, maxLength: 4 },
      ),
      costModel: fc.constantFrom('', 'per-second', 'active-window'),
      network: fc.boolean(),
      links: fc.array(
        fc.record({
          bandwidth: fc.constantFrom(8e5, 8e6, 1e8),
          latency: eighths(1),
          price: fc.constantFrom(0, 1e-9),
        }),
        {
          minLength: 4,
          maxLength: 4,
        },
      ),
    })
    .chain((shape) =>
      fc.record({
        shape: fc.constant(shape),
        activities: fc.array(
          fc.record({
            type: fc.constantFrom('project', 'fit', 'add'),
            cpu: fc.constantFrom('500m', '1', '1', '2'),
            memory: fc.constantFrom('1000', '200', '2000'),
            seconds: fc.oneof(fc.constant(0), eighths(40)),
            selector: fc.option(fc.nat(shape.resources.length - 1), { freq: 8 }),
            parents: fc.uniqueArray(fc.nat(maxActivities), { maxLength: 3 }),
            bytes: fc.array(fc.integer({ min: 1, max: 5_000_000 }), { minLength: 3, maxLength: 3 }),
          }),
          { minLength: shape.n, maxLength: shape.n },
        ),
        profiles: fc.uniqueArray(
          fc.record({
            type: fc.constantFrom('project', 'fit', 'add'),
            resource: fc.nat(shape.resources.length - 1),
            seconds: eighths(20).map((n) => n + 0.5),
          }),
          {
            maxLength: 4,
            selector: ({ type, resource }) => `${type} ${String(resource)}`,
          },
        ),
      }),
    )
    .map(({ shape, activities, profiles }): PlanningDocuments => {
      const resourceId = (k: number): string => `${key}-r${k}`
      const resources = shape.resources.map(
        ({ cores, memory, speedup, price, boot, container, kind }, k): ResourceDocument => ({
          id: resourceId(k),
          name: `machine ${k}`,
          providerId: resourceId(k),
          type: kind === 'queue' ? 'batch_queue' : 'cloud_vm',
          executionTarget: kind === 'queue' ? 'batch' : kind,
          // The first machine accepts every task, so that every workflow has a plan; selectors name
          // it too.
          cpuCores: k === 0 ? 4 : cores,
          cpuCapacity: k === 0 ? 4 : cores,
          memoryBytes: k === 0 ? 8000 : memory * 1000,
          computeSpeedup: speedup,
          pricePerSecond: price,
          bootOverheadSeconds: boot,
          containerOverheadSeconds: container,
          schedulable: true,
        }),
      )
      const hub: ResourceDocument = {
        ...resources[0]!,
        id: `${key}-hub`,
        name: 'switch',
        providerId: 'hub',
        schedulable: false,
        type: '',
        executionTarget: 'direct',
      }
      const name = (i: number): string => `a${i}`
      const edges = activities.flatMap(({ parents, bytes }, i) =>
        parents
          .filter((parent) => parent < i)
          .map((parent, k) => ({ from: parent, to: i, bytes: bytes[k]! })),
      )
      return {
        workflow: {
          name: key,
          spec: {
            namespace: 'generated',
            activities: activities.map(({ type, cpu, memory, seconds, selector }, i) => ({
              name: name(i),
              activityType: type,
              cpuLimit: cpu,
              memoryLimit: memory,
              dependsOn: edges.filter(({ to }) => to === i).map(({ from }) => name(from)),
              ...(selector === 0 ? { resourceSelector: resourceId(0) } : {}),
              simulation: { durationSeconds: seconds },
            })),
            dataDependencies: edges
              .filter(({ bytes }) => bytes % 4 !== 0)
              .map(({ from, to, bytes }) => ({
                producerActivity: name(from),
                consumerActivity: name(to),
                logicalName: `f${from}-${to}`,
                sizeBytes: bytes,
              })),
          },
        },
        environment: {
          environment: { id: key, name: key },
          version: { id: `${key}-v1`, version: 1, status: 'published', costModel: shape.costModel },
          resources: [...resources, hub],
          activityResourceProfiles: profiles
            .filter(({ type }) => activities.some((activity) => activity.type === type))
            .map(({ type, resource, seconds }, k) => ({
              id: `${key}-p${k}`,
              activityTypeId: `${key}-${type}`,
              resourceId: resourceId(resource),
              runtimeSeconds: seconds,
            })),
        },
        scope: { id: `${key}-scope`, name: key, environmentVersionIds: [`${key}-v1`] },
        topology: shape.network
          ? {
              id: `${key}-net`,
              name: key,
              version: 1,
              executionScopeId: `${key}-scope`,
              links: resources.map(({ id }, k) => ({
                id: `${key}-l${k}`,
                sourceResourceId: id,
                targetResourceId: hub.id,
                bandwidthBitsPerSecond: shape.links[k]!.bandwidth,
                latencySeconds: shape.links[k]!.latency,
                pricePerByte: shape.links[k]!.price,
                bidirectional: true,
              })),
            }
          : undefined,
      }
    })
