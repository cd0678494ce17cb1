import { z } from 'zod'
import { join, raw, sql, type Db, type Sql } from '../db/sql.ts'
import { recordAudit } from '../domains/audit-events/store.ts'
import { endDigests } from './end-digest.ts'
import { appendEvent } from './events.ts'
import {
  endStates,
  type OperationChange,
  type OperationEnd,
  type OperationKind,
  type OperationRef,
  type RecordRef,
} from './kind.ts'

/** The row of an `OperationRef`. */
export const RefRow = z.object({ id: z.string(), generation: z.number(), key: z.string().optional() })
const Operation = RefRow.extend({
  status: z.string(),
  dispatchedAt: z.string().optional(),
  cancelRequestedAt: z.string().optional(),
  failureReason: z.string().optional(),
})
/** The members that all kinds have in common. `change`: the effect of the call that returns it. */
export type Operation = z.output<typeof Operation> & { change?: 'started' | 'ended' }

type Column = 'id' | 'generation' | 'created_at' | 'finished_at' | 'failure_reason'
const column = (kind: OperationKind, name: Column): Sql => raw(kind.columns?.[name] ?? name)
const table = (kind: OperationKind): Sql => raw(kind.table)
/**
 * The names of states come from this program, never from a caller. As literals they allow partial
 * indexes.
 */
const isOpenSql = ({ states }: OperationKind): Sql =>
  raw(`status in ('${states.accepted}', '${states.running}')`)
const keyColumn = (kind: OperationKind): Sql =>
  kind.key === undefined ? sql`extract(epoch from ${column(kind, 'created_at')})::text` : raw(kind.key)
const ref = (kind: OperationKind): Sql =>
  sql`${column(kind, 'id')} as id, ${column(kind, 'generation')} as generation, ${keyColumn(kind)} as key`

/** Like `OperationRef`; without a generation it is the operation in any. */
type Wanted = RecordRef & Partial<Pick<OperationRef, 'generation'>>
const isRef = (kind: OperationKind, { id, generation, key }: Wanted): Sql =>
  join(
    [
      sql`${column(kind, 'id')} = ${id}`,
      ...(generation === undefined ? [] : [sql`${column(kind, 'generation')} = ${generation}`]),
      ...(key === undefined ? [] : [sql`${keyColumn(kind)} = ${key}`]),
    ],
    ' and ',
  )

/** SQL: the id of a record in any generation, or null where another record has it by now. */
export const idOfRecord = (kind: OperationKind, { id, key }: RecordRef): Sql =>
  key === undefined
    ? sql`${id}`
    : sql`(select ${column(kind, 'id')} from ${table(kind)} where ${isRef(kind, { id, key })})`

/** Whether a state of the kind is open. */
export const isOpenState = ({ states }: OperationKind, status: string): boolean =>
  status === states.accepted || status === states.running

/** Selects open operations whose workflow was never started, oldest first. */
export const undispatchedOperations = (kind: OperationKind, limit: number): Sql =>
  sql`select ${ref(kind)} from ${table(kind)} where dispatched_at is null and ${isOpenSql(kind)}
    order by ${column(kind, 'created_at')}, ${column(kind, 'id')} limit ${limit}`

/** Open operations whose workflow was started once, in order of their ids, from behind `after`. */
export const dispatchedOperations = (
  db: Db,
  kind: OperationKind,
  after: string,
  limit: number,
): Promise<OperationRef[]> =>
  db.many(
    RefRow,
    sql`select ${ref(kind)} from ${table(kind)} where dispatched_at is not null and ${isOpenSql(kind)}
        and ${column(kind, 'id')} > ${after} order by ${column(kind, 'id')} limit ${limit}`,
  )

/** Records that Temporal has the operation's workflow. */
export const markDispatched = (db: Db, kind: OperationKind, of: OperationRef): Promise<number> =>
  db.run(
    sql`update ${table(kind)} set dispatched_at = now() where ${isRef(kind, of)} and dispatched_at is null`,
  )

/** Whether the operation is open in this generation. */
export const isOperationOpen = async (db: Db, kind: OperationKind, of: OperationRef): Promise<boolean> =>
  (await db.maybe(
    RefRow,
    sql`select ${ref(kind)} from ${table(kind)} where ${isRef(kind, of)} and ${isOpenSql(kind)}`,
  )) !== undefined

