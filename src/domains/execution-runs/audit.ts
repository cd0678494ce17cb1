import type { Db } from '../../db/sql.ts'
import { endDigests } from '../../operations/end-digest.ts'
import type { OperationKind } from '../../operations/kind.ts'
import { recordAudit } from '../audit-events/store.ts'

/** Records how a run ended, with the digest of its events. */
export const recordRunEnd = async (
  tx: Db,
  kind: OperationKind,
  runId: string,
  status: string,
): Promise<void> =>
  recordAudit(tx, {
    ...{ actorId: 'service', actorType: 'service', eventType: `execution.run.${status}` },
    executionId: runId,
    outcome: status === 'failed' ? 'failed' : 'succeeded',
    summary: `run ${runId} ${status}`,
    metadata: await endDigests(tx, kind, runId),
  })
