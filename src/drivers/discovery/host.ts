import { engineFacts, enginesScript, silentDockerScript, type LocalEngine } from './engines.ts'
import { sectionsOf, type Found, type FoundResource, type FoundStorage } from './found.ts'

/** Facts of the machine that a shell is on. Programs that may hang on a dead mount or device have 15 s. */
export const hostScript = `export LC_ALL=C
within() { if command -v timeout >/dev/null 2>&1; then timeout 15 "$@"; else "$@"; fi; }
echo '@@ name'; uname -n
echo '@@ machine'; uname -m
echo '@@ system'; uname -sr
echo '@@ cores'; nproc 2>/dev/null || getconf _NPROCESSORS_ONLN
echo '@@ memory'; cat /proc/meminfo 2>/dev/null
echo '@@ load'; cat /proc/loadavg 2>/dev/null
echo '@@ gpus'; command -v nvidia-smi >/dev/null 2>&1 && within nvidia-smi --query-gpu=name,memory.total --format=csv,noheader,nounits 2>/dev/null
echo '@@ engines'; ${enginesScript}
echo '@@ silent-engines'; ${silentDockerScript}
echo '@@ mounts'; cat /proc/self/mounts 2>/dev/null
echo '@@ sizes'; within df -Pk 2>/dev/null
echo '@@ end'
`

export interface HostFacts {
  name: string
  architecture: string
  system: string
  cores: number
  memoryBytes: number
  memoryUsedBytes: number
  /** Processes that wanted a core, averaged over a minute. */
  load: number
  gpus: { model: string; memoryMiB: number }[]
  /** By their programs; of this machine, those that tasks can use. */
  containerEngines: string[]
  /** Of those, Docker where no engine answers its program. */
  silentEngines?: string[]
  /** Of this machine, what its engines say of themselves. */
  engines?: LocalEngine[]
  shared: Omit<FoundStorage, 'runtimes'>[]
  warnings: string[]
}

/** File systems that are somewhere else, and what kind of storage each is. */
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
/** More mounts than this are an automounter's. */
const maxShared = 100

const number = (text: string | undefined): number => {
  const value = Number(text)
  return text !== undefined && text !== '' && Number.isFinite(value) && value >= 0 ? value : 0
}

/** Names in /proc/mounts have white space and backslashes as three octal digits. */
const unescaped = (text: string): string =>
  text.replace(/\\([0-7]{3})/g, (_, digits: string) => String.fromCharCode(Number.parseInt(digits, 8)))

/** Reads the output of `hostScript`. @throws Error when it is not one */
export const readHost = (output: string): HostFacts => {
  const sections = sectionsOf(output)
  const section = (name: string): string => sections.get(name) ?? ''
  if (!sections.has('end') || section('name') === '') throw new Error('the machine did not tell its facts to the end')
  const memory = new Map([...section('memory').matchAll(/^(\w+):\s+(\d+) kB$/gm)].map(([, key = '', value]) => [key, number(value) * 1024]))
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
    .flatMap((line): HostFacts['shared'] => {
      const [source = '', path = '', type = '', options = ''] = line.split(' ').map(unescaped)
      const kind = sharedTypes[type]
      if (kind === undefined) return []
      return [{ source, path, type: kind, readOnly: options.split(',').includes('ro'), capacityBytes: sizes.get(path) ?? 0 }]
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

/** Of facts, what goes into the metadata of a machine's resource. */
export const machineMetadata = ({ system, gpus, containerEngines, engines = [] }: HostFacts): Record<string, unknown> => ({
  system,
  ...(gpus.length === 0 ? {} : { gpus: gpus.length, gpuModel: gpus[0]?.model, gpuMemoryMiB: gpus[0]?.memoryMiB }),
  ...(containerEngines.length === 0 ? {} : { containerEngines }),
  ...engineFacts(engines).metadata,
})

/** The facts of this machine with what its container engines said. */
export const withEngines = (host: HostFacts, engines: LocalEngine[]): HostFacts => ({
  ...host,
  containerEngines: engines.filter(({ problem }) => problem === undefined).map(({ engine }) => engine),
  engines,
  warnings: [...host.warnings, ...engineFacts(engines).warnings],
})

/** The facts of another machine, without engines that do not answer there. */
export const withoutSilentEngines = (host: HostFacts): HostFacts => ({
  ...host,
  containerEngines: host.containerEngines.filter((engine) => host.silentEngines?.includes(engine) !== true),
})

/** How busy a machine is, for its snapshot. */
export const observedOf = (host: HostFacts): FoundResource['observed'] => {
  const metadata = engineFacts(host.engines ?? []).observed
  return {
    available: true,
    cpuUsed: Math.min(host.load, host.cores),
    memoryUsedBytes: host.memoryUsedBytes,
    queueLength: 0,
    ...(Object.keys(metadata).length === 0 ? {} : { metadata }),
  }
}

/** A machine without a scheduler: tasks are started on it. `driver`: `ssh` through a connection, `local` for this machine. */
export const foundHost = (host: HostFacts, { connectionId, driver }: { connectionId: string; driver: 'ssh' | 'local' }): Found => ({
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
