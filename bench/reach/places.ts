import { setTimeout as sleep } from 'node:timers/promises'
import type { SshHost } from '../../sites/ssh.ts'
import { authored, type Dag } from '../dag.ts'
import type { Daemon } from '../daemon.ts'
import type { Planned } from '../planned-run.ts'

/** A resource of a benchmark, reached over SSH. */
export interface Place {
  host: SshHost
  driver: 'ssh' | 'slurm'
  cores: number
  configuration?: Record<string, unknown>
}

/** Stores the key under its own id. @returns the reference */
export const importKey = async (daemon: Daemon, id: string, privateKey: string): Promise<string> =>
  (await daemon.ok('POST', '/ssh-keys/import/', { id, privateKey })).credentialRef

/**
 * Stores a workflow of this shape and an environment of these places, and plans it with HEFT, all
 * over HTTP.
 */
export const planOn = async (
  daemon: Daemon,
  given: {
    name: string
    dag: Dag
    command: (task: string) => Record<string, unknown>
    places: readonly Place[]
    credentialRef: string
  },
): Promise<Planned> => {
  const { name, dag, places, credentialRef } = given
  const ids = places.map(({ host }) => `${name}-${host.name}`)
  await daemon.ok('POST', '/workflow-definitions/', authored(name, dag, given.command))
  await daemon.ok('POST', '/environments/', {
    environment: { id: name, name },
    version: { id: `${name}-v1`, version: 1, status: 'published' },
    connections: places.map(({ host }, i) => ({
      ...{
        id: `${ids[i]!}-login`,
        name: host.name,
        type: 'ssh',
        endpoint: host.address,
        username: host.user,
        credentialRef,
      },
      configuration: { port: host.port, knownHosts: host.knownHosts() },
    })),
    runtimes: places.map(({ driver, configuration }, i) => ({
      ...{ id: `${ids[i]!}-runtime`, name: ids[i]!, mode: 'execution', driver },
      configuration: { connectionId: `${ids[i]!}-login`, ...configuration },
      capabilities: {
        ...{ batch: true, cancellation: true, dataStaging: true, logStreaming: true },
        ...(configuration?.['containerRuntime'] === undefined ? {} : { container: true }),
      },
    })),
    resources: places.map(({ host, driver, cores }, i) => ({
      ...{
        id: ids[i]!,
        providerId: ids[i]!,
        name: host.name,
        cpuCores: cores,
        cpuCapacity: cores,
        memoryBytes: 2 ** 40,
        computeSpeedup: 1,
      },
      ...(driver === 'slurm'
        ? { type: 'cluster', executionTarget: 'batch' }
        : { type: 'hpc_machine', executionTarget: 'direct' }),
      schedulable: true,
    })),
    resourceRuntimeBindings: ids.map((id) => ({ resourceId: id, runtimeId: `${id}-runtime`, enabled: true })),
  })
  await daemon.ok('POST', '/execution-scopes/', { id: name, name, environmentVersionIds: [`${name}-v1`] })
  const topology = {
    ...{ id: `${name}-network`, name, version: 1, executionScopeId: name },
    links: ids.flatMap((source, i) =>
      ids.slice(i + 1).map((target) => ({
        ...{ id: `${source}-${target}`, sourceResourceId: source, targetResourceId: target },
        ...{ bandwidthBitsPerSecond: 1e9, latencySeconds: 0.001, bidirectional: true },
      })),
    ),
  }
  await daemon.ok('POST', '/network-topologies/', topology)
  await daemon.ok('POST', '/planning-sessions/', {
    ...{ id: name, workflowVersionId: `${name}-v1`, executionScopeId: name, networkTopologyId: topology.id },
    algorithms: [{ id: 'heft' }],
  })
  for (;;) {
    const { session } = await daemon.ok('GET', `/planning-sessions/${name}/`)
    if (session.status === 'completed') break
    if (session.status === 'failed') throw new Error(`planning failed: ${String(session.failureReason)}`)
    await sleep(20)
  }
  const [candidate] = await daemon.ok('GET', `/planning-sessions/${name}/candidates/`)
  const { id } = await daemon.ok(
    'POST',
    `/planning-sessions/${name}/candidates/${encodeURIComponent(candidate.id)}/select/`,
  )
  return { dag, planId: id }
}

/** `count` independent tasks. */
export const bag = (count: number): Dag =>
  Object.fromEntries(Array.from({ length: count }, (_, i) => [`t${i}`, []]))

/** The task of every side: it writes its name into a ledger of the site. */
export const notingScript = (task: string): string => `echo ${task} >> "$HOME"/ledger`

/** Throws unless every task noted itself exactly once, on any host. Empties the ledgers. */
export const checkLedgers = async (
  who: string,
  hosts: readonly SshHost[],
  tasks: readonly string[],
): Promise<void> => {
  const read = async (host: SshHost): Promise<string> =>
    (await host.run('cat ~/ledger 2>/dev/null; rm -f ~/ledger', 'account', { mayFail: true })).stdout
  const noted = (await Promise.all(hosts.map(read))).flatMap((text) =>
    text.split('\n').filter((line) => line !== ''),
  )
  const different = new Set(noted)
  if (noted.length !== tasks.length || !tasks.every((task) => different.has(task)))
    throw new Error(
      `${who}: ${tasks.length} tasks noted themselves ${noted.length} times, ${different.size} of them different`,
    )
}

export const versionOf = (text: string): string => /\d+(?:\.\d+)*\w*/.exec(text)?.[0] ?? 'unknown'
