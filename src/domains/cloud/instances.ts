import { z } from 'zod'
import { existing } from '../../refusal.ts'
import { documentRow, readPage } from '../../db/rows.ts'
import { jsonObject, fields, time } from '../../db/projection.ts'
import { raw, sql, type Db, type Sql, where } from '../../db/sql.ts'
import type { Page } from '../../http/paging.ts'
import { eventJson, OperationEvent } from '../../operations/events.ts'
import { billingEndOf, computeSecondsOf, diskSecondsOf } from './billing.ts'
import { CloudInstance, CloudOperation, type CloudEvent } from './instance-schemas.ts'
import { cloudKind } from './operation.ts'

/** Compute cost accrues while the machine runs, disk cost as long as the machine exists. */
const computeSeconds = computeSecondsOf('i')
const billing = jsonObject({
  startedAt: time('i.billing_started_at'),
  finishedAt: time(billingEndOf('i')),
  computeStartedAt: time('i.compute_started_at'),
  accumulatedComputeSeconds: computeSeconds,
  computePricePerSecond: 'i.compute_price_per_second',
  diskPricePerSecond: 'i.disk_price_per_second',
  asOf: time('now()'),
  currentCost: `${computeSeconds} * i.compute_price_per_second + i.disk_price_per_second *
    ${diskSecondsOf('i')}`,
})
const instance = jsonObject({
  ...fields(
    'i',
    `id capacityTargetId environmentId provider providerId name status publicAddress privateAddress
      sshUsername sshCredentialRef disk failureReason`,
  ),
  createdAt: time('i.created_at'),
  readyAt: time('i.ready_at'),
  destroyedAt: time('i.destroyed_at'),
  billing: `case when i.billing_started_at is not null then ${billing} end`,
})
const operation = jsonObject({
  ...fields('o', 'id kind status environmentId capacityTargetId instanceId executionRunId activityId'),
  ...fields('o', 'phase request failureReason'),
  createdAt: time('o.created_at'),
  startedAt: time('o.started_at'),
  finishedAt: time('o.finished_at'),
})

const InstanceRow = documentRow(CloudInstance)
const OperationRow = documentRow(CloudOperation)
const instanceDocument = sql`${raw(instance)} as document`
const operationDocument = sql`${raw(operation)} as document`

export const readInstance = async (db: Db, id: string): Promise<z.output<typeof CloudInstance>> =>
  existing(
    await db.maybe(InstanceRow, sql`select ${instanceDocument} from cloud_instances i where i.id = ${id}`),
    'cloud instance',
    id,
  )

const equal = (column: Sql, value: string | undefined): Sql | undefined =>
  value === undefined ? undefined : sql`${column} = ${value}`

/**
 * Instances of an environment, newest first, ended ones too; all or those that the filters select.
 */
export const listInstances = (
  db: Db,
  environmentId: string,
  page: Page,
  { status, capacityTargetId }: { status?: string | undefined; capacityTargetId?: string | undefined },
) =>
  readPage(db, InstanceRow, {
    select: instanceDocument,
    from: sql`cloud_instances i ${where(
      equal(sql`i.environment_id`, environmentId),
      equal(sql`i.status`, status),
      equal(sql`i.capacity_target_id`, capacityTargetId),
    )}`,
    order: sql`i.created_at desc, i.id desc`,
    page,
  })

/** An operation; undefined where there is none. */
export const readCloudOperation = (db: Db, id: string): Promise<CloudOperation | undefined> =>
  db.maybe(OperationRow, sql`select ${operationDocument} from cloud_operations o where o.id = ${id}`)

/** Operations, newest first, of all instances or of those that the filters select. */
export const listCloudOperations = (
  db: Db,
  page: Page,
  filters: {
    status?: string | undefined
    kind?: string | undefined
    instanceId?: string | undefined
    environmentId?: string | undefined
  },
) =>
  readPage(db, OperationRow, {
    select: operationDocument,
    from: sql`cloud_operations o ${where(
      equal(sql`o.status`, filters.status),
      equal(sql`o.kind`, filters.kind),
      equal(sql`o.instance_id`, filters.instanceId),
      equal(sql`o.environment_id`, filters.environmentId),
    )}`,
    order: sql`o.created_at desc, o.id desc`,
    page,
  })

const text = (value: unknown): string | undefined => (typeof value === 'string' ? value : undefined)

/** An event in the form of the reference. Events that `src/operations/` records are named `operation.…`. */
export const cloudEvent = (event: OperationEvent): CloudEvent => {
  const payload = (event.payload ?? {}) as Record<string, unknown>
  const name = event.eventType.replace(/^cloud\./, '')
  const { durationSeconds } = payload
  return {
    ...{ operationId: event.aggregateId, sequence: event.sequence, timestamp: event.occurredAt },
    level: payload['level'] === 'error' || name.endsWith('.failed') ? 'error' : 'info',
    event: name,
    tool: text(payload['tool']),
    phase: text(payload['phase']),
    task: text(payload['task']),
    host: text(payload['host']),
    message: text(payload['message']) ?? text(payload['reason']),
    raw: text(payload['raw']),
    durationSeconds: typeof durationSeconds === 'number' ? durationSeconds : undefined,
  }
}

const EventRow = z.object({ body: OperationEvent })
/** The log ends with this many lines: the last ones. */
const mostLines = 10_000

/** The events of an instance as text, one line each, oldest first. @throws Refusal 404 */
export const provisioningLog = async (db: Db, id: string): Promise<string> => {
  await readInstance(db, id)
  const rows = await db.many(
    EventRow,
    sql`select ${raw(eventJson)} as body from operation_events e join cloud_operations o on o.id = e.operation_id
      where e.kind = ${cloudKind.name} and o.instance_id = ${id}
      order by e.occurred_at desc, e.operation_id desc, e.sequence desc limit ${mostLines}`,
  )
  return rows
    .toReversed()
    .map(({ body }) => cloudEvent(body))
    .map(
      ({ timestamp, phase, event, message }) =>
        [
          timestamp,
          ...(phase === undefined ? [] : [`[${phase}]`]),
          message === undefined ? event : `${event}: ${message.replace(/[\p{Cc}\s]+/gu, ' ')}`,
        ].join(' ') + '\n',
    )
    .join('')
}

const EventsRow = z.object({ operationId: z.string(), body: OperationEvent })
const mostOperations = 100
const mostEvents = 200

/** The operations that were made for a run, in order, each with its first events. */
export const operationsOfRun = async (
  db: Db,
  runId: string,
): Promise<{ run: CloudOperation; events: CloudEvent[] }[]> => {
  const runs = await db.many(
    OperationRow,
    sql`select ${operationDocument} from cloud_operations o where o.execution_run_id = ${runId}
      order by o.created_at, o.id limit ${mostOperations}`,
  )
  const events = await db.many(
    EventsRow,
    sql`select e.operation_id, ${raw(eventJson)} as body from operation_events e
      where e.kind = ${cloudKind.name} and e.operation_id = any(${runs.map(({ id }) => id)}::text[])
        and e.sequence <= ${mostEvents} order by e.operation_id, e.sequence`,
  )
  const byOperation = Map.groupBy(events, ({ operationId }) => operationId)
  return runs.map((run) => ({
    run,
    events: (byOperation.get(run.id) ?? []).map(({ body }) => cloudEvent(body)),
  }))
}
