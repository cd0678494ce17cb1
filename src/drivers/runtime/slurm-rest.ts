import {
  openSlurmrestd,
  readJobs,
  readNodes,
  readPartitions,
  readReservations,
  SlurmrestdError,
  type Json,
  type SlurmrestdServer,
} from '../../clients/slurmrestd.ts'
import { quote } from '../quote.ts'
import type { SiteShell } from '../shell.ts'
import { DriverError } from './driver.ts'
import { parseIndexes, renderIndexes } from './slurm-array.ts'
import { acceptedScript } from './slurm-books.ts'
import type { SlurmJob } from './slurm-jobs.ts'
import type { SlurmLimits } from './slurm-limits.ts'
import { arrayNamePrefix } from './slurm-request.ts'
import { NoRoom, type SlurmScheduler } from './slurm-scheduler.ts'

export interface SlurmRestOptions extends SlurmrestdServer {
  shell: SiteShell
  root: () => Promise<string>
  requeue: boolean
  deadlineSeconds: number
}

/** Jobs of an answer to `GET /jobs`, of versions 0.0.36 to 0.0.44; ours only. */
export const parseRestJobs = (answer: Json): SlurmJob[] =>
  readJobs(answer)
    .filter(({ name }) => name.startsWith(arrayNamePrefix))
    .map(({ elements, ...job }) => ({ ...job, indexes: elements === undefined ? undefined : parseIndexes(elements) }))

/** Limits as the answers to `GET /partitions`, `/nodes` and `/reservations` tell them, of versions 0.0.36 to 0.0.44; `now` in seconds since epoch. */
export const parseRestLimits = (partitions: Json, nodes: Json, reservations: Json, now: number): SlurmLimits => {
  const all = readPartitions(partitions)
  const machines = readNodes(nodes)
  return {
    partitions: all.map(({ name, isDefault, maxSeconds, defaultSeconds }) => ({
      name,
      isDefault,
      maxSeconds,
      ...(defaultSeconds === undefined ? {} : { defaultSeconds }),
      nodes: machines.filter((node) => node.partitions.includes(name)).map(({ cores, megabytes, gpus }) => ({ cores, megabytes, gpus })),
    })),
    // The interface does not tell MaxArraySize; its default is 1001, the largest index plus one.
    arraySize: 1000,
    accounting: false,
    memoryByDefault: all.every(({ wholeNode }) => wholeNode) ? 'node' : 'share',
    reservations: new Map([...readReservations(reservations)].map(([name, end]) => [name, end - now])),
  }
}

const driverError = (error: unknown): unknown => {
  if (!(error instanceof SlurmrestdError)) return error
  if (error.trouble === 'full') return new NoRoom(error.message)
  return new DriverError(error.trouble === 'silent' ? 'unknown' : 'refused', error.message, { cause: error })
}
const withDriverErrors = <T>(work: Promise<T>): Promise<T> =>
  work.catch((error: unknown) => {
    throw driverError(error)
  })

/**
 * A scheduler that is asked over HTTP (`slurmrestd`). What is submitted is read from the site's folder of the array, and its id written
 * there, through the shell. Accounting is not asked. A polite end is the scheduler's own.
 */
export function openSlurmRest({ shell, root, requeue, deadlineSeconds, ...server }: SlurmRestOptions): SlurmScheduler {
  const slurmrestd = openSlurmrestd(server, deadlineSeconds)
  const read: typeof slurmrestd.read = (what) => withDriverErrors(slurmrestd.read(what))
  return {
    async limits() {
      const [partitions, nodes, reservations] = await Promise.all([read('partitions'), read('nodes'), read('reservations')])
      return parseRestLimits(partitions, nodes, reservations, Date.now() / 1000)
    },
    queue: async () => parseRestJobs(await read('jobs')),
    history: () => Promise.reject(new DriverError('unknown', 'accounting is not asked over slurmrestd')),
    async submit({ name, request }, indexes) {
      const folder = `${await root()}/arrays/${name}`
      const script = await shell.run(`cat ${quote(`${folder}/script`)}`)
      if (script.code !== 0) throw new DriverError('infrastructure', `cannot read ${folder}/script: ${script.stderr.trim()}`)
      const submission = { ...request, name, requeue, array: renderIndexes(indexes), script: script.stdout.toString() }
      const id = await withDriverErrors(slurmrestd.submit(submission))
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
        await withDriverErrors(slurmrestd.cancel(range)).catch((error: unknown) => {
          // What has ended meanwhile is no error of ours.
          if (!(error instanceof DriverError) || error.trouble !== 'refused') throw error
        })
    },
  }
}
