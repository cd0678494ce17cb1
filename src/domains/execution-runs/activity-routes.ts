import { posix } from 'node:path'
import { PassThrough } from 'node:stream'
import { z } from 'zod'
import type { Db } from '../../db/sql.ts'
import { DriverError } from '../../drivers/runtime/driver.ts'
import { taskScript } from '../../drivers/runtime/task-script.ts'
import { LinkError } from '../../drivers/shell.ts'
import { envelope, pageOf, pageQuery } from '../../http/paging.ts'
import { Reply, route, type Route } from '../../http/route.ts'
import { missing, Refusal } from '../../refusal.ts'
import { openOutput, openOutputAt } from './files.ts'
import { pages } from './schemas.ts'
import type { SiteDrivers } from '../../executor/drivers.ts'
import { makeSitePlan } from '../../executor/intents.ts'
import { loadTaskWithPredecessors, readSiteSnapshot } from '../../executor/snapshot.ts'
import { placeOf, type Place } from '../../executor/sites.ts'
import { findAttempt, listRunPart } from './store.ts'

export interface ActivityRouteParts {
  db: Db
  sites: SiteDrivers
  hostId: string
  workRoot: string
  seedRoot: string | undefined
  variablePrefix: string
}

const attemptQuery = z
  .string()
  .regex(/^[1-9]\d{0,5}$/, 'must be a whole number from 1')
  .transform(Number)
  .optional()
const bytesQuery = z
  .string()
  .regex(/^\d{1,15}$/, 'must be a whole number of bytes')
  .transform(Number)
  .optional()

/** Most that one answer of a log holds. */
const logLimitBytes = 1024 * 1024
/** A site that does not answer a reader within this is said to be away. */
const siteDeadlineMs = 10_000

/** A read at a site; one that cannot be reached is 503 with the site's name and the words of the link. */
const asking = async <T>(place: Place, read: () => Promise<T>): Promise<T> => {
  let timer: NodeJS.Timeout | undefined
  const late = new Promise<never>((_resolve, reject) => {
    timer = setTimeout(() => {
      reject(new Refusal('unavailable', `site ${place.site} does not answer now; try again`, { retryAfterSeconds: 5 }))
    }, siteDeadlineMs)
  })
  try {
    return await Promise.race([read(), late])
  } catch (error) {
    if (error instanceof LinkError || (error instanceof DriverError && error.trouble === 'unknown'))
      throw new Refusal('unavailable', `site ${place.site} cannot be reached now: ${error.message}`, { retryAfterSeconds: 5, cause: error })
    throw error
  } finally {
    clearTimeout(timer)
  }
}

