import { PassThrough } from 'node:stream'
import { z } from 'zod'
import type { Db } from '../../db/sql.ts'
import { taskScript } from '../../drivers/runtime/contract/task-script.ts'
import { envelope, pageOf, pageQuery } from '../../http/paging.ts'
import { Reply, route, type Route } from '../../http/route.ts'
import { missing } from '../../refusal.ts'
import { openRunFiles } from './run-files.ts'
import { pages } from './schemas.ts'
import type { SiteDrivers } from '../../executor/drivers.ts'
import { makeSitePlan } from '../../executor/intents.ts'
import { loadTaskWithPredecessors, readSiteSnapshot } from '../../executor/snapshot.ts'
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
/** What one activity of a run wrote and made, and the script that was run for it, wherever that is. */
export const activityRoutes = ({ db, sites, hostId, workRoot, seedRoot, variablePrefix }: ActivityRouteParts): Route[] => {
  const { asking, attemptOf, started, openFile } = openRunFiles({ db, sites, hostId })

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
        const { stream, sizeBytes } = await openFile(params.runId, params.activityId, query.attempt, params.path)
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
