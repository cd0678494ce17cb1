import { KubernetesError } from '../clients/kubernetes.ts'
import { openKubernetesCluster, type KubernetesCluster } from '../clients/kubernetes-cluster.ts'
import type { Db } from '../db/sql.ts'
import { ownRecords } from '../db/own-records.ts'
import { everyRound } from '../pacing/every-round.ts'
import { clusterServer, type ClusterParts } from './check.ts'
import { readConnection } from '../domains/environment-connections/store.ts'

/** A cluster as a driver of its runtime uses it. */
export type ConnectedCluster = Omit<KubernetesCluster, 'probe' | 'requests' | 'close'>

interface Known {
  at: number
  /** The document with which it was opened. */
  document: string
  cluster: KubernetesCluster
}

/**
 * A connection's document is read again after this long, so that a change reaches clusters in use.
 */
const documentAgeMs = 2_000

/**
 * The clusters of stored connections of type kubernetes: one client each, shared by all callers in
 * this process.
 */
export const openClusters = (parts: ClusterParts & { db: Db }) => {
  const known = new Map<string, Promise<Known>>()

  const open = async (connectionId: string, before: Known | undefined): Promise<Known> => {
    const connection = await ownRecords(readConnection(parts.db, connectionId))
    if (connection?.type !== 'kubernetes') {
      before?.cluster.close()
      const what =
        connection === undefined ? 'does not exist' : `is of type ${connection.type}, not kubernetes`
      throw new KubernetesError('name', `connection ${JSON.stringify(connectionId)} ${what}`, {
        permanent: true,
      })
    }
    const { endpoint, credentialRef, configuration } = connection
    const document = JSON.stringify([endpoint, credentialRef, configuration])
    if (before?.document === document) return { ...before, at: Date.now() }
    before?.cluster.close()
    const server = clusterServer(parts, connection, 'run tasks in the cluster')
    return {
      at: Date.now(),
      document,
      cluster: openKubernetesCluster({ ...server, token: () => ownRecords(server.token()) }),
    }
  }

  const current = async (connectionId: string): Promise<KubernetesCluster> => {
    const before = await known.get(connectionId)?.catch(() => undefined)
    if (before !== undefined && Date.now() - before.at < documentAgeMs) return before.cluster
    const opening = open(connectionId, before)
    known.set(connectionId, opening)
    opening.catch(() => known.delete(connectionId))
    return (await opening).cluster
  }

  return {
    /**
     * The cluster of a stored connection; it follows changes of the connection's document. A
     * deleted connection rejects at the first call.
     */
    cluster: (connectionId: string): ConnectedCluster => ({
      request: async (request) => (await current(connectionId)).request(request),
      list: async (path, query) => (await current(connectionId)).list(path, query),
      watch(path, query, handlers) {
        let watched: { cluster: KubernetesCluster; stop: () => void } | undefined
        const follow = async (signal: AbortSignal): Promise<void> => {
          // A cluster that cannot be reached reports that to its callers; here it is only tried
          // again.
          const cluster = await current(connectionId).catch(() => undefined)
          if (signal.aborted || cluster === undefined || cluster === watched?.cluster) return
          watched?.stop()
          watched = { cluster, stop: cluster.watch(path, query, handlers) }
        }
        const following = everyRound(documentAgeMs, follow, () => undefined)
        return () => void following.stop().then(() => watched?.stop())
      },
      exec: async (request) => (await current(connectionId)).exec(request),
      log: async (...args) => (await current(connectionId)).log(...args),
    }),

    async close(): Promise<void> {
      for (const opening of known.values())
        await opening.then(({ cluster }) => cluster.close()).catch(() => undefined)
      known.clear()
    },
  }
}
