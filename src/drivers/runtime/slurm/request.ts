import { greatest } from '../../../lists.ts'
import type { BatchArray } from '../batch/scheduler.ts'
import { DriverError, type Intent } from '../contract/driver.ts'
import type { PartitionLimits, SlurmLimits } from './limits.ts'

/** The request of one element to the scheduler. Tasks with equal requests become one array. */
export interface SlurmRequest {
  partition?: string
  account?: string
  qos?: string
  reservation?: string
  constraint?: string
  cores: number
  /** Absent: the site's default. */
  memoryMegabytes?: number
  gpus: number
  /** Slurm counts time limits in minutes. Absent: the partition's default. */
  walltimeMinutes?: number
}

export type SlurmArray = BatchArray<SlurmRequest>

const names = ['partition', 'account', 'qos', 'reservation', 'constraint'] as const
const leastWalltimeSeconds = 60
/**
 * Time between the end of an activity's own time limit and the site's limit: for the polite end and
 * the remains.
 */
const walltimeMarginSeconds = 60

const refuse = (name: string, problem: string): never => {
  throw new DriverError('refused', `${name}: ${problem}`)
}

const textOf = (name: string, key: string, value: unknown): string | undefined => {
  if (value === undefined || value === null || value === '') return undefined
  if (typeof value !== 'string' || value.length > 255 || /\p{Cc}/u.test(value))
    return refuse(name, `${key} ${JSON.stringify(value)} must be one line of text of at most 255 characters`)
  return value
}

/**
 * Options that place a job as the runtime's tasks. @throws DriverError `refused` for a setting that is
 * no line of text
 */
export const placementOptions = (name: string, configuration: Readonly<Record<string, unknown>>): string[] =>
  names.flatMap((word) => {
    const value = textOf(name, word, configuration[word])
    return value === undefined ? [] : [`--${word}=${value}`]
  })

const numberOf = (name: string, key: string, value: unknown, otherwise: number, least: number): number => {
  if (value === undefined) return otherwise
  if (typeof value !== 'number' || !Number.isFinite(value) || value < least)
    return refuse(name, `${key} ${JSON.stringify(value)} must be a number of at least ${least}`)
  return value
}

/** Partitions that a request may run in: those it names (`a,b`), else the default one. */
const partitionsOf = (request: SlurmRequest, limits: SlurmLimits): readonly PartitionLimits[] => {
  const { partition } = request
  if (partition === undefined) return limits.partitions.filter((one) => one.isDefault)
  return partition.split(',').flatMap((name) => limits.partitions.filter((one) => one.name === name))
}

/** What tasks ask for, by `requests` of the configuration; some clusters refuse one of the options. */
const asksFor = (name: string, value: unknown): { memory: boolean; time: boolean } => {
  const asked = { memory: true, time: true }
  if (value === undefined) return asked
  const given = typeof value === 'object' && value !== null ? Object.entries(value) : [['', value]]
  for (const [key, wanted] of given)
    if ((key !== 'memory' && key !== 'time') || typeof wanted !== 'boolean')
      refuse(name, `requests ${JSON.stringify(value)} must have memory, time or both as true or false`)
  return { ...asked, ...value }
}

/** How to leave out an option that a refusal is about; empty where it is about no such option. */
export const leaveOutHint = (request: SlurmRequest, words: string): string => {
  const about = { memory: /\bmem(ory)?\b/i.test(words), time: /time ?limit|--time\b/i.test(words) }
  if (about.memory && request.memoryMegabytes !== undefined)
    return '; with configuration.requests {memory: false} tasks ask for no memory'
  if (about.time && request.walltimeMinutes !== undefined)
    return '; with configuration.requests {time: false} tasks ask for no time limit'
  return ''
}

const longest = (seconds: number[]): number => (seconds.length === 0 ? Infinity : greatest(seconds))

/**
 * Time limit in minutes: from the activity's own limit, else from the plan's expectation; doubled
 * with each end at the site's limit.
 */
