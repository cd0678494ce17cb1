import { connect, type Socket } from 'node:net'
import { Readable } from 'node:stream'
import { z } from 'zod'
import type { IdempotencyStore, StoredAnswer } from '../../src/http/idempotency.ts'
import type { AppOptions } from '../../src/http/options.ts'
import {
  arraySizes,
  envelope,
  envelopeOf,
  pageOf,
  pageQuery,
  pageQueryOf,
  pagedArray,
} from '../../src/http/paging.ts'
import { Reply, route } from '../../src/http/route.ts'
import { Count, Id, JsonObject, Name } from '../../src/http/schema.ts'
import type { ServerTimeouts } from '../../src/http/server.ts'
import { missing, Refusal } from '../../src/refusal.ts'
import { openRoutes } from '../support/open-routes.ts'
import { flowRoutes, newFlows } from './flow-routes.ts'

/** A small domain with one of everything that a route can be. */
const Star = z
  .strictObject({
    id: Id,
    name: Name,
    kind: z.enum(['dwarf', 'giant']).default('dwarf'),
    planets: Count.default(0),
    mass: z.number().optional(),
    note: z.string().nullable().optional(),
    metadata: JsonObject.optional(),
    moons: z.array(z.strictObject({ name: Name, radius: z.number().positive() })).default([]),
    light: z.union([z.strictObject({ colour: z.string() }), z.number()]).optional(),
  })
  .meta({ id: 'Star' })

/** Keeps answers in memory with the promises of the contract: of equal calls one is fresh. */
export const memoryStore = (): IdempotencyStore => {
  const kept = new Map<string, { fingerprint: string; answer: StoredAnswer | undefined }>()
  return {
    begin: async (key, fingerprint) => {
      const known = kept.get(key)
      if (known === undefined) {
        kept.set(key, { fingerprint, answer: undefined })
        return 'fresh'
      }
      if (known.fingerprint !== fingerprint) return 'mismatch'
      return known.answer ?? 'in-flight'
    },
    complete: async (key, answer) => {
      const known = kept.get(key)
      if (known !== undefined) known.answer = answer
    },
    abandon: async (key) => void kept.delete(key),
    renew: async () => undefined,
  }
}

