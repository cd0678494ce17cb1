import { greatest } from '../lists.ts'
import type { HttpAnswer } from './http-exchange.ts'
import type { Http } from './http.ts'

/**
 * The REST interface of Slurm, versions 0.0.36 to 0.0.44. Times are seconds since epoch by the
 * clock of the cluster, sizes MiB.
 */

export interface SlurmrestdServer {
  http: Pick<Http, 'request'>
  /** `http://host:port`, without a path. */
  url: string
  user: string
  /** Called for each request; the token is used in a header only. */
  token: () => Promise<string>
  /** How long accounting that has never answered is away before there is none. Default 10 minutes. */
  accountingAwayMs?: number
}

export interface SlurmrestdJob {
  /** The array's id; the job's own id where it belongs to no array. */
  job: string
  /**
   * Of an array's elements, as Slurm writes lists (`0-3,7`); undefined for a job that is in no
   * array.
   */
  elements: string | undefined
  name: string
  /** The account it belongs to, where the answer names it. */
  user?: string | undefined
  /** In capitals, without flags; `COMPLETING` where a job is ending. */
  state: string
  reason: string | undefined
  startedAt: number | undefined
  endedAt: number | undefined
  node: string | undefined
}

export interface SlurmrestdPartition {
  name: string
  isDefault: boolean
  /** Infinity: no limit. */
  maxSeconds: number
  defaultSeconds: number | undefined
}

export interface SlurmrestdNode {
  partitions: readonly string[]
  cores: number
  megabytes: number
  gpus: number
}

/** An array to submit. The site's defaults fill absent fields. */
export interface SlurmrestdSubmission {
  name: string
  /** The elements as Slurm writes lists. */
  array: string
  script: string
  requeue: boolean
  cores: number
  gpus: number
  memoryMegabytes?: number
  walltimeMinutes?: number
  partition?: string
  account?: string
  qos?: string
  reservation?: string
  constraint?: string
}

/**
 * - `silent`: the state is unknown: no answer, or an answer from another part than the scheduler.
 * - `full`: the scheduler accepts no more jobs now; it accepted nothing.
 * - `refused`: the scheduler refuses; the message is the scheduler's.
 */
export type SlurmrestdTrouble = 'silent' | 'full' | 'refused'

/** Never contains the token, even where the server repeats it. */
export class SlurmrestdError extends Error {
  readonly trouble: SlurmrestdTrouble
  constructor(trouble: SlurmrestdTrouble, message: string, options?: ErrorOptions) {
    super(message, options)
    this.name = 'SlurmrestdError'
    this.trouble = trouble
  }
}

export type Json = Readonly<Record<string, unknown>>

const objects = (value: unknown): Json[] =>
  Array.isArray(value) ? value.filter((one): one is Json => typeof one === 'object' && one !== null) : []

/**
 * A number as versions up to 0.0.38 write it, or `{set, infinite, number}` as later ones do; unset
 * and -1 are undefined.
 */
const numberOf = (value: unknown): number | undefined => {
  if (typeof value === 'object' && value !== null) {
    const { set, infinite, number } = value as { set?: unknown; infinite?: unknown; number?: unknown }
    if (infinite === true) return Infinity
    return set === true ? numberOf(number) : undefined
  }
  return typeof value === 'number' && value >= 0 ? value : undefined
}
const textOf = (value: unknown): string =>
  Array.isArray(value) ? String(value[0] ?? '') : typeof value === 'string' ? value : ''
const timeOf = (value: unknown): number | undefined => {
  const time = numberOf(value)
  return time === undefined || time === 0 || time === Infinity ? undefined : time
}
const isInfinite = (value: unknown): boolean => numberOf(value) === undefined || numberOf(value) === Infinity

/** Flags that count before the state. */
const flags = ['COMPLETING', 'SPECIAL_EXIT', 'REQUEUE_HOLD', 'RESV_DEL_HOLD', 'REVOKED']

