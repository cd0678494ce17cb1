import { z } from 'zod'
import { unknownUse, type Discovered } from './found.ts'

const Names = z.object({ name: z.string() })
const Quantities = z.record(z.string(), z.string()).catch({})
const NodeList = z.object({
  items: z.array(
    z.object({
      metadata: z.object({ name: z.string(), labels: z.record(z.string(), z.string()).catch({}) }),
      spec: z.object({ unschedulable: z.boolean().catch(false) }).catch({ unschedulable: false }),
      status: z.object({
        allocatable: Quantities,
        conditions: z.array(z.object({ type: z.string(), status: z.string() })).catch([]),
        nodeInfo: z
          .object({ architecture: z.string().catch(''), kubeletVersion: z.string().catch('') })
          .catch({ architecture: '', kubeletVersion: '' }),
      }),
    }),
  ),
})
const NamespaceList = z.object({ items: z.array(z.object({ metadata: Names })) })
const QuotaList = z.object({
  items: z.array(z.object({ metadata: Names, status: z.object({ hard: Quantities, used: Quantities }) })),
})
const StorageClassList = z.object({
  items: z.array(z.object({ metadata: Names, provisioner: z.string().catch('') })),
})

const suffixes: Readonly<Record<string, number>> = {
  n: 1e-9,
  u: 1e-6,
  m: 1e-3,
  '': 1,
  k: 1e3,
  M: 1e6,
  G: 1e9,
  T: 1e12,
  P: 1e15,
  E: 1e18,
  Ki: 2 ** 10,
  Mi: 2 ** 20,
  Gi: 2 ** 30,
  Ti: 2 ** 40,
  Pi: 2 ** 50,
  Ei: 2 ** 60,
}

/** A quantity of Kubernetes (`1500m`, `16Gi`, `12e6`) as a number; 0 for anything else. */
export const quantity = (text: string | undefined): number => {
  const match = /^([+-]?\d+(?:\.\d*)?|[+-]?\.\d+)(?:([eE][+-]?\d+)|([numkMGTPE]i?|[KMGTPE]i)?)$/.exec(
    text ?? '',
  )
  if (match === null) return 0
  const factor = suffixes[match[3] ?? '']
  return factor === undefined ? 0 : Number(`${match[1]}${match[2] ?? ''}`) * factor
}

/** Whole cores; one that is not whole counts as one, as tasks with a part of a core fit there. */
const wholeCores = (cores: number): number => (cores > 0 ? Math.max(1, Math.floor(cores)) : 0)

/** Of each measure the quota with the smallest value: a Pod has to fit into all of them. */
const smallest = (
  quotas: z.output<typeof QuotaList>['items'],
): { hard: Record<string, string>; used: Record<string, string> } => {
  const hard: Record<string, string> = {}
  const used: Record<string, string> = {}
  for (const { status } of quotas)
    for (const [key, value] of Object.entries(status.hard)) {
      const known = hard[key]
      if (known !== undefined && quantity(known) <= quantity(value)) continue
      hard[key] = value
      used[key] = status.used[key] ?? '0'
    }
  return { hard, used }
}

/** The parts of a cluster's API that are read; a forbidden part is undefined. */
export interface KubernetesFacts {
  version: string
  namespace: string
  nodes: unknown
  namespaces: unknown
  quotas: unknown
  storageClasses: unknown
}

