import { makeSshKey } from '../../clients/ssh/keys.ts'
import { z } from 'zod'
import { sql, type Db } from '../../db/sql.ts'
import { lockOperation, reopenOperation, type Operation } from '../../operations/records.ts'
import { Refusal } from '../../refusal.ts'
import { referenceOf } from '../../vault/vault.ts'
import { activeOf, busy, requireRoom, usableTarget, type AcceptParts } from './accept.ts'
import { SshKey } from '../credentials/schemas.ts'
import { holdReplaceable, readCredential } from '../credentials/store.ts'
import { keyIdOf } from './instance-keys.ts'
import { cloudKind } from './operation.ts'

const Row = z.object({
  kind: z.string(),
  environmentId: z.string(),
  targetId: z.string(),
  instanceId: z.string(),
  status: z.string(),
  machineGone: z.boolean(),
})

/**
 * Prepares an instance whose machine was ended for another one: another reference, so that the
 * provider makes a new machine, and another key, unless something else refers to the former one. The
 * bill of the former machine stays.
 */
const renew = async (tx: Db, { vault }: AcceptParts, id: string): Promise<void> => {
  const { privateKey, ...made } = makeSshKey(`orrery ${id}`)
  const keyId = keyIdOf(id)
  await vault.put(tx, keyId, { kind: 'ssh-key', privateKey }, made)
  await holdReplaceable(tx, 'ssh-key', keyId)
  const { publicKey } = await readCredential(tx, SshKey, 'ssh-key', keyId)
  await tx.run(sql`update cloud_instances set reference = gen_random_uuid(), asked_at = null, account = null,
      provider_id = null, zone = null, host_key = null, configuring_at = null, ready_at = null, machine_gone = false,
      ssh_credential_ref = ${referenceOf('ssh-key', keyId)},
      ssh_public_key = ${publicKey} where id = ${id}`)
}

/**
 * Reopens a failed operation. A provisioning whose machine was ended makes another machine.
 * @returns the operation before; undefined where it does not exist
 * @throws Refusal 409 where the instance is under another operation or is destroyed, or has no room
 */
export const retryCloudOperation = (parts: AcceptParts, id: string): Promise<Operation | undefined> =>
  parts.db.transaction(async (tx) => {
    const found = await lockOperation(tx, cloudKind, { id })
    if (found?.status !== 'failed') return found
    const of = await tx.one(
      Row,
      sql`select o.kind, o.environment_id, i.capacity_target_id as target_id, i.id as instance_id, i.status,
          i.machine_gone from cloud_operations o join cloud_instances i on i.id = o.instance_id
        where o.id = ${id} for update of i`,
    )
    const active = await activeOf(tx, of.instanceId)
    if (active !== undefined) throw busy(of.instanceId, active, of.status)
    if (of.status === 'destroyed' || (of.machineGone && of.kind !== 'provision' && of.kind !== 'destroy'))
      throw new Refusal(
        'conflict',
        `the machine of the instance ${JSON.stringify(of.instanceId)} is gone; provision another instance`,
        {
          extra: { state: of.status },
        },
      )
    if (of.kind === 'provision') {
      const target = await usableTarget(tx, of.environmentId, { capacityTargetId: of.targetId })
      if (of.machineGone) {
        await requireRoom(tx, target)
        await renew(tx, parts, of.instanceId)
        // What ran on the machine before is not on the new one.
        await tx.run(sql`update cloud_operations set configured = '[]'::jsonb where id = ${id}`)
      }
      await tx.run(sql`update cloud_instances set status = 'provisioning', failure_reason = null
        where id = ${of.instanceId} and status = 'failed'`)
    }
    await reopenOperation(tx, cloudKind, found)
    return found
  })
