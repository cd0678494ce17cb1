import { append } from '../../../lists.ts'
import {
  openSlurmrestd,
  readJobs,
  readNodes,
  readPartitions,
  readRecords,
  readReservations,
  SlurmrestdError,
  type Json,
  type SlurmrestdServer,
} from '../../../clients/slurmrestd.ts'
import { quote } from '../../../shell/quote.ts'
import { arrayNamePrefix } from '../batch/arrays.ts'
import { acceptedScript } from '../batch/submissions.ts'
import { NoRoom } from '../batch/scheduler.ts'
import { DriverError } from '../contract/driver.ts'
import { errorTextOf } from '../remote/error-text.ts'
import { parseIndexes, renderIndexes } from './array.ts'
import type { SlurmCommandsOptions } from './commands.ts'
import type { SlurmJob } from './jobs.ts'
import type { SlurmLimits } from './limits.ts'
import type { SlurmScheduler } from './scheduler.ts'

/** Without `account` the jobs of all; a job without a user counts as ours. */
const ours = <Job extends { name: string; elements?: string | undefined; user?: string | undefined }>(
  jobs: readonly Job[],
  account?: string,
) =>
  jobs
    .filter(
      ({ name, user = account }) =>
        name.startsWith(arrayNamePrefix) && (account === undefined || user === account),
    )
    .map(({ elements, user: _user, ...job }) => ({
      ...job,
      indexes: elements === undefined ? undefined : parseIndexes(elements),
    }))

/** Jobs of an answer to `GET /jobs`, of versions 0.0.36 to 0.0.44; those of this account only. */
export const parseRestJobs = (answer: Json, account?: string): SlurmJob[] => ours(readJobs(answer), account)

/** Jobs of accounting's answer about one, of versions 0.0.36 to 0.0.44; ours only. */
export const parseRestRecords = (answer: Json): SlurmJob[] => ours(readRecords(answer))

/**
 * Limits from the answers to `GET /partitions`, `/nodes` and `/reservations`, of versions 0.0.36 to
 * 0.0.44; `now` in seconds since epoch.
 */
export const parseRestLimits = (
  partitions: Json,
  nodes: Json,
  reservations: Json,
  now: number,
): SlurmLimits => {
  const all = readPartitions(partitions)
  const machines = readNodes(nodes)
  return {
    partitions: all.map(({ name, isDefault, maxSeconds, defaultSeconds }) => ({
      name,
      isDefault,
      maxSeconds,
      ...(defaultSeconds === undefined ? {} : { defaultSeconds }),
      nodes: machines
        .filter((node) => node.partitions.includes(name))
        .map(({ cores, megabytes, gpus }) => ({ cores, megabytes, gpus })),
    })),
    // The interface does not give MaxArraySize; its default is 1001, the largest index plus one.
    arraySize: 1000,
    accounting: false,
    // Nor does it give the cluster's configuration.
    killsInJobs: false,
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
 * A scheduler that is queried over HTTP (`slurmrestd`). The submission is read from the site's
 * folder of the array, and the array's id is written there, through the shell. Accounting is used
 * where the interface serves it too. A polite end is the scheduler's own.
 */
export function openSlurmRest({
  shell,
  root,
  requeue,
  deadlineSeconds,
  ...server
}: SlurmCommandsOptions & SlurmrestdServer): SlurmScheduler {
  const slurmrestd = openSlurmrestd(server, deadlineSeconds)
  const read: typeof slurmrestd.read = (what) => withDriverErrors(slurmrestd.read(what))
  return {
    async limits() {
      const [partitions, nodes, reservations, accounting] = await Promise.all([
        read('partitions'),
        read('nodes'),
        read('reservations'),
        withDriverErrors(slurmrestd.hasRecords()),
      ])
      return { ...parseRestLimits(partitions, nodes, reservations, Date.now() / 1000), accounting }
    },
    queue: async () => parseRestJobs(await read('jobs'), server.user),
    async jobs(ids) {
      const answers: SlurmJob[] = []
      for (const id of ids)
        append(answers, parseRestJobs(await withDriverErrors(slurmrestd.readJob(id)), server.user))
      return answers
    },
    async history(ids) {
      const answers: SlurmJob[] = []
      for (const id of ids)
        append(answers, parseRestRecords(await withDriverErrors(slurmrestd.readRecord(id))))
      return answers
    },
    async submit({ name, request }, indexes) {
      const folder = `${await root()}/arrays/${name}`
      const script = await shell.run(`cat ${quote(`${folder}/script`)}`)
      if (script.code !== 0)
        throw new DriverError('infrastructure', `cannot read ${folder}/script: ${errorTextOf(script.stderr)}`)
      const submission = {
        ...request,
        name,
        requeue,
        array: renderIndexes(indexes),
        script: script.stdout.toString(),
      }
      const id = await withDriverErrors(slurmrestd.submit(submission))
      await shell.run(acceptedScript(quote(folder), id))
      return id
    },
    async cancel(elements, _how, name) {
      // The interface cannot end a job only where it has a name.
      if (name !== undefined) return
      const ranges = [...elements].flatMap(([job, indexes]) =>
        renderIndexes(indexes)
          .split(',')
          .map((range) => `${job}_${range.includes('-') ? `[${range}]` : range}`),
      )
      for (const range of ranges)
        await withDriverErrors(slurmrestd.cancel(range)).catch((error: unknown) => {
          // A job that has ended meanwhile is no error.
          if (!(error instanceof DriverError) || error.trouble !== 'refused') throw error
        })
    },
  }
}
