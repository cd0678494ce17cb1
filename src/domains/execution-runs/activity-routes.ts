import { z } from 'zod'
import type { Db } from '../../db/sql.ts'
import { keptLogFile } from '../../drivers/transfer/keeping-driver.ts'
import { insideScript } from '../../drivers/runtime/container/driver.ts'
import { taskScript } from '../../drivers/runtime/contract/task-script.ts'
import { envelope, logLimitBytes, logRangeQuery, pageOf, pageQuery } from '../../http/paging.ts'
import { Reply, route, type Route } from '../../http/route.ts'
import { existing } from '../../refusal.ts'
import { ActivityDetail, readActivityDetail } from './activity-detail.ts'
import { openRunFiles, type RunFiles } from './run-files.ts'
import { DataObjectInstance, pages } from './schemas.ts'
import type { SiteDrivers } from '../../executor/drivers.ts'
import { makeSitePlan } from '../../executor/intents.ts'
import { loadTaskWithPredecessors, readSiteSnapshot } from '../../executor/snapshot.ts'
import { isAlwaysInImage, isOwnMachine, placeOf } from '../../executor/sites.ts'
import { atInterval } from '../../http/followed-stream.ts'
import { watchFeed, type Feed } from '../../operations/feed.ts'
import { followLog, sliceReply } from '../../operations/logs.ts'
import type { LogRange } from '../../drivers/runtime/contract/driver.ts'
import { readLogFile } from '../../drivers/runtime/contract/log-file.ts'
import { runKind } from './operation.ts'
import { findAttempt, isAttemptOver, listRunPart } from './store.ts'

