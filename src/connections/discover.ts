import type { EngineSockets } from '../clients/docker.ts'
import { KubernetesError } from '../clients/kubernetes.ts'
import type { Db } from '../db/sql.ts'
import type { Discovered } from './discovery/found.ts'
import { localEngines } from './discovery/engines.ts'
import { foundHost, hostScript, readHost, withEngines, withoutSilentEngines } from './discovery/host.ts'
import { foundKubernetes } from './discovery/kubernetes.ts'
import { foundSlurm, readSlurm, slurmScript } from './discovery/slurm.ts'
import type { ConnectionReports } from '../domains/environment-connections/changes.ts'
import { LinkError, type SiteShell } from '../shell/site-shell.ts'
import { unbuiltConnectionType } from '../not-built.ts'
import { Refusal } from '../refusal.ts'
import { withCluster, connectionNamespace, type CheckParts } from './check.ts'
import { applyFound } from './inventory.ts'
import type { Links } from './links.ts'
import {
  beginDiscovery,
  endDiscovery,
  type DiscoveryRef,
} from '../domains/environment-connections/discoveries.ts'
import type { ConnectionDocument } from '../domains/environment-connections/schemas.ts'
import { readConnection, recordCheck, settleEnvironment } from '../domains/environment-connections/store.ts'
import { memberText } from '../json-object.ts'

export interface DiscoverParts extends CheckParts {
  db: Db
  links: Links
  reports: ConnectionReports
}

/** The refusal for a connection that discovery does not support; undefined for the others. */
export const undiscoverable = ({ type }: ConnectionDocument): Refusal | undefined =>
  unbuiltConnectionType(type) ??
  (type === 'cloud'
    ? new Refusal(
        'unacceptable',
        'a connection of type cloud has nothing to discover; ssh, local and kubernetes have',
      )
    : undefined)

/**
 * `engineSockets`: of this machine, whose engines answer at their sockets. Elsewhere discovery runs
 * Docker's program, and looks for the programs of the other engines.
 */
const behindShell = async (
  shell: SiteShell,
  connection: ConnectionDocument,
  driver: 'ssh' | 'local',
  engineSockets?: EngineSockets,
): Promise<Discovered> => {
  const { id: connectionId, configuration = {} } = connection
  const seen = readHost((await shell.run(hostScript, { deadlineMs: 60_000 })).stdout.toString())
  const host =
    engineSockets === undefined
      ? withoutSilentEngines(seen)
      : withEngines(seen, await localEngines(seen.containerEngines, engineSockets))
  const scheduler = memberText(configuration['scheduler'])
  const demanded = scheduler === 'slurm' || memberText(configuration['partition']) !== ''
  const there = scheduler !== 'none' && (await shell.run('command -v sinfo >/dev/null 2>&1')).code === 0
  if (!there && !demanded) return foundHost(host, { connectionId, driver })
  if (!there)
    throw new Error(
      'the connection wants Slurm, and the commands of Slurm are not in the search path of the account',
    )
  try {
    const slurm = readSlurm((await shell.run(slurmScript, { deadlineMs: 180_000 })).stdout.toString())
    return foundSlurm(slurm, host, { connectionId, driver })
  } catch (error) {
    if (demanded || error instanceof LinkError) throw error
    const found = foundHost(host, { connectionId, driver })
    return {
      ...found,
      warnings: [...found.warnings, `Slurm is installed here and was left out: ${(error as Error).message}`],
    }
  }
}

const behindApi = (parts: DiscoverParts, connection: ConnectionDocument): Promise<Discovered> =>
  withCluster(parts, connection, 'discover what is behind the connection', async (cluster, host) => {
    const namespace = connectionNamespace(connection)
    /** Skips what the account may not read; any other error ends the discovery. */
    const allowed = (path: string): Promise<unknown> =>
      cluster.list(path).catch((error: unknown) => {
        if (error instanceof KubernetesError && (error.status === 403 || error.status === 404))
          return undefined
        throw error
      })
    const { version } = await cluster.probe()
    const [nodes, namespaces, quotas, storageClasses] = await Promise.all([
      allowed('/api/v1/nodes'),
      allowed('/api/v1/namespaces'),
      allowed(`/api/v1/namespaces/${encodeURIComponent(namespace)}/resourcequotas`),
      allowed('/apis/storage.k8s.io/v1/storageclasses'),
    ])
    return foundKubernetes(
      { version: memberText(version), namespace, nodes, namespaces, quotas, storageClasses },
      { connectionId: connection.id, name: host },
    )
  })

/**
 * Discovers what is at the other side; writes nothing. @throws LinkError, KubernetesError or Error
 * with the reason
 */
const findBehind = (parts: DiscoverParts, connection: ConnectionDocument): Promise<Discovered> =>
  connection.type === 'kubernetes'
    ? behindApi(parts, connection)
    : connection.type === 'local'
      ? behindShell(parts.links.localShell, connection, 'local', parts.engineSockets)
      : behindShell(
          parts.links.shell(connection.id, 'discover what is behind the connection'),
          connection,
          'ssh',
        )

