import type { IncomingHttpHeaders } from 'node:http'
import type { Refusal } from '../refusal.ts'
import type { AccessRules } from './access.ts'
import type { AuditRecord } from './audit.ts'
import type { IdempotencyStore } from './idempotency.ts'
import type { KernelLog } from './log.ts'
import type { Route } from './route.ts'
import type { BodyPace } from './pace.ts'
import type { PeerPace } from './peer.ts'

/** The instance that one request reads. */
export interface Selection {
  id: string
  /** Runs a read in this instance. @throws Refusal for a route whose answers are not records */
  read: (template: string, work: () => Promise<void>) => Promise<void>
}

/** The options of `createApp`. */
export interface AppOptions {
  config: AccessRules & {
    /** Starts with a slash and ends without one, or is empty. */
    apiPrefix: string
    bodyLimitBytes: number
  }
  routes: readonly Route[]
  log: KernelLog
  version: string
  /** What a name in braces of a path stands for, for the API's document. */
  pathParameter?: (path: string, name: string) => string | undefined
  /** A document that each operation accepts, by its id, for the API's document. */
  example?: (operationId: string) => unknown
  /** Whether a read-only snapshot is activated. Mutations answer 423 while one is. */
  activated: () => boolean | Promise<boolean>
  /**
   * Selects the instance of a request. Where it is absent, only one instance exists, and no header
   * names it.
   */
  select?: () => Promise<Selection>
  /**
   * Writes one record per mutation, before the answer is sent. A failure is logged and does not
   * change the answer.
   */
  audit?: (record: AuditRecord) => Promise<void>
  idempotency?: IdempotencyStore
  /** Turns errors of the database into refusals. An undefined result leaves them faults. */
  translate?: (error: unknown) => Refusal | undefined
  /** Called for every answered request, with the route's pattern instead of the path. */
  observe?: (method: string, route: string, status: number, seconds: number) => void
  /**
   * Called when a client begins to follow a growing source: events, a log. The function that it
   * returns is called at the end, with whether the client was too slow.
   */
  streamOpened?: () => (cut: boolean) => void
  /** Cuts the reader of a streamed answer that takes nothing for this time; absent: `usualStallMs`. */
  stallMs?: number
  /** Runs a request inside a span of the trace that its headers continue. */
  span?: (
    name: string,
    attributes: Record<string, string>,
    work: () => Promise<void>,
    headers: IncomingHttpHeaders,
  ) => Promise<void>
  /** Time limits of bodies; absent: `usualBodyPace`. */
  bodyPace?: BodyPace
  /** Limits for silent or slow peers of WebSockets; absent: `usualPeerPace`. */
  peerPace?: PeerPace
  /** For tests: an answer that its schema refuses becomes a fault. */
  validateResponses?: boolean
  /**
   * For tests: receives every answer, that of a stream without the body. `template` is the path as
   * the document has it, undefined for unknown paths.
   */
  onAnswer?: (answer: Answered) => void
}

export interface Answered {
  method: string
  template: string | undefined
  status: number
  contentType: string | undefined
  body: string | undefined
}
