import { z } from 'zod'
import type { Db } from '../../db/sql.ts'
import type { Engine, Live } from '../../engine.ts'
import { envelope, pageOf, pageQuery } from '../../http/paging.ts'
import { Reply, route, type Route } from '../../http/route.ts'
import { wantsPage } from '../../http/accept.ts'
import { Timestamp } from '../../http/schema.ts'
import { withEnd } from '../../http/chunks.ts'
import { sharedReads } from '../../http/shared-reads.ts'
import { sortBy } from '../../http/sorting.ts'
import { operationsOfRun } from '../cloud/instances.ts'
import { dispatchOperation, liveOf, operationRoutes, type OperationApi } from '../../operations/routes.ts'
import type { Reports } from '../../observability/reports.ts'
import { existing } from '../../refusal.ts'
import { acceptExecutionRun } from './accept.ts'
import { buildRunKind } from '../artifacts/build-kind.ts'
import { findExecutables, type FindingParts } from './executable-findings.ts'
import { activityRoutes, type ActivityRouteParts } from './activity-routes.ts'
import { approveRun } from './budget.ts'
import { compareRuns } from './compare.ts'
import { reportRunEnd, runKind } from './operation.ts'
import { waitText } from './wait-text.ts'
import {
  ExecutionRun,
  pages,
  runMembersOf,
  RunComparison,
  RunDetail,
  RunEvent,
  RunPage,
  RunRequest,
  runModes,
  runStates,
  taskStates,
} from './schemas.ts'
import {
  listRunPart,
  listExecutionRuns,
  readExecutionRun,
  readConsoleRun,
  readRunDetail,
  runOrders,
  usualRunOrder,
  type LiveCounts,
  type RunPart,
} from './store.ts'
import { startLeaseMs } from '../../executor/scheduling-state.ts'
import { pauseRun, retryRun } from './steering.ts'
import { readReceipt, Receipt } from './receipt.ts'
import { summaryRoutes } from './summary-routes.ts'
import { Timeline, timelineSummary } from './timeline.ts'
import { timelineHtml } from './timeline-page.ts'
import { timelineOf } from './timeline-bands.ts'

export interface ExecutionRunRouteParts extends ActivityRouteParts, Omit<FindingParts, 'sites'> {
  engine: Engine
  /** The currency of all costs. It is shown, never converted. */
  currency: string | undefined
  /** For Kubernetes runtimes that name no helper image. */
  kubernetesHelperImage: string
  reports: Reports
}

const all = <T extends readonly string[]>(states: T, of: string) =>
  z
    .enum(['all', ...states] as unknown as [string, ...string[]])
    .optional()
    .describe(`${of}; all by default`)
const chosen = (value: string | undefined): string | undefined => (value === 'all' ? undefined : value)

/** Paths of the complete lists of a run's detail, below the path of the run. */
const pagedLists = (path: string) => ({
  activities: `${path}activities/`,
  dataTransfers: `${path}data-transfers/`,
  handles: `${path}handles/`,
  events: `${path}events/`,
})

/**
 * The workflow's phase and states with the counts of the record. The workflow's own counts date
 * from its last signal and may be minutes old.
 */
const withCounts = (fromWorkflow: Live, { completed, sites, waitsFor }: LiveCounts): Live => {
  const known = new Map(sites.map((one) => [one.site, one]))
  const waiting = new Set(waitsFor.map(({ site }) => site))
  const reported = fromWorkflow['sites'] as {
    site: string
    state: string
    completed: number
    running: number
  }[]
  // The workflow's answer may be a second old, from before its first site was opened.
  const opened = sites
    .filter(({ site }) => reported.every((one) => one.site !== site))
    .map((one) => ({ ...one, state: 'in flight' }))
  const states = [...reported, ...opened].map((one) => {
    const counted = { ...one, ...known.get(one.site) }
    // The workflow's state means that a worker has the site. It does not show whether a task runs
    // there.
    return counted.state === 'in flight' && counted.running === 0 && waiting.has(one.site)
      ? { ...counted, state: 'waiting' }
      : counted
  })
  const now = Date.now() / 1_000
  return {
    ...fromWorkflow,
    sites: states,
    completed,
    waitsFor: waitsFor.map((wait) => ({ ...wait, text: waitText(wait, now) })),
  }
}

