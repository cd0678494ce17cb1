import { z } from 'zod'
import type { Db } from '../db/sql.ts'
import type { Engine, Live } from '../engine.ts'
import { preferred } from '../http/accept.ts'
import {
  arraySizes,
  envelope,
  envelopeOf,
  envelopeSizes,
  pagedArray,
  pageOf,
  pageQueryOf,
} from '../http/paging.ts'
import { Reply, route, type AuditFields, type Route } from '../http/route.ts'
import { Refusal, existing } from '../refusal.ts'
import { countEvents, listEvents, OperationEvent } from './events.ts'
import type { Feed } from './feed.ts'
import type { OperationKind, OperationRef } from './kind.ts'
import {
  type Operation,
  deleteOperation,
  isOpenState,
  markDispatched,
  readOperation,
  requestCancel,
  retryOperation,
} from './records.ts'
import { eventStream, openEventReads, type EventReads } from './streams.ts'

const streamType = 'text/event-stream'

/** The parts for the routes of a kind. */
export interface OperationApi {
  db: Db
  engine: Pick<Engine, 'start' | 'cancel' | 'live'>
  feed: Feed
  kind: OperationKind
  /** The path of the list; each operation is below it: `/planning-sessions/`. */
  path: `/${string}/`
  /** The name of the id in the path: `sessionId`. */
  parameter: string
  tag?: string
  /** Called for an operation that a request has ended at once. */
  ended?: (id: string) => Promise<void> | void
}

interface State {
  status: string
  generation: number
}

/**
 * Starts the workflow of an accepted operation. Where that fails, the dispatcher tries it again: the
 * operation is on record, so its request has succeeded.
 */
export const dispatchOperation = async (
  { db, engine, kind }: { db: Db; engine: Pick<Engine, 'start'>; kind: OperationKind },
  of: OperationRef,
): Promise<void> => {
  try {
    const [found, pageSummary] = await Promise.all([
      readOperation(db, kind, of),
      kind.pageSummary(db, of.id, of.generation),
    ])
    if (found === undefined) return
    const started = await engine.start(kind, found, pageSummary)
    // An open workflow may be that of a removed record; the dispatcher watches it.
    if (started === 'started') await markDispatched(db, kind, found)
  } catch {
    // The dispatcher logs the cause when it meets it again.
  }
}

/**
 * The state that an open operation's workflow reports; undefined where it is over, or does not
 * answer within 250 ms.
 */
export const liveOf = async (
  { engine, kind }: Pick<OperationApi, 'engine' | 'kind'>,
  id: string,
  of: State,
): Promise<Live | undefined> =>
  isOpenState(kind, of.status) ? engine.live(kind, id, of.generation) : undefined

/** A body-less request about one operation. */
export interface Steer {
  verb: string
  summary: string
  /** Records the request. @returns the operation after it; undefined where it does not exist */
  act: (id: string, actorId: string) => Promise<State | undefined>
  /**
   * States, as `act` returns them, in which the request is possible. Any other state is 409 with
   * the state.
   */
  possible: readonly string[]
  after?: (id: string, state: State) => Promise<unknown>
  /** The answer: 202 with the operation, or no content where it is absent. */
  document?: { schema: z.ZodType; read: (id: string) => Promise<unknown> }
  audit?: Partial<AuditFields>
}

/** A document whose readers know another name for a state than the record has. */
const Shown = z.object({ status: z.string() })

/** The facts of a kind that the functions below share. */
interface Shape extends OperationApi {
  /** The path of one operation. */
  one: `/${string}/{${string}}/`
  idOf: (params: Record<string, string>) => string
  /** The id of a request in the API's document: `cancelPlanningSession`. */
  named: (verb: string) => string
}

/** The route of a body-less request about one operation. */
const steerRoute = (
  { kind, path, one, idOf, named }: Shape,
  { verb, summary, act, possible, after, document, audit }: Steer,
): Route =>
  route(named(verb), `POST ${one}${verb}/`, {
    summary,
    ...(document === undefined ? {} : { response: document.schema, status: 202 as const }),
    audit: {
      eventType: `${kind.events}.${verb}`,
      summary: ({ params }) => `${verb} of ${kind.noun} ${idOf(params)} asked for`,
      ...audit,
    },
    handle: async ({ params, actor }) => {
      const id = idOf(params)
      const found = existing(await act(id, actor.id), kind.noun, id)
      if (!possible.includes(found.status)) {
        const state = Shown.safeParse(await document?.read(id)).data?.status ?? found.status
        throw new Refusal(
          'conflict',
          `the ${kind.noun} is ${state}: ${verb} is possible while it is ${possible.join(' or ')}`,
          { extra: { state } },
        )
      }
      await after?.(id, found)
      return document === undefined
        ? undefined
        : new Reply({
            body: await document.read(id),
            location: `${path}${encodeURIComponent(id)}/`,
          })
    },
  })

/** The members of a read of one operation. */
interface ReadSpec {
  summary: string
  response: z.ZodType
  read: (id: string) => Promise<{ document: Record<string, unknown>; state: State } | undefined>
}

const readRoute = (api: Shape, spec: ReadSpec): Route =>
  route(api.named('get'), `GET ${api.one}`, {
    summary: spec.summary,
    response: spec.response,
    handle: async ({ params }) => {
      const id = api.idOf(params)
      const found = existing(await spec.read(id), api.kind.noun, id)
      const live = await liveOf(api, id, found.state)
      return { ...found.document, ...(live === undefined ? {} : { live }) }
    },
  })

