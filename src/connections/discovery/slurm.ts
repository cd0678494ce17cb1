import { gpusOf } from '../../drivers/runtime/slurm/limits.ts'
import { greatest } from '../../lists.ts'
import { readProgram } from '../../shell/program.ts'
import { sectionsOf, type Discovered, type FoundResource } from './found.ts'
import { machineMetadata, observedOf, type DiscoveredHost } from './host.ts'

/** The controller's facts about its cluster, for `readSlurm`. */
export const slurmScript = readProgram(import.meta.dirname, 'slurm.sh')

export interface SlurmPartition {
  name: string
  isDefault: boolean
  up: boolean
  cpus: number
  nodes: number
  /** As Slurm writes it: `UNLIMITED`, `1-00:00:00`. */
  maxTime: string
  gpus: number
  pending: number
  running: number
}

export interface DiscoveredNode {
  name: string
  architecture: string
  cpus: number
  allocatedCpus: number
  memoryBytes: number
  allocatedMemoryBytes: number
  gpus: number
  gpuModel: string
  features: string
  state: string
  available: boolean
  partitions: string[]
}

export interface SlurmFacts {
  version: string
  cluster: string
  partitions: SlurmPartition[]
  nodes: DiscoveredNode[]
  warnings: string[]
}

const MiB = 1024 * 1024
/** Larger clusters are described by their partitions and the first nodes. */
const maxNodes = 5_000

/**
 * The value of `Key=…` in a line of `scontrol --oneliner`. The first match counts, because free
 * text (Comment, Reason) comes last.
 */
const field = (line: string, key: string): string =>
  new RegExp(`(?:^|\\s)${key}=(\\S*)`).exec(line)?.[1] ?? ''
const number = (text: string): number => (/^\d+$/.test(text) ? Number(text) : 0)

/** States and flags of a node that mean that nothing can start on it. */
const unusable = /DOWN|DRAIN|FAIL|UNKNOWN|NOT_RESPONDING|MAINT|REBOOT|INVAL|\*/
/** Flags of a node that sleeps, falls asleep or wakes: a job wakes it. */
const sleeping = /\b(POWER(ED|ING)_(DOWN|UP)|POWER_(DOWN|UP|SAVE))\b/g

/**
 * Reads the output of `slurmScript`. @throws Error with Slurm's message when the controller did not
 * answer
 */
export const readSlurm = (output: string): SlurmFacts => {
  const warnings: string[] = []
  // A failed query leaves its message in its own part, followed by an empty part `failed`.
  const parts = new Map<string, { text: string; failed: boolean }>()
  let last: string | undefined
  for (const [name, text] of sectionsOf(output.replace(/^@@ failed$/gm, '@@failed'))) {
    const failed = /(?:^|\n)@@failed\s*$/.test(text)
    parts.set(name, { text: text.replace(/\n?@@failed\s*$/, '').trim(), failed })
    last = name
  }
  if (last !== 'end') throw new Error('the facts of the cluster are cut off')
  const part = (name: string): string => parts.get(name)?.text ?? ''
  for (const name of ['partitions', 'nodes'])
    if (parts.get(name)?.failed !== false)
      throw new Error(`Slurm does not answer: ${firstLine(part(name)) || 'no answer within 30 s'}`)
  if (parts.get('queue')?.failed === true)
    warnings.push(`the queue could not be read: ${firstLine(part('queue'))}`)

  const pending = new Map<string, number>()
  const running = new Map<string, number>()
  if (parts.get('queue')?.failed === false)
    for (const line of part('queue').split('\n')) {
      const [names = '', state = ''] = line.trim().split('/')
      // A pending job may name several.
      for (const name of names.split(',').filter((text) => text !== '')) {
        const count = state === 'PD' ? pending : running
        count.set(name, (count.get(name) ?? 0) + 1)
      }
    }

  const nodeLines = part('nodes')
    .split('\n')
    .filter((line) => line.startsWith('NodeName='))
  if (nodeLines.length > maxNodes) warnings.push(`${nodeLines.length} nodes; the first ${maxNodes} are taken`)
  const nodes = nodeLines.slice(0, maxNodes).map((line): DiscoveredNode => {
    const state = field(line, 'State')
    return {
      name: field(line, 'NodeName'),
      architecture: field(line, 'Arch'),
      cpus: number(field(line, 'CPUEfctv')) || number(field(line, 'CPUTot')),
      allocatedCpus: number(field(line, 'CPUAlloc')),
      memoryBytes: number(field(line, 'RealMemory')) * MiB,
      allocatedMemoryBytes: number(field(line, 'AllocMem')) * MiB,
      ...gpusOf(field(line, 'Gres')),
      features: field(line, 'AvailableFeatures').replace(/^\(null\)$/, ''),
      state,
      available: !unusable.test(state.replaceAll(sleeping, '')),
      partitions: field(line, 'Partitions')
        .split(',')
        .filter((name) => name !== ''),
    }
  })
  const partitions = part('partitions')
    .split('\n')
    .filter((line) => line.startsWith('PartitionName='))
    .map((line): SlurmPartition => {
      const name = field(line, 'PartitionName')
      return {
        name,
        isDefault: field(line, 'Default') === 'YES',
        up: field(line, 'State') === 'UP',
        cpus: number(field(line, 'TotalCPUs')),
        nodes: number(field(line, 'TotalNodes')),
        maxTime: field(line, 'MaxTime'),
        gpus: nodes
          .filter((node) => node.partitions.includes(name))
          .reduce((sum, node) => sum + node.gpus, 0),
        pending: pending.get(name) ?? 0,
        running: running.get(name) ?? 0,
      }
    })
  return {
    version: part('version').replace(/^slurm(?:-wlm)?\s+/, ''),
    cluster: /^ClusterName\s*=\s*(\S+)/m.exec(part('configuration'))?.[1] ?? 'slurm',
    partitions,
    nodes,
    warnings,
  }
}

