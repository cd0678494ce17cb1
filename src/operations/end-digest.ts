import { z } from 'zod'
import { raw, sql, type Db } from '../db/sql.ts'
import type { Proof } from '../domains/audit-events/verify.ts'
import type { OperationKind } from './kind.ts'

/** What the audit record of an operation's end holds of its events and of what was recorded. */
const Digests = z.object({
  operation: z.object({ kind: z.string(), id: z.string() }).optional(),
  events: z.number(),
  eventsDigest: z.string(),
  /** The digest is one over the digests of the events; absent in earlier records: over their text. */
  eventsDigestForm: z.literal('digests').optional(),
  recordingDigest: z.string().optional(),
})

type DigestForm = z.output<typeof Digests>['eventsDigestForm']

/**
 * SHA-256 over the events of an operation up to a given one. Over their digests: the text of all
 * events can be longer than PostgreSQL's longest value, 1 GB.
 */
const digestOfEvents = (
  tx: Db,
  kind: string,
  id: string,
  last: number,
  form: DigestForm,
): Promise<string> => {
  const event = sql`concat_ws('|', e.sequence, e.event_type, e.aggregate_type, e.aggregate_id, e.payload,
    extract(epoch from e.occurred_at))`
  const whole =
    form === 'digests'
      ? sql`coalesce(string_agg(sha256(convert_to(${event}, 'UTF8')), '' order by e.sequence), '')`
      : sql`convert_to(coalesce(string_agg(${event}, chr(10) order by e.sequence), ''), 'UTF8')`
  return tx.only(
    z.string(),
    sql`select encode(sha256(${whole}), 'hex') as digest
        from operation_events e where e.kind = ${kind} and e.operation_id = ${id} and e.sequence <= ${last}`,
  )
}

type Ended = Pick<OperationKind, 'name' | 'noun' | 'table' | 'columns' | 'recordingDigest'>

/**
 * Digests of an operation's events and recording, for the audit record of its end. A later change
 * of them no longer matches the sealed digest.
 */
export const endDigests = async (tx: Db, kind: Ended, id: string): Promise<z.output<typeof Digests>> => {
  const events = await tx.only(
    z.number(),
    sql`select coalesce(max(sequence), 0) as events from operation_events
      where kind = ${kind.name} and operation_id = ${id}`,
  )
  const recordingDigest = await kind.recordingDigest?.(tx, id)
  return {
    operation: { kind: kind.name, id },
    events,
    eventsDigest: await digestOfEvents(tx, kind.name, id, events, 'digests'),
    eventsDigestForm: 'digests',
    ...(recordingDigest === undefined ? {} : { recordingDigest }),
  }
}

/**
 * Compares the digests in the record of an end with the events and recordings that exist now. A
 * deleted operation has none to compare; an operation that began after the record is another one, to
 * which a client gave the id again. `kinds` are all kinds of operations.
 */
export const endProof =
  (kinds: readonly Ended[]): Proof =>
  async (tx, { executionId, metadata, occurredAt }) => {
    const recorded = Digests.safeParse(metadata)
    if (!recorded.success) return undefined
    const { events, eventsDigest, eventsDigestForm: form, recordingDigest } = recorded.data
    // Records of earlier versions are those of runs and name the run only.
    const operation =
      recorded.data.operation ??
      (executionId === undefined ? undefined : { kind: 'execution-run', id: executionId })
    const kind = kinds.find(({ name }) => name === operation?.kind)
    if (operation === undefined || kind === undefined) return undefined
    const present = await tx.only(
      z.boolean(),
      sql`select exists (select from ${raw(kind.table)} where ${raw(kind.columns?.id ?? 'id')} =
        ${operation.id} and ${raw(kind.columns?.created_at ?? 'created_at')} <=
        (${occurredAt}::text || 'Z')::timestamptz) as present`,
    )
    if (!present) return undefined
    const noun = `${kind.noun} ${operation.id}`
    if ((await digestOfEvents(tx, kind.name, operation.id, events, form)) !== eventsDigest)
      return `changed: the events of ${noun} are not those that it ended with`
    return recordingDigest !== undefined &&
      (await kind.recordingDigest?.(tx, operation.id)) !== recordingDigest
      ? `changed: what was recorded of ${noun} is not what it ended with`
      : undefined
  }
