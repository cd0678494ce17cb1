/** What is observed of a resource of whose use nothing is known. */
export const unknownUse = { available: true, cpuUsed: 0, memoryUsedBytes: 0, queueLength: 0 }

/** A resource on which tasks can run, or which contains such resources. */
export interface FoundResource {
  /** `cluster/hpc`, `partition/cpu`, `node/n1`, `host/n1`: unique within one discovery. */
  key: string
  /** The site's own name for it. */
  providerId: string
  type:
    | 'cluster'
    | 'hpc_partition'
    | 'hpc_machine'
    | 'kubernetes_machine'
    | 'kubernetes_namespace'
    | 'local_machine'
  executionTarget: 'batch' | 'direct'
  architecture: string
  cpuCores: number
  memoryBytes: number
  schedulable: boolean
  /** Keys of the resources that contain it. The first is the parent. */
  within: readonly string[]
  /** Keys of the runtimes that run tasks on it. */
  runtimes: readonly string[]
  metadata: Readonly<Record<string, unknown>>
  observed: {
    available: boolean
    cpuUsed: number
    memoryUsedBytes: number
    queueLength: number
    metadata?: Record<string, unknown>
  }
}

export interface FoundRuntime {
  key: string
  driver: 'ssh' | 'slurm' | 'kubernetes' | 'local'
  configuration: Readonly<Record<string, unknown>>
  /** The capabilities that it has. */
  capabilities: readonly string[]
}

/** A file system that several machines mount. */
export interface FoundStorage {
  /**
   * The mounted source as the machines name it (`server:/export`): the same text is the same
   * storage.
   */
  source: string
  type: 'nfs' | 'lustre' | 'ssh-filesystem' | 'pvc'
  capacityBytes: number
  readOnly: boolean
  /** The absolute mount point. */
  path: string
  runtimes: readonly string[]
}

/** The findings behind a connection, as its own programs report them. */
export interface Discovered {
  /** The source of the facts: `uname, nproc, /proc`, `scontrol`, `kubernetes`. */
  source: string
  resources: FoundResource[]
  runtimes: FoundRuntime[]
  storages: FoundStorage[]
  /** What could not be found out, or was left out. */
  warnings: string[]
}

/** Parts of an output; a line `@@ name` begins each. */
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
