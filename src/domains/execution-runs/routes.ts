import { z } from 'zod'
import type { Engine, Live } from '../../engine.ts'
import { envelope, pageOf, pageQuery } from '../../http/paging.ts'
import { Reply, route, type Route } from '../../http/route.ts'
import { sharedReads } from '../../http/shared-reads.ts'
import { missing, Refusal } from '../../refusal.ts'
import { acceptRun } from './accept.ts'
import { activityRoutes, type ActivityRouteParts } from './activity-routes.ts'
import { compareRuns } from './compare.ts'
import { eventStream, isOver } from './event-stream.ts'
import {
  ExecutionRun,
  pages,
  runMembersOf,
  RunComparison,
  RunDetail,
  RunPage,
  RunRequest,
  runModes,
  runStates,
  taskStates,
  Timeline,
} from './schemas.ts'
import { listRunPart, listRuns, markRunDispatched, readRun, readRunDetail, requestCancel, type LiveCounts, type RunPart } from './store.ts'
import { startLeaseMs } from '../../executor/book-state.ts'
import { pauseRun, retryRun } from './steering.ts'
import { runTelling } from './telling.ts'
import { timelineSummary } from './timeline.ts'
import { timelineHtml } from './timeline-page.ts'
import { timelineOf } from './timeline-bands.ts'

export interface ExecutionRunRouteParts extends ActivityRouteParts {
  engine: Engine
  /** Of all costs; shown, never converted. */
  currency: string | undefined
  /** Of Kubernetes runtimes that name none. */
  kubernetesHelperImage: string
}

const all = <T extends readonly string[]>(states: T) => z.enum(['all', ...states] as unknown as [string, ...string[]]).optional()
const chosen = (value: string | undefined): string | undefined => (value === 'all' ? undefined : value)

/** Where the whole lists of a run's detail are, below the path of the run. */
const pagedLists = (path: string) => ({
  activities: `${path}activities/`,
  dataTransfers: `${path}data-transfers/`,
  handles: `${path}handles/`,
  events: `${path}events/`,
})

/** The workflow's phase and states with the record's counts: its own are those of the last signal, minutes old. */
const liveOf = (said: Live, { completed, sites, waitsFor }: LiveCounts): Live => {
  const known = new Map(sites.map((one) => [one.site, one]))
  const states = (said['sites'] as { site: string; completed: number; running: number }[]).map((one) => ({
    ...one,
    ...known.get(one.site),
  }))
  return { ...said, sites: states, completed, waitsFor }
}

