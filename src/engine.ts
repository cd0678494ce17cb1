import {
  Client,
  Connection,
  isGrpcServiceError,
  type ClientOptions,
  WorkflowExecutionAlreadyStartedError,
  WorkflowNotFoundError,
} from '@temporalio/client'
import { defineSearchAttributeKey, SearchAttributeType, type DataConverter } from '@temporalio/common'
import type { OperationRef, Signals, PageSummary, WorkflowKind } from './operations/kind.ts'
import { earlierTemporalIdOf, temporalIdOf } from './operations/temporal-id.ts'
import { attribute, harmless, plain } from './page-details.ts'
import { ensureSearchAttributes } from './embedded/search-attributes.ts'
import { readTemporalSettings } from './embedded/temporal-settings.ts'
import { Refusal } from './refusal.ts'
import { poll } from './pacing/poll.ts'
import { orAfter } from './pacing/within.ts'

/** The state of a record's workflow. */
export interface WorkflowStanding {
  /** `missing`: Temporal has no workflow of this id; `closed`: it has ended, as `end` shows. */
  state: 'open' | 'closed' | 'missing'
  /** Temporal's own term, e.g. `TERMINATED`. */
  end?: string
  /** Temporal's id of this execution. Each start, reset and continue-as-new yields another. */
  execution?: string
  /** True where a reset made the execution. */
  reset?: boolean
}

/**
 * Members that an open workflow adds to the record of a status route. A correct answer never needs
 * them.
 */
export type Live = Record<string, unknown>

export interface EngineOptions extends Pick<ClientOptions, 'plugins'> {
  /** Base URL of the API, for links on Temporal's page. */
  apiUrl?: () => string
  dataConverter: DataConverter
  address: string
  namespace: string
  taskQueue: string
}

const recordKind = defineSearchAttributeKey('RecordKind', SearchAttributeType.KEYWORD)
const recordId = defineSearchAttributeKey('RecordId', SearchAttributeType.KEYWORD)
const keyword = (name: string, value: string | undefined) =>
  value === undefined
    ? []
    : [{ key: defineSearchAttributeKey(name, SearchAttributeType.KEYWORD), value: attribute(value) }]

/** The server accepts 400 bytes of a stored summary; encryption adds about 150. */
const summaryBytes = 200
const summaryOf = (line: string): string => {
  let text = harmless(line)
  while (Buffer.byteLength(JSON.stringify(text)) > summaryBytes) text = text.slice(0, -1).toWellFormed()
  return text
}

/**
 * A record's workflow is queried at most once a second: a busy one takes seconds for many queries.
 */
const liveCacheMs = 1_000
const liveDeadlineMs = 250
const callDeadlineMs = 5_000
/**
 * A create waits at most this long for its workflow to start. After a timeout no create tries a
 * start for the same time; the dispatcher starts the workflows later.
 */
const startDeadlineMs = 1_000

/**
 * gRPC codes that do not depend on the call itself: cancelled or late (the deadline), exhausted
 * (the server's own limits), a broken stream, a namespace or server that does not exist (yet). The
 * call may be repeated later, under the same name.
 */
const awayCodes = new Set([1, 4, 5, 8, 13, 14])

/** True for an error by which Temporal cannot be reached, or cannot answer, now. */
const temporalAway = (error: unknown): boolean => {
  for (let cause: unknown = error; cause instanceof Error; cause = cause.cause) {
    if (isGrpcServiceError(cause) && awayCodes.has(cause.code)) return true
  }
  return error instanceof Error && /DEADLINE_EXCEEDED|Failed to connect/.test(error.message)
}

/**
 * The options for the start of a record's workflow, with the texts for Temporal's page. The details
 * are Markdown.
 */
