import type { Db } from '../db/sql.ts'
import type { NewAuditEvent } from '../domains/audit-events/schemas.ts'
import type { SiteStatus } from '../page-details.ts'

/** A type of workflow with the names of its workflows: `<name>/<id of the record>/<generation>`. */
export interface WorkflowKind<Type extends string = string> {
  /**
   * First part of workflow ids; Temporal's search attribute `RecordKind`; kind of the record's
   * events: `planning-session`.
   */
  name: string
  /** Type of the workflow, as `workflows/index.ts` exports it. */
  workflow: Type
  /** Name of the record's id in the log: `sessionId`. */
  idInLog?: string
  /** The workflow's arguments between the generation and the line for Temporal's page. */
  arguments?: readonly unknown[]
}

/** The facts of a record that Temporal's page shows from its workflow's start on. */
export interface PageSummary {
  /** One line of plain text. */
  line: string
  /** The record's path, below the base of the API. */
  path: string
  /** Search attributes, beside kind and id. */
  attributes?: { WorkflowName?: string; PlanId?: string }
}

/** Signals of workflows, with their arguments. */
export interface Signals {
  /** A change that the workflow may act on: it checks now. */
  wake: []
  /**
   * The progress of a run's site and, where `status` is present, the reasons for which its tasks
   * wait.
   */
  progress: [site: string, completed: number, running: number, status?: SiteStatus]
  /** No worker executes this site of a cancelled run; what it had started there is on record. */
  abandoned: [site: string]
  /** Sent by earlier versions, which did not use Temporal's cancel. */
  cancel: []
}

/** The states in which an operation of any kind ends. */
export const endStates = ['completed', 'failed', 'cancelled'] as const

/**
 * The end of an operation. A failed one has a `reason`; a cancelled one has it where the caller
 * gave one.
 */
export interface OperationEnd {
  status: (typeof endStates)[number]
  reason?: string | undefined
}

/**
 * One record. Its id is free for another record after its deletion, so its workflow names it by its
 * key too. Without a key (in a request, and in a workflow of an earlier version) it is the record
 * that has the id.
 */
export interface RecordRef {
  id: string
  key?: string | undefined
}

/** One operation: a record with a workflow. A retry reopens it as the next generation. */
export interface OperationRef extends RecordRef {
  generation: number
}

/** References of an audit record to its subjects. */
type AuditRefs = Pick<
  NewAuditEvent,
  'environmentId' | 'resourceId' | 'connectionId' | 'runtimeId' | 'sessionId' | 'executionId' | 'externalId'
>
type OperationAudit = AuditRefs & Pick<NewAuditEvent, 'actorId' | 'actorType'> & { eventType: string }
/** Changes of an operation without a request of their own. */
export type OperationChange =
  | 'started'
  | 'completed'
  | 'failed'
  | 'cancelled'
  | 'reopened'
  | 'workflow-restarted'

/**
 * One kind of durable operation. Its records are in a table of their own, with these columns beside
 * its own: `id`, `generation`, `status`, `dispatched_at`, `cancel_requested_at`, `cancel_actor`,
 * `cancel_reason`, `failure_reason`, `last_event_sequence`, `created_at`, `started_at`,
 * `finished_at`. States are `accepted`, `running` and `endStates`.
 */
export interface OperationKind<Type extends string = string> extends WorkflowKind<Type> {
  /** The noun for an operation in sentences: `planning session`. */
  noun: string
  table: string
  /** Names of columns that are older than the common ones. */
  columns?: Partial<Record<'id' | 'generation' | 'created_at' | 'finished_at' | 'failure_reason', string>>
  /** The column that is the key of a record; absent: its time of creation is. */
  key?: string
  states: { accepted: string; running: string }
  /** First part of its events' types: `execution.run` for `execution.run.started`. */
  events: string
  /**
   * The operations that a cancel ends at once: those that have not begun, or every open one. For
   * the others the workflow records the end.
   */
  cancelEnds: 'accepted' | 'open'
  pageSummary: (db: Db, id: string, generation: number) => Promise<PageSummary | undefined>
  /**
   * Type and references of the audit record of a change, and its actor where that is not the
   * service; undefined where the kind records none, or records it itself.
   */
  audit: (id: string, change: OperationChange, tx: Db) => OperationAudit | undefined | Promise<OperationAudit>
  /**
   * Ends an open operation in the caller's transaction, once, with the records of the kind; absent:
   * `endOperation`.
   */
  end?: (tx: Db, of: OperationRef, end: OperationEnd) => Promise<unknown>
  /** Further changes of the row of an operation that has ended, in the transaction of the end. */
  ended?: (tx: Db, id: string) => Promise<unknown>
  /**
   * Digest of what was recorded of an operation beside its events, for the audit record of its end;
   * undefined where nothing was recorded.
   */
  recordingDigest?: (tx: Db, id: string) => Promise<string | undefined>
  /**
   * Deletes the records that refer to an ended operation, before its own row, and gives what deletes
   * those that the row refers to.
   */
  remove?: (tx: Db, id: string) => Promise<(() => Promise<unknown>) | undefined>
}
