import { join } from 'node:path'
import { startCloud, type CloudSite } from '../../sites/cloud.ts'
import { startDaemon, type Daemon } from '../daemon.ts'

/** What the benchmarks of the cloud share: a provider on this machine, and a daemon that uses it. */

export const examples = join(import.meta.dirname, '../../examples')
export const environmentId = 'clouds'
const ssh = ['192.0.2.0/24']

export const openProvider = async () => {
  const site = await startCloud({ machines: 'ssh' })
  const daemon = await startDaemon({
    SERVICE_ALLOW_LOOPBACK_CONNECTIONS: 'true',
    SERVICE_CLOUD_SSH_SOURCE_RANGES: ssh.join(','),
    SERVICE_SEED_ROOT: examples,
  }).catch(async (error: unknown) => {
    await site.stop()
    throw error
  })
  return {
    site,
    daemon,
    async [Symbol.asyncDispose]() {
      await daemon.stop()
      await site.stop()
    },
  }
}

/** An environment with a runtime for machines and a connection to the site's EC2. */
export const addEnvironment = async (daemon: Daemon, site: CloudSite): Promise<void> => {
  const { credentialRef } = await daemon.ok('POST', '/cloud-credentials/', {
    ...{ id: 'site', provider: 'aws', credential: site.accessKey },
  })
  await daemon.ok('POST', '/environments/', {
    environment: { id: environmentId, name: environmentId },
    version: { id: `${environmentId}-v1`, version: 1, status: 'published' },
    runtimes: [{ id: `${environmentId}-r`, name: 'machines', driver: 'cloud', mode: 'execution' }],
    connections: [
      {
        ...{ id: 'account', name: 'account', type: 'cloud', endpoint: site.endpoint, credentialRef },
        configuration: { provider: 'aws', region: site.region },
      },
    ],
  })
}

/** A target whose machines get the named version, or nothing. */
export const addTarget = async (daemon: Daemon, id: string, versionId?: string): Promise<void> => {
  await daemon.ok('POST', `/environments/${environmentId}/cloud-capacity-targets/`, {
    ...{ id, name: id, provider: 'aws', providerMachineType: 'm5.large', imageReference: 'ami-debian12' },
    ...{ vcpu: 2, memoryMiB: 8_192, maximumInstances: 1_000 },
    configuration: { pricePerHour: 3.6, diskSizeGiB: 8, diskPricePerGiBMonth: 0.08 },
    machineConfigurations: [
      { configurationVersionId: 'akoflow-scientific-worker-v7', executionOrder: 0, enabled: false },
      ...(versionId === undefined ? [] : [{ configurationVersionId: versionId, executionOrder: 1 }]),
    ],
  })
}

/** Waits until operations are over. @throws Error for one that did not complete */
export const awaitOperations = async (daemon: Daemon, ids: readonly string[]): Promise<void> => {
  const open = new Set(ids)
  while (open.size > 0) {
    for (const id of open) {
      const operation = await daemon.ok('GET', `/cloud-operations/${id}/`)
      if (['queued', 'running'].includes(operation.status)) break
      if (operation.status !== 'completed') throw new Error(`${id}: ${String(operation.failureReason)}`)
      open.delete(id)
    }
    await new Promise((resolve) => setTimeout(resolve, 50))
  }
}

/** All requests to the provider so far. */
export const callsOf = ({ calls }: CloudSite): number =>
  [...calls.values()].reduce((sum, count) => sum + count, 0)
