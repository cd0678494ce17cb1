/**
 * The cluster's limits, as far as a task can be checked against them before its submit. Sizes in
 * MiB, times in seconds.
 */
export interface SlurmLimits {
  partitions: readonly PartitionLimits[]
  /** Largest number of elements in one array. */
  arraySize: number
  /** Whether the cluster has an accounting database. */
  accounting: boolean
  /** Whether its nodes kill for memory inside of a job: a script may end well beside that. */
  killsInJobs: boolean
  /** End of the reservations, in seconds from the moment of the query. */
  reservations: ReadonlyMap<string, number>
}

export interface PartitionLimits {
  name: string
  isDefault: boolean
  /** Infinity: no limit. */
  maxSeconds: number
  defaultSeconds?: number
  nodes: readonly { cores: number; megabytes: number; gpus: number }[]
}

/** `infinite`, `5:00`, `1:00:00`, `2-00:00:00`, and minutes alone. */
export const parseDuration = (text: string): number | undefined => {
  if (/^(infinite|unlimited)$/i.test(text)) return Infinity
  const parts = /^(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?$/.exec(text.trim())
  if (parts === null) return undefined
  const [, days, ...rest] = parts
  const given = rest.filter((part) => part !== undefined).map(Number)
  const [hours, minutes, seconds] =
    days !== undefined || given.length === 3
      ? given
      : given.length === 2
        ? [0, given[0], given[1]]
        : [0, given[0], 0]
  return Number(days ?? 0) * 86400 + (hours ?? 0) * 3600 + (minutes ?? 0) * 60 + (seconds ?? 0)
}

/**
 * Format of `sinfo -e -h -a -o` that `parsePartitions` reads: one line for each kind of node of
 * each partition.
 */
export const partitionFormat = '%P|%l|%L|%c|%m|%G'

/** `gpu:a100:2(S:0-1),gpu:1` are 3, the first model a100. */
export const gpusOf = (gres: string): { gpus: number; gpuModel: string } => {
  const found = gres
    .replace(/\([^)]*\)/g, '')
    .split(',')
    .map((one) => /^(?:gres\/)?gpu(?::([A-Za-z][^:=]*|\d[^:=]*(?=[:=]\d)))?(?:[:=](\d+))?$/.exec(one))
    .filter((match) => match !== null)
  return {
    gpus: found.reduce((sum, match) => sum + (match[2] === undefined ? 1 : Number(match[2])), 0),
    gpuModel: found.map((match) => match[1]).find((model) => model !== undefined) ?? '',
  }
}

/** @param text lines of `sinfo` in `partitionFormat`. */
export const parsePartitions = (text: string): PartitionLimits[] => {
  const partitions = new Map<string, PartitionLimits & { nodes: PartitionLimits['nodes'][number][] }>()
  for (const line of text.split('\n')) {
    const [label = '', longest = '', usual = '', cores = '', megabytes = '', resources = ''] = line.split('|')
    const name = label.replace(/\*$/, '')
    if (name === '') continue
    const defaultSeconds = parseDuration(usual)
    const partition = partitions.get(name) ?? {
      name,
      isDefault: label.endsWith('*'),
      maxSeconds: parseDuration(longest) ?? Infinity,
      ...(defaultSeconds === undefined || defaultSeconds === Infinity ? {} : { defaultSeconds }),
      nodes: [],
    }
    // `4+`: nodes of several sizes in one line.
    if (/^\d+\+?$/.test(cores))
      partition.nodes.push({
        cores: Number.parseInt(cores),
        megabytes: Number.parseInt(megabytes),
        gpus: gpusOf(resources).gpus,
      })
    partitions.set(name, partition)
  }
  return [...partitions.values()]
}

const setting = (config: string, name: string): string | undefined =>
  new RegExp(`^${name}\\s*=\\s*(\\S+)`, 'im').exec(config)?.[1]

/**
 * @param text output of `sinfo` in `partitionFormat`, `scontrol show config` and `scontrol -o show
 *   reservation` with epoch times, and the time at the cluster, in sections that begin with a line
 *   `== name`.
 */
export const parseLimits = (text: string): SlurmLimits => {
  const sections = new Map(
    text
      .split(/^== /m)
      .slice(1)
      .map((section) => {
        const end = section.indexOf('\n')
        return [section.slice(0, end), section.slice(end + 1)] as const
      }),
  )
  const config = sections.get('config') ?? ''
  const now = Number(sections.get('now') ?? 0)
  const reservations = (sections.get('reservations') ?? '').split('\n').flatMap((line) => {
    const [, name] = /ReservationName=(\S+)/.exec(line) ?? []
    const [, end] = /EndTime=(\d+)/.exec(line) ?? []
    return name === undefined || end === undefined ? [] : [[name, Number(end) - now] as const]
  })
  return {
    partitions: parsePartitions(sections.get('partitions') ?? ''),
    // The first index is 0, the largest one less than MaxArraySize.
    arraySize: Math.max(1, Math.min(1000, Number(setting(config, 'MaxArraySize') ?? 1001) - 1)),
    accounting: /accounting_storage\/(?!none)/i.test(setting(config, 'AccountingStorageType') ?? ''),
    killsInJobs: /^yes$/i.test(setting(config, 'ConstrainRAMSpace') ?? ''),
    reservations: new Map(reservations),
  }
}
