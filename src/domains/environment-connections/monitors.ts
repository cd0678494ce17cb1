import { sql, type Db, type Sql } from '../../db/sql.ts'
import type { Dispatched } from '../../operations/dispatcher.ts'
import type { OperationRef, WorkflowKind } from '../../operations/kind.ts'
import { RefRow, temporalActor } from '../../operations/records.ts'
import { recordAudit } from '../audit-events/store.ts'
import { markMonitored } from '../environments/connections.ts'
import { monitored } from './store.ts'
import { connectionPageSummary } from './page-summary.ts'

/**
 * A monitor is no operation: it has no end, and its record is the connection. It begins with a
 * wait, not with a check.
 */
export const monitorKind: WorkflowKind<'connectionMonitor'> = {
  name: 'connection-monitor',
  idInLog: 'connectionId',
  workflow: 'connectionMonitor',
  arguments: [false],
}

const connectionsWhere = (condition: Sql): Sql =>
  sql`select id, 1 as generation from connections where ${monitored} and ${condition}`
const connectionsOf = (db: Db, condition: Sql): Promise<OperationRef[]> =>
  db.many(RefRow, connectionsWhere(condition))

/** How the dispatcher checks monitors. It checks them rarely, because there are many. */
export const dispatchedMonitors: Dispatched<'connectionMonitor'> = {
  kind: monitorKind,
  undispatched: (limit) =>
    connectionsWhere(sql`monitored_since is null order by created_at, id limit ${limit}`),
  markDispatched: (db, { id }) => markMonitored(db, id),
  open: (db, after, limit) =>
    connectionsOf(db, sql`monitored_since is not null and id > ${after} order by id limit ${limit}`),
  isOpen: async (db, { id }) =>
    (await connectionsOf(db, sql`monitored_since is not null and id = ${id}`)).length > 0,
  pageSummary: (db, id) => connectionPageSummary(db, id, 'watch'),
  lookEverySeconds: 60,
  noteRestart: (tx, { id, generation }, { cause, summary }) =>
    recordAudit(tx, {
      eventType: 'connection.monitor.restarted',
      connectionId: id,
      actorId: temporalActor,
      actorType: 'service',
      outcome: 'started',
      summary,
      metadata: { kind: monitorKind.name, generation, cause },
    }),
}
