import { Readable } from 'node:stream'
import { z } from 'zod'
import type { Db } from '../../db/sql.ts'
import { Reply, route, socketRoute, type Call, type Route } from '../../http/route.ts'
import { ticketProtocol } from '../../http/ticket.ts'
import { missing, Refusal, existing } from '../../refusal.ts'
import { poll } from '../../pacing/poll.ts'
import type { ConsoleKeeper } from './keeper.ts'
import { consoleOf } from './place.ts'
import { ConsoleSession, ConsoleTicket, ConsoleSessionDocument, TicketDocument } from './schemas.ts'
import {
  acceptSession,
  openSessions,
  readConsoleSession,
  requestClose,
  consoleSessionDocument,
} from './sessions.ts'
import { attendSession } from './stream.ts'
import { issueTicket, redeemTicket } from './tickets.ts'
import { asciicastOf, transcriptOf } from './transcript.ts'

export interface ConsoleSessionParts {
  db: Db
  consoleSessions: number
  consoleKeeper: ConsoleKeeper
  hostId: string
  kubernetesHelperImage: string
}

/** A connection waits this long for the terminal of a session that has just begun. */
const takeUpMs = 15_000
/** Subprotocol of the stream. */
const protocol = 'orrery.console'
const asciicast = 'application/x-asciicast'
const plain = 'text/plain; charset=utf-8'

const logQuery = z.strictObject({
  format: z
    .enum(['text', 'asciicast'])
    .optional()
    .describe(
      'text (the default): the output with its escape sequences neutralised; asciicast: the recording, version 2',
    ),
})
const streamQuery = z.strictObject({
  takeOver: z.literal('true').optional().meta({ description: 'Ends the connection that writes now' }),
  mode: z
    .enum(['write', 'watch'])
    .optional()
    .meta({ description: 'watch: shows the session and takes no input' }),
})

/** @throws Refusal 409 for a session that is over */
const refuseEnded = ({ status }: { status: string }): void => {
  if (status === 'closed' || status === 'failed')
    throw new Refusal('conflict', `the console session is ${status}; its log can be read`, {
      extra: { state: status },
    })
}

/** @throws Refusal 404 */
const rowOf = async (db: Db, id: string) => existing(await readConsoleSession(db, id), 'console session', id)

/** The WebSocket of a session. A ticket of mode watch permits output only. */
const streamRoute = (db: Db, keeper: ConsoleKeeper): Route =>
  socketRoute('attachConsoleSession', 'GET /console-sessions/{sessionId}/stream/', {
    summary:
      'The terminal of a session: its output as binary frames, from the last 1 MiB on; what a ' +
      'client sends is input, but for {"type":"resize","rows","columns"}',
    query: streamQuery,
    refuses: [409, 503],
    audit: { eventType: 'console.session.attached', summary: 'console session {sessionId} attached to' },
    limitBytes: 1024 * 1024,
    protocol,
    redeem: async (secret, { sessionId = '' }) => {
      const ticket = await redeemTicket(db, sessionId, secret)
      return ticket === undefined
        ? undefined
        : { actor: { id: ticket.actorId, type: 'token' }, grant: ticket.mode }
    },
    open: async ({ params: { sessionId }, query: { takeOver, mode }, grant }) => {
      const row = await rowOf(db, sessionId)
      refuseEnded(row)
      if (grant === 'watch' && (mode === 'write' || takeOver !== undefined))
        throw new Refusal('forbidden', 'the ticket is of mode watch; ask for one of mode write')
      const session = keeper.find(row.id)
      const writes = (grant ?? mode) !== 'watch' && mode !== 'watch'
      if (session !== undefined && writes) {
        // Clients connect as soon as they have the session; its terminal is there a moment later.
        const isSettled = () => session.stream !== undefined || keeper.find(row.id) !== session || undefined
        await poll(isSettled, { everyMs: 50, deadlineMs: takeUpMs })
        refuseEnded(await rowOf(db, sessionId))
      }
      if (session === undefined || (writes && session.stream === undefined)) {
        const { servedBy = keeper.server } = row
        const reason =
          servedBy === keeper.server
            ? 'the terminal is being taken up; connect again'
            : `the process ${servedBy} serves the terminal; connect there, or again once it has ended`
        throw new Refusal('unavailable', reason, { retryAfterSeconds: 2 })
      }
      if (writes && session.writer !== undefined && takeOver === undefined)
        throw new Refusal(
          'conflict',
          'another connection writes to this session; watch with mode=watch, or take over with takeOver=true',
        )
      const takesOver = takeOver !== undefined
      return (peer) => attendSession({ db, keeper }, { id: row.id, session, peer, writes, takesOver })
    },
  })