/** The domain of stars behind the kernel. */
export const openStars = async (
  over: Partial<AppOptions['config']> &
    Pick<AppOptions, 'bodyPace' | 'peerPace' | 'stallMs'> & {
      timeouts?: ServerTimeouts
      host?: string
    } = {},
) => {
  const stars = new Map<string, z.output<typeof Star>>()
  const created = { count: 0 }
  const aborted: string[] = []
  const activated = { value: false }
  const flows = newFlows()
  const star = (id: string): z.output<typeof Star> => {
    const found = stars.get(id)
    if (found === undefined) throw missing('star', id)
    return found
  }
  const list = [
    route('getStars', 'GET /stars/', {
      summary: 'List stars',
      tag: 'stars',
      query: z.strictObject({ ...pageQueryOf(arraySizes), kind: z.enum(['dwarf', 'giant']).optional() }),
      response: z.array(Star),
      handle: ({ query, target }) => {
        const page = pageOf(query, arraySizes)
        const all = [...stars.values()]
          .filter((one) => query.kind === undefined || one.kind === query.kind)
          .toSorted((a, b) => (a.id < b.id ? -1 : 1))
        return pagedArray(all.slice(page.offset, page.offset + page.limit), {
          page,
          total: all.length,
          target,
        })
      },
    }),
    route('getStarPages', 'GET /star-pages/', {
      summary: 'Page through stars',
      tag: 'stars',
      query: z.strictObject(pageQuery),
      response: envelopeOf(Star),
      handle: ({ query }) => {
        const page = pageOf(query)
        const all = [...stars.values()]
        return envelope(all.slice(page.offset, page.offset + page.limit), { page, total: all.length })
      },
    }),
    route('postStars', 'POST /stars/', {
      summary: 'Create a star',
      tag: 'stars',
      body: Star,
      response: Star,
      status: 201,
      refuses: [409],
      audit: {
        eventType: 'star.created',
        summary: ({ body }) => `star ${(body as { id: string }).id} created`,
        resourceId: ({ body }) => (body as { id: string }).id,
      },
      handle: async ({ body }) => {
        await new Promise((resolve) => setTimeout(resolve, 5))
        created.count++
        if (stars.has(body.id))
          throw new Refusal('conflict', `star ${JSON.stringify(body.id)} exists`, {
            extra: { state: 'shining' },
          })
        stars.set(body.id, body)
        return new Reply({ body, headers: { location: `/stars/${encodeURIComponent(body.id)}/` } })
      },
    }),
    route('postStarsImport', 'POST /stars/import/', {
      summary: 'Import a star',
      tag: 'stars',
      body: Star,
      response: Star,
      status: 202,
      limitBytes: 2_000,
      handle: ({ body }) => body,
    }),
    route('getStarsStarId', 'GET /stars/{starId}/', {
      summary: 'Read a star',
      tag: 'stars',
      response: Star,
      handle: ({ params }) => star(params.starId),
    }),
    route('putStarsStarId', 'PUT /stars/{starId}/', {
      summary: 'Replace a star',
      tag: 'stars',
      body: Star,
      response: Star,
      handle: ({ params, body }) => {
        star(params.starId)
        stars.set(params.starId, body)
        return body
      },
    }),
    route('deleteStarsStarId', 'DELETE /stars/{starId}/', {
      summary: 'Delete a star',
      tag: 'stars',
      handle: ({ params }) => void stars.delete(star(params.starId).id),
    }),
    route('postStarsStarIdIgnite', 'POST /stars/{starId}/ignite/', {
      summary: 'Ignite',
      tag: 'stars',
      response: Star,
      status: 202,
      whileActivated: true,
      handle: ({ params }) => star(params.starId),
    }),
    route('getEchoId', 'GET /echo/{id}/', {
      summary: 'Echo an id',
      tag: 'echo',
      response: z.strictObject({ id: z.string() }),
      handle: ({ params }) => ({ id: params.id }),
    }),
    route('getEchoIdFilesFile', 'GET /echo/{id}/files/{file}', {
      summary: 'Echo a file name',
      tag: 'echo',
      response: z.strictObject({ id: z.string(), file: z.string() }),
      handle: ({ params }) => params,
    }),
    route('postEcho', 'POST /echo/', {
      summary: 'Echo a document',
      tag: 'echo',
      body: z.strictObject({ any: z.unknown() }),
      response: z.strictObject({ any: z.unknown() }),
      handle: ({ body }) => ({ any: body.any ?? null }),
    }),
    route('postFail', 'POST /fail/', {
      summary: 'Fail',
      tag: 'fail',
      handle: () => {
        throw new Error('connect ECONNREFUSED db.internal: select * from secrets')
      },
    }),
    route('getWrong', 'GET /wrong/', {
      summary: 'Answer what the schema forbids',
      tag: 'fail',
      response: z.strictObject({ a: z.number() }),
      handle: () => ({ a: 'x' }) as unknown as { a: number },
    }),
    route('getTwice', 'GET /twice/', {
      summary: 'Answer text that is JSON',
      tag: 'echo',
      raw: ['application/json'],
      response: z.strictObject({}),
      handle: () => new Reply<unknown>({ body: '{}' }),
    }),
    route('getAway', 'GET /away/', {
      summary: 'Away',
      tag: 'fail',
      response: Star,
      handle: () => {
        throw new Refusal('unavailable', 'the engine is away', { retryAfterSeconds: 2.2 })
      },
    }),
    route('getUnique', 'GET /unique/', {
      summary: 'Violate',
      tag: 'fail',
      refuses: [422],
      response: Star,
      handle: () => {
        throw Object.assign(new Error('duplicate key'), { constraint: 'stars_pk' })
      },
    }),
    route('getInstance', 'GET /instance/', {
      summary: 'Bootstrap',
      tag: 'instance',
      public: true,
      response: z.strictObject({ name: z.string() }),
      handle: () => ({ name: 'here' }),
    }),
    route('getPreflight', 'GET /preflight/', {
      summary: 'Bootstrap',
      tag: 'instance',
      public: 'get',
      response: z.strictObject({ ok: z.boolean() }),
      handle: () => ({ ok: true }),
    }),
    route('getTicks', 'GET /ticks/', {
      summary: 'Ticks',
      tag: 'stream',
      raw: ['text/event-stream'],
      handle: ({ signal }) => {
        signal.addEventListener('abort', () => aborted.push('ticks'))
        const stream = new Readable({ read: () => undefined })
        stream.push('data: 1\n\n')
        const timer = setInterval(() => stream.push('data: 2\n\n'), 20)
        stream.once('close', () => {
          clearInterval(timer)
          aborted.push('stream')
        })
        return new Reply({ stream })
      },
    }),
    route('getSky', 'GET /sky/', {
      summary: 'A sky without an end, after a while without anything',
      tag: 'stream',
      query: z.strictObject({ silentMs: z.coerce.number() }),
      raw: ['application/octet-stream'],
      handle: ({ query }) => {
        const push = (): void => void stream.push(Buffer.alloc(65_536))
        const stream = new Readable({
          read: () => void (stream.readableDidRead ? push() : setTimeout(push, query.silentMs)),
        })
        stream.once('close', () => aborted.push('sky'))
        return new Reply({ stream })
      },
    }),
    route('getPiece', 'GET /pieces/', {
      summary: 'Bytes whose number is announced, rightly or not',
      tag: 'stream',
      query: z.strictObject({ announced: z.string(), bytes: z.coerce.number() }),
      raw: ['application/octet-stream'],
      handle: ({ query: { announced, bytes } }) =>
        new Reply({
          stream: Readable.from(Array.from({ length: bytes }, () => Buffer.alloc(1, 'x'))),
          headers: { 'content-length': announced },
        }),
    }),
    route('getText', 'GET /text/', {
      summary: 'Text',
      tag: 'stream',
      raw: ['text/plain'],
      response: z.strictObject({ text: z.string() }),
      handle: ({ headers }) =>
        headers['accept'] === 'application/json' ? { text: 'é' } : new Reply({ body: 'é' }),
    }),
    route('postStarNames', 'POST /star-names/', {
      summary: 'Create a star and answer its name',
      tag: 'stars',
      body: Star,
      response: Star,
      status: 201,
      raw: ['text/plain'],
      handle: ({ body, headers }) => {
        created.count++
        stars.set(body.id, body)
        return headers['accept'] === 'text/plain' ? new Reply({ body: body.name }) : body
      },
    }),
    route('getMadeStarsStarId', 'GET /made-stars/{starId}/', {
      summary: 'A star',
      tag: 'stars',
      response: Star,
      handle: ({ params }) => star(params.starId),
    }),
    route('putMadeStarsStarId', 'PUT /made-stars/{starId}/', {
      summary: 'Make or replace a star',
      tag: 'stars',
      body: Star,
      response: Star,
      creates: true,
      handle: ({ params, body }) => {
        stars.set(params.starId, body)
        return body
      },
    }),
    route('getDrawings', 'GET /drawings/', {
      summary: 'A drawing; the query decides which',
      tag: 'stream',
      raw: ['image/svg+xml', 'image/png'],
      fixedType: true,
      handle: () => new Reply({ body: '<svg/>' }),
    }),
    ...flowRoutes(flows),
  ]
  const { timeouts, host, bodyPace, peerPace, stallMs, ...config } = over
  const routes = await openRoutes(() => list, {
    config,
    ...(timeouts === undefined ? {} : { timeouts }),
    ...(host === undefined ? {} : { host }),
    // Some routes fail, and tests look for that in the log.
    errorsExpected: true,
    kernel: {
      version: '9.9.9',
      activated: () => activated.value,
      idempotency: memoryStore(),
      ...(bodyPace === undefined ? {} : { bodyPace }),
      ...(peerPace === undefined ? {} : { peerPace }),
      ...(stallMs === undefined ? {} : { stallMs }),
      translate: (error) =>
        (error as { constraint?: string }).constraint === 'stars_pk'
          ? new Refusal('unacceptable', 'star id is taken')
          : undefined,
    },
  })
  return { ...routes, stars, aborted, activated, created, flows }
}

