import type { EngineSockets } from '../../clients/docker.ts'
import { askKubernetes, KubernetesError } from '../../clients/kubernetes.ts'
import type { Db } from '../../db/sql.ts'
import type { Found } from '../../drivers/discovery/found.ts'
import { localEngines } from '../../drivers/discovery/engines.ts'
import { foundHost, hostScript, readHost, withEngines, withoutSilentEngines } from '../../drivers/discovery/host.ts'
import { foundKubernetes } from '../../drivers/discovery/kubernetes.ts'
import { foundSlurm, readSlurm, slurmScript } from '../../drivers/discovery/slurm.ts'
import { LinkError, type SiteShell } from '../../drivers/shell.ts'
import { unbuiltConnectionType } from '../../not-built.ts'
import { Refusal } from '../../refusal.ts'
import { kubernetesServer, namespaceOf, type CheckParts } from './check.ts'
import { applyFound } from './inventory.ts'
import type { Links } from './links.ts'
import type { ConnectionDocument } from './schemas.ts'
import { beginDiscovery, endDiscovery, readConnection, recordCheck, settleEnvironment } from './store.ts'

export interface DiscoverParts extends CheckParts {
  db: Db
  links: Links
}

/** A connection that nothing can be discovered through, with the words against it; undefined for the others. */
export const undiscoverable = ({ type }: ConnectionDocument): Refusal | undefined =>
  unbuiltConnectionType(type) ??
  (type === 'cloud'
    ? new Refusal('unacceptable', 'a connection of type cloud has nothing to discover; ssh, local and kubernetes have')
    : undefined)

const text = (value: unknown): string => (typeof value === 'string' ? value : '')

/** `engineSockets`: those of this machine, whose engines are asked; elsewhere Docker by its program, of the others the programs are looked for. */
const behindShell = async (
  shell: SiteShell,
  connection: ConnectionDocument,
  driver: 'ssh' | 'local',
  engineSockets?: EngineSockets,
): Promise<Found> => {
  const { id: connectionId, configuration = {} } = connection
  const seen = readHost((await shell.run(hostScript, { deadlineMs: 60_000 })).stdout.toString())
  const host =
    engineSockets === undefined ? withoutSilentEngines(seen) : withEngines(seen, await localEngines(seen.containerEngines, engineSockets))
  const scheduler = text(configuration['scheduler'])
  const demanded = scheduler === 'slurm' || text(configuration['partition']) !== ''
  const there = scheduler !== 'none' && (await shell.run('command -v sinfo >/dev/null 2>&1')).code === 0
  if (!there && !demanded) return foundHost(host, { connectionId, driver })
  if (!there) throw new Error('the connection wants Slurm, and the commands of Slurm are not in the search path of the account')
  try {
    const slurm = readSlurm((await shell.run(slurmScript, { deadlineMs: 180_000 })).stdout.toString())
    return foundSlurm(slurm, host, { connectionId, driver })
  } catch (error) {
    if (demanded || error instanceof LinkError) throw error
    const found = foundHost(host, { connectionId, driver })
    return { ...found, warnings: [...found.warnings, `Slurm is installed here and was left out: ${(error as Error).message}`] }
  }
}

const behindApi = async (parts: DiscoverParts, connection: ConnectionDocument): Promise<Found> => {
  const server = await kubernetesServer(parts, connection, 'discover what is behind the connection')
  const namespace = namespaceOf(connection)
  const ask = async (path: string): Promise<unknown> => (await askKubernetes(server, { path })).body
  /** What the account may not read is left out; everything else ends the discovery. */
  const allowed = (path: string): Promise<unknown> =>
    ask(path).catch((error: unknown) => {
      if (error instanceof KubernetesError && (error.status === 403 || error.status === 404)) return undefined
      throw error
    })
  const { gitVersion } = (await ask('/version')) as { gitVersion?: unknown }
  const [nodes, namespaces, quotas, storageClasses] = await Promise.all([
    allowed('/api/v1/nodes?limit=5000'),
    allowed('/api/v1/namespaces?limit=5000'),
    allowed(`/api/v1/namespaces/${encodeURIComponent(namespace)}/resourcequotas`),
    allowed('/apis/storage.k8s.io/v1/storageclasses'),
  ])
  return foundKubernetes(
    { version: text(gitVersion), namespace, nodes, namespaces, quotas, storageClasses },
    { connectionId: connection.id, name: server.host },
  )
}

