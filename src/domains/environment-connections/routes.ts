import { randomUUID } from 'node:crypto'
import { z } from 'zod'
import type { Engine } from '../../engine.ts'
import { Reply, route, type Route } from '../../http/route.ts'
import { unbuiltConnectionType } from '../../not-built.ts'
import { missing, Refusal, unacceptable, type Problem } from '../../refusal.ts'
import { markMonitored } from '../environments/connections.ts'
import { connectionSecretProblems } from '../environments/secrets.ts'
import { checkConnection, type PinParts } from './check.ts'
import { undiscoverable, type DiscoverParts } from './discover.ts'
import { checkAndRecord } from './monitor.ts'
import { connectionProblems } from './rules.ts'
import { ConnectionCheck, ConnectionDocument, ConnectionTest, Discovery, HistoryQuery, Login, LoginAnswers, TestResult } from './schemas.ts'
import {
  discoveryTelling,
  keptChecks,
  listChecks,
  markDiscoveryDispatched,
  monitorTelling,
  readConnection,
  readDiscovery,
  requestDiscovery,
  saveConnection,
  snapshotsOf,
  storedProblems,
} from './store.ts'

export interface ConnectionParts extends DiscoverParts, PinParts {
  engine: Pick<Engine, 'start' | 'signal'>
  /** How long a request for discovery waits for its end. */
  discoveryWaitSeconds: number
  allowProxyCommand: boolean
}

const historyPath = (id: string): string => `/environment-connections/${encodeURIComponent(id)}/history/`
const usualHistory = 100
/** Tests at once: each may hold a socket and a login for 40 s. */
const maxTrials = 32

