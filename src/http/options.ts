import type { IncomingHttpHeaders } from 'node:http'
import type { Refusal } from '../refusal.ts'
import type { AccessRules } from './access.ts'
import type { AuditRecord } from './audit.ts'
import type { IdempotencyStore } from './idempotency.ts'
import type { Log } from './log.ts'
import type { Method, Route } from './route.ts'
import type { BodyPace } from './pace.ts'
import type { PeerPace } from './peer.ts'

/** What `createApp` takes. */
export interface AppOptions {
  config: AccessRules & {
    /** Starts with a slash and ends without one, or is empty. */
    apiPrefix: string
    bodyLimitBytes: number
  }
  routes: readonly Route[]
  /** Pairs of the specification that are not built yet: 503 before anything else is looked at, and not in the document. */
  unbuilt?: readonly { method: Method; path: string }[]
  log: Log
  version: string
  /** Whether a read-only snapshot is activated: mutations are 423 then. */
  activated: () => boolean
  /** Writes one record per mutation, before the answer goes out; its failure is logged and changes no answer. */
  audit?: (record: AuditRecord) => Promise<void>
  idempotency?: IdempotencyStore
  /** Turns errors of the database into refusals; undefined leaves them faults. */
  translate?: (error: unknown) => Refusal | undefined
  /** Throws a refusal while the root health check is to fail. */
  rootHealth?: () => Promise<void> | void
  /** Hears of every answered request: the route's pattern, never the path. */
  observe?: (method: string, route: string, status: number, seconds: number) => void
  /** Puts a request inside a span of the trace that its headers continue. */
  span?: (name: string, attributes: Record<string, string>, work: () => Promise<void>, headers: IncomingHttpHeaders) => Promise<void>
  /** How long bodies may take; absent: `usualBodyPace`. */
  bodyPace?: BodyPace
  /** How long the peers of WebSockets may be silent or slow; absent: `usualPeerPace`. */
  peerPace?: PeerPace
  /** In tests: an answer that its schema does not accept is a fault. */
  validateResponses?: boolean
  /**
   * In tests: sees every answer, of streams without the body; `template` is the path as the document has it, undefined for unknown
   * paths.
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