/** What one activity of a run wrote and made, and the script that was run for it, wherever that is. */
export const activityRoutes = ({ db, sites, hostId, workRoot, seedRoot, variablePrefix }: ActivityRouteParts): Route[] => {
  const attemptOf = async (runId: string, activityId: string, attempt: number | undefined) => {
    const found = await findAttempt(db, runId, activityId, attempt)
    if (found !== undefined) return found
    throw missing(attempt === undefined ? 'activity of this run' : `attempt ${String(attempt)} of activity`, activityId)
  }

  /** An attempt that was started, and where. Files of another machine without a connection are read by the service there. */
  const started = async (runId: string, activityId: string, attempt: number | undefined) => {
    const found = await attemptOf(runId, activityId, attempt)
    if (found.name === undefined || found.directory === undefined)
      throw new Refusal('missing', `activity ${JSON.stringify(activityId)} has not been started and has no files`)
    const facts = await readSiteSnapshot(db, runId)
    const place = placeOf(facts, found.runtimeId ?? '', found.resourceId)
    const host = place.connectionId === undefined ? found.hostId : undefined
    if (host !== undefined && host !== hostId)
      throw new Refusal(
        'unavailable',
        `the files of this activity are on host ${host}, which this service does not reach; ask the service there`,
      )
    return { ...found, name: found.name, directory: found.directory, place, facts }
  }

  return [
    route({
      method: 'GET',
      path: '/execution-runs/{runId}/activities/{activityId}/logs/',
      tag: 'execution-runs',
      summary: 'What an activity wrote, by range (`offset`, `limit`) or from its end (`tail` bytes)',
      query: z.strictObject({
        stream: z.enum(['stdout', 'stderr']).optional(),
        attempt: attemptQuery,
        offset: bytesQuery,
        limit: bytesQuery,
        tail: bytesQuery,
      }),
      raw: ['text/plain'],
      streams: true,
      alsoStatus: [206],
      handle: async ({ params, query }) => {
        const { name, place, facts } = await started(params.runId, params.activityId, query.attempt)
        const range =
          query.tail === undefined
            ? { offset: query.offset ?? 0, limit: Math.min(query.limit ?? logLimitBytes, logLimitBytes) }
            : { tail: Math.min(query.tail, logLimitBytes) }
        const slice = await asking(place, () => sites.at(place, facts).driver.logs(name, query.stream ?? 'stdout', range))
        const whole = slice.offset === 0 && slice.bytes.length === slice.totalBytes
        const last = slice.offset + slice.bytes.length - 1
        const stream = new PassThrough()
        stream.end(slice.bytes)
        return new Reply({
          status: whole ? 200 : 206,
          stream,
          headers: {
            'content-type': 'text/plain; charset=utf-8',
            'content-length': String(slice.bytes.length),
            'content-range':
              slice.bytes.length === 0
                ? `bytes */${String(slice.totalBytes)}`
                : `bytes ${String(slice.offset)}-${String(last)}/${String(slice.totalBytes)}`,
          },
        })
      },
    }),
    route({
      method: 'GET',
      path: '/execution-runs/{runId}/activities/{activityId}/outputs/',
      tag: 'execution-runs',
      summary: 'Files that an activity made, with their digests',
      query: z.strictObject(pageQuery),
      response: pages.outputs,
      handle: async ({ params, query }) => {
        const found = await findAttempt(db, params.runId, params.activityId, undefined)
        if (found === undefined) throw missing('activity', params.activityId)
        const page = pageOf(query)
        const { rows, total } = await listRunPart(db, 'outputs', params.runId, { ...page, activityId: found.activityId })
        return envelope(rows, { page, total }) as never
      },
    }),
    route({
      method: 'GET',
      path: '/execution-runs/{runId}/activities/{activityId}/outputs/{path}',
      tag: 'execution-runs',
      summary: "One file of an activity's work directory",
      query: z.strictObject({ attempt: attemptQuery }),
      raw: ['application/octet-stream'],
      streams: true,
      refuses: [422],
      handle: async ({ params, query }) => {
        const { directory, place, facts } = await started(params.runId, params.activityId, query.attempt)
        const { shell, root } = sites.at(place, facts)
        const { stream, sizeBytes } =
          place.kind === 'local'
            ? await openOutput(directory, params.path)
            : await asking(place, async () => openOutputAt(shell, posix.resolve(await root(), directory), params.path))
        return new Reply({
          stream,
          headers: { 'content-type': 'application/octet-stream', 'content-length': String(sizeBytes), 'content-disposition': 'attachment' },
        })
      },
    }),
    route({
      method: 'GET',
      path: '/execution-runs/{runId}/activities/{activityId}/script/',
      tag: 'execution-runs',
      summary: 'The exact script that an attempt runs: its variables, its working directory, its command',
      query: z.strictObject({ attempt: attemptQuery }),
      raw: ['text/x-shellscript'],
      handle: async ({ params, query }) => {
        const attempt = await attemptOf(params.runId, params.activityId, query.attempt)
        const facts = await readSiteSnapshot(db, params.runId)
        const plan = makeSitePlan(db, params.runId, facts, { here: `local@${hostId}`, workRoot, seedRoot, variablePrefix })
        const { task, predecessors } = await loadTaskWithPredecessors(db, params.runId, facts.contentVersionId, attempt.activityPosition)
        const command = (await plan.commandsOf([attempt.activityPosition])).get(attempt.activityPosition)
        if (command === undefined) throw missing('activity', params.activityId)
        const intent = plan.intentOf({ ...task, attempt: attempt.attempt }, command, attempt.name ?? 'not-started', predecessors)
        return new Reply({
          body: taskScript(intent, `${variablePrefix}TASK`),
          headers: { 'content-type': 'text/x-shellscript; charset=utf-8' },
        })
      },
    }),
  ]
}
