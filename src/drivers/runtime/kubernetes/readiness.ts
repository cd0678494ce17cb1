import { DriverError } from '../contract/driver.ts'
import type { Namespace } from './namespace.ts'
import { missingRights } from './rights.ts'
import type { KubernetesSettings } from './settings.ts'
import { asked, isStatus } from './trouble.ts'

/**
 * The first 1.x whose Jobs try each index by itself (`backoffLimitPerIndex`) and replace no Pod that
 * still leaves (`podReplacementPolicy`). Earlier servers drop both fields without a word: seven failed
 * tasks would end all others of their Job.
 */
const firstMinor = 29

interface ServerVersion {
  major?: string
  minor?: string
  gitVersion?: string
}

async function checkVersion(cluster: Pick<Namespace['cluster'], 'request'>): Promise<void> {
  const answer = cluster.request<ServerVersion>({ path: '/version' })
  const { major, minor, gitVersion } = await asked(
    answer.catch((error: unknown): ServerVersion => {
      // The account may not ask.
      if (isStatus(error, 403, 404)) return {}
      throw error
    }),
  )
  // Vendors write `28+`.
  if (major === '1' && Number.parseInt(minor ?? '', 10) < firstMinor)
    throw new DriverError(
      'refused',
      `the cluster is Kubernetes ${gitVersion ?? ''}, whose Jobs give up all tasks after some have failed; ` +
        `update it to 1.${firstMinor} or later, or name another`,
    )
}

/**
 * Checks the requirements before any object is created: rights of the account, the version of the
 * cluster, and the claim.
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
  await checkVersion(cluster)
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