/** Terminals on resources: see `keeper.ts`. */
export const sessionRoutes = ({
  db,
  consoleKeeper: keeper,
  consoleSessions,
  hostId,
  kubernetesHelperImage,
}: ConsoleSessionParts): Route[] => {
  const ticket = async ({
    params: { sessionId },
    body: { mode },
    actor,
  }: Call<'/{sessionId}/', undefined, TicketDocument>): Promise<z.output<typeof ConsoleTicket>> => {
    refuseEnded(await rowOf(db, sessionId))
    const { secret, expiresAt } = await issueTicket(db, { sessionId, mode, actorId: actor.id })
    return { protocols: [protocol, ticketProtocol(secret)], mode, expiresAt }
  }
  return [
    route('listConsoleSessions', 'GET /console-sessions/', {
      summary: 'Console sessions that are open, oldest first',
      response: z.array(ConsoleSession),
      handle: async () => (await openSessions(db)).map(consoleSessionDocument),
    }),
    route('openConsoleSession', 'POST /console-sessions/', {
      summary: 'Open a terminal on a resource; its stream is a WebSocket',
      body: ConsoleSessionDocument,
      response: ConsoleSession,
      status: 201,
      audit: {
        eventType: 'console.session.requested',
        summary: 'console session on {resourceId} asked for',
        resourceId: ({ body }) => (body as ConsoleSessionDocument).resourceId,
      },
      made: async ({ newId }) => {
        const session = consoleSessionDocument(await rowOf(db, newId))
        return { createdAt: session.createdAt, answer: session }
      },
      handle: async ({ body: { resourceId, actorId }, actor, newId: id }) => {
        const console = await consoleOf(db, resourceId, { hostId, kubernetesHelperImage })
        const { host } = console.place
        if (host !== undefined && host !== hostId)
          throw new Refusal(
            'not_built',
            `the runtime is local to the host ${JSON.stringify(host)}, and terminals of local runtimes open on ` +
              `the host of this service only, ${JSON.stringify(hostId)}; run commands there ` +
              '(POST /console-commands/), or bind the resource to a runtime with driver ssh that leads to that host',
          )
        await acceptSession(db, {
          id,
          resourceId,
          actorId: actorId ?? actor.id,
          console,
          server: keeper.server,
          most: consoleSessions,
        })
        const row = await rowOf(db, id)
        keeper.begin(row)
        return new Reply({ body: consoleSessionDocument(row) })
      },
    }),
    route('getConsoleSession', 'GET /console-sessions/{sessionId}/', {
      summary: 'One console session, open or ended',
      response: ConsoleSession,
      handle: async ({ params: { sessionId } }) => consoleSessionDocument(await rowOf(db, sessionId)),
    }),
    route('createConsoleTicket', 'POST /console-sessions/{sessionId}/tickets/', {
      summary: 'A ticket with which a page opens the stream, once, within 30 seconds',
      body: TicketDocument,
      response: ConsoleTicket,
      status: 201,
      audit: {
        eventType: 'console.ticket.issued',
        summary: 'ticket for console session {sessionId} asked for',
      },
      // A ticket is good once, and no record holds its secret.
      renewed: { kept: () => ({}), again: (_kept, call) => ticket(call) },
      handle: async (call) =>
        new Reply({ body: await ticket(call), headers: { 'cache-control': 'no-store' } }),
    }),
    route('closeConsoleSession', 'DELETE /console-sessions/{sessionId}/', {
      summary: 'Close a session; again is harmless',
      audit: {
        eventType: 'console.session.close',
        summary: 'close of console session {sessionId} asked for',
      },
      handle: async ({ params: { sessionId } }) => {
        if (!(await requestClose(db, sessionId))) throw missing('console session', sessionId)
        const session = keeper.find(sessionId)
        if (session !== undefined) await keeper.close(await rowOf(db, sessionId), session)
      },
    }),
    route('readConsoleSessionLog', 'GET /console-sessions/{sessionId}/log/', {
      summary:
        'The transcript of a session, its control characters written out; or its recording as ' +
        'asciicast v2, which holds them',
      query: logQuery,
      raw: ['text/plain', asciicast],
      fixedType: true,
      streams: true,
      handle: async ({ params: { sessionId }, query: { format } }) => {
        const row = await rowOf(db, sessionId)
        const cast = format === 'asciicast'
        const texts = cast ? asciicastOf(db, row.id, row.createdAt) : transcriptOf(db, row.id)
        return new Reply<never>({
          stream: Readable.from(texts, { objectMode: false }),
          headers: {
            'content-type': cast ? asciicast : plain,
            'content-disposition': `attachment; filename="console-session-${row.id}.${cast ? 'cast' : 'log'}"`,
            'cache-control': 'no-store',
          },
        })
      },
    }),
    streamRoute(db, keeper),
  ]
}