function walltimeOf(
  intent: Intent,
  factor: number,
  partitions: readonly PartitionLimits[],
  request: SlurmRequest,
  limits: SlurmLimits,
): number | undefined {
  const { name, timeoutSeconds, expectedSeconds = 0, walltimeExtensions = 0 } = intent
  const where = partitions.map((one) => one.name).join(',') || (request.partition ?? 'the default partition')
  const left = request.reservation === undefined ? undefined : limits.reservations.get(request.reservation)
  const partitionLimit = longest(partitions.map((one) => one.maxSeconds))
  const limit = Math.min(partitionLimit, left ?? Infinity)
  const holder = limit === partitionLimit ? `partition ${where}` : `reservation ${request.reservation ?? ''}`
  const tooShort = (needed: number): never =>
    refuse(
      name,
      `needs ${Math.ceil(needed)} s, but ${holder} ends it after ${Math.max(0, Math.floor(limit))} ` +
        's; choose one that gives more time',
    )
  if (Math.max(expectedSeconds, leastWalltimeSeconds) > limit)
    tooShort(Math.max(expectedSeconds, leastWalltimeSeconds))

  const usual = longest(partitions.flatMap((one) => one.defaultSeconds ?? []))
  const own = timeoutSeconds > 0 ? timeoutSeconds + walltimeMarginSeconds : undefined
  const expected = expectedSeconds > 0 ? Math.max(leastWalltimeSeconds, expectedSeconds * factor) : undefined
  const base = own ?? expected ?? (walltimeExtensions > 0 && usual !== Infinity ? usual : undefined)
  if (base === undefined) return left === undefined ? undefined : Math.floor(limit / 60)
  const asked = base * 2 ** walltimeExtensions
  // It had the longest time limit of the site, and that was too short.
  if (walltimeExtensions > 0 && asked / 2 >= limit) tooShort(asked)
  // A year is longer than any machine's uptime, and the scheduler counts up to 2^31 minutes.
  return Math.min(Math.ceil(asked / 60), Math.floor(limit / 60), 525_600)
}

/**
 * The request for one task. `intent.site` overrides `configuration`, the runtime's.
 *
 * @throws DriverError `refused` for values that cannot be passed, and for a task that the partition
 *   can never run: larger than its largest node, or longer than it allows, with both numbers.
 */
export function jobRequest(
  intent: Intent,
  configuration: Readonly<Record<string, unknown>>,
  limits: SlurmLimits,
): SlurmRequest {
  const { name, cores, memoryBytes, gpus = 0 } = intent
  const site = { ...configuration, ...intent.site }
  const request: SlurmRequest = { cores: Math.max(1, Math.ceil(cores)), gpus }
  for (const word of names) {
    const value = textOf(name, word, site[word])
    if (value !== undefined) request[word] = value
  }
  const partitions = partitionsOf(request, limits)
  const nodes = partitions.flatMap((one) => one.nodes)
  const asked = asksFor(name, site['requests'])
  if (asked.memory && memoryBytes > 0) request.memoryMegabytes = Math.ceil(memoryBytes / 1024 ** 2)

  const { memoryMegabytes = 0 } = request
  if (
    nodes.length > 0 &&
    !nodes.some(
      (node) => node.cores >= request.cores && node.megabytes >= memoryMegabytes && node.gpus >= gpus,
    )
  ) {
    const most = (of: (node: (typeof nodes)[number]) => number): number => greatest(nodes.map(of))
    refuse(
      name,
      `asks for ${request.cores} cores, ${memoryMegabytes} MiB and ${gpus} GPUs; no node of ` +
        `partition ${partitions.map((one) => one.name).join(',')} ` +
        `has that (at most ${most((node) => node.cores)} cores, ${most((node) => node.megabytes)} ` +
        `MiB, ${most((node) => node.gpus)} GPUs)`,
    )
  }
  const factor = numberOf(name, 'walltimeFactor', site['walltimeFactor'], 2, 1)
  const minutes = asked.time ? walltimeOf(intent, factor, partitions, request, limits) : undefined
  if (minutes !== undefined) request.walltimeMinutes = Math.max(1, minutes)
  return request
}

/** Options of `sbatch` for a request; each is one word of an argument vector. */
export const requestOptions = (request: SlurmRequest): string[] => [
  '--nodes=1',
  '--ntasks=1',
  `--cpus-per-task=${request.cores}`,
  ...(request.memoryMegabytes === undefined ? [] : [`--mem=${request.memoryMegabytes}M`]),
  ...(request.gpus > 0 ? [`--gres=gpu:${request.gpus}`] : []),
  ...(request.walltimeMinutes === undefined ? [] : [`--time=${request.walltimeMinutes}`]),
  ...names.flatMap((word) => (request[word] === undefined ? [] : [`--${word}=${request[word]}`])),
]