export type Stars = Awaited<ReturnType<typeof openStars>>

/**
 * Sends bytes as they are and gives back everything that came until the other side closed, or `ms`
 * passed.
 */
export const raw = async (
  port: number,
  bytes: string | Buffer,
  options: { ms?: number; half?: boolean; host?: string; until?: RegExp } = {},
): Promise<string> => {
  const socket: Socket = connect({ port, host: options.host ?? '127.0.0.1', allowHalfOpen: true })
  let text = ''
  const closed = new Promise<void>((resolve) => {
    socket.on('data', (chunk) => {
      text += chunk.toString('latin1')
      if ((options.until ?? /^HTTP\/1\.1 [\s\S]*\r\n\r\n/).test(text)) resolve()
    })
    socket.on('close', () => resolve())
    socket.on('error', () => resolve())
    setTimeout(resolve, options.ms ?? 5_000).unref()
  })
  socket.write(bytes)
  if (options.half === true) socket.end()
  await closed
  socket.destroy()
  return text
}

export const statusOf = (answer: string): number => Number(/^HTTP\/1\.1 (\d{3})/.exec(answer)?.[1] ?? 0)
export const json = (body: unknown): RequestInit => ({
  method: 'POST',
  headers: { 'content-type': 'application/json' },
  body: JSON.stringify(body),
})
export const yaml = (body: string): RequestInit => ({
  method: 'POST',
  headers: { 'content-type': 'application/yaml' },
  body,
})