/** @throws Refusal 404 */
const existingRun = async (db: Db, runId: string): Promise<ExecutionRun> =>
  existing(await readExecutionRun(db, runId), 'run', runId)

const executionOf = ({
  params,
  body,
}: {
  params: Record<string, string>
  body: unknown
}): string | undefined =>
  params['runId'] ?? (body as RunRequest | undefined)?.run?.id ?? (body as RunRequest | undefined)?.id

const attemptsQuery = z
  .enum(['latest', 'all'])
  .optional()
  .describe('latest (the default): the newest attempt of each activity; all: the earlier ones too')
const activityFilters = { attempts: attemptsQuery, status: all(taskStates, 'activities in this state') }

/** A list of parts of a run, in pages; that of the activities can be filtered. */
const partRoute = (db: Db, id: string, name: Exclude<RunPart, 'outputs'>, summary: string): Route =>
  route(id, `GET /execution-runs/{runId}/${name}/`, {
    summary,
    query: z.strictObject({
      ...pageQuery,
      ...((name === 'activities' ? activityFilters : {}) as typeof activityFilters),
    }),
    response: pages[name] as z.ZodType,
    handle: async ({ params, query }) => {
      await existingRun(db, params.runId)
      const page = pageOf(query)
      const { attempts = 'latest', status } = query
      const asked = { ...page, attempts, status: chosen(status) }
      const { rows, total } = await listRunPart(db, name, params.runId, asked)
      return envelope(rows, { page, total })
    },
  })

const audit = (verb: string) => ({ eventType: `execution.run.${verb}`, executionId: executionOf })
/**
 * Waits until no further task starts. After a look at the run's flags an executor may start intents
 * ahead of their turn for this long, so after the answer no task starts.
 */
const untilNothingStarts = async (_id: string, { status }: { status: string }): Promise<void> => {
  if (status === 'running') await new Promise((resolve) => setTimeout(resolve, startLeaseMs))
}
/** The list of runs. */
const listRoute = (db: Db): Route =>
  route('listRuns', 'GET /execution-runs/', {
    summary: 'Runs, and sessions and commands of the console, newest first or in another order',
    query: z.strictObject({
      ...pageQuery,
      kind: all(
        ['workflow', 'interactive', 'standalone'],
        'runs of workflows, sessions of the console (interactive) or its commands (standalone)',
      ),
      mode: all(runModes, 'runs in this mode'),
      status: all(runStates, 'runs in this state'),
      planId: z.string().optional().describe('runs of this plan'),
      workflowId: z.string().optional().describe('runs of versions of this workflow'),
      environmentId: z.string().optional().describe('runs in versions of this environment'),
      title: z.string().optional().describe('part of the title, in any case'),
      since: Timestamp.optional().describe('runs accepted at this time or later'),
      until: Timestamp.optional().describe('runs accepted before this time'),
      sort: sortBy(runOrders, usualRunOrder),
    }),
    response: RunPage,
    handle: async ({ query }) => {
      const page = pageOf(query)
      const { rows, total } = await listExecutionRuns(
        db,
        { ...query, kind: chosen(query.kind), mode: chosen(query.mode), status: chosen(query.status) },
        page.limit,
        page.offset,
      )
      return envelope(rows, { page, total })
    },
  })