const firstLine = (text: string): string => (text.split('\n')[0] ?? '').slice(0, 300)

/**
 * A cluster behind its login node: the cluster contains its partitions and the login node, each
 * partition its nodes. Jobs go to partitions; nodes are only shown. The login node may run little,
 * and only for a short time.
 */
export const foundSlurm = (
  slurm: SlurmFacts,
  login: DiscoveredHost,
  { connectionId, driver }: { connectionId: string; driver: 'ssh' | 'local' },
): Discovered => {
  const cluster = `cluster/${slurm.cluster}`
  const sum = (nodes: readonly DiscoveredNode[], of: (node: DiscoveredNode) => number): number =>
    nodes.reduce((total, node) => total + of(node), 0)
  const gpusIn = (nodes: readonly DiscoveredNode[]): Record<string, unknown> => {
    const gpus = sum(nodes, (node) => node.gpus)
    const gpuModel = nodes.find((node) => node.gpuModel !== '')?.gpuModel
    return gpus === 0 ? {} : { gpus, ...(gpuModel === undefined ? {} : { gpuModel }) }
  }
  const resources: FoundResource[] = [
    {
      key: cluster,
      providerId: slurm.cluster,
      type: 'cluster',
      executionTarget: 'batch',
      architecture: slurm.nodes[0]?.architecture ?? '',
      cpuCores: sum(slurm.nodes, (node) => node.cpus),
      memoryBytes: sum(slurm.nodes, (node) => node.memoryBytes),
      schedulable: false,
      within: [],
      runtimes: [],
      metadata: { scheduler: 'slurm', schedulerVersion: slurm.version, ...gpusIn(slurm.nodes) },
      observed: {
        available: slurm.nodes.some((node) => node.available),
        cpuUsed: sum(slurm.nodes, (node) => node.allocatedCpus),
        memoryUsedBytes: sum(slurm.nodes, (node) => node.allocatedMemoryBytes),
        queueLength: slurm.partitions.reduce((total, { pending }) => total + pending, 0),
      },
    },
    {
      key: `login/${login.name}`,
      providerId: login.name,
      type: 'hpc_machine',
      executionTarget: 'direct',
      architecture: login.architecture,
      cpuCores: login.cores,
      memoryBytes: login.memoryBytes,
      schedulable: false,
      within: [cluster],
      runtimes: [driver],
      metadata: {
        ...machineMetadata(login),
        purpose: 'login',
        maxDirectCpu: 2,
        maxDirectMemoryBytes: 4 * 1024 * MiB,
        maxDirectDurationSeconds: 1_800,
      },
      observed: observedOf(login),
    },
    ...slurm.partitions.map((partition): FoundResource => {
      const nodes = slurm.nodes.filter((node) => node.partitions.includes(partition.name))
      return {
        key: `partition/${partition.name}`,
        providerId: partition.name,
        type: 'hpc_partition',
        executionTarget: 'batch',
        architecture: nodes[0]?.architecture ?? '',
        cpuCores: partition.cpus,
        memoryBytes: sum(nodes, (node) => node.memoryBytes),
        schedulable: true,
        within: [cluster],
        runtimes: ['slurm'],
        metadata: {
          partition: partition.name,
          default: partition.isDefault,
          nodes: partition.nodes,
          maxTime: partition.maxTime,
          coresPerNode: greatest(
            nodes.map((node) => node.cpus),
            0,
          ),
          memoryBytesPerNode: greatest(
            nodes.map((node) => node.memoryBytes),
            0,
          ),
          ...gpusIn(nodes),
        },
        observed: {
          available: partition.up && nodes.some((node) => node.available),
          cpuUsed: sum(nodes, (node) => node.allocatedCpus),
          memoryUsedBytes: sum(nodes, (node) => node.allocatedMemoryBytes),
          queueLength: partition.pending,
          metadata: { running: partition.running },
        },
      }
    }),
    ...slurm.nodes.map((node): FoundResource => ({
      key: `node/${node.name}`,
      providerId: node.name,
      type: 'hpc_machine',
      executionTarget: 'batch',
      architecture: node.architecture,
      cpuCores: node.cpus,
      memoryBytes: node.memoryBytes,
      schedulable: false,
      within: node.partitions.length === 0 ? [cluster] : node.partitions.map((name) => `partition/${name}`),
      runtimes: [],
      metadata: {
        ...gpusIn([node]),
        ...(node.features === '' ? {} : { features: node.features }),
        partitions: node.partitions,
      },
      observed: {
        available: node.available,
        cpuUsed: node.allocatedCpus,
        memoryUsedBytes: node.allocatedMemoryBytes,
        queueLength: 0,
        metadata: { state: node.state },
      },
    })),
  ]
  const gpu = slurm.nodes.some((node) => node.gpus > 0)
  return {
    source: 'scontrol, squeue, uname, nproc, /proc, df',
    resources,
    runtimes: [
      {
        key: 'slurm',
        driver: 'slurm',
        configuration: driver === 'local' ? {} : { connectionId },
        capabilities: ['batch', 'cancellation', 'logStreaming', 'dataStaging', ...(gpu ? ['gpu'] : [])],
      },
      {
        key: driver,
        driver,
        configuration: { connectionId },
        capabilities: ['batch', 'cancellation', 'logStreaming', 'dataStaging'],
      },
    ],
    storages: login.shared.map((storage) => ({ ...storage, runtimes: ['slurm', driver] })),
    warnings: [...login.warnings, ...slurm.warnings],
  }
}