export interface ActivityRouteParts {
  db: Db
  feed: Feed
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
  .describe(
    'number of the attempt, from 1; by default the newest, of logs and files the newest that was started',
  )

/** Everything recorded of one activity. */
const detailRoute = (db: Db, { attemptOf }: Pick<RunFiles, 'attemptOf'>): Route =>
  route('getRunActivity', 'GET /execution-runs/{runId}/activities/{activityId}/', {
    summary:
      'One activity of a run: all attempts, what the plan promised, what it asks for, its ' +
      'command, inputs and outputs',
    response: ActivityDetail,
    refuses: [422],
    handle: async ({ params }) => {
      const { activityPosition } = await attemptOf(params.runId, params.activityId, undefined)
      const detail = await readActivityDetail(db, params.runId, activityPosition)
      return existing(detail, 'activity of this run', params.activityId)
    },
  })

/** The log of one activity, as ranges or as a stream. */
const logRoute = (
  { db, feed, sites }: Pick<ActivityRouteParts, 'db' | 'feed' | 'sites'>,
  { asking, started }: Pick<RunFiles, 'asking' | 'started'>,
): Route =>
  route('readRunLog', 'GET /execution-runs/{runId}/activities/{activityId}/logs/', {
    summary:
      'What an activity wrote, by range (`offset`, `limit`) or from its end (`tail` bytes); with ' +
      '`follow=true` also what it goes on to write, until the attempt ends. Without `attempt` the ' +
      'newest that was started; the header `Orrery-Attempt` names it. A reader that follows and is more ' +
      'than 1 MiB behind is cut; it goes on by `offset`: `Orrery-Offset` is that of the first byte',
    query: z.strictObject({
      stream: z.enum(['stdout', 'stderr']).optional().describe('stdout by default'),
      attempt: attemptQuery,
      ...logRangeQuery,
    }),
    raw: ['text/plain'],
    streams: true,
    alsoStatus: [206],
    handle: async ({ params, query }) => {
      const { name, place, facts, kept, attempt, activityPosition } = await started(
        params.runId,
        params.activityId,
        query.attempt,
      )
      const range =
        query.tail === undefined
          ? { offset: query.offset ?? 0, limit: Math.min(query.limit ?? logLimitBytes, logLimitBytes) }
          : { tail: Math.min(query.tail, logLimitBytes) }
      const of = query.stream ?? 'stdout'
      const read = (part: LogRange) =>
        kept === undefined
          ? asking(place, () => sites.at(place, facts).driver.logs(name, of, part))
          : readLogFile(keptLogFile(kept, of), part)
      const slice = await read(range)
      const named = { 'orrery-attempt': String(attempt) }
      if (query.follow === 'true') {
        const events = { kind: runKind.name, id: params.runId }
        const stream = followLog({
          from: slice.offset,
          first: slice.bytes,
          read,
          isOver: () => isAttemptOver(db, params.runId, activityPosition, attempt),
          // An event of the run triggers a read at once.
          watch: () => atInterval(isOwnMachine(place) ? 250 : 2_000, watchFeed(feed, events)),
        })
        return new Reply({
          stream,
          headers: {
            ...named,
            'orrery-offset': String(slice.offset),
            'content-type': 'text/plain; charset=utf-8',
            'cache-control': 'no-store',
          },
        })
      }
      return sliceReply(slice, named)
    },
  })

/** The records of the output files of one activity. */
const outputsRoute = (db: Db): Route =>
  route('listRunOutputs', 'GET /execution-runs/{runId}/activities/{activityId}/outputs/', {
    summary: 'Files that an activity made, with their digests',
    query: z.strictObject(pageQuery),
    response: pages.outputs,
    handle: async ({ params, query }) => {
      const found = await findAttempt(db, params.runId, params.activityId, undefined)
      const { activityId } = existing(found, 'activity', params.activityId)
      const page = pageOf(query)
      const { rows, total } = await listRunPart(db, 'outputs', params.runId, {
        ...page,
        activityId,
      })
      return envelope(rows as z.output<typeof DataObjectInstance>[], { page, total })
    },
  })

/** One file of the work directory, read from its site. */
const fileRoute = ({ filesOf }: Pick<RunFiles, 'filesOf'>): Route =>
  route('readRunOutput', 'GET /execution-runs/{runId}/activities/{activityId}/outputs/{path}', {
    summary: "One file of an activity's work directory",
    query: z.strictObject({ attempt: attemptQuery }),
    raw: ['application/octet-stream'],
    streams: true,
    refuses: [422],
    handle: async ({ params, query }) => {
      const open = await filesOf(params.runId, params.activityId, query.attempt)
      const { stream, sizeBytes } = await open(params.path)
      return new Reply({
        stream,
        headers: {
          'content-type': 'application/octet-stream',
          'content-length': String(sizeBytes),
          'content-disposition': 'attachment',
        },
      })
    },
  })

/** The script of an attempt, rebuilt from the record. */
const scriptRoute = (
  { db, hostId, workRoot, seedRoot, variablePrefix }: ActivityRouteParts,
  { attemptOf }: Pick<RunFiles, 'attemptOf'>,
): Route =>
  route('readRunScript', 'GET /execution-runs/{runId}/activities/{activityId}/script/', {
    summary: 'The exact script that an attempt runs: its variables, its working directory, its command',
    query: z.strictObject({ attempt: attemptQuery }),
    raw: ['text/x-shellscript'],
    handle: async ({ params, query }) => {
      const attempt = await attemptOf(params.runId, params.activityId, query.attempt)
      const facts = await readSiteSnapshot(db, params.runId)
      const plan = makeSitePlan(db, params.runId, facts, {
        here: `local@${hostId}`,
        workRoot,
        seedRoot,
        variablePrefix,
      })
      const { task, predecessors } = await loadTaskWithPredecessors(
        db,
        params.runId,
        facts.contentVersionId,
        attempt.activityPosition,
      )
      const commands = await plan.commandsOf([attempt.activityPosition])
      const command = existing(commands.get(attempt.activityPosition), 'activity', params.activityId)
      const intent = plan.intentOf(
        { ...task, attempt: attempt.attempt },
        command,
        attempt.name ?? 'not-started',
        predecessors,
      )
      const inImage = isAlwaysInImage(placeOf(facts, task.runtime_id, task.resource_id))
      const variable = `${variablePrefix}TASK`
      return new Reply({
        body:
          intent.container === undefined || inImage
            ? taskScript(intent, variable, inImage)
            : insideScript(intent, variable),
        headers: { 'content-type': 'text/x-shellscript; charset=utf-8' },
      })
    },
  })

/** The log, the outputs and the script of one activity of a run, at any site. */
export const activityRoutes = (parts: ActivityRouteParts): Route[] => {
  const files = openRunFiles(parts)
  return [
    detailRoute(parts.db, files),
    logRoute(parts, files),
    outputsRoute(parts.db),
    fileRoute(files),
    scriptRoute(parts, files),
  ]
}
