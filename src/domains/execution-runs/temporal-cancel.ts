import type { Db } from '../../db/sql.ts'
import { recordAudit } from '../audit-events/store.ts'
import { requestCancel } from './store.ts'

/**
 * Makes *Request Cancellation* of Temporal's page the run's cancel, with its audit record. Nothing when the run was
 * cancelled before (the API's cancel goes to Temporal, too), is over, or was opened again since `generation`.
 */
export const cancelFromTemporal = async (db: Db, runId: string, generation: number): Promise<void> => {
  await requestCancel(db, runId, async (tx, run) => {
    if (run.generation !== generation) return false
    await recordAudit(tx, {
      eventType: 'execution.run.cancel',
      actorId: 'temporal',
      actorType: 'service',
      executionId: runId,
      outcome: 'succeeded',
      summary: `cancel of run ${runId} asked for on Temporal's page`,
    })
    return true
  })
}
