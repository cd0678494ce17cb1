import { z } from 'zod'
import { sql } from '../../db/sql.ts'
import type { OperationKind } from '../../operations/kind.ts'
import { endOperation } from '../../operations/records.ts'
import { dropCredential } from '../credentials/store.ts'
import { keyIdOf } from './instance-keys.ts'

const Ended = z.object({ id: z.string() })
const SummaryRow = z.object({ kind: z.string(), instanceId: z.string().nullish() })

/** Operations at a provider. They are one kind, and each record names its action. */
export const cloudKind: OperationKind<'cloudOperation'> = {
  name: 'cloud-operation',
  workflow: 'cloudOperation',
  noun: 'cloud operation',
  table: 'cloud_operations',
  states: { accepted: 'queued', running: 'running' },
  events: 'cloud.operation',
  cancelEnds: 'accepted',
  pageSummary: async (db, id) => {
    const row = await db.maybe(
      SummaryRow,
      sql`select kind, instance_id from cloud_operations where id = ${id}`,
    )
    return (
      row && {
        line: `${row.kind} of cloud instance ${row.instanceId ?? ''}`,
        path: `/cloud-operations/${encodeURIComponent(id)}/`,
      }
    )
  },
  audit: (id, change) => ({ eventType: `cloud.operation.${change}`, externalId: id }),
  // An operation that has not begun has sent no request to the provider.
  end: async (tx, of, end) => {
    if (!(await endOperation(tx, cloudKind, of, end))) return
    const ended = await tx.many(
      Ended,
      sql`update cloud_instances i set status = 'failed', machine_gone = true, ssh_credential_ref = null,
          ssh_public_key = null, failure_reason = 'its provisioning was cancelled before it began'
        from cloud_operations o where o.id = ${of.id} and o.kind = 'provision' and i.id = o.instance_id
          and i.status = 'provisioning' and i.provider_id is null returning i.id`,
    )
    for (const { id } of ended) await dropCredential(tx, 'ssh-key', keyIdOf(id))
  },
}