/** Accepts a run. */
const acceptRoute = (
  api: OperationApi,
  { db, engine, reports, hostId, kubernetesHelperImage, ...parts }: ExecutionRunRouteParts,
): Route =>
  route('startRun', 'POST /execution-runs/', {
    summary: 'Accept a run of a plan; it is executed or simulated asynchronously',
    body: RunRequest,
    response: ExecutionRun,
    status: 202,
    audit: {
      eventType: 'execution.run.accepted',
      summary: (call) => `run ${executionOf(call) ?? ''} accepted`,
      executionId: executionOf,
    },
    handle: async ({ body, actor }) => {
      const run = runMembersOf(body)
      const builds = await acceptExecutionRun(db, body, run, {
        ...{ hostId, actorId: actor.id, helperImage: kubernetesHelperImage },
        find: ({ questions, facts, pairs }) =>
          findExecutables({ ...parts, db, hostId }, questions, facts, pairs),
      })
      const accepted = await existingRun(db, run.id)
      reports.runAccepted(accepted)
      // The committed row alone decides that the run executes. The workflow starts here or, while
      // Temporal is unavailable, through the dispatcher.
      await dispatchOperation(api, { id: run.id, generation: 1 })
      for (const id of builds)
        await dispatchOperation({ db, engine, kind: buildRunKind }, { id, generation: 1 })
      return new Reply({
        body: accepted,
        location: `/execution-runs/${encodeURIComponent(run.id)}/`,
      })
    },
  })

/** A session or command of the console as a run without parts. @throws Refusal `missing` */
const consoleDetail = async (db: Db, id: string): Promise<z.output<typeof RunDetail>> => {
  const run = existing(await readConsoleRun(db, id), 'run', id)
  return {
    run,
    ...{ activities: [], dataTransfers: [], handles: [], events: [], dataObjects: [], dataLocations: [] },
    ...{ artifactMaterializations: [], artifactTransferRuns: [] },
  }
}

/** One run with all its parts, up to the limits of its lists. */
const detailRoute = (api: OperationApi): Route => {
  const { db } = api
  const detailOfLatest = sharedReads(db, (runId) => readRunDetail(db, runId, false))
  const detailOfAllAttempts = sharedReads(db, (runId) => readRunDetail(db, runId, true))
  return route('getRun', 'GET /execution-runs/{runId}/', {
    summary: 'One run with its activities, transfers, handles, events and files; `live` while it is open',
    query: z.strictObject({ attempts: attemptsQuery }),
    response: RunDetail,
    raw: ['application/json'],
    handle: async ({ params, query, target }) => {
      const detail = await (query.attempts === 'all' ? detailOfAllAttempts : detailOfLatest)(params.runId)
      if (detail === undefined) return consoleDetail(db, params.runId)
      const fromWorkflow = await liveOf(api, params.runId, detail)
      const live =
        fromWorkflow === undefined || detail.live === null ? undefined : withCounts(fromWorkflow, detail.live)
      // PostgreSQL wrote the text up to the last brace; before it go members that only this program has.
      const further = {
        ...(detail.cut ? { links: pagedLists(target.split('?')[0] ?? '') } : {}),
        ...(live === undefined ? {} : { live }),
        ...(detail.infrastructure ? { infrastructureRuns: await operationsOfRun(db, params.runId) } : {}),
      }
      const added = JSON.stringify(further).slice(1, -1)
      return new Reply({ body: withEnd(detail.body, added === '' ? '}' : `,${added}}`) })
    },
  })
}

/** The phases of a run's time. */
const timelineRoute = ({ db, currency }: Pick<ExecutionRunRouteParts, 'db' | 'currency'>): Route =>
  route('getRunTimeline', 'GET /execution-runs/{runId}/timeline/', {
    summary:
      'Where the time went: JSON, or one self-contained page (Gantt of planned, simulated, ' +
      'measured) with `Accept: text/html`; `with` adds another run of the same plan',
    query: z.strictObject({
      with: z.string().min(1).max(400).optional().describe('id of another run of the same plan'),
    }),
    response: Timeline,
    raw: ['text/html'],
    handle: async ({ params, query, headers }) => {
      const ids = query.with === undefined ? params.runId : `${params.runId} or ${query.with}`
      const input = existing(await timelineOf(db, params.runId, query.with), 'run', ids)
      if (wantsPage(headers['accept']))
        return new Reply({
          body: timelineHtml(input, currency),
          headers: { 'content-type': 'text/html; charset=utf-8' },
        })
      return timelineSummary(input)
    },
  })

/** What a run paid for its machines. */
const receiptRoute = ({ db, currency }: Pick<ExecutionRunRouteParts, 'db' | 'currency'>): Route =>
  route('getRunReceipt', 'GET /execution-runs/{runId}/receipt/', {
    summary: 'Planned and actual seconds and money of the machines of a run; null where it is not known',
    response: Receipt,
    handle: async ({ params }) =>
      existing(await readReceipt(db, params.runId, currency), 'run', params.runId),
  })

