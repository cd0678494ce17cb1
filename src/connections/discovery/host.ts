import { readProgram } from '../../shell/program.ts'
import { engineFacts, enginesProgram, type LocalEngine } from './engines.ts'
import { sectionsOf, type Discovered, type FoundResource, type FoundStorage } from './found.ts'

/** Facts of the machine that a shell is on, for `readHost`. */
export const hostScript = `${enginesProgram}${readProgram(import.meta.dirname, 'host.sh')}`

export interface DiscoveredHost {
  name: string
  architecture: string
  system: string
  cores: number
  memoryBytes: number
  memoryUsedBytes: number
  /** Processes that wanted a core, averaged over a minute. */
  load: number
  gpus: { model: string; memoryMiB: number }[]
  /** By their programs; at this machine, the engines that tasks can use. */
  containerEngines: string[]
  /** Among them, Docker where no engine answers its program. */
  silentEngines?: string[]
  /** At this machine, the engines' own facts. */
  engines?: LocalEngine[]
  shared: Omit<FoundStorage, 'runtimes'>[]
  warnings: string[]
}

/** Types of remote file systems, and the kind of storage that each is. */
const sharedTypes: Readonly<Record<string, FoundStorage['type']>> = {
  nfs: 'nfs',
  nfs4: 'nfs',
  lustre: 'lustre',
  gpfs: 'ssh-filesystem',
  beegfs: 'ssh-filesystem',
  ceph: 'ssh-filesystem',
  'fuse.ceph-fuse': 'ssh-filesystem',
  'fuse.glusterfs': 'ssh-filesystem',
  'fuse.sshfs': 'ssh-filesystem',
  'fuse.juicefs': 'ssh-filesystem',
  cifs: 'ssh-filesystem',
  smb3: 'ssh-filesystem',
  '9p': 'ssh-filesystem',
  virtiofs: 'ssh-filesystem',
  pvfs2: 'ssh-filesystem',
  wekafs: 'ssh-filesystem',
}
/** More mounts than this come from an automounter. */
const maxShared = 100

const number = (text: string | undefined): number => {
  const value = Number(text)
  return text !== undefined && text !== '' && Number.isFinite(value) && value >= 0 ? value : 0
}

/** Names in /proc/mounts have white space and backslashes as three octal digits. */
const unescaped = (text: string): string =>
  text.replace(/\\([0-7]{3})/g, (_, digits: string) => String.fromCharCode(Number.parseInt(digits, 8)))

/** Reads the output of `hostScript`. @throws Error when it is not one */
export const readHost = (output: string): DiscoveredHost => {
  const sections = sectionsOf(output)
  const section = (name: string): string => sections.get(name) ?? ''
  if (!sections.has('end') || section('name') === '') throw new Error('the facts of the machine are cut off')
  const memory = new Map(
    [...section('memory').matchAll(/^(\w+):\s+(\d+) kB$/gm)].map(([, key = '', value]) => [
      key,
      number(value) * 1024,
    ]),
  )
  const total = memory.get('MemTotal') ?? 0
  const sizes = new Map(
    section('sizes')
      .split('\n')
      .flatMap((line) => {
        const match = /^.*?\s+(\d+)\s+\d+\s+-?\d+\s+\d+%\s+(\/.*)$/.exec(line)
        return match === null ? [] : [[match[2] ?? '', number(match[1]) * 1024] as const]
      }),
  )
  const all = section('mounts')
    .split('\n')
    .flatMap((line): DiscoveredHost['shared'] => {
      const [source = '', path = '', type = '', options = ''] = line.split(' ').map(unescaped)
      const kind = sharedTypes[type]
      if (kind === undefined) return []
      return [
        {
          source,
          path,
          type: kind,
          readOnly: options.split(',').includes('ro'),
          capacityBytes: sizes.get(path) ?? 0,
        },
      ]
    })
  const cores = number(section('cores').split('\n')[0])
  const warnings: string[] = []
  if (cores === 0) warnings.push('the number of cores could not be learnt (neither nproc nor getconf)')
  if (total === 0) warnings.push('the memory could not be learnt (no /proc/meminfo)')
  if (all.length > maxShared) warnings.push(`${all.length} shared mounts; the first ${maxShared} are taken`)
  for (const { source, capacityBytes } of all.slice(0, maxShared))
    if (capacityBytes === 0) warnings.push(`the size of ${source} could not be learnt within 15 s`)
  return {
    name: section('name').split('\n')[0] ?? '',
    architecture: section('machine'),
    system: section('system'),
    cores,
    memoryBytes: total,
    memoryUsedBytes: Math.max(0, total - (memory.get('MemAvailable') ?? memory.get('MemFree') ?? total)),
    load: number(section('load').split(' ')[0]),
    gpus: section('gpus')
      .split('\n')
      .flatMap((line) => {
        const match = /^(.+), *(\d+)$/.exec(line.trim())
        return match === null ? [] : [{ model: match[1] ?? '', memoryMiB: number(match[2]) }]
      }),
    containerEngines: section('engines')
      .split('\n')
      .filter((engine) => engine !== ''),
    ...(section('silent-engines') === '' ? {} : { silentEngines: section('silent-engines').split('\n') }),
    shared: all.slice(0, maxShared),
    warnings,
  }
}

