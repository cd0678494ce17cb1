import {
  Client,
  Connection,
  isGrpcServiceError,
  type ClientOptions,
  WorkflowExecutionAlreadyStartedError,
  WorkflowNotFoundError,
  type WorkflowClient,
} from '@temporalio/client'
import { defineSearchAttributeKey, SearchAttributeType, type DataConverter } from '@temporalio/common'
import type * as workflows from '../workflows/index.ts'
import { attribute, harmless, plain } from './telling.ts'
import { ensureSearchAttributes } from './embedded/search-attributes.ts'
import { readTemporalSettings } from './embedded/temporal-settings.ts'
import { Refusal } from './refusal.ts'

/** How the workflow of a record stands. */
export interface Standing {
  /** `missing`: Temporal knows none of this id; `closed`: it has ended, as `end` says. */
  state: 'open' | 'closed' | 'missing'
  /** Temporal's own word, e.g. `TERMINATED`. */
  end?: string
  /** Temporal's id of this execution; another after each start, reset and continue-as-new. */
  execution?: string
  /** It was made by a reset. */
  reset?: boolean
}

/** A workflow type; a renamed workflow is a compile error here. */
export type Kind = keyof typeof workflows

/** What an open workflow adds to the record of a status route; never needed for a correct answer. */
export type Live = Record<string, unknown>

/** What Temporal's page says of a record from its workflow's start on. */
export interface Telling {
  /** One line of plain text. */
  line: string
  /** Of the record, below the base of the API. */
  path: string
  /** To search for, beside kind and id. */
  attributes?: { WorkflowName?: string; PlanId?: string }
}

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
  value === undefined ? [] : [{ key: defineSearchAttributeKey(name, SearchAttributeType.KEYWORD), value: attribute(value) }]

/** The server takes 400 bytes of a summary as it is stored; encryption adds about 150. */
const summaryBytes = 200
const summaryOf = (line: string): string => {
  let text = harmless(line)
  while (Buffer.byteLength(JSON.stringify(text)) > summaryBytes) text = text.slice(0, -1).toWellFormed()
  return text
}

/** A record's workflow is asked once a second at most: a busy one takes seconds for many questions. */
const liveCacheMs = 1_000
const liveDeadlineMs = 250
const callDeadlineMs = 5_000
/** A create waits this long for its workflow to start, and for as long after it none asks again: the dispatcher will. */
const startDeadlineMs = 1_000
const prefixes: Record<Kind, string> = {
  connectionDiscovery: 'connection-discovery',
  connectionMonitor: 'connection-monitor',
  executionRun: 'execution-run',
  planningSession: 'planning-session',
}

/** Workflow id of a record: `<kind>/<id>/<generation>`; starting it twice is harmless. */
export const workflowIdOf = (kind: Kind, id: string, generation = 1): string => `${prefixes[kind]}/${id}/${String(generation)}`

/**
 * gRPC codes that say nothing about the call itself: cancelled or late (the deadline), exhausted (the server's own limits), a broken
 * stream, a namespace or server that is not there (yet). What was asked may be asked again later, under the same name.
 */
const awayCodes = new Set([1, 4, 5, 8, 13, 14])

/** True for an error that says that Temporal cannot be reached, or cannot answer, now. */
const temporalAway = (error: unknown): boolean => {
  for (let cause: unknown = error; cause instanceof Error; cause = cause.cause) {
    if (isGrpcServiceError(cause) && awayCodes.has(cause.code)) return true
  }
  return error instanceof Error && /DEADLINE_EXCEEDED|Failed to connect/.test(error.message)
}

/** Summary and details of a workflow's start; the details are Markdown. */
const toldAtStart = ({ line, path }: Telling, apiUrl: string | undefined): { staticSummary: string; staticDetails: string } => ({
  staticSummary: summaryOf(line),
  staticDetails: `${plain(line)}\n\n${apiUrl === undefined ? plain(path) : `<${apiUrl}${path}>`}`,
})

/**
 * The one user of the Temporal client, but for what makes the embedded server ready. The connection is lazy: the service answers, and
 * accepts work, while Temporal is away; what was accepted is started by the dispatcher when it returns.
 */
