import type { CloudMachine, CloudOptions } from '../../sites/cloud-world.ts'
import { startCloud, type CloudSite } from '../../sites/cloud.ts'
import { beforeNextLook } from './pace.ts'
import { makeVaultKeyFile } from './reach.ts'
import { openService, type TestService } from './service.ts'

/** What a service needs to make machines at a site on this machine. */
export const cloudEnvironment = (vaultKeyFile = makeVaultKeyFile()): Record<string, string> => ({
  SERVICE_ALLOW_LOOPBACK_CONNECTIONS: 'true',
  SERVICE_VAULT_KEY_FILE: vaultKeyFile,
  SERVICE_CLOUD_SSH_SOURCE_RANGES: '192.0.2.0/24',
})

/** Machines of a target with this are ready without the playbook that each machine gets otherwise. */
export const withoutPlaybooks = {
  machineConfigurations: [
    { configurationVersionId: 'akoflow-scientific-worker-v7', executionOrder: 0, enabled: false },
  ],
}

export type Provider = 'aws' | 'gcp'

/** How a site is reached as one of its providers. */
const accountOf = (site: CloudSite, provider: Provider) =>
  provider === 'aws'
    ? { credential: site.accessKey, endpoint: site.endpoint, region: site.region }
    : site.google

const types = {
  aws: { 2: 'm5.large', 4: 'c5.xlarge' },
  gcp: { 2: 'e2-standard-2', 4: 'e2-standard-4' },
} as const
const images = {
  aws: 'ami-debian12',
  gcp: 'projects/debian-cloud/global/images/family/debian-12',
} as const

/** What a target says of its machines, which have Debian 12, of either provider. */
export const machinesOf = (provider: Provider, vcpu: 2 | 4 = 2) => ({
  ...{ provider, providerMachineType: types[provider][vcpu], imageReference: images[provider] },
  ...{ vcpu, memoryMiB: 8_192 },
})

/** The site's machines of the service that exist. */
export const livingMachines = (site: CloudSite): CloudMachine[] =>
  [...site.machines.values()].filter(
    ({ state, tags }) => state !== 'terminated' && (tags.has('orrery:service') || tags.has('orrery-service')),
  )

/**
 * An environment `clouds` with a runtime `cloud` and a connection to each of these providers of the site. The first
 * connection is `account`; the others have the names of their providers.
 */
export const openClouds = async (
  service: { post: (path: string, body: object) => Promise<any> },
  site: CloudSite,
  providers: readonly Provider[] = ['aws'],
): Promise<void> => {
  const connections = []
  for (const [at, provider] of providers.entries()) {
    const { credential, endpoint, region } = accountOf(site, provider)
    const id = at === 0 ? 'site' : provider
    const { credentialRef } = await service.post('/cloud-credentials/', { id, provider, credential })
    const connection = at === 0 ? 'account' : provider
    connections.push({
      ...{ id: connection, name: connection, type: 'cloud', endpoint, credentialRef },
      configuration: { provider, region },
    })
  }
  await service.post('/environments/', {
    environment: { id: 'clouds', name: 'clouds' },
    version: { id: 'clouds-v1', version: 1, status: 'published' },
    runtimes: [{ id: 'clouds-r', name: 'r', driver: 'cloud', mode: 'execution' }],
    connections,
  })
}

/** The site's machine of an instance. */
export const machineOfInstance = async (
  service: TestService,
  site: CloudSite,
  instanceId: string,
): Promise<CloudMachine> =>
  site.machines.get((await service.get(`/cloud-instances/${instanceId}/`)).providerId)!

/** Requests about instances, and waits for their operations. */
export const cloudCalls = (service: {
  call: (method: string, path: string, body?: unknown) => Promise<{ status: number; body: any }>
}) => {
  const over = async (id: string): Promise<any> => {
    for (const began = performance.now(); ;) {
      const { body } = await service.call('GET', `/cloud-operations/${id}/`)
      if (!['queued', 'running'].includes(body.status)) return body
      await beforeNextLook(began)
    }
  }
  return {
    over,
    provision: (body: object) => service.call('POST', '/environments/clouds/cloud-instances/', body),
    act: (id: string, action: string) => service.call('POST', `/cloud-instances/${id}/${action}/`),
    instance: async (id: string): Promise<any> => (await service.call('GET', `/cloud-instances/${id}/`)).body,
    events: async (id: string): Promise<any[]> =>
      (await service.call('GET', `/cloud-operations/${id}/events/`)).body,
  }
}

/** The service with the environment of `openClouds` at a site on this machine. */
export const openCloudService = async (
  options: CloudOptions = { machines: 'ssh' },
  { providers = ['aws'], keyFile }: { providers?: readonly Provider[]; keyFile?: string } = {},
) => {
  const site = await startCloud(options)
  let service: TestService | undefined
  const close = async (): Promise<void> => {
    await service?.[Symbol.asyncDispose]()
    await site.stop()
  }
  try {
    service = await openService({ environment: cloudEnvironment(keyFile) })
    await openClouds(service, site, providers)
    return { site, service, calls: cloudCalls(service), close }
  } catch (error) {
    await close()
    throw error
  }
}
