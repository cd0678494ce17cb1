import { randomUUID } from 'node:crypto'
import { z } from 'zod'
import type { Engine } from '../../engine.ts'
import { Reply, route, type Route } from '../../http/route.ts'
import { unbuiltConnectionType } from '../../not-built.ts'
import { dispatchOperation } from '../../operations/routes.ts'
import { openBackoff } from '../../pacing/backoff.ts'
import { poll } from '../../pacing/poll.ts'
import { missing, Refusal, unacceptable, type Problem, existing } from '../../refusal.ts'
import { markMonitored } from '../environments/connections.ts'
import { connectionSecretProblems } from '../environments/secrets.ts'
import { checkConnection, type PinParts } from '../../connections/check.ts'
import { undiscoverable, type DiscoverParts } from '../../connections/discover.ts'
import { checkAndRecord } from '../../connections/monitor.ts'
import { connectionProblems } from '../../connections/rules.ts'
import {
  ConnectionCheck,
  ConnectionDocument,
  ConnectionTest,
  Discovery,
  HistoryQuery,
  Login,
  LoginAnswers,
  TestResult,
} from './schemas.ts'
import { discoveryKind, readDiscovery, requestDiscovery, snapshotsOf } from './discoveries.ts'
import { monitorKind } from './monitors.ts'
import { keptChecks, listChecks, readConnection, saveConnection, storedProblems } from './store.ts'
import { connectionPageSummary } from './page-summary.ts'

export interface ConnectionParts extends DiscoverParts, PinParts {
  hostId: string
  engine: Pick<Engine, 'start' | 'signal'>
  /** The seconds for which a request for discovery waits for the end. */
  discoveryWaitSeconds: number
  allowProxyCommand: boolean
}

const discoveryPath = (id: string, number: number): string =>
  `/environment-connections/${encodeURIComponent(id)}/discoveries/${String(number)}/`
const usualHistory = 100
/** Tests at once: each may hold a socket and a login for 40 s. */
const maxTrials = 32

const stored = async ({ db }: ConnectionParts, id: string): Promise<ConnectionDocument> =>
  existing(await readConnection(db, id), 'connection', id)

/**
 * Makes the monitor check now instead of at its next turn. Where the signal fails, the monitor
 * checks later.
 */
const wakeMonitor = async ({ db, engine }: ConnectionParts, id: string): Promise<void> => {
  const of = { id, generation: 1 }
  if (!(await engine.start(monitorKind, of, await connectionPageSummary(db, id, 'watch')))) return
  await markMonitored(db, id)
  await engine.signal(monitorKind, id, 1, 'wake').catch((error: unknown) => {
    if (!(error instanceof Refusal)) throw error
  })
}

/** A test needs a usable connection: one answer holds all problems of its document. */
const toTest = (parts: ConnectionParts) =>
  ConnectionTest.superRefine(
    (value: unknown, context) => {
      for (const { path, message } of [
        ...connectionSecretProblems(value, {
          configuration: (value as { configuration?: unknown } | null)?.configuration,
        }),
        ...connectionProblems(value, parts),
      ])
        context.addIssue({ code: 'custom', path: path.split('.'), message })
    },
    { when: () => true },
  )

const testRoute = (parts: ConnectionParts): Route => {
  const { links } = parts
  let trials = 0
  return route('testConnection', 'POST /connection-tests/', {
    summary: 'Test a connection that is not saved: nothing is stored, the stage that fails is named',
    body: toTest(parts),
    response: TestResult,
    alsoCheck: async ({ document }) => {
      const problem = await links.credentialProblem(document)
      return problem === undefined ? [] : [problem]
    },
    audit: { eventType: 'connection.tested', summary: 'a connection of type {type} tested' },
    handle: async ({ body, actor }) => {
      const unbuilt = unbuiltConnectionType(body.type)
      if (unbuilt !== undefined) throw unbuilt
      const problem = await links.credentialProblem(body)
      if (problem !== undefined) throw unacceptable([problem])
      if (trials >= maxTrials)
        throw new Refusal('unavailable', `${maxTrials} connections are being tested; try again`, {
          retryAfterSeconds: 15,
        })
      trials += 1
      try {
        const { healthy, message, stages } = await checkConnection(parts, body, {
          actor: actor.id,
          trial: randomUUID(),
        })
        return { healthy, message, stages }
      } finally {
        trials -= 1
      }
    },
  })
}

