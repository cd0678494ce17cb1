import { startSsh } from '../../sites/ssh.ts'
import { connectionTo, makeVaultKeyFile } from './reach.ts'
import { openService, type TestService } from './service.ts'

type Places = Readonly<
  Record<
    string,
    { driver: string; configuration?: Record<string, unknown>; enabled?: boolean; type?: string }
  >
>

/** An environment whose resources have consoles: each is bound to one runtime. */
export const consoleEnvironment = (name: string, places: Places, connections: readonly object[] = []) => ({
  environment: { id: name, name, status: 'ready' },
  version: {
    ...{
      id: `${name}-v1`,
      environmentId: name,
      version: 1,
      status: 'published',
      networkModel: 'static-links',
    },
    ...{ interferenceModel: 'none', costModel: 'per-second', configurationHash: name },
  },
  runtimes: Object.entries(places).map(([id, { driver, configuration = {} }]) => ({
    ...{ id: `${id}-runtime`, name: id, driver, mode: 'execution', role: 'compute', configuration },
  })),
  connections: connections.map((connection) => ({ ...connection, environmentId: name })),
  resources: Object.entries(places).map(([id, { type = 'local_machine' }]) => ({
    ...{
      id,
      name: id,
      providerId: id,
      executionTarget: 'direct',
      type,
      cpuCores: 2,
      cpuCapacity: 2,
    },
    ...{
      memoryBytes: 2 ** 34,
      storageBytes: 2 ** 34,
      computeSpeedup: 1,
      pricePerSecond: 0,
      schedulable: true,
    },
  })),
  resourceRuntimeBindings: Object.entries(places).map(([id, { enabled = true }]) => ({
    resourceId: id,
    runtimeId: `${id}-runtime`,
    enabled,
  })),
})

/** A token in the vault that nothing may record. */
export const deskToken = 'eyJhbGciOiJSUzI1NiIsImtpZCI6InRlc3QifQ.a-token-that-nothing-may-record'

/**
 * The service with consoles at an environment `desk`: `here` is this machine, `there` an SSH host,
 * `loose` has no runtime that is enabled; `places` are more.
 */
export const openDesk = async (places: Places = {}, environment: Record<string, string> = {}) => {
  const ssh = await startSsh({ hosts: 1 })
  let service: TestService | undefined
  const close = async (): Promise<void> => {
    await service?.[Symbol.asyncDispose]()
    await ssh.stop()
  }
  try {
    service = await openService({
      environment: {
        SERVICE_CONSOLE_ENABLED: 'true',
        SERVICE_VAULT_KEY_FILE: makeVaultKeyFile(),
        SERVICE_ALLOW_LOOPBACK_CONNECTIONS: 'true',
        ...environment,
      },
    })
    await service.post('/ssh-keys/import/', { id: 'host', privateKey: ssh.key.privateKey })
    await service.post('/kubernetes-tokens/', { id: 'cluster', token: deskToken })
    const usual = {
      here: { driver: 'local' },
      there: { driver: 'ssh', configuration: { connectionId: 'desk-host' } },
      loose: { driver: 'local', enabled: false },
    }
    await service.post(
      '/environments/',
      consoleEnvironment('desk', { ...usual, ...places }, [connectionTo('desk-host', ssh.hosts[0], 'host')]),
    )
    return { service, close }
  } catch (error) {
    await close()
    throw error
  }
}
