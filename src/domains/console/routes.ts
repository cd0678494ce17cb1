import { z } from 'zod'
import type { Engine } from '../../engine.ts'
import { wholeNumber } from '../../http/paging.ts'
import { Reply, route, type Call, type Route } from '../../http/route.ts'
import type { Feed } from '../../operations/feed.ts'
import { dispatchOperation, operationRoutes, type OperationApi } from '../../operations/routes.ts'
import { openBackoff } from '../../pacing/backoff.ts'
import { poll } from '../../pacing/poll.ts'
import { Refusal, existing } from '../../refusal.ts'
import type { Vault } from '../../vault/vault.ts'
import { leastBytes } from './masks.ts'
import { acceptCommand, commandDocument, commandIsOver, listCommands, readCommand } from './store.ts'
import { commandKind } from './operation.ts'
import { consoleOf } from './place.ts'
import { Command, CommandDocument } from './schemas.ts'
import { sessionRoutes, type ConsoleSessionParts } from './session-routes.ts'

export interface ConsoleRouteParts extends ConsoleSessionParts {
  feed: Feed
  engine: Pick<Engine, 'start' | 'cancel' | 'live'>
  consoleEnabled: boolean
  vault: Pick<Vault, 'values'>
}

const usualCommands = 200
const mostCommands = 1_000
/** Time beyond a command's own timeout: for its place, its start, its end and its output. */
const beyondTimeoutMs = 60_000

const limitQuery = z.strictObject({
  limit: wholeNumber.optional().meta({
    description:
      `Commands of an answer, 1 to ${String(mostCommands)}; ${String(usualCommands)} by default ` +
      'and instead of another number',
  }),
})

/** Waiting turns nothing on, so the answer has no `Retry-After`. */
const off = () =>
  new Refusal(
    'unavailable',
    'the console is off; whoever runs the service turns it on with SERVICE_CONSOLE_ENABLED=true',
  )

/** Whether the client wants an answer before the work ends (RFC 7240). */
const asksAsync = (prefer: string | undefined): boolean =>
  (prefer ?? '').split(',').some((part) => part.split(';', 1)[0]?.trim().toLowerCase() === 'respond-async')

const pathOf = (id: string): string => `/console-commands/${encodeURIComponent(id)}/`

export const consoleRoutes = (parts: ConsoleRouteParts): Route[] => {
  const { consoleEnabled } = parts
  const admit = (): Promise<void> => (consoleEnabled ? Promise.resolve() : Promise.reject(off()))
  const gated = (built: Route): Route => ({ ...built, admit, refuses: [...(built.refuses ?? []), 503] })
  return [...commandRoutes(parts), ...sessionRoutes(parts)].map(gated)
}

const commandRoutes = (parts: ConsoleRouteParts): Route[] => {
  const { db, engine, feed, hostId, kubernetesHelperImage, vault } = parts
  const api: OperationApi = {
    db,
    engine,
    feed,
    kind: commandKind,
    path: '/console-commands/',
    parameter: 'commandId',
  }
  const of = operationRoutes(api)

  const documentOf = async (id: string) => existing(await readCommand(db, id), 'console command', id)
  const over = async (id: string, deadlineMs: number, signal: AbortSignal): Promise<boolean> => {
    const everyMs = openBackoff({ firstMs: 10, longestMs: 250, growth: 1.2 })
    const isOver = async (): Promise<true | undefined> => (await commandIsOver(db, id)) || undefined
    return (await poll(isOver, { everyMs, deadlineMs, signal })) ?? false
  }
  /** The answer of a command: at its end, or at once where the client asks for that. */
  const reply = async ({
    newId: id,
    body,
    headers,
    signal,
  }: Call<'', undefined, CommandDocument>): Promise<Reply> => {
    const waits = !asksAsync(headers['prefer'])
    const ended = waits && (await over(id, body.timeoutSeconds * 1_000 + beyondTimeoutMs, signal))
    return new Reply({
      body: commandDocument(await documentOf(id)),
      headers: { location: pathOf(id), ...(waits ? {} : { 'preference-applied': 'respond-async' }) },
      ...(ended ? {} : { status: 202 }),
    })
  }

  return [
    route('listConsoleCommands', 'GET /console-commands/', {
      summary: 'Console commands, newest first, with the first 16 KiB of each output',
      query: limitQuery,
      response: z.array(Command),
      handle: ({ query: { limit } }) =>
        listCommands(db, limit === undefined || limit < 1 || limit > mostCommands ? usualCommands : limit),
    }),
    route('startConsoleCommand', 'POST /console-commands/', {
      summary:
        'Run a command on a resource and wait for its end; with Prefer: respond-async the answer is 202 at once',
      body: CommandDocument,
      response: Command,
      status: 201,
      alsoStatus: [202],
      audit: {
        eventType: 'console.command.requested',
        summary: 'console command on {resourceId} asked for',
        resourceId: ({ body }) => (body as CommandDocument).resourceId,
      },
      made: async (call) => {
        const { createdAt } = await documentOf(call.newId)
        return { createdAt, answer: await reply(call) }
      },
      handle: async (call) => {
        const { body, actor, newId: id } = call
        const place = await consoleOf(db, body.resourceId, { hostId, kubernetesHelperImage })
        const secrets = await vault.values(leastBytes)
        await acceptCommand(db, id, { ...body, actorId: body.actorId ?? actor.id }, { place, secrets })
        await dispatchOperation(api, { id, generation: 1 })
        return reply(call)
      },
    }),
    of.read({
      summary: 'A console command with its output',
      response: Command.extend({ live: z.object({ phase: z.string() }).optional() }),
      read: async (id) => {
        const row = await readCommand(db, id)
        return (
          row && { document: commandDocument(row), state: { status: row.status, generation: row.generation } }
        )
      },
    }),
    of.cancel({
      summary: 'End a console command; again is harmless',
      document: { schema: Command, read: async (id) => commandDocument(await documentOf(id)) },
    }),
  ]
}