/** Reads an answer to `GET jobs`. */
export const readJobs = (answer: Json): SlurmrestdJob[] =>
  objects(answer['jobs']).map((job) => {
    const array = numberOf(job['array_job_id'])
    const waiting = textOf(job['array_task_string'])
    const index = numberOf(job['array_task_id'])
    const reason = textOf(job['state_reason'])
    // `["FAILED", "COMPLETING"]`, `["PENDING", "REQUEUE_HOLD"]`: a flag beside the state says more.
    const states = statesOf(job['job_state'])
    return {
      job: String(array === undefined || array === 0 ? numberOf(job['job_id']) : array),
      elements: waiting !== '' ? waiting : index === undefined ? undefined : String(index),
      name: textOf(job['name']),
      user: textOf(job['user_name']) || undefined,
      state: flags.find((flag) => states.includes(flag)) ?? states[0] ?? '',
      reason: /^(|none)$/i.test(reason) ? undefined : reason,
      startedAt: timeOf(job['start_time']),
      endedAt: timeOf(job['end_time']),
      node: textOf(job['nodes']) || undefined,
    }
  })

/** `"FAILED"`, and of later versions `["FAILED"]`. */
const statesOf = (value: unknown): string[] => (Array.isArray(value) ? value.map(String) : [textOf(value)])

/**
 * Reads an answer to `GET slurmdb/VERSION/job/ID`. A step that ran out of memory counts for its job,
 * which may know nothing but its script's exit code.
 */
export const readRecords = (answer: Json): (SlurmrestdJob & { peakMemoryBytes: number | undefined })[] =>
  objects(answer['jobs']).map((job) => {
    const { job_id: array, task_id: index, task } = (job['array'] ?? {}) as Json
    const { current, reason: why } = (job['state'] ?? {}) as Json
    const { start, end } = (job['time'] ?? {}) as Json
    const [state = ''] = statesOf(current)
    const steps = objects(job['steps'])
    const ranOut = steps.some((step) => statesOf(step['state']).includes('OUT_OF_MEMORY'))
    const peaks = steps.flatMap(({ tres }) => {
      const { max } = ((tres as Json | undefined)?.['requested'] ?? {}) as Json
      return objects(max).flatMap(({ type, count }) => (type === 'mem' ? (numberOf(count) ?? []) : []))
    })
    const [id, element, waiting] = [numberOf(array), numberOf(index), textOf(task)]
    const reason = textOf(why)
    const isElement = id !== undefined && id !== 0
    return {
      job: String(isElement ? id : numberOf(job['job_id'])),
      elements: waiting !== '' ? waiting : !isElement || element === undefined ? undefined : String(element),
      name: textOf(job['name']),
      state: ranOut && /^(COMPLETED|FAILED)$/.test(state) ? 'OUT_OF_MEMORY' : state,
      reason: /^(|none)$/i.test(reason) ? undefined : reason,
      startedAt: timeOf(start),
      endedAt: timeOf(end),
      node: textOf(job['nodes']).replace(/^none assigned$/i, '') || undefined,
      peakMemoryBytes: peaks.length === 0 ? undefined : greatest(peaks),
    }
  })

/** Reads an answer to `GET partitions`. */
export const readPartitions = (answer: Json): SlurmrestdPartition[] => {
  const partitions = objects(answer['partitions'])
  return partitions.map((partition) => {
    const maximum = partition['max_time_limit'] ?? (partition['maximums'] as Json | undefined)?.['time']
    const usual = numberOf(
      partition['default_time_limit'] ?? (partition['defaults'] as Json | undefined)?.['time'],
    )
    const flags = partition['flags']
    return {
      name: textOf(partition['name']),
      // Versions from 0.0.40 on do not mark the default partition.
      isDefault: Array.isArray(flags)
        ? flags.some((flag) => /^default$/i.test(String(flag)))
        : partitions.length === 1,
      maxSeconds: isInfinite(maximum) ? Infinity : (numberOf(maximum) ?? 0) * 60,
      defaultSeconds: usual === undefined || usual === Infinity ? undefined : usual * 60,
    }
  })
}

/** Reads an answer to `GET nodes`. */
export const readNodes = (answer: Json): SlurmrestdNode[] =>
  objects(answer['nodes']).map((node) => ({
    partitions: Array.isArray(node['partitions']) ? node['partitions'].map(String) : [],
    cores: numberOf(node['cpus']) ?? 0,
    megabytes: numberOf(node['real_memory']) ?? 0,
    gpus: Number(/gpu(?::[^:,()]+)?:(\d+)/.exec(textOf(node['gres']))?.[1] ?? 0),
  }))