const startOptions = (
  kind: WorkflowKind,
  { id, generation, key }: OperationRef,
  pageSummary: PageSummary | undefined,
  apiUrl: string | undefined,
) => ({
  workflowId: temporalIdOf(kind, id, generation),
  // Continue-as-new keeps arguments, and loses the page's texts from the start.
  args: [id, generation, ...(kind.arguments ?? []), pageSummary && { line: pageSummary.line }, key],
  workflowIdReusePolicy: 'ALLOW_DUPLICATE' as const,
  typedSearchAttributes: [
    { key: recordKind, value: kind.name },
    { key: recordId, value: attribute(id) },
    ...keyword('WorkflowName', pageSummary?.attributes?.WorkflowName),
    ...keyword('PlanId', pageSummary?.attributes?.PlanId),
  ],
  ...(pageSummary === undefined
    ? {}
    : {
        staticSummary: summaryOf(pageSummary.line),
        staticDetails: [
          plain(pageSummary.line),
          apiUrl === undefined ? plain(pageSummary.path) : `<${apiUrl}${pageSummary.path}>`,
        ].join('\n\n'),
      }),
})

/**
 * Calls of Temporal's client, each with a deadline, over one connection that opens at its first
 * use.
 */
const openCalls = (options: EngineOptions) => {
  let made: Client | undefined
  const client = (): Client =>
    (made ??= new Client({
      connection: Connection.lazy({ address: options.address, connectTimeout: callDeadlineMs }),
      namespace: options.namespace,
      ...(options.plugins === undefined ? {} : { plugins: options.plugins }),
      dataConverter: options.dataConverter,
      // The last state of a closed workflow is not the present state of its record.
      workflow: { queryRejectCondition: 'NOT_OPEN' },
    }))
  /**
   * Calls in progress: a retry of the client library after its channel is closed would throw from a
   * timer. So none begins once the close has begun.
   */
  const underWay = new Set<Promise<unknown>>()
  let closed = false
  return {
    within: <T>(work: (client: Client) => Promise<T>, milliseconds = callDeadlineMs): Promise<T> => {
      if (closed) return Promise.reject(new Error('the connection to Temporal is closed'))
      const used = client()
      const call = used.withDeadline(Date.now() + milliseconds, () => work(used))
      underWay.add(call)
      const over = (): void => void underWay.delete(call)
      call.then(over, over)
      return call
    },
    async close(): Promise<void> {
      closed = true
      await Promise.allSettled(underWay)
      await made?.connection.close()
    },
  }
}
type Calls = ReturnType<typeof openCalls>

/** Temporal's terms for a workflow that has not ended. */
const isOpenThere = (status: string): boolean => status === 'RUNNING' || status === 'PAUSED'

/** The record that a workflow works for. */
type Ref = readonly [kind: WorkflowKind, id: string, generation: number]

/**
 * The id of a record's workflow: that of an open one which an earlier version started under another
 * id, else the one of this version.
 * @throws the error of a Temporal that cannot be reached
 */
const workflowIdOf = async ({ within }: Calls, ref: Ref, milliseconds = callDeadlineMs): Promise<string> => {
  const earlier = earlierTemporalIdOf(...ref)
  if (earlier === undefined) return temporalIdOf(...ref)
  try {
    const { status } = await within((client) => client.workflow.getHandle(earlier).describe(), milliseconds)
    return isOpenThere(status.name) ? earlier : temporalIdOf(...ref)
  } catch (error) {
    if (error instanceof WorkflowNotFoundError) return temporalIdOf(...ref)
    throw error
  }
}

/** Starts workflows. After a start without an answer from Temporal it tries none for a while. */
const openStarts = (calls: Calls, { taskQueue, apiUrl }: EngineOptions) => {
  const { within } = calls
  let awayUntil = -Infinity
  return async (
    kind: WorkflowKind,
    of: OperationRef,
    pageSummary?: PageSummary,
  ): Promise<'started' | 'open' | false> => {
    if (performance.now() < awayUntil) return false
    try {
      const wanted = { ...startOptions(kind, of, pageSummary, apiUrl?.()), taskQueue }
      const standing = await workflowIdOf(calls, [kind, of.id, of.generation], startDeadlineMs)
      if (standing !== wanted.workflowId) return 'open'
      await within((client) => client.workflow.start(kind.workflow, wanted), startDeadlineMs)
      return 'started'
    } catch (error) {
      if (error instanceof WorkflowExecutionAlreadyStartedError) return 'open'
      if (temporalAway(error)) {
        awayUntil = performance.now() + startDeadlineMs
        return false
      }
      throw error
    }
  }
}

