import { DriverError } from '../contract/driver.ts'
import type { Namespace } from './namespace.ts'
import { missingRights } from './rights.ts'
import type { KubernetesSettings } from './settings.ts'
import { asked, isStatus } from './trouble.ts'

/**
 * Checks the requirements before any object is created: rights of the account, and the claim.
 * @throws DriverError `refused` with the remedy
 */
export async function checkNamespace(
  { cluster, namespace, paths }: Namespace,
  { volume, keeperVolume }: Pick<KubernetesSettings, 'volume' | 'keeperVolume'>,
): Promise<void> {
  const missing = await asked(missingRights(cluster, namespace))
  if (missing.length > 0)
    throw new DriverError(
      'refused',
      `the account may not ${missing.join(', ')} in namespace ${namespace}; give it a Role with these rights`,
    )
  const { persistentVolumeClaim: claim } = ((volume ?? keeperVolume)?.source ?? {}) as {
    persistentVolumeClaim?: { claimName: string }
  }
  if (claim === undefined) return
  const field = volume === undefined ? 'keeperVolume' : 'volume'
  await asked(
    cluster.request({ path: `${paths.claims}/${claim.claimName}` }).catch((error: unknown) => {
      if (isStatus(error, 404))
        throw new DriverError(
          'refused',
          `${field}.persistentVolumeClaim ${JSON.stringify(claim.claimName)}: namespace ` +
            `${namespace} has no such claim; make it, or name another`,
        )
      if (!isStatus(error, 403)) throw error
    }),
  )
}