/** The cluster, its nodes, and the working namespace with its quota. */
export const foundKubernetes = (
  facts: KubernetesFacts,
  { connectionId, name }: { connectionId: string; name: string },
): Discovered => {
  const warnings: string[] = []
  const read = <T extends z.ZodType>(what: string, schema: T, value: unknown): z.output<T> | undefined => {
    const parsed = schema.safeParse(value)
    if (!parsed.success) warnings.push(`the ${what} may not be read, or are not understood`)
    return parsed.data
  }
  const nodes = read('nodes', NodeList, facts.nodes)?.items ?? []
  const namespaces = read('namespaces', NamespaceList, facts.namespaces)?.items.map(
    ({ metadata }) => metadata.name,
  )
  const quotas = read('quotas', QuotaList, facts.quotas)?.items ?? []
  const classes = read('storage classes', StorageClassList, facts.storageClasses)?.items ?? []
  const cluster = `cluster/${name}`
  const cores = nodes.map(({ status }) => wholeCores(quantity(status.allocatable['cpu'])))
  const memory = nodes.map(({ status }) => Math.floor(quantity(status.allocatable['memory'])))
  const sum = (values: readonly number[]): number => values.reduce((total, value) => total + value, 0)
  const { hard, used } = smallest(quotas)
  /** The quota, but no more than the nodes have, where they may be read. */
  const limit = (key: string, ofNodes: number): number => {
    const given = [hard[`limits.${key}`], hard[`requests.${key}`], hard[key]].find(
      (value) => value !== undefined,
    )
    if (given === undefined) return ofNodes
    return ofNodes === 0 ? quantity(given) : Math.min(quantity(given), ofNodes)
  }
  return {
    source: 'kubernetes',
    resources: [
      {
        key: cluster,
        providerId: name,
        type: 'cluster',
        executionTarget: 'batch',
        architecture: nodes[0]?.status.nodeInfo.architecture ?? '',
        cpuCores: sum(cores),
        memoryBytes: sum(memory),
        schedulable: false,
        within: [],
        runtimes: [],
        metadata: {
          scheduler: 'kubernetes',
          schedulerVersion: facts.version,
          storageClasses: classes.map(({ metadata, provisioner }) => ({ name: metadata.name, provisioner })),
          ...(namespaces === undefined ? {} : { namespaces }),
        },
        observed: unknownUse,
      },
      {
        key: `namespace/${facts.namespace}`,
        providerId: facts.namespace,
        type: 'kubernetes_namespace',
        executionTarget: 'batch',
        architecture: nodes[0]?.status.nodeInfo.architecture ?? '',
        cpuCores: wholeCores(limit('cpu', sum(cores))),
        memoryBytes: Math.floor(limit('memory', sum(memory))),
        schedulable: true,
        within: [cluster],
        runtimes: ['kubernetes'],
        metadata: { namespace: facts.namespace, ...(quotas.length === 0 ? {} : { quota: { hard, used } }) },
        observed: {
          available: namespaces === undefined || namespaces.includes(facts.namespace),
          cpuUsed: quantity(used['limits.cpu'] ?? used['requests.cpu']),
          memoryUsedBytes: Math.floor(quantity(used['limits.memory'] ?? used['requests.memory'])),
          queueLength: 0,
        },
      },
      ...nodes.map((node, i) => {
        const gpus = Object.entries(node.status.allocatable).filter(([key]) =>
          /^(?:nvidia|amd|gpu\.intel)\.com\//.test(key),
        )
        return {
          key: `node/${node.metadata.name}`,
          providerId: node.metadata.name,
          type: 'kubernetes_machine' as const,
          executionTarget: 'batch' as const,
          architecture: node.status.nodeInfo.architecture,
          cpuCores: cores[i] ?? 0,
          memoryBytes: memory[i] ?? 0,
          schedulable: false,
          within: [cluster],
          runtimes: [],
          metadata: {
            kubernetesNode: node.metadata.name,
            kubeletVersion: node.status.nodeInfo.kubeletVersion,
            ...(gpus.length === 0 ? {} : { gpus: sum(gpus.map(([, value]) => quantity(value))) }),
          },
          observed: {
            ...unknownUse,
            available:
              !node.spec.unschedulable &&
              node.status.conditions.some(({ type, status }) => type === 'Ready' && status === 'True'),
          },
        }
      }),
    ],
    runtimes: [
      {
        key: 'kubernetes',
        driver: 'kubernetes',
        configuration: { connectionId, namespace: facts.namespace },
        capabilities: ['batch', 'container', 'cancellation', 'logStreaming'],
      },
    ],
    storages: [],
    warnings,
  }
}