/** Reads an answer to `GET reservations`: the end of each; one without an end is left out. */
export const readReservations = (answer: Json): Map<string, number> =>
  new Map(
    objects(answer['reservations']).flatMap((one) => {
      const end = timeOf(one['end_time'])
      return end === undefined ? [] : [[textOf(one['name']), end] as const]
    }),
  )

/** The newest version whose shapes are known here; a slurmrestd serves the last three or so. */
const newestKnown = 44
const minorOf = (version: string): number => Number(version.split('.').at(-1))

const silent =
  /unable to contact|connection|timed out|unspecified error|config is unable to load|protocol authentication/i
const noRoom = /MaxSubmit|MaxJobCount|job violates accounting|temporarily unable|too many/i
/** What else it says of a question about a job ("unable to query") may be trouble of its own. */
const denied = /invalid job id/i
/** Accounting has no such job. */
const nothing = /nothing found|invalid job id/i
/** A listed job takes 5 KB or so; a longer text is more than Node holds. */
const answerLimitBytes = 500 * 1024 * 1024

/**
 * An array in the form of a version: later ones take numbers and lists where 0.0.38 took objects
 * and strings.
 */
const describe = (submission: SlurmrestdSubmission, isLater: boolean): Json => {
  const number = (value: number): unknown => (isLater ? { set: true, infinite: false, number: value } : value)
  const { name, array, requeue, cores, gpus, memoryMegabytes, walltimeMinutes } = submission
  const { partition, account, qos, reservation, constraint } = submission
  const optional = { partition, account, qos, reservation, constraints: constraint }
  return {
    name,
    comment: name,
    array,
    requeue,
    current_working_directory: '/',
    standard_output: '/dev/null',
    standard_error: '/dev/null',
    ...Object.fromEntries(Object.entries(optional).filter(([, value]) => value !== undefined)),
    nodes: isLater ? '1' : [1, 1],
    tasks: 1,
    cpus_per_task: cores,
    ...(memoryMegabytes === undefined ? {} : { memory_per_node: number(memoryMegabytes) }),
    ...(walltimeMinutes === undefined ? {} : { time_limit: number(walltimeMinutes) }),
    ...(gpus === 0 ? {} : isLater ? { tres_per_node: `gres/gpu:${gpus}` } : { gres: `gpu:${gpus}` }),
    environment: isLater ? ['PATH=/usr/local/bin:/usr/bin:/bin'] : { PATH: '/usr/local/bin:/usr/bin:/bin' },
  }
}

/** The content of an answer. @throws SlurmrestdError */
const contentOf = (at: string, user: string, { status, quotable }: HttpAnswer, text: string): Json => {
  if (status === 401 || status === 403)
    throw new SlurmrestdError('silent', `${at} does not accept the token of ${user}: ${status}; renew it`)
  let content: Json
  try {
    content = JSON.parse(text) as Json
  } catch {
    throw new SlurmrestdError('silent', `${at} answered ${status} without JSON`)
  }
  const [error] = objects(content['errors'])
  if (error === undefined && status < 300) return content
  const errorText = quotable(
    [error?.['error'], error?.['description']]
      .filter((one) => typeof one === 'string' && one !== '')
      .join(': '),
  )
  if (error === undefined || silent.test(errorText))
    throw new SlurmrestdError('silent', `slurmrestd: ${errorText || status}`)
  if (noRoom.test(errorText)) throw new SlurmrestdError('full', errorText)
  throw new SlurmrestdError('refused', `slurmrestd: ${errorText}`)
}

export interface Slurmrestd {
  /**
   * Returns the answer to `GET jobs`, `partitions`, `nodes` or `reservations`. @throws
   * SlurmrestdError, as all
   */
  read(what: 'jobs' | 'partitions' | 'nodes' | 'reservations'): Promise<Json>
  /** Returns the answer to `GET job/ID`; one without jobs where the controller denies the id. */
  readJob(id: string): Promise<Json>
  /**
   * Whether the cluster has accounting: it is served, and has answered once or is silent. A cluster
   * without it refuses in the words of one whose database is away, so only a refusal that lasts
   * counts.
   */
  hasRecords(): Promise<boolean>
  /** Returns accounting's answer about a job; one without jobs where it has none. */
  readRecord(id: string): Promise<Json>
  /** @returns the array's id */
  submit(submission: SlurmrestdSubmission): Promise<string>
  /**
   * `12`, `12_3`, `12_[0-3]`. The interface signals steps, not scripts: SIGTERM to all, and SIGKILL
   * after the cluster's KillWait.
   */
  cancel(job: string): Promise<void>
}