/** Asks the other side what there is; writes nothing. @throws LinkError, KubernetesError or Error with the reason */
const findBehind = (parts: DiscoverParts, connection: ConnectionDocument): Promise<Found> =>
  connection.type === 'kubernetes'
    ? behindApi(parts, connection)
    : connection.type === 'local'
      ? behindShell(parts.links.localShell, connection, 'local', parts.engineSockets)
      : behindShell(parts.links.shell(connection.id, 'discover what is behind the connection'), connection, 'ssh')

/** Whether asking again later may help without anybody changing anything. */
const mayPass = (error: unknown): boolean =>
  error instanceof LinkError
    ? !error.permanent && !error.waitsForPerson
    : error instanceof KubernetesError && (error.status === undefined || error.status >= 500) && error.stage !== 'host key'

/** How a discovery ended; `over`: it had ended before. */
export interface DiscoveryEnd {
  status: 'completed' | 'failed' | 'over'
  reason?: string
}

/**
 * One discovery: asks, and writes what was found in one transaction. Harmless to repeat: a finished one is left alone, and what is found twice is
 * the same records. `last`: no further try follows; a failure that may pass is recorded instead of thrown.
 */
export const discoverConnection = async (
  parts: DiscoverParts,
  connectionId: string,
  number: number,
  last: boolean,
): Promise<DiscoveryEnd> => {
  const { db } = parts
  const begun = await beginDiscovery(db, connectionId, number)
  const connection = begun === undefined ? undefined : await readConnection(db, connectionId)
  if (connection === undefined) return { status: 'over' }
  const startedAt = performance.now()
  let found: Found
  try {
    const refusal = undiscoverable(connection)
    if (refusal !== undefined) throw refusal
    found = await findBehind(parts, connection)
  } catch (error) {
    const transient = mayPass(error)
    if (transient && !last) throw error
    const reached = !(error instanceof LinkError || error instanceof KubernetesError)
    const problem = (error as Error).message
    await failDiscovery(db, connectionId, number, { problem, transient, reached })
    return { status: 'failed', reason: problem.slice(0, 2_000) }
  }
  return db.transaction(async (tx) => {
    const { snapshotIds, changes } = await applyFound(tx, connection, found)
    if (!(await endDiscovery(tx, connection, number, { snapshotIds })))
      throw new Error(`discovery ${number} of ${connectionId} is over already`)
    const warned = found.warnings.length === 0 ? '' : `; ${found.warnings.length} warning${found.warnings.length === 1 ? '' : 's'}`
    await recordCheck(tx, connection, {
      status: 'online',
      message: `discovered ${found.resources.length} resources, ${found.runtimes.length} runtimes and ${found.storages.length} shared storages${warned}`,
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
    return { status: 'completed' }
  })
}

/** Records that a discovery came to nothing, once. `reached`: the other side answered, which is what its checks are about. */
export const failDiscovery = (
  db: Db,
  connectionId: string,
  number: number,
  { problem, transient, reached }: { problem: string; transient: boolean; reached: boolean },
): Promise<void> =>
  db.transaction(async (tx) => {
    const connection = await readConnection(tx, connectionId)
    if (connection === undefined) return
    if (!(await endDiscovery(tx, connection, number, { problem: problem.slice(0, 2_000), transient }))) return
    await recordCheck(tx, connection, {
      status: reached ? 'online' : 'offline',
      message: `discovery failed: ${problem.slice(0, 2_000)}`,
      latencyMs: 0,
      metadata: { endpoint: connection.endpoint, connectionType: connection.type, discovery: number },
    })
  })

/** Ends an open discovery as failed because Temporal's page asked for it; false when it was over. Its connection is not judged by that. */
export const cancelDiscovery = (db: Db, connectionId: string, number: number): Promise<boolean> =>
  db.transaction(async (tx) => {
    const connection = await readConnection(tx, connectionId)
    if (connection === undefined) return false
    const end = { problem: "cancelled on Temporal's page", transient: true, actorId: 'temporal' }
    if (!(await endDiscovery(tx, connection, number, end))) return false
    await settleEnvironment(tx, connection.environmentId, connectionId, false)
    return true
  })