/** `as`: the list is a plain array of other documents, which a stream has too. */
const eventsRoute = (api: Shape, event: z.ZodType, as?: (event: OperationEvent) => unknown): Route => {
  const { db, kind } = api
  const isOver = async (id: string): Promise<boolean> => {
    const found = await readOperation(db, kind, { id })
    return found === undefined || !isOpenState(kind, found.status)
  }
  const reads = openEventReads(db, kind, isOver, as)
  const sizes = as === undefined ? envelopeSizes : arraySizes
  return route(`${api.named('list')}Events`, `GET ${api.one}events/`, {
    summary:
      `Events of a ${kind.noun} in order; as server-sent events with \`Accept: ` +
      `text/event-stream\`, from \`Last-Event-ID\` on`,
    query: z.strictObject(pageQueryOf(sizes)),
    response: as === undefined ? envelopeOf(event) : z.array(event),
    raw: [streamType],
    alsoStatus: [204],
    handle: async ({ params, query, headers, target }) => {
      const id = api.idOf(params)
      const found = existing(await readOperation(db, kind, { id }), kind.noun, id)
      if (preferred(headers['accept'], ['application/json', streamType]) === streamType)
        return streamOf(api, reads, found, headers['last-event-id'])
      const page = pageOf(query, sizes)
      const [rows, total] = await Promise.all([listEvents(db, kind, id, page), countEvents(db, kind, id)])
      if (as !== undefined) return pagedArray(rows.map(as), { page, total, target })
      return envelope(rows, { page, total })
    },
  })
}

/** The members of a deletion. `refuses`: statuses beside 404 and 409. */
interface RemoveSpec {
  summary: string
  refuses?: readonly number[]
  audit?: Partial<AuditFields>
}

const removeRoute = (
  { db, kind, one, idOf, named }: Shape,
  { summary, refuses = [], audit }: RemoveSpec,
): Route =>
  route(named('delete'), `DELETE ${one}`, {
    summary,
    refuses: [409, ...refuses],
    audit: {
      eventType: `${kind.events}.deleted`,
      summary: ({ params }) => `${kind.noun} ${idOf(params)} deleted`,
      ...audit,
    },
    handle: async ({ params }) => {
      const id = idOf(params)
      const found = existing(await deleteOperation(db, kind, id), kind.noun, id)
      if (isOpenState(kind, found.status))
        throw new Refusal(
          'conflict',
          `the ${kind.noun} is ${found.status}; cancel it, or wait for its end, before it is deleted`,
          {
            extra: { state: found.status },
          },
        )
      return undefined
    },
  })

/**
 * The routes that operations of every kind share. A domain uses those that its part of the
 * specification names.
 */
export const operationRoutes = (of: OperationApi) => {
  const { db, engine, kind } = of
  const api: Shape = {
    ...of,
    one: `${of.path}{${of.parameter}}/`,
    idOf: (params) => params[of.parameter] ?? '',
    named: (verb) => verb + kind.noun.replace(/(?:^| )(\w)/g, (_, letter: string) => letter.toUpperCase()),
  }
  const steer = (spec: Steer): Route => steerRoute(api, spec)

  return {
    steer,

    /** One operation, with `live` beside it while it is open. */
    read: (spec: ReadSpec): Route => readRoute(api, spec),

    events: (event: z.ZodType = OperationEvent, as?: (event: OperationEvent) => unknown): Route =>
      eventsRoute(api, event, as),

    /** Requests the end of an open operation. A repeated request is harmless. */
    cancel: (
      spec: Pick<Steer, 'summary' | 'document' | 'audit'> & {
        before?: (id: string, state: State) => Promise<unknown>
      },
    ): Route =>
      steer({
        verb: 'cancel',
        ...spec,
        act: (id, actorId) => cancelOperation(of, id, actorId),
        possible: [kind.states.accepted, kind.states.running, 'cancelled'],
        after: async (id, state) => {
          await spec.before?.(id, state)
          // The record is what counts; the workflow ends as Canceled by this, or asks for it at its
          // end.
          await engine.cancel(kind, id, state.generation)
        },
      }),

    /** Reopens a failed operation. */
    retry: (spec: Pick<Steer, 'summary' | 'document' | 'audit'> & { act?: Steer['act'] }): Route =>
      steer({
        verb: 'retry',
        summary: spec.summary,
        act: spec.act ?? ((id) => retryOperation(db, kind, id)),
        possible: ['failed'],
        after: (id, { generation }) => dispatchOperation(api, { id, generation: generation + 1 }),
        ...(spec.document === undefined ? {} : { document: spec.document }),
        ...(spec.audit === undefined ? {} : { audit: spec.audit }),
      }),

    /** Deletes an operation that is over, with its records. */
    remove: (spec: RemoveSpec): Route => removeRoute(api, spec),
  }
}

/** Requests the end of an operation, and reports the end where it happens at once. */
const cancelOperation = async (
  { db, kind, ended }: Pick<OperationApi, 'db' | 'kind' | 'ended'>,
  id: string,
  actorId: string,
): Promise<Operation | undefined> => {
  const found = await requestCancel(db, kind, { id }, { actorId })
  if (found?.change === 'ended') await ended?.(id)
  return found
}

/** Events after the last one that the reader has. */
const streamOf = async (
  api: Pick<OperationApi, 'db' | 'kind' | 'feed'>,
  reads: EventReads,
  { id, status }: { id: string; status: string },
  last: string | undefined,
): Promise<Reply<never>> => {
  const { db, kind } = api
  const after = last !== undefined && /^\d{1,15}$/.test(last) ? Number(last) : 0
  // 204 stops a reader that has the last event and reconnects, as the standard specifies.
  if (!isOpenState(kind, status) && (await listEvents(db, kind, id, { limit: 1, after })).length === 0)
    return new Reply({ status: 204 })
  return new Reply({
    stream: eventStream({ ...api, reads }, id, after),
    headers: { 'content-type': streamType, 'cache-control': 'no-store' },
  })
}
