import { randomBytes } from 'node:crypto'
import { mkdtempSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { KubernetesSite } from '../../sites/kubernetes.ts'
import type { LoopbackHost } from '../../sites/loopback.ts'
import type { SshHost } from '../../sites/ssh.ts'
import { runFolder } from './run-folder.ts'
import type { WorldPlace } from './worlds.ts'

/** A fresh key file for the vault of a service under test. */
export const makeVaultKeyFile = (): string => {
  const file = join(mkdtempSync(join(runFolder(), 'vault-')), 'vault.key')
  writeFileSync(file, `${randomBytes(32).toString('base64')}\n`, { mode: 0o600 })
  return file
}

/**
 * The document of a connection to a host of a site, with the key imported as `key`, and with
 * further settings.
 */
export const connectionTo = (
  id: string,
  host: Pick<SshHost | LoopbackHost, 'address' | 'port' | 'user' | 'fingerprint'>,
  key: string,
  more: object = {},
) => ({
  id,
  name: id,
  type: 'ssh',
  endpoint: host.port === 22 ? host.address : `${host.address}:${String(host.port)}`,
  username: host.user,
  credentialRef: `vault:ssh-key/${key}`,
  configuration: { hostKeyFingerprints: [host.fingerprint()], ...more },
})

export const onHost = (connectionId: string, configuration: Record<string, unknown> = {}): WorldPlace => ({
  driver: 'ssh',
  configuration: { connectionId, ...configuration },
})

export const onCluster = (connectionId: string, configuration: Record<string, unknown> = {}): WorldPlace => ({
  driver: 'slurm',
  configuration: { connectionId, partition: 'main', ...configuration },
})

/** A namespace of a cluster as a place for tests; the caller supplies the connection. */
export const inCluster = (
  connectionId: string,
  { namespace, volume, images }: Pick<KubernetesSite, 'namespace' | 'volume' | 'images'>,
  configuration: Record<string, unknown> = {},
): WorldPlace => ({
  driver: 'kubernetes',
  configuration: {
    connectionId,
    namespace,
    volume: { persistentVolumeClaim: volume.claim },
    helperImage: images.gnu,
    ...configuration,
  },
  capabilities: { container: true },
})

/** Containers on this machine. */
export const inContainers = (configuration: Record<string, unknown>): WorldPlace => ({
  driver: 'local',
  configuration,
  capabilities: { container: true },
})

export const onFunctions = (endpoint: string, configuration: Record<string, unknown> = {}): WorldPlace => ({
  driver: 'serverless',
  configuration: { endpoint, shape: 'http', ...configuration },
})

export const eventually = async <T>(
  what: string,
  withinSeconds: number,
  probe: () => Promise<T | undefined | false>,
): Promise<T> => {
  const limit = Math.max(withinSeconds, 120)
  for (const deadline = Date.now() + limit * 1_000; ;) {
    const value = await probe()
    if (value !== undefined && value !== false) return value
    if (Date.now() > deadline) throw new Error(`not within ${String(limit)} s: ${what}`)
    await new Promise((resolve) => setTimeout(resolve, 200))
  }
}
