import {
  Client,
  Connection,
  isGrpcServiceError,
  type ClientOptions,
  WorkflowExecutionAlreadyStartedError,
  WorkflowNotFoundError,
  type WorkflowClient,
} from '@temporalio/client'
import { defineSearchAttributeKey, SearchAttributeType } from '@temporalio/common'
import type * as workflows from '../workflows/index.ts'
import { Refusal } from './refusal.ts'

/** A workflow type; a renamed workflow is a compile error here. */
export type Kind = keyof typeof workflows

/** What an open workflow adds to the record of a status route; never needed for a correct answer. */
export type Live = Record<string, unknown>

export interface EngineOptions extends Pick<ClientOptions, 'plugins' | 'dataConverter'> {
  address: string
  namespace: string
  taskQueue: string
}

const recordKind = defineSearchAttributeKey('RecordKind', SearchAttributeType.KEYWORD)
const recordId = defineSearchAttributeKey('RecordId', SearchAttributeType.KEYWORD)

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
      ...(options.dataConverter === undefined ? {} : { dataConverter: options.dataConverter }),
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
     * Starts the workflow of a record. False: Temporal is away, nothing was started; the dispatcher will. Idempotent: while one is open
     * a second start is refused by the server, and one started after the end finds a finished record and ends at once. So a record
     * whose workflow was terminated or lost goes on.
     */
    async start(kind: Kind, id: string, generation = 1): Promise<boolean> {
      if (Date.now() < awayUntil) return false
      try {
        await within(
          () =>
            workflow().start(kind, {
              workflowId: workflowIdOf(kind, id, generation),
              taskQueue: options.taskQueue,
              args: [id, generation],
              workflowIdReusePolicy: 'ALLOW_DUPLICATE',
              typedSearchAttributes: [
                { key: recordKind, value: prefixes[kind] },
                { key: recordId, value: id },
              ],
            } as never),
          startDeadlineMs,
        )
        return true
      } catch (error) {
        if (error instanceof WorkflowExecutionAlreadyStartedError) return true
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