/** The facts that go into the metadata of a machine's resource. */
export const machineMetadata = ({
  system,
  gpus,
  containerEngines,
  engines = [],
}: DiscoveredHost): Record<string, unknown> => ({
  system,
  ...(gpus.length === 0
    ? {}
    : { gpus: gpus.length, gpuModel: gpus[0]?.model, gpuMemoryMiB: gpus[0]?.memoryMiB }),
  ...(containerEngines.length === 0 ? {} : { containerEngines }),
  ...engineFacts(engines).metadata,
})

/** The facts of this machine with those of its container engines. */
export const withEngines = (host: DiscoveredHost, engines: LocalEngine[]): DiscoveredHost => ({
  ...host,
  containerEngines: engines.filter(({ problem }) => problem === undefined).map(({ engine }) => engine),
  engines,
  warnings: [...host.warnings, ...engineFacts(engines).warnings],
})

/** The facts of another machine, without engines that do not answer there. */
export const withoutSilentEngines = (host: DiscoveredHost): DiscoveredHost => ({
  ...host,
  containerEngines: host.containerEngines.filter((engine) => host.silentEngines?.includes(engine) !== true),
})

/** How busy a machine is, for its snapshot. */
export const observedOf = (host: DiscoveredHost): FoundResource['observed'] => {
  const metadata = engineFacts(host.engines ?? []).observed
  return {
    available: true,
    cpuUsed: Math.min(host.load, host.cores),
    memoryUsedBytes: host.memoryUsedBytes,
    queueLength: 0,
    ...(Object.keys(metadata).length === 0 ? {} : { metadata }),
  }
}

/**
 * A machine without a scheduler: tasks are started on it. `driver`: `ssh` through a connection,
 * `local` for this machine.
 */
export const foundHost = (
  host: DiscoveredHost,
  { connectionId, driver }: { connectionId: string; driver: 'ssh' | 'local' },
): Discovered => ({
  source: 'uname, nproc, /proc, df',
  resources: [
    {
      key: `host/${host.name}`,
      providerId: host.name,
      type: driver === 'local' ? 'local_machine' : 'hpc_machine',
      executionTarget: 'direct',
      architecture: host.architecture,
      cpuCores: host.cores,
      memoryBytes: host.memoryBytes,
      schedulable: true,
      within: [],
      runtimes: [driver],
      metadata: machineMetadata(host),
      observed: observedOf(host),
    },
  ],
  runtimes: [
    {
      key: driver,
      driver,
      configuration: { connectionId },
      capabilities: [
        'batch',
        'cancellation',
        'logStreaming',
        'dataStaging',
        ...(host.gpus.length > 0 && driver === 'local' ? ['gpu'] : []),
      ],
    },
  ],
  storages: host.shared.map((storage) => ({ ...storage, runtimes: [driver] })),
  warnings: host.warnings,
})