/**
 * Problems that prevent a save. Problems that the stored connection had already do not count:
 * registration with an environment checks only a connection's shape, and such a connection can be
 * saved as it is read.
 */
const problemsOfSaving = async (
  parts: ConnectionParts,
  document: unknown,
  id: string,
): Promise<Problem[]> => {
  const before = await readConnection(parts.db, id)
  const known = new Set(
    before === undefined
      ? []
      : connectionProblems(before, parts).map(({ path, message }) => `${path} ${message}`),
  )
  return [
    ...strangeId(document, id),
    ...ownerless(document),
    ...connectionProblems(document, parts).filter(({ path, message }) => !known.has(`${path} ${message}`)),
    ...(await storedProblems(parts.db, document)),
  ]
}

const save = async (
  parts: ConnectionParts,
  id: string,
  body: ConnectionDocument,
): Promise<ConnectionDocument> => {
  const { db, links } = parts
  const problems = await problemsOfSaving(parts, body, id)
  if (problems.length > 0) throw unacceptable(problems)
  const saved = await links.changing({ connectionId: body.id }, () => saveConnection(db, body))
  await wakeMonitor(parts, saved.id)
  return saved
}

const documentRoutes = (parts: ConnectionParts): Route[] => [
  route('getConnection', 'GET /environment-connections/{connectionId}/', {
    summary: 'One connection',
    response: ConnectionDocument,
    handle: ({ params }) => stored(parts, params.connectionId),
  }),
  route('updateConnection', 'PUT /environment-connections/{connectionId}/', {
    summary: 'Save a connection of an environment, new or in place of what it was',
    body: ConnectionDocument,
    response: ConnectionDocument,
    creates: true,
    alsoCheck: ({ document, params }) => problemsOfSaving(parts, document, params['connectionId'] ?? ''),
    audit: {
      eventType: 'connection.saved',
      summary: 'connection {connectionId} saved',
      connectionId: ofPath,
      environmentId: ({ body }) => (body as ConnectionDocument).environmentId || undefined,
    },
    handle: ({ params, body }) => save(parts, params.connectionId, body),
  }),
]

const checkRoutes = (parts: ConnectionParts): Route[] => [
  route('checkConnection', 'POST /environment-connections/{connectionId}/health/', {
    summary: 'Check a connection now; the answer is 200 also when it is offline',
    response: ConnectionCheck,
    audit: {
      eventType: 'connection.health.checked',
      outcome: (answer) => ((answer as ConnectionCheck).status === 'online' ? 'succeeded' : 'failed'),
      summary: 'connection {connectionId} checked',
      connectionId: ofPath,
    },
    handle: async ({ params, actor }) => {
      const connection = await stored(parts, params.connectionId)
      const unbuilt = unbuiltConnectionType(connection.type)
      if (unbuilt !== undefined) throw unbuilt
      return existing(await checkAndRecord(parts, connection, actor.id), 'connection', params.connectionId)
    },
  }),
  route('listConnectionChecks', 'GET /environment-connections/{connectionId}/history/', {
    summary: 'Checks and discoveries of a connection, newest first',
    query: HistoryQuery,
    response: z.array(ConnectionCheck),
    handle: async ({ params, query }) => {
      const { id } = await stored(parts, params.connectionId)
      const { limit = usualHistory } = query
      return listChecks(parts.db, id, limit >= 1 && limit <= keptChecks ? limit : usualHistory)
    },
  }),
]

/** The result of an ended discovery; undefined while it runs. @throws Refusal when it failed */
const foundBy = async ({ db }: ConnectionParts, connectionId: string, number: number) => {
  const discovery = existing(await readDiscovery(db, connectionId, number), 'connection', connectionId)
  if (discovery.status === 'completed') return { snapshots: await snapshotsOf(db, connectionId, number) }
  if (discovery.status !== 'failed') return undefined
  const message = `nothing was discovered: ${discovery.problem ?? 'the reason is not known'}`
  throw discovery.transient === true
    ? new Refusal('unavailable', message, { retryAfterSeconds: 30 })
    : new Refusal('unacceptable', message)
}