/** Queries the state of open workflows, and caches each result for a second. */
const openLive = (calls: Calls) => {
  const cache = new Map<string, { at: number; live: Promise<Live | undefined> }>()
  return (ref: Ref): Promise<Live | undefined> => {
    const key = temporalIdOf(...ref)
    const known = cache.get(key)
    const now = performance.now()
    if (known !== undefined && now - known.at < liveCacheMs) return known.live
    if (cache.size > 1_000)
      for (const [name, entry] of cache) if (now - entry.at >= liveCacheMs) cache.delete(name)
    // After the transport's own deadline a reconnecting channel may still linger. This
    // bounds the wait.
    const ask = async (): Promise<Live> => {
      const workflowId = await workflowIdOf(calls, ref, liveDeadlineMs)
      return calls.within(
        (client) => client.workflow.getHandle(workflowId).query<Live>('live'),
        liveDeadlineMs,
      )
    }
    const live = orAfter(ask(), liveDeadlineMs, undefined).catch(() => undefined)
    cache.set(key, { at: now, live })
    return live
  }
}

/** As `Engine.signal`. */
const signalWorkflow = async <Name extends keyof Signals>(
  calls: Calls,
  ref: Ref,
  name: Name,
  args: Signals[Name],
): Promise<boolean> => {
  try {
    const workflowId = await workflowIdOf(calls, ref)
    await calls.within((client) => client.workflow.getHandle(workflowId).signal(name, ...args))
    return true
  } catch (error) {
    if (error instanceof WorkflowNotFoundError) return false
    if (temporalAway(error))
      throw new Refusal('unavailable', 'the workflow engine cannot be reached now; try again', {
        retryAfterSeconds: 2,
        cause: error,
      })
    throw error
  }
}

/** As `Engine.cancel`. */
const cancelRecord = async (calls: Calls, ref: Ref): Promise<boolean> => {
  try {
    const workflowId = await workflowIdOf(calls, ref, startDeadlineMs)
    await calls.within((client) => client.workflow.getHandle(workflowId).cancel(), startDeadlineMs)
    return true
  } catch (error) {
    if (error instanceof WorkflowNotFoundError || temporalAway(error)) return false
    throw error
  }
}

/** gRPC code of what does not exist. */
const goneCodes = new Set([5])
/** Deletions at once; one takes a few milliseconds. */
const deletionsAtOnce = 10

/** As `Engine.removeWorkflows`. */
const removeWorkflows = async (
  { within }: Calls,
  { namespace, taskQueue }: EngineOptions,
  before: string,
): Promise<number> => {
  let removed = 0
  const round = async (): Promise<number | undefined> => {
    const { executions } = await within((client) =>
      client.workflowService.listWorkflowExecutions({
        namespace,
        pageSize: 200,
        query:
          `TaskQueue = '${taskQueue.replaceAll("'", "''")}' AND RecordKind IS NOT NULL ` +
          `AND StartTime < '${before}'`,
      }),
    )
    const found = (executions ?? []).map(({ execution }) => execution)
    if (found.length === 0) return removed
    for (let at = 0; at < found.length; at += deletionsAtOnce)
      await Promise.all(
        found.slice(at, at + deletionsAtOnce).map((workflowExecution) =>
          within((client) =>
            client.workflowService.deleteWorkflowExecution({
              namespace,
              workflowExecution: workflowExecution ?? {},
            }),
          ).catch((error: unknown) => {
            // Deleted by an earlier round, whose entry the list still has.
            if (!(isGrpcServiceError(error) && goneCodes.has(error.code))) throw error
          }),
        ),
      )
    removed += found.length
    return undefined
  }
  // The list follows the deletions after a moment.
  return (await poll(round, { everyMs: 500 })) ?? removed
}