/** Two runs side by side. */
const compareRoute = (db: Db): Route =>
  route('compareRuns', 'GET /execution-runs/{a}/compare/{b}/', {
    summary: 'Two runs of one workflow version side by side, with what their plans promised',
    query: z.strictObject(pageQuery),
    response: RunComparison,
    refuses: [422],
    handle: async ({ params: { a, b }, query }) => {
      const page = pageOf(query)
      const compared = existing(await compareRuns(db, a, b, page), 'run', `${a} or ${b}`)
      const { rows, total, ...rest } = compared
      return { a, b, ...rest, activities: envelope(rows, { page, total }) }
    },
  })

/** The requests that steer a run. */
const steerRoutes = (api: OperationApi, engine: Engine): Route[] => {
  const { db } = api
  const { steer, cancel, retry, remove } = operationRoutes(api)
  const document = { schema: ExecutionRun, read: (runId: string) => existingRun(db, runId) }
  /**
   * The executor reads the request from the record within half a second. The signal only wakes an
   * idle site.
   */
  const wake = async (
    id: string,
    { status, generation }: { status: string; generation: number },
  ): Promise<void> => {
    if (status === 'running') await engine.signal(runKind, id, generation, 'wake').catch(() => false)
  }

  return [
    cancel({
      summary: 'Ask for the end of a run: nothing new starts, what runs is ended with its children',
      document,
      audit: audit('cancel'),
      before: untilNothingStarts,
    }),
    steer({
      verb: 'pause',
      summary: 'Let nothing new start; what runs goes on',
      act: (id) => pauseRun(db, id, true),
      possible: ['created', 'running'],
      after: async (id, run) => {
        await untilNothingStarts(id, run)
        await wake(id, run)
      },
      document,
      audit: audit('pause'),
    }),
    steer({
      verb: 'resume',
      summary: 'Let a paused run go on',
      act: (id) => pauseRun(db, id, false),
      possible: ['created', 'running'],
      after: wake,
      document,
      audit: audit('resume'),
    }),
    steer({
      verb: 'approve',
      summary: 'Let a run begin whose predicted cost is above its budget (onBudget: ask)',
      act: (id) => approveRun(db, id),
      possible: ['created', 'running'],
      // A run that waits is open in the record and has a workflow already.
      after: (id, { generation }) => engine.signal(runKind, id, generation, 'wake').catch(() => false),
      document,
      audit: audit('approve'),
    }),
    retry({
      summary: 'Open a failed run again: what completed stays, what failed is tried anew',
      act: (id) => retryRun(db, id),
      document,
      audit: audit('retry'),
    }),
    remove({
      summary:
        'Delete a run that is over, with its records; its work directories go too, those of a site ' +
        'when it answers; the audit stays',
      refuses: [422],
      audit: audit('deleted'),
    }),
  ]
}

export const executionRunRoutes = (parts: ExecutionRunRouteParts): Route[] => {
  const { db, engine, feed, reports } = parts
  const ended = (runId: string): Promise<void> => reportRunEnd({ db, reports }, runId)
  const of = { path: '/execution-runs/', parameter: 'runId' } as const
  const api: OperationApi = { db, engine, feed, kind: runKind, ...of, ended }
  return [
    listRoute(db),
    acceptRoute(api, parts),
    detailRoute(api),
    ...steerRoutes(api, engine),
    partRoute(
      db,
      'listRunActivities',
      'activities',
      'Activities of a run with their attempts, times and measurements',
    ),
    partRoute(db, 'listRunTransfers', 'data-transfers', 'Data transfers of a run'),
    partRoute(db, 'listRunHandles', 'handles', 'What a run started outside, under which name'),
    operationRoutes(api).events(RunEvent),
    ...summaryRoutes({ db, feed }),
    ...activityRoutes(parts),
    timelineRoute(parts),
    receiptRoute(parts),
    compareRoute(db),
  ]
}
