import { z } from 'zod'
import { sql, type Db } from '../../db/sql.ts'
import { recordAudit } from '../audit-events/store.ts'
import type { Proof } from '../audit-events/verify.ts'

/** SHA-256 over the events of a run up to one of them, as the record of its end holds it. */
const eventsDigest = (runId: string, last: number) => sql`select encode(sha256(convert_to(coalesce(string_agg(
    concat_ws('|', e.sequence, e.event_type, e.aggregate_type, e.aggregate_id, e.payload, extract(epoch from e.occurred_at)), chr(10) order by e.sequence), ''), 'UTF8')), 'hex') as digest
  from run_events e where e.execution_run_id = ${runId} and e.sequence <= ${last}`

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
  const { digest } = await tx.one(Digest, eventsDigest(runId, events))
  await recordAudit(tx, {
    ...service,
    eventType: `execution.run.${status}`,
    executionId: runId,
    outcome: status === 'completed' ? 'succeeded' : 'failed',
    summary: `run ${runId} ${status}`,
    metadata: { events, eventsDigest: digest },
  })
}

const Present = z.object({ id: z.string() })

/** A run's end names the digest of its events; of a run that was deleted they are gone with it. */
export const runEventsProof: Proof = async (tx, { executionId, metadata }) => {
  const recorded = metadata?.['eventsDigest']
  const last = metadata?.['events']
  if (executionId === undefined || typeof recorded !== 'string' || typeof last !== 'number') return undefined
  if ((await tx.maybe(Present, sql`select id from execution_runs where id = ${executionId}`)) === undefined) return undefined
  const { digest } = await tx.one(Digest, eventsDigest(executionId, last))
  return digest === recorded ? undefined : `changed: the events of run ${executionId} are not those that it ended with`
}
