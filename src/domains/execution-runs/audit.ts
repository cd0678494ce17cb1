import { z } from 'zod'
import { sql, type Db } from '../../db/sql.ts'
import { recordAudit } from '../audit-events/store.ts'
import { runEventsDigest } from '../audit-events/verify.ts'

const service = { actorId: 'service', actorType: 'service' } as const

/** Records that a run was begun. */
export const recordRunStart = (tx: Db, runId: string, generation: number): Promise<void> =>
  recordAudit(tx, {
    ...service,
    eventType: 'execution.run.started',
    executionId: runId,
    outcome: 'started',
    summary: `run ${runId} started`,
    metadata: { generation },
  })

const Last = z.object({ events: z.number() })
const Digest = z.object({ digest: z.string() })

/** Records how a run ended, with the digest of its events: who changes one of them later changes what was sealed. */
export const recordRunEnd = async (tx: Db, runId: string, status: string): Promise<void> => {
  const { events } = await tx.one(Last, sql`select last_event_sequence as events from execution_runs where id = ${runId}`)
  const { digest } = await tx.one(Digest, runEventsDigest(runId, events))
  await recordAudit(tx, {
    ...service,
    eventType: `execution.run.${status}`,
    executionId: runId,
    outcome: status === 'completed' ? 'succeeded' : 'failed',
    summary: `run ${runId} ${status}`,
    metadata: { events, eventsDigest: digest },
  })
}