const operationSql = (kind: OperationKind, of: Wanted): Sql =>
  sql`select ${ref(kind)}, status, dispatched_at, cancel_requested_at, ${column(kind, 'failure_reason')} as
    failure_reason from ${table(kind)} where ${isRef(kind, of)}`

export const readOperation = (db: Db, kind: OperationKind, of: Wanted): Promise<Operation | undefined> =>
  db.maybe(Operation, operationSql(kind, of))

/** The operation, locked until the transaction ends. Every change of its state holds this lock. */
export const lockOperation = (tx: Db, kind: OperationKind, of: Wanted): Promise<Operation | undefined> =>
  tx.maybe(Operation, sql`${operationSql(kind, of)} for update`)

/**
 * The end of an operation that is over; undefined while it is open, and where it does not exist.
 */
export const endOf = (operation: Operation | undefined): OperationEnd | undefined => {
  const status = endStates.find((state) => state === operation?.status)
  return status === undefined ? undefined : { status, reason: operation?.failureReason }
}

const outcomes = {
  started: 'started',
  completed: 'succeeded',
  failed: 'failed',
  cancelled: 'succeeded',
  reopened: 'started',
  'workflow-restarted': 'started',
} as const

/**
 * Records a change without a request. Kinds without an audit record of it are skipped. A given actor
 * goes before the kind's, else it is the service.
 */
export const auditChange = async (
  tx: Db,
  kind: OperationKind,
  id: string,
  change: OperationChange,
  {
    actorId,
    summary,
    metadata,
  }: { actorId?: string; summary?: string; metadata?: Record<string, unknown> } = {},
): Promise<void> => {
  const record = await kind.audit(id, change, tx)
  if (record === undefined) return
  await recordAudit(tx, {
    actorId: 'service',
    actorType: 'service',
    ...record,
    ...(actorId === undefined ? {} : { actorId, actorType: 'service' }),
    outcome: outcomes[change],
    summary: summary ?? `${kind.noun} ${id} ${change}`,
    ...(metadata === undefined ? {} : { metadata }),
  })
}

/** Ends an open operation by its kind's own rule. */
const endByKind = (tx: Db, kind: OperationKind, of: OperationRef, end: OperationEnd): Promise<unknown> =>
  kind.end === undefined ? endOperation(tx, kind, of, end) : kind.end(tx, of, end)

/**
 * Moves an operation from accepted to running, once, with its first event (`facts` are its
 * payload). An operation with an earlier request to cancel ends instead.
 * @returns the operation after the change; undefined where this generation of the record does not exist
 */
export const beginOperation = (
  db: Db,
  kind: OperationKind,
  of: OperationRef,
  facts: Record<string, unknown> = {},
): Promise<Operation | undefined> =>
  db.transaction(async (tx) => {
    const found = await lockOperation(tx, kind, of)
    if (found?.status !== kind.states.accepted) return found
    if (found.cancelRequestedAt !== undefined) {
      await endByKind(tx, kind, of, { status: 'cancelled' })
      return { ...found, status: 'cancelled', change: 'ended' }
    }
    await tx.run(sql`update ${table(kind)} set status = ${kind.states.running}, started_at =
      clock_timestamp(), dispatched_at = coalesce(dispatched_at, now())
      where ${isRef(kind, of)}`)
    await appendEvent(tx, kind, of, `${kind.events}.started`, { ...facts, generation: of.generation })
    await auditChange(tx, kind, of.id, 'started', { metadata: { generation: of.generation } })
    return { ...found, status: kind.states.running, change: 'started' }
  })

/**
 * Ends an open operation, once, with its last event and audit record. @returns true where this call
 * ended it
 */
