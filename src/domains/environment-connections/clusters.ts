import { setTimeout as sleep } from 'node:timers/promises'
import { KubernetesError } from '../../clients/kubernetes.ts'
import { openKubernetesCluster, type KubernetesCluster } from '../../clients/kubernetes-cluster.ts'
import type { Db } from '../../db/sql.ts'
import { clusterServer, type ClusterParts } from './check.ts'
import { readConnection } from './store.ts'

/** A cluster as a driver of its runtime uses it. */
export type ConnectedCluster = Omit<KubernetesCluster, 'requests' | 'close'>

interface Known {
  at: number
  /** What it was opened with. */
  document: string
  cluster: KubernetesCluster
}

/** A connection's document is read again after this long, so that a change reaches clusters that are in use. */
const documentAgeMs = 2_000

/** The clusters of stored connections of type kubernetes: one client each, shared by everything in this process. */
export const openClusters = (parts: ClusterParts & { db: Db }) => {
  const known = new Map<string, Promise<Known>>()

  const open = async (connectionId: string, before: Known | undefined): Promise<Known> => {
    const connection = await readConnection(parts.db, connectionId)
    if (connection?.type !== 'kubernetes') {
      before?.cluster.close()
      const what = connection === undefined ? 'does not exist' : `is of type ${connection.type}, not kubernetes`
      throw new KubernetesError('name', `connection ${JSON.stringify(connectionId)} ${what}`, { permanent: true })
    }
    const { endpoint, credentialRef, configuration } = connection
    const document = JSON.stringify([endpoint, credentialRef, configuration])
    if (before?.document === document) return { ...before, at: Date.now() }
    before?.cluster.close()
    return { at: Date.now(), document, cluster: openKubernetesCluster(clusterServer(parts, connection, 'run tasks in the cluster')) }
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
    /** The cluster of a stored connection; it follows changes of the connection's document. One that is gone rejects at the first call. */
    cluster: (connectionId: string): ConnectedCluster => ({
      request: async (request) => (await current(connectionId)).request(request),
      list: async (path, query) => (await current(connectionId)).list(path, query),
      watch(path, query, handlers) {
        const stopping = new AbortController()
        let watched: { cluster: KubernetesCluster; stop: () => void } | undefined
        const follow = async (): Promise<void> => {
          // A cluster that cannot be reached says so to whoever asks it; here it is only tried again.
          const cluster = await current(connectionId).catch(() => undefined)
          if (stopping.signal.aborted || cluster === undefined || cluster === watched?.cluster) return
          watched?.stop()
          watched = { cluster, stop: cluster.watch(path, query, handlers) }
        }
        const following = (async () => {
          while (!stopping.signal.aborted) {
            await follow()
            await sleep(documentAgeMs, undefined, { signal: stopping.signal, ref: false }).catch(() => undefined)
          }
        })()
        return () => {
          stopping.abort()
          void following.then(() => watched?.stop())
        }
      },
      exec: async (request) => (await current(connectionId)).exec(request),
      log: async (...args) => (await current(connectionId)).log(...args),
    }),

    async close(): Promise<void> {
      for (const opening of known.values()) await opening.then(({ cluster }) => cluster.close()).catch(() => undefined)
      known.clear()
    },
  }
}
