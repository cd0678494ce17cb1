import type { EngineSockets } from '../../clients/docker.ts'
import type { Db } from '../../db/sql.ts'
import { route, type Route } from '../../http/route.ts'
import { existing, unacceptableAt } from '../../refusal.ts'
import type { Links } from '../../connections/links.ts'
import { openLimitsProbe, probeBuildkit, probeEngine, probeServer } from './probes.ts'
import { InstanceDocument, PreferencesDocument, PreflightDocument } from './schemas.ts'
import { readSystemInstance, readPreferences, saveInstance, savePreferences } from './store.ts'

export interface SystemInstanceParts {
  db: Db
  /** The sockets that the preflight check contacts. */
  engineSockets: EngineSockets
  buildkitSocket: string
  /** The links with the commands of this machine, on which tasks run. */
  links: Pick<Links, 'localShell'>
}

const refuseClientId = (clientId: string): void => {
  const { length } = Array.from(clientId)
  if (length >= 8 && length <= 128) return
  throw unacceptableAt(
    'clientId',
    `must be 8 to 128 characters (got ${String(length)}); a client makes up its id once and keeps it`,
  )
}

export const systemInstanceRoutes = (
  { db, engineSockets, buildkitSocket, links }: SystemInstanceParts,
  probeLimits = openLimitsProbe(links.localShell),
): Route[] => [
  route('getInstance', 'GET /instance/', {
    summary: 'Identity and settings of this installation',
    public: true,
    refuses: [404],
    response: InstanceDocument,
    handle: async () => existing(await readSystemInstance(db), 'instance', 'default'),
  }),
  route('updateInstance', 'PUT /instance/', {
    summary: 'Save the whole identity of this installation',
    body: InstanceDocument,
    response: InstanceDocument,
    audit: { eventType: 'instance.saved', summary: 'instance saved' },
    handle: ({ body }) => saveInstance(db, body),
  }),
  route('getPreflight', 'GET /preflight/', {
    summary:
      'Whether the service, the container engine and the build backend answer now, and what holds ' +
      'tasks to their memory; takes 3 s at most',
    public: 'get',
    response: PreflightDocument,
    handle: async () => {
      const [server, docker, buildkit, limits] = await Promise.all([
        probeServer(db),
        probeEngine(engineSockets),
        probeBuildkit(buildkitSocket, engineSockets),
        probeLimits(),
      ])
      return { server, docker, buildkit, limits }
    },
  }),
  route('getUserPreferences', 'GET /user-preferences/{clientId}/', {
    summary: 'What a client keeps for its user',
    response: PreferencesDocument,
    handle: async ({ params }) => {
      return existing(
        await readPreferences(db, params.clientId),
        'user preferences of client',
        params.clientId,
      )
    },
  }),
  route('updateUserPreferences', 'PUT /user-preferences/{clientId}/', {
    summary: 'Save what a client keeps for its user',
    body: PreferencesDocument,
    response: PreferencesDocument,
    creates: true,
    audit: { eventType: 'user-preferences.saved', summary: 'preferences of client {clientId} saved' },
    handle: ({ params, body }) => {
      refuseClientId(params.clientId)
      return savePreferences(db, params.clientId, body)
    },
  }),
]