/** Uses the newest version of the interface that both sides know. It sends nothing yet. */
export const openSlurmrestd = (
  { http, url, user, token, accountingAwayMs = 600_000 }: SlurmrestdServer,
  deadlineSeconds: number,
): Slurmrestd => {
  const at = `slurmrestd at ${new URL(url).origin}`
  let version: Promise<string> | undefined
  let paths: readonly string[] = []
  /** Accounting has answered once, so this cluster has it. */
  let recorded = false
  /** The first of the refusals of accounting since. */
  let refusedSince: number | undefined

  const request = async (method: string, path: string, body?: Json): Promise<Json> => {
    try {
      const answer = await http.request(new URL(path, url), {
        method,
        headers: {
          'x-slurm-user-name': user,
          'x-slurm-user-token': await token(),
          ...(body && { 'content-type': 'application/json' }),
        },
        body: body && JSON.stringify(body),
        // A submit must not be lost on a connection that the other side has closed meanwhile.
        fresh: true,
        deadlineMs: deadlineSeconds * 1000,
        limitBytes: answerLimitBytes,
      })
      return contentOf(at, user, answer, (await answer.bytes()).toString('utf8'))
    } catch (error) {
      if (error instanceof SlurmrestdError) throw error
      const { message } = error as Error
      throw new SlurmrestdError('silent', `${at} did not answer: ${message}`, { cause: error })
    }
  }

  const speak = async (): Promise<string> => {
    paths = Object.keys((await request('GET', '/openapi/v3'))['paths'] ?? {})
    const versions = paths.flatMap((path) => /^\/slurm\/(v\d+\.\d+\.\d+)\/job\/submit$/.exec(path)?.[1] ?? [])
    const sorted = versions.sort((a, b) => minorOf(a) - minorOf(b))
    const chosen = sorted.findLast((version) => minorOf(version) <= newestKnown) ?? sorted[0]
    if (chosen !== undefined) return chosen
    throw new SlurmrestdError(
      'refused',
      `${at} has no interface to submit jobs (/slurm/v0.0.x/job/submit); start it with the plugin ` +
        'openapi/slurmctld, or openapi/v0.0.38 of older versions',
    )
  }
  const spoken = async (): Promise<string> => {
    version ??= speak()
    return version.catch((error: unknown) => {
      version = undefined
      throw error
    })
  }

  return {
    read: async (what) => request('GET', `/slurm/${await spoken()}/${what}`),
    async readJob(id) {
      try {
        return await request('GET', `/slurm/${await spoken()}/job/${encodeURIComponent(id)}`)
      } catch (error) {
        if (error instanceof SlurmrestdError && error.trouble === 'refused' && denied.test(error.message))
          return { jobs: [] }
        throw error
      }
    },
    async hasRecords() {
      const served = `/slurmdb/${await spoken()}`
      if (!paths.includes(`${served}/job/{job_id}`)) return false
      try {
        await request('GET', `${served}/clusters`)
        recorded = true
      } catch (error) {
        if (recorded || !(error instanceof SlurmrestdError) || error.trouble !== 'refused') return true
        const now = performance.now()
        refusedSince ??= now
        return now - refusedSince < accountingAwayMs
      }
      return true
    },
    async readRecord(id) {
      try {
        return await request('GET', `/slurmdb/${await spoken()}/job/${encodeURIComponent(id)}`)
      } catch (error) {
        if (error instanceof SlurmrestdError && error.trouble === 'refused' && nothing.test(error.message))
          return { jobs: [] }
        throw error
      }
    },
    async submit(submission) {
      const version = await spoken()
      const job = describe(submission, minorOf(version) > 38)
      const answer = await request('POST', `/slurm/${version}/job/submit`, { job, script: submission.script })
      const id = String(numberOf(answer['job_id']))
      if (/^[1-9]\d*$/.test(id)) return id
      throw new SlurmrestdError('silent', `slurmrestd accepted ${submission.name} without an id`)
    },
    async cancel(job) {
      await request('DELETE', `/slurm/${await spoken()}/job/${encodeURIComponent(job)}`)
    },
  }
}