export const environmentConnectionRoutes = (parts: ConnectionParts): Route[] => {
  const { db, engine, links } = parts
  let trials = 0

  /** To be tested a connection must be usable: everything against its document is one answer. */
  const ToTest = ConnectionTest.superRefine(
    (value: unknown, context) => {
      for (const { path, message } of [
        ...connectionSecretProblems(value, (value as { configuration?: unknown } | null)?.configuration),
        ...connectionProblems(value, parts),
      ])
        context.addIssue({ code: 'custom', path: path.split('.'), message })
    },
    { when: () => true },
  )

  /**
   * What stands against saving a document. What stood against the stored connection already does not: a connection that was registered
   * with its environment, where nothing but its shape is checked, is taken back as it is read.
   */
  const problemsOfSaving = async (document: unknown, id: string): Promise<Problem[]> => {
    const before = await readConnection(db, id)
    const known = new Set(before === undefined ? [] : connectionProblems(before, parts).map(({ path, message }) => `${path} ${message}`))
    return [
      ...strangeId(document, id),
      ...ownerless(document, before),
      ...connectionProblems(document, parts).filter(({ path, message }) => !known.has(`${path} ${message}`)),
      ...(await storedProblems(db, document)),
    ]
  }

  const stored = async (id: string): Promise<ConnectionDocument> => {
    const connection = await readConnection(db, id)
    if (connection === undefined) throw missing('connection', id)
    return connection
  }

  /** The monitor looks now instead of at its next turn; where it cannot be told, it looks later. */
  const wakeMonitor = async (id: string): Promise<void> => {
    if (!(await engine.start('connectionMonitor', id, 1, await monitorTelling(db, id)))) return
    await markMonitored(db, id)
    await engine.signal('connectionMonitor', id, 1, 'wake').catch((error: unknown) => {
      if (!(error instanceof Refusal)) throw error
    })
  }

  return [
    route({
      method: 'POST',
      path: '/connection-tests/',
      tag: 'environment-connections',
      summary: 'Test a connection that is not saved: nothing is stored, the stage that fails is named',
      body: ToTest,
      response: TestResult,
      alsoCheck: async ({ document }) => {
        const problem = await links.credentialProblem(document)
        return problem === undefined ? [] : [problem]
      },
      audit: { eventType: 'connection.tested', summary: ({ body }) => `a connection of type ${(body as ConnectionDocument).type} tested` },
      handle: async ({ body, actor }) => {
        const unbuilt = unbuiltConnectionType(body.type)
        if (unbuilt !== undefined) throw unbuilt
        const problem = await links.credentialProblem(body)
        if (problem !== undefined) throw unacceptable([problem])
        if (trials >= maxTrials)
          throw new Refusal('unavailable', `${maxTrials} connections are being tested; try again`, { retryAfterSeconds: 15 })
        trials += 1
        try {
          const { healthy, message, stages } = await checkConnection(parts, body, { actor: actor.id, trial: randomUUID() })
          return { healthy, message, stages }
        } finally {
          trials -= 1
        }
      },
    }),
    route({
      method: 'GET',
      path: '/environment-connections/{connectionId}/',
      tag: 'environment-connections',
      summary: 'One connection',
      response: ConnectionDocument,
      handle: ({ params }) => stored(params.connectionId),
    }),
    route({
      method: 'PUT',
      path: '/environment-connections/{connectionId}/',
      tag: 'environment-connections',
      summary: 'Save a connection of an environment, new or in place of what it was',
      body: ConnectionDocument,
      response: ConnectionDocument,
      alsoCheck: ({ document, params }) => problemsOfSaving(document, params['connectionId'] ?? ''),
      audit: {
        eventType: 'connection.saved',
        summary: ({ params }) => `connection ${params['connectionId'] ?? ''} saved`,
        connectionId: ofPath,
        environmentId: ({ body }) => (body as ConnectionDocument).environmentId || undefined,
      },
      handle: async ({ params, body }) => {
        const problems = await problemsOfSaving(body, params.connectionId)
        if (problems.length > 0) throw unacceptable(problems)
        const before = await readConnection(db, body.id)
        const saved = await saveConnection(db, { ...body, environmentId: body.environmentId || (before?.environmentId ?? '') })
        // A session that somebody logged in by hand is not ended for a new name.
        if (before !== undefined && loginOf(before) !== loginOf(saved)) await links.forget(saved.id)
        await wakeMonitor(saved.id)
        return saved
      },
    }),
    route({
      method: 'POST',
      path: '/environment-connections/{connectionId}/health/',
      tag: 'environment-connections',
      summary: 'Check a connection now; the answer is 200 also when it is offline',
      response: ConnectionCheck,
      audit: {
        eventType: 'connection.health.checked',
        outcome: (answer) => ((answer as ConnectionCheck).status === 'online' ? 'succeeded' : 'failed'),
        summary: ({ params }) => `connection ${params['connectionId'] ?? ''} checked`,
        connectionId: ofPath,
      },
      handle: async ({ params, actor }) => {
        const connection = await stored(params.connectionId)
        const unbuilt = unbuiltConnectionType(connection.type)
        if (unbuilt !== undefined) throw unbuilt
        const check = await checkAndRecord(parts, connection, actor.id)
        if (check === undefined) throw missing('connection', params.connectionId)
        return check
      },
    }),
    route({
      method: 'POST',
      path: '/environment-connections/{connectionId}/discover/',
      tag: 'environment-connections',
      summary: 'Discover what is behind a connection; 202 with the history as Location when it takes longer than the configured wait',
      response: Discovery,
      alsoStatus: [202],
      audit: {
        eventType: 'resource.discovery.requested',
        summary: ({ params }) => `discovery through connection ${params['connectionId'] ?? ''} requested`,
        connectionId: ofPath,
      },
      handle: async ({ params, signal }) => {
        const { connectionId } = params
        const refusal = undiscoverable(await stored(connectionId))
        if (refusal !== undefined) throw refusal
        const { number } = await requestDiscovery(db, connectionId)
        const telling = await discoveryTelling(db, connectionId, number)
        if (await engine.start('connectionDiscovery', connectionId, number, telling)) await markDiscoveryDispatched(db, connectionId)
        const until = Date.now() + parts.discoveryWaitSeconds * 1_000
        for (let pauseMs = 50; ; pauseMs = Math.min(pauseMs * 1.5, 500)) {
          const discovery = await readDiscovery(db, connectionId, number)
          if (discovery === undefined) throw missing('connection', connectionId)
          if (discovery.status === 'completed') return { snapshots: await snapshotsOf(db, connectionId, number) }
          if (discovery.status === 'failed') {
            const message = `nothing was discovered: ${discovery.problem ?? 'the reason is not known'}`
            throw discovery.transient === true
              ? new Refusal('unavailable', message, { retryAfterSeconds: 30 })
              : new Refusal('unacceptable', message)
          }
          if (Date.now() >= until || signal.aborted)
            return new Reply({ body: { snapshots: [], status: 'running' }, status: 202, headers: { location: historyPath(connectionId) } })
          await new Promise((resolve) => setTimeout(resolve, Math.min(pauseMs, Math.max(1, until - Date.now()))))
        }
      },
    }),
    route({
      method: 'GET',
      path: '/environment-connections/{connectionId}/history/',
      tag: 'environment-connections',
      summary: 'Checks and discoveries of a connection, newest first',
      query: HistoryQuery,
      response: z.array(ConnectionCheck),
      handle: async ({ params, query }) => {
        const { id } = await stored(params.connectionId)
        const { limit = usualHistory } = query
        return listChecks(db, id, limit >= 1 && limit <= keptChecks ? limit : usualHistory)
      },
    }),
    route({
      method: 'GET',
      path: '/environment-connections/{connectionId}/login/',
      tag: 'environment-connections',
      summary: 'How the login of a connection stands, and what it asks a person',
      refuses: [422],
      response: Login,
      handle: ({ params }) => links.state(params.connectionId),
    }),
    route({
      method: 'POST',
      path: '/environment-connections/{connectionId}/login/',
      tag: 'environment-connections',
      summary: 'Answer what a login asks, in the order of its prompts; without answers it logs in until it is asked',
      body: LoginAnswers,
      response: Login,
      audit: {
        eventType: 'connection.login',
        summary: ({ params }) => `login of connection ${params['connectionId'] ?? ''} answered`,
        connectionId: ofPath,
      },
      handle: async ({ params, body }) => {
        const login = await links.answer(params.connectionId, body.answers)
        if (login.state === 'connected') await wakeMonitor(params.connectionId)
        return login
      },
    }),
  ]
}

/** The connection that an audit record is of. */
const ofPath = ({ params }: { params: Record<string, string> }): string | undefined => params['connectionId']

/** What of a connection decides who logs in where. */
const loginOf = ({ type, endpoint, username, credentialRef, configuration = {} }: ConnectionDocument): string =>
  JSON.stringify([type, endpoint, username, credentialRef, Object.entries(configuration).toSorted(([a], [b]) => (a < b ? -1 : 1))])

/** A connection that exists says itself which environment it belongs to. */
const ownerless = (document: unknown, before: ConnectionDocument | undefined): Problem[] =>
  before === undefined && ['', undefined].includes((document as { environmentId?: string } | null)?.environmentId)
    ? [{ path: 'environmentId', message: 'is empty; give the id of the environment that the new connection belongs to' }]
    : []

const strangeId = (document: unknown, id: string | undefined): Problem[] => {
  const given = (document as { id?: unknown } | null)?.id
  return typeof given === 'string' && given !== '' && given !== id
    ? [{ path: 'id', message: `must be ${JSON.stringify(id)}, the id in the path; a connection keeps its id` }]
    : []
}
