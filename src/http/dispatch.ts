import type { z } from 'zod'
import { Refusal } from '../refusal.ts'
import { wantsPage } from './accept.ts'
import type { Access, Actor } from './access.ts'
import type { Answers } from './answer.ts'
import { HttpCall, pathParams, queryValues } from './call.ts'
import { checkQuery } from './check.ts'
import { HttpRefusal } from './errors.ts'
import { pairs, type Exchange } from './exchange.ts'
import { createShapes } from './keys.ts'
import type { AppOptions, Selection } from './options.ts'
import type { Perform } from './perform.ts'
import type { Method, Route } from './route.ts'
import { ticketOf } from './ticket.ts'
import type { Table } from './table.ts'

const readOnlyText = 'the selected instance is a read-only snapshot'

const isMethod = (method: string): method is Method =>
  method === 'GET' || method === 'POST' || method === 'PUT' || method === 'DELETE'

const shapeOf = createShapes()

/**
 * The query's values without blank ones of declared names: a blank filter counts as absent. Unknown
 * names stay, and are refused later.
 */
const withoutBlanks = (schema: z.ZodType, values: Record<string, string>): Record<string, string> => {
  const { keys } = shapeOf(schema)
  return Object.fromEntries(
    Object.entries(values).filter(([name, value]) => {
      const declared = keys?.get(name.toLowerCase())
      return value.trim() !== '' || declared?.name !== name || !declared.shape().isText
    }),
  )
}

const readQuery = (built: Route, search: string): unknown => {
  const values = queryValues(search)
  if (built.query !== undefined) return checkQuery(built.query, withoutBlanks(built.query, values))
  const names = Object.keys(values)
  if (names.length === 0) return undefined
  throw new Refusal(
    'invalid',
    `query: ${names.map((name) => JSON.stringify(name)).join(', ')} is not a known parameter of this route`,
    {
      details: names.map((name) => ({
        path: name,
        message: 'is not a known query parameter here; remove it',
      })),
    },
  )
}

interface Surroundings {
  options: Pick<AppOptions, 'config' | 'activated'>
  access: Access
  table: Table
  answers: Answers
  perform: Perform
}

/**
 * All steps before the route's own part, in this order: peer and Host, CORS, the page, routing,
 * token, method, read-only lock, path and query. Returns without an answer for
 * paths of the docs page.
 */
export const createDispatch = ({ options, access, table, answers, perform }: Surroundings) => {
  /**
   * Paths that people try first. A browser is redirected from there to the page of the API's
   * document.
   */
  const leadToDocs = new Set(['/', '/docs', `${options.config.apiPrefix}/`])

  const unmatched = (exchange: Exchange): void => {
    const { path, req } = exchange
    const allowed = table.allowed(path)
    if (req.method === 'OPTIONS' && allowed.length > 0)
      return answers.write(exchange, { status: 200, headers: { Allow: allowed.join(', ') }, body: undefined })
    if (allowed.length > 0) {
      throw new HttpRefusal(
        'method_not_allowed',
        `this path has no ${(req.method ?? '').slice(0, 20)}; it has ${allowed.join(', ')}`,
        {
          Allow: allowed.join(', '),
        },
      )
    }
    const slashed = table.allowed(`${path}/`).length > 0
    throw new Refusal('missing', slashed ? `Not Found: paths end with a slash here` : 'Not Found')
  }

  /**
   * The route's own part, in the instance that the request selects. A request that is allowed
   * beside a snapshot carries its own proof. Without the proof it counts as a change.
   */
  const enter = async (
    exchange: Exchange,
    built: Route,
    call: HttpCall,
    { locked, selection }: { locked: boolean; selection: Selection | undefined },
  ): Promise<void> => {
    if ((built.method === 'GET' || built.reads === true) && selection !== undefined)
      return selection.read(built.path, () => perform(exchange, built, call))
    try {
      return await perform(exchange, built, call)
    } catch (error) {
      if (locked && error instanceof Refusal && error.code === 'unauthenticated')
        throw new Refusal('locked', readOnlyText)
      throw error
    }
  }

  return async (
    exchange: Exchange,
    docs: (() => void) | undefined,
    selection: Selection | undefined,
  ): Promise<void> => {
    const { req, path } = exchange
    access.admit(req)
    exchange.headers.push(...access.cors(req))
    const asked = req.method ?? ''
    if (asked === 'OPTIONS' && req.headers.origin !== undefined)
      return answers.write(exchange, { status: 200, headers: pairs(access.preflight(req)), body: undefined })
    if (docs !== undefined && (asked === 'GET' || asked === 'HEAD')) {
      if (path.startsWith('/docs/')) return docs()
      if (leadToDocs.has(path) && wantsPage(req.headers.accept))
        return answers.write(exchange, {
          status: 302,
          headers: { Location: '/docs/', 'Cache-Control': 'no-store', Vary: 'Accept' },
          body: undefined,
        })
    }
    const method = asked === 'HEAD' ? 'GET' : asked
    const match = path.startsWith('/') && isMethod(method) ? table.match(method, path) : undefined
    const built = match?.entry.route
    exchange.entry = match?.entry
    const open = built?.public === true || (built?.public === 'get' && asked === 'GET')
    const redeem = built?.socket?.redeem
    const ticket = redeem === undefined ? undefined : ticketOf(req)
    const redeemed =
      match === undefined || ticket === undefined ? undefined : await redeem?.(ticket, pathParams(match))
    const actor: Actor =
      redeemed?.actor ?? (open ? { id: 'anonymous', type: 'local' } : access.authenticate(req))
    if (ticket !== undefined && redeemed === undefined)
      throw new HttpRefusal('unauthenticated', 'the ticket is spent, late or of another session; ask for one')
    if (match === undefined || built === undefined) return unmatched(exchange)
    const changes = (method !== 'GET' && built.reads !== true) || built.socket !== undefined
    const locked = changes && (await options.activated())
    if (locked && built.whileActivated !== true) throw new Refusal('locked', readOnlyText)
    const params = pathParams(match)
    const call = new HttpCall(req, exchange.res, {
      params,
      query: readQuery(built, exchange.search),
      requestId: exchange.requestId,
      target: req.url ?? path,
      actor,
      grant: redeemed?.grant,
    })
    // A route with its own admission records no audit event of callers that it refuses, because any
    // caller could fill the trail.
    if (built.admit === undefined) exchange.call = call
    return enter(exchange, built, call, { locked, selection })
  }
}
