import { openPodStorage, type ClaimAccess } from '../../drivers/storage/pod.ts'
import { StorageError, type StorageDriver } from '../../drivers/storage/contract.ts'
import { nameOf, parseNames } from '../../drivers/storage/paths.ts'
import { unacceptableAt } from '../../refusal.ts'
import type { StorageFacts } from '../environments/storages.ts'
import { settingOf, shownEndpoint } from './connection.ts'
import type { KeptDrivers } from './kept-drivers.ts'
import type { Reached } from './reached.ts'

export interface PodParts {
  clusterOf: (connectionId: string) => ClaimAccess['cluster']
  /** SERVICE_KUBERNETES_HELPER_IMAGE. */
  helperImage: string
}

const label = /^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$/
const usualMount = '/storage'
/** The keys of the storage's configuration that concern its Pod. */
const podKeys = [
  ...['helperImage', 'nodeSelector', 'tolerations', 'priorityClassName', 'imagePullSecrets'],
  ...['runtimeClassName', 'runAsUser', 'runAsGroup', 'fsGroup', 'confined', 'imagePullPolicy', 'labels'],
]

/** Claim and namespace: `pvc://namespace/claim`, or by the configuration. @throws Refusal 422 */
const claimOf = ({ endpoint, configuration }: StorageFacts): { namespace: string; claim: string } => {
  const [, namespace, claim] = /^pvc:\/\/([^/]+)\/([^/]+)\/?$/.exec(endpoint) ?? []
  const settings = configuration ?? {}
  const found = { namespace: namespace ?? settings['namespace'], claim: claim ?? settings['claimName'] }
  if (typeof found.namespace !== 'string' || !label.test(found.namespace))
    throw unacceptableAt(
      'storage.endpoint',
      `${shownEndpoint(endpoint)} names no claim; give pvc://namespace/claim`,
    )
  if (typeof found.claim !== 'string' || !label.test(found.claim))
    throw unacceptableAt(
      'storage.configuration.claimName',
      'names no claim; give it here, or as pvc://namespace/claim in endpoint',
    )
  return { namespace: found.namespace, claim: found.claim }
}

/**
 * The connection to a volume of a cluster. @throws Refusal 422 for wrong members of the storage's
 * record
 */
export const podReach = (
  { clusterOf, helperImage }: PodParts,
  { find, keep }: KeptDrivers,
  facts: StorageFacts,
  connectionId: string,
): Reached => {
  const settings = facts.configuration ?? {}
  const { namespace, claim } = claimOf(facts)
  const mountPath = settingOf(facts, 'mountPath') ?? usualMount
  if (!mountPath.startsWith('/') || parseNames(nameOf(mountPath)).length === 0)
    throw unacceptableAt('storage.configuration.mountPath', 'must be an absolute path below /, like /data')
  const pod = Object.fromEntries(podKeys.flatMap((key) => (key in settings ? [[key, settings[key]]] : [])))
  const key = JSON.stringify(['pod', connectionId, namespace, claim, mountPath, pod])
  const open = (): StorageDriver => {
    const cluster = clusterOf(connectionId)
    const configuration = { helperImage, ...pod }
    try {
      return openPodStorage({ cluster, namespace, claim, mountPath, configuration })
    } catch (error) {
      if (error instanceof StorageError) throw unacceptableAt('storage.configuration', error.message)
      throw error
    }
  }
  const driver = find(key) ?? keep(key, open())
  return { driver, place: { at: JSON.stringify(['claim', connectionId, namespace, claim]), base: [] } }
}
