import { quote } from '../../quote.ts'
import type { SiteShell } from '../../shell.ts'
import { DriverError } from '../contract/driver.ts'
import { messageOf } from '../contract/errno.ts'
import { parseIndexes, renderIndexes } from './array.ts'
import { arrayNamePrefix } from '../batch/arrays.ts'
import { acceptedScript } from '../batch/books.ts'
import { NoRoom } from '../batch/scheduler.ts'
import type { SlurmJob } from './jobs.ts'
import type { PartitionLimits, SlurmLimits } from './limits.ts'
import type { SlurmRequest } from './request.ts'
import type { SlurmScheduler } from './scheduler.ts'

export interface SlurmRestOptions {
  /** `http://host:port`, without a path. */
  url: string
  user: string
  /** Asked for each request; goes into a header and nowhere else. */
  token: () => Promise<string>
  shell: SiteShell
  root: () => Promise<string>
  requeue: boolean
  deadlineSeconds: number
}

type Json = Readonly<Record<string, unknown>>

const objects = (value: unknown): Json[] =>
  Array.isArray(value) ? value.filter((one): one is Json => typeof one === 'object' && one !== null) : []

/** A number as versions up to 0.0.38 write it, or `{set, infinite, number}` as later ones do; unset and -1 are undefined. */
const numberOf = (value: unknown): number | undefined => {
  if (typeof value === 'object' && value !== null) {
    const { set, infinite, number } = value as { set?: unknown; infinite?: unknown; number?: unknown }
    if (infinite === true) return Infinity
    return set === true ? numberOf(number) : undefined
  }
  return typeof value === 'number' && value >= 0 ? value : undefined
}
const textOf = (value: unknown): string => (Array.isArray(value) ? String(value[0] ?? '') : typeof value === 'string' ? value : '')
const timeOf = (value: unknown): number | undefined => {
  const time = numberOf(value)
  return time === undefined || time === 0 || time === Infinity ? undefined : time
}

/** Jobs of an answer to `GET /jobs`, of versions 0.0.36 to 0.0.44; ours only. */
export const parseRestJobs = (answer: Json): SlurmJob[] =>
  objects(answer['jobs']).flatMap((job) => {
    const name = textOf(job['name'])
    if (!name.startsWith(arrayNamePrefix)) return []
    const array = numberOf(job['array_job_id'])
    const waiting = textOf(job['array_task_string'])
    const index = numberOf(job['array_task_id'])
    const reason = textOf(job['state_reason'])
    // `["RUNNING", "COMPLETING"]`: what is added to a state that is over says that it is not quite.
    const states = Array.isArray(job['job_state']) ? job['job_state'].map(String) : [textOf(job['job_state'])]
    return [
      {
        job: String(array === undefined || array === 0 ? numberOf(job['job_id']) : array),
        indexes: waiting !== '' ? parseIndexes(waiting) : index === undefined ? undefined : [index],
        name,
        state: states.includes('COMPLETING') ? 'COMPLETING' : (states[0] ?? ''),
        reason: /^(|none)$/i.test(reason) ? undefined : reason,
        startedAt: timeOf(job['start_time']),
        endedAt: timeOf(job['end_time']),
        node: textOf(job['nodes']) || undefined,
      },
    ]
  })

const isInfinite = (value: unknown): boolean => numberOf(value) === undefined || numberOf(value) === Infinity

const partitionsOf = (partitions: readonly Json[], nodes: readonly Json[]): PartitionLimits[] =>
  partitions.map((partition) => {
    const name = textOf(partition['name'])
    const maximum = partition['max_time_limit'] ?? (partition['maximums'] as Json | undefined)?.['time']
    const usual = numberOf(partition['default_time_limit'] ?? (partition['defaults'] as Json | undefined)?.['time'])
    const flags = partition['flags']
    return {
      name,
      // Versions from 0.0.40 on do not tell which one it is.
      isDefault: Array.isArray(flags) ? flags.some((flag) => /^default$/i.test(String(flag))) : partitions.length === 1,
      maxSeconds: isInfinite(maximum) ? Infinity : (numberOf(maximum) ?? 0) * 60,
      ...(usual === undefined || usual === Infinity ? {} : { defaultSeconds: usual * 60 }),
      nodes: nodes
        .filter((node) => Array.isArray(node['partitions']) && node['partitions'].includes(name))
        .map((node) => ({
          cores: numberOf(node['cpus']) ?? 0,
          megabytes: numberOf(node['real_memory']) ?? 0,
          gpus: Number(/gpu(?::[^:,()]+)?:(\d+)/.exec(textOf(node['gres']))?.[1] ?? 0),
        })),
    }
  })