/** As `Engine.standing`. */
const standingOf = async (calls: Calls, ref: Ref): Promise<WorkflowStanding | undefined> => {
  try {
    const workflowId = await workflowIdOf(calls, ref)
    const { status, runId, raw } = await calls.within((client) =>
      client.workflow.getHandle(workflowId).describe(),
    )
    const reset = (raw.workflowExtendedInfo?.lastResetTime ?? undefined) !== undefined
    return isOpenThere(status.name)
      ? { state: 'open', execution: runId, reset }
      : { state: 'closed', end: status.name, execution: runId, reset }
  } catch (error) {
    if (error instanceof WorkflowNotFoundError) return { state: 'missing' }
    if (temporalAway(error)) return undefined
    throw error
  }
}

/**
 * The only user of the Temporal client, except for the code that prepares the embedded server. The
 * connection is lazy: while Temporal is unavailable the service answers and accepts work, and the
 * dispatcher starts that work when Temporal returns.
 */
export const openEngine = (options: EngineOptions) => {
  const calls = openCalls(options)
  const { within } = calls
  const start = openStarts(calls, options)
  const live = openLive(calls)

  return {
    taskQueue: options.taskQueue,
    /** The converter with which workers read and write payloads. */
    dataConverter: options.dataConverter,

    /**
     * Starts the workflow of a record, which works for the record with that key alone. The call is
     * idempotent: while one is open the server refuses a second start (`open`), and one started after
     * the end finds a finished record and ends at once. So a record whose workflow was terminated or
     * lost continues.
     * @returns false where Temporal is unavailable: no workflow was started, and the dispatcher
     *   starts it later
     */
    start,

    /**
     * The state that the open workflow reports, within 250 ms or not at all; one query per second
     * and record.
     */
    live: (kind: WorkflowKind, id: string, generation = 1) => live([kind, id, generation]),

    /**
     * Signals the workflow of a record.
     * @returns false where it is not open (finished, or never started)
     * @throws 503 while Temporal is unavailable
     */
    signal: <Name extends keyof Signals>(
      kind: WorkflowKind,
      id: string,
      generation: number,
      name: Name,
      ...args: Signals[Name]
    ) => signalWorkflow(calls, [kind, id, generation], name, args),

    /**
     * Requests that Temporal cancels the workflow of a cancelled record, so that it ends as
     * Canceled.
     * @returns false where Temporal is unavailable, or has no such workflow; the workflow then
     *   requests it at its end
     */
    cancel: (kind: WorkflowKind, id: string, generation = 1) => cancelRecord(calls, [kind, id, generation]),

    /** Requests that Temporal cancels one execution. A repeated or late request is harmless. */
    async cancelWorkflow({ workflowId, runId }: { workflowId: string; runId: string }): Promise<void> {
      await within((client) => client.workflow.getHandle(workflowId, runId).cancel())
    },

    /** The state of a record's newest workflow; undefined where Temporal is unavailable. */
    standing: (kind: WorkflowKind, id: string, generation = 1) => standingOf(calls, [kind, id, generation]),

    /**
     * Deletes the workflows of this service that started before a time, open ones too, with their
     * histories. @returns how many
     */
    removeWorkflows: (before: string) => removeWorkflows(calls, options, before),

    /**
     * Adds the search attributes that workflows set, where the namespace lacks them.
     * @throws Error naming those that are missing or have another type, where they cannot be added
     */
    async ensureSearchAttributes(): Promise<void> {
      const { searchAttributes } = readTemporalSettings()
      const wrong = await within(({ connection }) =>
        ensureSearchAttributes(connection, options.namespace, searchAttributes),
      )
      if (wrong.length > 0)
        throw new Error(
          `search attributes of the namespace ${options.namespace} have other types: ${wrong.join(', ')}`,
        )
    },

    /** Whether Temporal answers. */
    async ready(): Promise<boolean> {
      try {
        await within(({ connection }) => connection.workflowService.getSystemInfo({}), 1_000)
        return true
      } catch {
        return false
      }
    },

    [Symbol.asyncDispose]: () => calls.close(),
  }
}

export type Engine = ReturnType<typeof openEngine>
