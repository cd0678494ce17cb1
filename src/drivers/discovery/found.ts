/** Something that tasks can run on, or that holds such things. */
export interface FoundResource {
  /** `cluster/hpc`, `partition/cpu`, `node/n1`, `host/n1`: unique within one discovery. */
  key: string
  /** The name by which the site itself knows it. */
  providerId: string
  type: 'cluster' | 'hpc_partition' | 'hpc_machine' | 'kubernetes_machine' | 'kubernetes_namespace' | 'local_machine'
  executionTarget: 'batch' | 'direct'
  architecture: string
  cpuCores: number
  memoryBytes: number
  schedulable: boolean
  /** Keys of what contains it. The first is the parent. */
  within: readonly string[]
  /** Keys of the runtimes that run tasks on it. */
  runtimes: readonly string[]
  metadata: Readonly<Record<string, unknown>>
  observed: { available: boolean; cpuUsed: number; memoryUsedBytes: number; queueLength: number; metadata?: Record<string, unknown> }
}

export interface FoundRuntime {
  key: string
  driver: 'ssh' | 'slurm' | 'kubernetes' | 'local'
  configuration: Readonly<Record<string, unknown>>
  /** Those that are there. */
  capabilities: readonly string[]
}

/** A file system that several machines mount. */
export interface FoundStorage {
  /** What is mounted, as the machines name it (`server:/export`): the same text is the same storage. */
  source: string
  type: 'nfs' | 'lustre' | 'ssh-filesystem' | 'pvc'
  capacityBytes: number
  readOnly: boolean
  /** Absolute, where it is mounted. */
  path: string
  runtimes: readonly string[]
}

/** What is behind a connection, as its own programs tell it. */
export interface Found {
  /** Who told: `uname, nproc, /proc`, `scontrol`, `kubernetes`. */
  source: string
  resources: FoundResource[]
  runtimes: FoundRuntime[]
  storages: FoundStorage[]
  /** What could not be learnt, or was left out. */
  warnings: string[]
}

/** Parts of an output that were each announced by a line `@@ name`. */
export const sectionsOf = (output: string): Map<string, string> => {
  const sections = new Map<string, string[]>()
  let lines: string[] = []
  for (const line of output.split('\n')) {
    const name = /^@@ (\S+)$/.exec(line)?.[1]
    if (name === undefined) lines.push(line)
    else sections.set(name, (lines = []))
  }
  return new Map([...sections].map(([name, part]) => [name, part.join('\n').trim()]))
}