/** Whether a job that asks for no memory gets that of the whole node: the partition has no default of its own. */
const isWholeNode = (partition: Json): boolean => {
  const { partition_memory_per_node: ofNode, partition_memory_per_cpu: ofProcessor } = (partition['defaults'] ?? {}) as Json
  return [partition['default_memory_per_node'], partition['default_memory_per_cpu'], ofNode, ofProcessor].every(
    (value) => numberOf(value) === undefined || numberOf(value) === Infinity,
  )
}

/** Limits as the answers to `GET /partitions`, `/nodes` and `/reservations` tell them, of versions 0.0.36 to 0.0.44; `now` in seconds since epoch. */
export const parseRestLimits = (partitions: Json, nodes: Json, reservations: Json, now: number): SlurmLimits => {
  const all = objects(partitions['partitions'])
  const ends = objects(reservations['reservations']).flatMap((one) => {
    const end = timeOf(one['end_time'])
    return end === undefined ? [] : [[textOf(one['name']), end - now] as const]
  })
  return {
    partitions: partitionsOf(all, objects(nodes['nodes'])),
    // The interface does not tell MaxArraySize; its default is 1001, the largest index plus one.
    arraySize: 1000,
    accounting: false,
    memoryByDefault: all.every(isWholeNode) ? 'node' : 'share',
    reservations: new Map(ends),
  }
}

/** The newest version whose shapes are known here; a slurmrestd serves the last three or so. */
const newestKnown = 44
const minorOf = (version: string): number => Number(version.split('.').at(-1))

const silent = /unable to contact|connection|timed out|unspecified error|config is unable to load|protocol authentication/i
const noRoom = /MaxSubmit|MaxJobCount|job violates accounting|temporarily unable|too many/i

/**
 * A scheduler that is asked over HTTP (`slurmrestd`), by the newest version of its interface that both speak. What is submitted is read from
 * the site's folder of the array, and its id written there, through the shell. Accounting is not asked.
 *
 * The interface signals steps, not scripts, so a polite end is the scheduler's own: SIGTERM to all, and SIGKILL after the cluster's KillWait.
 */