const discoverRoute = (parts: ConnectionParts): Route =>
  route('discoverResources', 'POST /environment-connections/{connectionId}/discover/', {
    summary:
      'Discover what is behind a connection; 202 when it takes longer than the configured wait, ' +
      'with the discovery as Location',
    response: Discovery,
    alsoStatus: [202],
    audit: {
      eventType: 'resource.discovery.requested',
      summary: 'discovery through connection {connectionId} requested',
      connectionId: ofPath,
    },
    handle: async ({ params, signal }) => {
      const { db, engine } = parts
      const { connectionId } = params
      const refusal = undiscoverable(await stored(parts, connectionId))
      if (refusal !== undefined) throw refusal
      const { number } = await requestDiscovery(db, connectionId, parts.hostId)
      await dispatchOperation({ db, engine, kind: discoveryKind }, { id: connectionId, generation: number })
      const found = await poll(() => foundBy(parts, connectionId, number), {
        everyMs: openBackoff({ firstMs: 50, longestMs: 500, growth: 1.5 }),
        deadlineMs: parts.discoveryWaitSeconds * 1_000,
        signal,
      })
      return (
        found ??
        new Reply({
          body: { snapshots: [], status: 'running' },
          status: 202,
          location: discoveryPath(connectionId, number),
        })
      )
    },
  })

const discoveryRoute = (parts: ConnectionParts): Route =>
  route('getDiscovery', 'GET /environment-connections/{connectionId}/discoveries/{number}/', {
    summary: 'A discovery: what it found, `status: running` while it is under way, or why it found nothing',
    response: Discovery,
    refuses: [422],
    handle: async ({ params: { connectionId, number } }) => {
      if (!/^[1-9]\d{0,8}$/.test(number)) throw missing('discovery', `${connectionId}/${number}`)
      return (
        (await foundBy(parts, connectionId, Number(number))) ?? { snapshots: [], status: 'running' as const }
      )
    },
  })

const loginRoutes = (parts: ConnectionParts): Route[] => [
  route('getLogin', 'GET /environment-connections/{connectionId}/login/', {
    summary: 'How the login of a connection stands, and what it asks a person',
    refuses: [422],
    response: Login,
    handle: ({ params }) => parts.links.state(params.connectionId),
  }),
  route('answerLogin', 'POST /environment-connections/{connectionId}/login/', {
    summary:
      'Answer what a login asks, in the order of its prompts; without answers it logs in until it is asked',
    body: LoginAnswers,
    response: Login,
    audit: {
      eventType: 'connection.login',
      summary: 'login of connection {connectionId} answered',
      connectionId: ofPath,
    },
    handle: async ({ params, body }) => {
      const login = await parts.links.answer(params.connectionId, body.answers)
      if (login.state === 'connected') await wakeMonitor(parts, params.connectionId)
      return login
    },
  }),
]

export const environmentConnectionRoutes = (parts: ConnectionParts): Route[] => [
  testRoute(parts),
  ...documentRoutes(parts),
  ...checkRoutes(parts),
  discoverRoute(parts),
  discoveryRoute(parts),
  ...loginRoutes(parts),
]

/** The connection of an audit record, from the path. */
const ofPath = ({ params }: { params: Record<string, string> }): string | undefined => params['connectionId']

const ownerless = (document: unknown): Problem[] =>
  ['', undefined].includes((document as { environmentId?: string } | null)?.environmentId)
    ? [
        {
          path: 'environmentId',
          message: 'is empty; give the id of the environment that the connection belongs to',
        },
      ]
    : []

const strangeId = (document: unknown, id: string | undefined): Problem[] => {
  const given = (document as { id?: unknown } | null)?.id
  return typeof given === 'string' && given !== '' && given !== id
    ? [
        {
          path: 'id',
          message: `must be ${JSON.stringify(id)}, the id in the path; a connection keeps its id`,
        },
      ]
    : []
}