export const openEngine = (options: EngineOptions) => {
  let client: Client | undefined
  const workflow = (): WorkflowClient => {
    client ??= new Client({
      connection: Connection.lazy({ address: options.address, connectTimeout: callDeadlineMs }),
      namespace: options.namespace,
      ...(options.plugins === undefined ? {} : { plugins: options.plugins }),
      dataConverter: options.dataConverter,
      // What a closed workflow was last is not how its record is now.
      workflow: { queryRejectCondition: 'NOT_OPEN' },
    })
    return client.workflow
  }
  /** Calls under way: a retry of the client library that fires after its channel was closed would throw out of a timer. */
  const underWay = new Set<Promise<unknown>>()
  const within = <T>(work: () => Promise<T>, milliseconds = callDeadlineMs): Promise<T> => {
    workflow()
    const call = (client as Client).withDeadline(Date.now() + milliseconds, work)
    underWay.add(call)
    const over = (): void => void underWay.delete(call)
    call.then(over, over)
    return call
  }
  let awayUntil = 0
  const cache = new Map<string, { at: number; live: Promise<Live | undefined> }>()

  return {
    taskQueue: options.taskQueue,
    /** What workers have to read and write payloads with. */
    dataConverter: options.dataConverter,

    /**
     * Starts the workflow of a record. False: Temporal is away, nothing was started; the dispatcher will. Idempotent:
     * while one is open a second start is refused by the server (`open`), and one started after the end finds a finished
     * record and ends at once. So a record whose workflow was terminated or lost goes on.
     */
    async start(kind: Kind, id: string, generation = 1, telling?: Telling): Promise<'started' | 'open' | false> {
      if (Date.now() < awayUntil) return false
      try {
        await within(
          () =>
            workflow().start(kind, {
              workflowId: workflowIdOf(kind, id, generation),
              taskQueue: options.taskQueue,
              // Continue-as-new keeps arguments, and loses what the page says of the start.
              args: [
                id,
                generation,
                ...(kind === 'connectionMonitor' ? [false] : []),
                ...(telling === undefined ? [] : [{ line: telling.line }]),
              ],
              workflowIdReusePolicy: 'ALLOW_DUPLICATE',
              typedSearchAttributes: [
                { key: recordKind, value: prefixes[kind] },
                { key: recordId, value: id },
                ...keyword('WorkflowName', telling?.attributes?.WorkflowName),
                ...keyword('PlanId', telling?.attributes?.PlanId),
              ],
              ...(telling === undefined ? {} : toldAtStart(telling, options.apiUrl?.())),
            } as never),
          startDeadlineMs,
        )
        return 'started'
      } catch (error) {
        if (error instanceof WorkflowExecutionAlreadyStartedError) return 'open'
        if (temporalAway(error)) {
          awayUntil = Date.now() + startDeadlineMs
          return false
        }
        throw error
      }
    },

    /** What the open workflow says of itself, within 250 ms or not at all; one question a second per record. */
    live(kind: Kind, id: string, generation = 1): Promise<Live | undefined> {
      const key = workflowIdOf(kind, id, generation)
      const known = cache.get(key)
      const now = Date.now()
      if (known !== undefined && now - known.at < liveCacheMs) return known.live
      if (cache.size > 1_000) for (const [name, entry] of cache) if (now - entry.at >= liveCacheMs) cache.delete(name)
      // The transport's own deadline still lets a reconnecting channel linger; the race bounds the answer.
      const asked = within(() => workflow().getHandle(key).query<Live>('live'), liveDeadlineMs)
      const late = new Promise<undefined>((resolve) => setTimeout(resolve, liveDeadlineMs, undefined).unref())
      const live = Promise.race([asked, late]).catch(() => undefined)
      cache.set(key, { at: now, live })
      return live
    },

    /** Signals the workflow of a record. False: it is not open (finished, or never started). Throws 503 while Temporal is away. */
    async signal(kind: Kind, id: string, generation: number, name: string, ...args: unknown[]): Promise<boolean> {
      try {
        await within(() =>
          workflow()
            .getHandle(workflowIdOf(kind, id, generation))
            .signal(name, ...args),
        )
        return true
      } catch (error) {
        if (error instanceof WorkflowNotFoundError) return false
        if (temporalAway(error))
          throw new Refusal('unavailable', 'the workflow engine cannot be reached now; try again', { retryAfterSeconds: 2, cause: error })
        throw error
      }
    },

    /**
     * Asks Temporal to cancel the workflow of a record that was cancelled, so that it ends as Canceled. False: Temporal is
     * away, or knows none; the workflow then asks for it at its end.
     */
    async cancel(kind: Kind, id: string, generation = 1): Promise<boolean> {
      try {
        await within(
          () =>
            workflow()
              .getHandle(workflowIdOf(kind, id, generation))
              .cancel(),
          startDeadlineMs,
        )
        return true
      } catch (error) {
        if (error instanceof WorkflowNotFoundError || temporalAway(error)) return false
        throw error
      }
    },

    /** Asks Temporal to cancel one execution; harmless when it was asked before, or has ended. */
    async cancelWorkflow({ workflowId, runId }: { workflowId: string; runId: string }): Promise<void> {
      await within(() => workflow().getHandle(workflowId, runId).cancel())
    },

    /** How the newest workflow of a record stands; undefined: Temporal is away. */
    async standing(kind: Kind, id: string, generation = 1): Promise<Standing | undefined> {
      try {
        const { status, runId, raw } = await within(() =>
          workflow()
            .getHandle(workflowIdOf(kind, id, generation))
            .describe(),
        )
        const reset = (raw.workflowExtendedInfo?.lastResetTime ?? undefined) !== undefined
        return status.name === 'RUNNING' || status.name === 'PAUSED'
          ? { state: 'open', execution: runId, reset }
          : { state: 'closed', end: status.name, execution: runId, reset }
      } catch (error) {
        if (error instanceof WorkflowNotFoundError) return { state: 'missing' }
        if (temporalAway(error)) return undefined
        throw error
      }
    },

    /**
     * Adds the search attributes that workflows set, where the namespace lacks them.
     * @throws Error naming those that it lacks or has with another type, when they cannot be added
     */
    async ensureSearchAttributes(): Promise<void> {
      const { searchAttributes } = readTemporalSettings()
      workflow()
      const wrong = await within(() => ensureSearchAttributes((client as Client).connection, options.namespace, searchAttributes))
      if (wrong.length > 0) throw new Error(`search attributes of the namespace ${options.namespace} have other types: ${wrong.join(', ')}`)
    },

    /** Whether Temporal answers. */
    async ready(): Promise<boolean> {
      try {
        workflow()
        await within(() => (client as Client).connection.workflowService.getSystemInfo({}), 1_000)
        return true
      } catch {
        return false
      }
    },

    async [Symbol.asyncDispose](): Promise<void> {
      await Promise.allSettled(underWay)
      await client?.connection.close()
    },
  }
}

export type Engine = ReturnType<typeof openEngine>