export function openSlurmRest({ url, user, token, shell, root, requeue, deadlineSeconds }: SlurmRestOptions): SlurmScheduler {
  let version: Promise<string> | undefined

  async function request(method: string, path: string, body?: Json): Promise<Json> {
    let response: Response
    let text: string
    try {
      response = await fetch(new URL(path, url), {
        method,
        headers: {
          'X-SLURM-USER-NAME': user,
          'X-SLURM-USER-TOKEN': await token(),
          ...(body === undefined ? {} : { 'Content-Type': 'application/json' }),
        },
        ...(body === undefined ? {} : { body: JSON.stringify(body) }),
        redirect: 'error',
        signal: AbortSignal.timeout(deadlineSeconds * 1000),
      })
      text = await response.text()
    } catch (error) {
      const cause = error instanceof Error && error.cause instanceof Error ? `: ${error.cause.message}` : ''
      throw new DriverError('unknown', `slurmrestd at ${url} did not answer: ${messageOf(error)}${cause}`, { cause: error })
    }
    if (response.status === 401 || response.status === 403)
      throw new DriverError('unknown', `slurmrestd at ${url} does not accept the token of ${user}: ${response.status}; renew it`)
    let answer: Json
    try {
      answer = JSON.parse(text) as Json
    } catch {
      throw new DriverError('unknown', `slurmrestd at ${url} answered ${response.status} without JSON`)
    }
    const [error] = objects(answer['errors'])
    if (error === undefined && response.ok) return answer
    const words = [error?.['error'], error?.['description']].filter((one) => typeof one === 'string' && one !== '').join(': ')
    if (error === undefined || silent.test(words)) throw new DriverError('unknown', `slurmrestd: ${words || response.status}`)
    if (noRoom.test(words)) throw new NoRoom(words)
    throw new DriverError('refused', `slurmrestd: ${words}`)
  }

  const speak = async (): Promise<string> => {
    const { paths } = (await request('GET', '/openapi/v3')) as { paths?: Json }
    const versions = Object.keys(paths ?? {}).flatMap((path) => /^\/slurm\/(v\d+\.\d+\.\d+)\/job\/submit$/.exec(path)?.[1] ?? [])
    const sorted = versions.sort((a, b) => minorOf(a) - minorOf(b))
    const chosen = sorted.findLast((version) => minorOf(version) <= newestKnown) ?? sorted[0]
    if (chosen === undefined)
      throw new DriverError(
        'refused',
        `slurmrestd at ${url} has no interface to submit jobs (/slurm/v0.0.x/job/submit); start it with the plugin openapi/slurmctld, or openapi/v0.0.38 of older versions`,
      )
    return chosen
  }
  const call = async (method: string, path: string, body?: Json): Promise<Json> => {
    version ??= speak()
    const spoken = await version.catch((error: unknown) => {
      version = undefined
      throw error
    })
    return request(method, `/slurm/${spoken}/${path}`, body)
  }
  /** Later versions take numbers and lists where 0.0.38 took objects and words. */
  const isLater = async (): Promise<boolean> => minorOf((await version) ?? '') > 38

  const describe = async (request: SlurmRequest): Promise<Json> => {
    const later = await isLater()
    const number = (value: number): unknown => (later ? { set: true, infinite: false, number: value } : value)
    const { partition, account, qos, reservation, constraint, cores, gpus, memoryMegabytes, walltimeMinutes } = request
    const optional = { partition, account, qos, reservation, constraints: constraint }
    return {
      ...Object.fromEntries(Object.entries(optional).filter(([, value]) => value !== undefined)),
      nodes: later ? '1' : [1, 1],
      tasks: 1,
      cpus_per_task: cores,
      ...(memoryMegabytes === undefined ? {} : { memory_per_node: number(memoryMegabytes) }),
      ...(walltimeMinutes === undefined ? {} : { time_limit: number(walltimeMinutes) }),
      ...(gpus === 0 ? {} : later ? { tres_per_node: `gres/gpu:${gpus}` } : { gres: `gpu:${gpus}` }),
      environment: later ? ['PATH=/usr/local/bin:/usr/bin:/bin'] : { PATH: '/usr/local/bin:/usr/bin:/bin' },
    }
  }

  return {
    async limits() {
      const [partitions, nodes, reservations] = await Promise.all(['partitions', 'nodes', 'reservations'].map((path) => call('GET', path)))
      return parseRestLimits(partitions ?? {}, nodes ?? {}, reservations ?? {}, Date.now() / 1000)
    },
    queue: async () => parseRestJobs(await call('GET', 'jobs')),
    history: () => Promise.reject(new DriverError('unknown', 'accounting is not asked over slurmrestd')),
    async submit(array, indexes) {
      const folder = `${await root()}/arrays/${array.name}`
      const script = await shell.run(`cat ${quote(`${folder}/script`)}`)
      if (script.code !== 0) throw new DriverError('infrastructure', `cannot read ${folder}/script: ${script.stderr.trim()}`)
      version ??= speak()
      const job = {
        name: array.name,
        comment: array.name,
        array: renderIndexes(indexes),
        requeue,
        current_working_directory: '/',
        standard_output: '/dev/null',
        standard_error: '/dev/null',
        ...(await describe(array.request)),
      }
      const answer = await call('POST', 'job/submit', { job, script: script.stdout.toString() })
      const id = String(numberOf(answer['job_id']))
      if (!/^[1-9]\d*$/.test(id)) throw new DriverError('unknown', `slurmrestd accepted ${array.name} without an id`)
      await shell.run(acceptedScript(quote(folder), id))
      return id
    },
    async cancel(elements) {
      const ranges = [...elements].flatMap(([job, indexes]) =>
        renderIndexes(indexes)
          .split(',')
          .map((range) => `${job}_${range.includes('-') ? `[${range}]` : range}`),
      )
      for (const range of ranges)
        await call('DELETE', `job/${encodeURIComponent(range)}`).catch((error: unknown) => {
          // What has ended meanwhile is no error of ours.
          if (!(error instanceof DriverError) || error.trouble !== 'refused') throw error
        })
    },
  }
}