/** Whether a later attempt may succeed without a change by a person. */
const mayPass = (error: unknown): boolean => {
  if (error instanceof LinkError) return !error.permanent && !error.waitsForPerson
  // The key file of this process lacks a key that another one may have.
  if (error instanceof Refusal) return error.code === 'unavailable'
  return (
    error instanceof KubernetesError &&
    (error.status === undefined || error.status >= 500) &&
    error.stage !== 'host key'
  )
}

/** How a discovery ended; `over`: it had ended before. */
export interface DiscoveryEnd {
  status: 'completed' | 'failed' | 'over'
  reason?: string
}

/**
 * Runs one discovery and writes its findings in one transaction. It is safe to repeat: a finished
 * one is left alone, and what is found twice updates the same records. `last`: no further try
 * follows; a failure that may pass is recorded instead of thrown.
 */
export const discoverConnection = async (
  parts: DiscoverParts,
  of: DiscoveryRef,
  last: boolean,
): Promise<DiscoveryEnd> => {
  const { db } = parts
  const { id: connectionId, generation: number } = of
  const begun = await beginDiscovery(db, of)
  const connection = begun === undefined ? undefined : await readConnection(db, connectionId)
  if (connection === undefined) return { status: 'over' }
  const startedAt = performance.now()
  let found: Discovered
  try {
    const refusal = undiscoverable(connection)
    if (refusal !== undefined) throw refusal
    found = await findBehind(parts, connection)
  } catch (error) {
    const transient = mayPass(error)
    if (transient && !last) throw error
    // A refusal is one of this service: the other side was not asked.
    const reached =
      error instanceof Refusal ? undefined : !(error instanceof LinkError || error instanceof KubernetesError)
    const problem = (error as Error).message
    await failDiscovery(parts, of, { problem, transient, reached })
    return { status: 'failed', reason: problem.slice(0, 2_000) }
  }
  const change = await db.transaction(async (tx) => {
    const { snapshotIds, changes } = await applyFound(tx, connection, found)
    if (!(await endDiscovery(tx, connection, of, { snapshotIds })))
      throw new Error(`discovery ${number} of ${connectionId} is over already`)
    const warned =
      found.warnings.length === 0
        ? ''
        : `; ${found.warnings.length} warning${found.warnings.length === 1 ? '' : 's'}`
    const recorded = await recordCheck(tx, connection, {
      status: 'online',
      message:
        `discovered ${found.resources.length} resources, ${found.runtimes.length} runtimes and ` +
        `${found.storages.length} shared storages${warned}`,
      latencyMs: Math.round(performance.now() - startedAt),
      metadata: {
        endpoint: connection.endpoint,
        connectionType: connection.type,
        discovery: number,
        discoverySource: found.source,
        changes,
        ...(found.warnings.length === 0 ? {} : { warnings: found.warnings }),
      },
    })
    return recorded?.change
  })
  if (change !== undefined) parts.reports.connectionChanged(change)
  return { status: 'completed' }
}

/**
 * Records the failure of a discovery, once. `reached`: whether the other side answered, which is what
 * its checks are about; undefined where that is not known.
 */
export const failDiscovery = async (
  { db, reports }: Pick<DiscoverParts, 'db' | 'reports'>,
  of: DiscoveryRef,
  { problem, transient, reached }: { problem: string; transient: boolean; reached: boolean | undefined },
): Promise<void> => {
  const change = await db.transaction(async (tx) => {
    const connection = await readConnection(tx, of.id)
    if (connection === undefined) return undefined
    if (!(await endDiscovery(tx, connection, of, { problem: problem.slice(0, 2_000), transient })))
      return undefined
    if (reached === undefined) {
      await settleEnvironment(tx, connection.environmentId, of.id, false)
      return undefined
    }
    const recorded = await recordCheck(tx, connection, {
      status: reached ? 'online' : 'offline',
      message: `discovery failed: ${problem.slice(0, 2_000)}`,
      latencyMs: 0,
      metadata: { endpoint: connection.endpoint, connectionType: connection.type, discovery: of.generation },
    })
    return recorded?.change
  })
  if (change !== undefined) reports.connectionChanged(change)
}

/**
 * Ends an open discovery as failed after a cancel on Temporal's page; false when it was over. This
 * does not affect the health of its connection.
 */
export const cancelDiscovery = (db: Db, of: DiscoveryRef): Promise<boolean> =>
  db.transaction(async (tx) => {
    const connection = await readConnection(tx, of.id)
    if (connection === undefined) return false
    const end = { problem: "cancelled on Temporal's page", transient: true, actorId: 'temporal' }
    if (!(await endDiscovery(tx, connection, of, end))) return false
    await settleEnvironment(tx, connection.environmentId, of.id, false)
    return true
  })