export const endOperation = (
  db: Db,
  kind: OperationKind,
  of: OperationRef,
  { status, reason }: OperationEnd,
): Promise<boolean> =>
  db.transaction(async (tx) => {
    const ended =
      await tx.run(sql`update ${table(kind)} set status = ${status}, ${column(kind, 'finished_at')} = clock_timestamp(),
        ${column(kind, 'failure_reason')} = ${reason ?? null} where ${isRef(kind, of)} and ${isOpenSql(kind)}`)
    if (ended === 0) return false
    await kind.ended?.(tx, of.id)
    await appendEvent(tx, kind, of, `${kind.events}.${status}`, reason === undefined ? {} : { reason })
    await auditChange(tx, kind, of.id, status, {
      summary: `${kind.noun} ${of.id} ${status}${reason === undefined ? '' : `: ${reason}`}`,
      metadata: await endDigests(tx, kind, of.id),
    })
    return true
  })

/**
 * The caller of a cancel, and the reason. A request leaves its own audit record; a cancel on
 * Temporal's page does not.
 */
export interface CancelBy {
  actorId: string
  reason?: string | undefined
}

/** The actor of requests on Temporal's page. */
export const temporalActor = 'temporal'

/**
 * Records the request to cancel an open operation, once, and ends the operation where its kind
 * allows that.
 * @returns the operation after the change; undefined where it does not exist
 */
export const requestCancel = (
  db: Db,
  kind: OperationKind,
  of: Wanted,
  by: CancelBy,
): Promise<Operation | undefined> =>
  db.transaction(async (tx) => {
    const { id } = of
    const found = await lockOperation(tx, kind, of)
    if (found === undefined || !isOpenState(kind, found.status)) return found
    if (found.cancelRequestedAt === undefined) {
      await tx.run(sql`update ${table(kind)} set cancel_requested_at = now(), cancel_actor = ${by.actorId},
        cancel_reason = ${by.reason ?? null}
        where ${isRef(kind, found)}`)
      if (by.actorId === temporalActor)
        await auditChange(tx, kind, id, 'cancelled', {
          actorId: temporalActor,
          summary: `the cancel of ${kind.noun} ${id} was asked for on Temporal's page`,
        })
    }
    if (kind.cancelEnds !== 'open' && found.status !== kind.states.accepted)
      return { ...found, cancelRequestedAt: found.cancelRequestedAt ?? new Date().toISOString() }
    await endByKind(tx, kind, found, { status: 'cancelled', reason: by.reason })
    return { ...found, status: 'cancelled', change: 'ended' }
  })

/**
 * Reopens a failed operation as its next generation, in the caller's transaction. `facts` are the
 * payload of its event.
 */
export const reopenOperation = async (
  tx: Db,
  kind: OperationKind,
  of: OperationRef,
  facts: Record<string, unknown> = {},
): Promise<void> => {
  await tx.run(sql`update ${table(kind)} set status = ${kind.states.running}, generation = generation + 1,
    ${column(kind, 'failure_reason')} = null,
      ${column(kind, 'finished_at')} = null, cancel_requested_at = null, cancel_actor = null, cancel_reason =
        null, dispatched_at = null
    where ${isRef(kind, of)}`)
  await appendEvent(tx, kind, of, `${kind.events}.reopened`, { generation: of.generation + 1, ...facts })
}

/**
 * Reopens a failed operation, for kinds without further records to reopen.
 * @returns the operation before the change; undefined where it does not exist
 */
export const retryOperation = (db: Db, kind: OperationKind, id: string): Promise<Operation | undefined> =>
  db.transaction(async (tx) => {
    const found = await lockOperation(tx, kind, { id })
    if (found?.status === 'failed') await reopenOperation(tx, kind, found)
    return found
  })

/**
 * Deletes an operation that is over, with its events; an open one stays.
 * @returns the operation before the deletion; undefined where it does not exist
 */
export const deleteOperation = (db: Db, kind: OperationKind, id: string): Promise<Operation | undefined> =>
  db.transaction(async (tx) => {
    const found = await lockOperation(tx, kind, { id })
    if (found === undefined || isOpenState(kind, found.status)) return found
    const removeReferred = await kind.remove?.(tx, id)
    await tx.run(sql`delete from event_feed_open where kind = ${kind.name} and operation_id = ${id}`)
    await tx.run(sql`delete from event_feed where kind = ${kind.name} and operation_id = ${id}`)
    await tx.run(sql`delete from operation_events where kind = ${kind.name} and operation_id = ${id}`)
    await tx.run(sql`delete from ${table(kind)} where ${column(kind, 'id')} = ${id}`)
    await removeReferred?.()
    return found
  })