export const executionRunRoutes = ({
  db,
  engine,
  sites,
  hostId,
  kubernetesHelperImage,
  workRoot,
  seedRoot,
  variablePrefix,
  currency,
}: ExecutionRunRouteParts): Route[] => {
  const detailOfLatest = sharedReads((runId) => readRunDetail(db, runId, false))
  const detailOfAllAttempts = sharedReads((runId) => readRunDetail(db, runId, true))

  const existing = async (runId: string): Promise<ExecutionRun> => {
    const run = await readRun(db, runId)
    if (run === undefined) throw missing('run', runId)
    return run
  }

  const executionOf = ({ params, body }: { params: Record<string, string>; body: unknown }): string | undefined =>
    params['runId'] ?? (body as RunRequest | undefined)?.run?.id ?? (body as RunRequest | undefined)?.id

  const part = <Part extends Exclude<RunPart, 'outputs' | 'events'>>(name: Part, summary: string, extra: z.ZodRawShape = {}): Route =>
    route({
      method: 'GET',
      path: `/execution-runs/{runId}/${name}/`,
      tag: 'execution-runs',
      summary,
      query: z.strictObject({ ...pageQuery, ...extra }),
      response: pages[name] as z.ZodType,
      handle: async ({ params, query }) => {
        await existing((params as { runId: string }).runId)
        const { attempts, status, ...asked } = query as { page?: number; pageSize?: number; attempts?: 'latest' | 'all'; status?: string }
        const page = pageOf(asked)
        const { rows, total } = await listRunPart(db, name, (params as { runId: string }).runId, {
          ...page,
          attempts: attempts ?? 'latest',
          status: chosen(status),
        })
        return envelope(rows, { page, total })
      },
    })

  /** A body-less wish about a run: 202 with the run, also when it is said again; 409 with the state where it is too late. */
  const steer = (
    verb: string,
    summary: string,
    wish: {
      act: (runId: string) => Promise<{ status: string; generation: number } | undefined>
      /** States in which it can be asked for. */
      possible: readonly string[]
      after?: (runId: string, generation: number) => Promise<void>
      /** Nothing new starts after the answer. */
      stopsStarts?: boolean
    },
  ): Route =>
    route({
      method: 'POST',
      path: `/execution-runs/{runId}/${verb}/`,
      tag: 'execution-runs',
      summary,
      response: ExecutionRun,
      status: 202,
      audit: {
        eventType: `execution.run.${verb}`,
        summary: (call) => `${verb} of run ${executionOf(call) ?? ''} asked for`,
        executionId: executionOf,
      },
      handle: async ({ params }) => {
        const { runId } = params as { runId: string }
        const found = await wish.act(runId)
        if (found === undefined) throw missing('run', runId)
        if (!wish.possible.includes(found.status)) {
          throw new Refusal('conflict', `the run is ${found.status}: ${verb} is possible while it is ${wish.possible.join(' or ')}`, {
            extra: { state: found.status },
          })
        }
        // Starts on intents ahead of their turn are allowed for so long after a look at the run's flags: after the answer there are none.
        if (wish.stopsStarts === true && found.status === 'running') await new Promise((resolve) => setTimeout(resolve, startLeaseMs))
        // The executor sees the wish in the record within half a second; the signal only wakes a site that rests.
        if (wish.after !== undefined) await wish.after(runId, found.generation)
        else if (found.status === 'running') await engine.signal('executionRun', runId, found.generation, 'wake').catch(() => false)
        return new Reply({ body: await existing(runId), headers: { location: `/execution-runs/${encodeURIComponent(runId)}/` } })
      },
    })

  return [
    route({
      method: 'GET',
      path: '/execution-runs/',
      tag: 'execution-runs',
      summary: 'Runs, newest first',
      query: z.strictObject({
        ...pageQuery,
        kind: all(['workflow', 'interactive', 'standalone']),
        mode: all(runModes),
        status: all(runStates),
      }),
      response: RunPage,
      handle: async ({ query }) => {
        const page = pageOf(query)
        const { rows, total } = await listRuns(
          db,
          { kind: chosen(query.kind), mode: chosen(query.mode), status: chosen(query.status) },
          page.limit,
          page.offset,
        )
        return envelope(rows, { page, total })
      },
    }),
    route({
      method: 'POST',
      path: '/execution-runs/',
      tag: 'execution-runs',
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
        await acceptRun(db, body, run, { hostId, actorId: actor.id, helperImage: kubernetesHelperImage })
        const accepted = await existing(run.id)
        // The record is what was promised; the workflow is started now or, while Temporal is away, by the dispatcher.
        if (await engine.start('executionRun', run.id, 1, await runTelling(db, run.id))) await markRunDispatched(db, run.id)
        return new Reply({ body: accepted, headers: { location: `/execution-runs/${encodeURIComponent(run.id)}/` } })
      },
    }),
    route({
      method: 'GET',
      path: '/execution-runs/{runId}/',
      tag: 'execution-runs',
      summary: 'One run with its activities, transfers, handles, events and files; `live` while it is open',
      query: z.strictObject({ attempts: z.enum(['latest', 'all']).optional() }),
      response: RunDetail,
      raw: ['application/json'],
      handle: async ({ params, query, target }) => {
        const detail = await (query.attempts === 'all' ? detailOfAllAttempts : detailOfLatest)(params.runId)
        if (detail === undefined) throw missing('run', params.runId)
        const said = isOver(detail.status) ? undefined : await engine.live('executionRun', params.runId, detail.generation)
        const live = said === undefined || detail.live === null ? undefined : liveOf(said, detail.live)
        // PostgreSQL wrote the text; what only this program knows goes in front of its last brace.
        const further = {
          ...(detail.cut ? { links: pagedLists(target.split('?')[0] ?? '') } : {}),
          ...(live === undefined ? {} : { live }),
        }
        const added = JSON.stringify(further).slice(1, -1)
        return new Reply({ body: added === '' ? detail.body : `${detail.body.slice(0, -1)},${added}}` })
      },
    }),
    steer('cancel', 'Ask for the end of a run: nothing new starts, what runs is ended with its children', {
      act: (runId) => requestCancel(db, runId),
      possible: ['created', 'running', 'cancelled'],
      stopsStarts: true,
      // It wakes the workflow as well, and lets it end as Canceled.
      after: async (runId, generation) => {
        await engine.cancel('executionRun', runId, generation)
      },
    }),
    steer('pause', 'Let nothing new start; what runs goes on', {
      act: (runId) => pauseRun(db, runId, true),
      possible: ['created', 'running'],
      stopsStarts: true,
    }),
    steer('resume', 'Let a paused run go on', { act: (runId) => pauseRun(db, runId, false), possible: ['created', 'running'] }),
    steer('retry', 'Open a failed run again: what completed stays, what failed is tried anew', {
      act: (runId) => retryRun(db, runId),
      possible: ['failed'],
      after: async (runId, generation) => {
        if (await engine.start('executionRun', runId, generation + 1, await runTelling(db, runId))) await markRunDispatched(db, runId)
      },
    }),
    part('activities', 'Activities of a run with their attempts, times and measurements', {
      attempts: z.enum(['latest', 'all']).optional(),
      status: all(taskStates),
    }),
    part('data-transfers', 'Data transfers of a run'),
    part('handles', 'What a run started outside, under which name'),
    route({
      method: 'GET',
      path: '/execution-runs/{runId}/events/',
      tag: 'execution-runs',
      summary: 'Events of a run in order; as server-sent events with `Accept: text/event-stream`, from `Last-Event-ID` on',
      query: z.strictObject(pageQuery),
      response: pages.events,
      raw: ['text/event-stream'],
      alsoStatus: [204],
      handle: async ({ params, query, headers, signal }) => {
        const run = await existing(params.runId)
        if (/\btext\/event-stream\b/.test(headers['accept'] ?? '')) {
          const last = headers['last-event-id']
          const after = last !== undefined && /^\d{1,15}$/.test(last) ? Number(last) : 0
          // A reader that has the terminal event and connects again is told to stop (204), as the standard has it.
          if (
            isOver(run.status) &&
            (await listRunPart(db, 'events', run.id, { limit: 1, offset: 0, afterSequence: after })).rows.length === 0
          )
            return new Reply({ status: 204 })
          return new Reply({
            stream: eventStream(db, run.id, after, signal),
            headers: { 'content-type': 'text/event-stream', 'cache-control': 'no-store' },
          })
        }
        const page = pageOf(query)
        const { rows, total } = await listRunPart(db, 'events', run.id, page)
        return envelope(rows, { page, total }) as never
      },
    }),
    ...activityRoutes({ db, sites, hostId, workRoot, seedRoot, variablePrefix }),
    route({
      method: 'GET',
      path: '/execution-runs/{runId}/timeline/',
      tag: 'execution-runs',
      summary:
        'Where the time went: JSON, or one self-contained page (Gantt of planned, simulated, measured) with `Accept: text/html`; `with` adds another run of the same plan',
      query: z.strictObject({ with: z.string().min(1).max(400).optional() }),
      response: Timeline,
      raw: ['text/html'],
      handle: async ({ params, query, headers }) => {
        const input = await timelineOf(db, params.runId, query.with)
        if (input === undefined) throw missing('run', query.with === undefined ? params.runId : `${params.runId} or ${query.with}`)
        if (/\btext\/html\b/.test(headers['accept'] ?? ''))
          return new Reply({ body: timelineHtml(input, currency), headers: { 'content-type': 'text/html; charset=utf-8' } })
        return timelineSummary(input)
      },
    }),
    route({
      method: 'GET',
      path: '/execution-runs/{a}/compare/{b}/',
      tag: 'execution-runs',
      summary: 'Two runs of one workflow version side by side, with what their plans promised',
      query: z.strictObject(pageQuery),
      response: RunComparison,
      refuses: [422],
      handle: async ({ params, query }) => {
        const page = pageOf(query)
        const compared = await compareRuns(db, params.a, params.b, page)
        if (compared === undefined) throw missing('run', `${params.a} or ${params.b}`)
        const { rows, total, ...rest } = compared
        return { a: params.a, b: params.b, ...rest, activities: envelope(rows, { page, total }) }
      },
    }),
  ]
}
