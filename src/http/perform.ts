import type { z } from 'zod'
import { Refusal, unacceptable } from '../refusal.ts'
import { accepts } from './accept.ts'
import type { Answers } from './answer.ts'
import { auditRecord } from './audit.ts'
import { documentFormat, otherType, readBody, readDocument } from './body.ts'
import type { HttpCall } from './call.ts'
import { checkDocument, Unfit } from './check.ts'
import { coded } from './coding.ts'
import { conditional, type Guard } from './conditional.ts'
import { HttpRefusal } from './errors.ts'
import type { Exchange, Outgoing } from './exchange.ts'
import {
  beginOnce,
  idempotencyFingerprint,
  idempotencyKey,
  idOfRequest,
  keyLifeMs,
  renewMs,
  type IdempotencyStore,
  type StoredAnswer,
} from './idempotency.ts'
import { createShapes } from './keys.ts'
import type { AppOptions } from './options.ts'
import { usualBodyPace } from './pace.ts'
import type { Attend } from './peer.ts'
import { Reply, typesToChooseFrom, type Route } from './route.ts'
import { checkHandshake, type Sockets } from './sockets.ts'
import { openUpload, type RequestUpload } from './upload.ts'
import { createYamlReader } from './yaml-reader.ts'

interface Done {
  answer: Outgoing
  reply: Reply | undefined
  /** The body as it is stored under an Idempotency-Key. */
  kept: () => string
}

/** The body of a request: none, a document's bytes, or an unread stream. */
interface Taken {
  format: string
  bytes: Buffer
  upload: RequestUpload | undefined
}

const nothing: Taken = { format: 'json', bytes: Buffer.alloc(0), upload: undefined }

/**
 * The bytes of a body that an Idempotency-Key compares. @throws Refusal `invalid` for a stream
 * whose digest is not known before it is read
 */
const comparable = ({ format, bytes, upload }: Taken): { format: string; body: Buffer } => {
  if (upload === undefined) return { format, body: bytes }
  if (upload.digest !== undefined) return { format, body: Buffer.from(upload.digest) }
  throw new Refusal(
    'invalid',
    'a streamed body under an Idempotency-Key needs the header Content-Digest with its sha-256 or sha-512',
  )
}

/** Does the work, and calls `renew` again and again meanwhile. */
const renewed = async <T>(renew: () => Promise<void>, work: () => Promise<T>): Promise<T> => {
  const renewals = setInterval(() => void renew(), renewMs)
  try {
    return await work()
  } finally {
    clearInterval(renewals)
  }
}

/**
 * Writes the audit record of a mutating request. A failure is logged and does not change the
 * answer.
 */
export const createAudit =
  ({ audit, log }: Pick<AppOptions, 'audit' | 'log'>) =>
  async (
    exchange: Exchange,
    built: Route,
    call: HttpCall,
    answer: Parameters<typeof auditRecord>[2],
  ): Promise<void> => {
    if (
      audit === undefined ||
      built.audit === false ||
      (built.method === 'GET' && built.socket === undefined)
    )
      return
    try {
      await audit(auditRecord(built, call, answer))
    } catch (error) {
      log.error({ err: error, requestId: exchange.requestId }, 'an audit record could not be written')
    }
  }

export type Audit = ReturnType<typeof createAudit>

interface Surroundings {
  options: Pick<AppOptions, 'config' | 'log' | 'idempotency' | 'bodyPace'>
  answers: Answers
  audit: Audit
  guarded: Guard
  sockets: Sockets
  /** The caller's part in the key of a repeated request. */
  caller: string
}

/** The stored answer, with what the route makes anew. */
const replayed = async (
  answers: Answers,
  built: Route,
  call: HttpCall,
  { status, headers, body }: StoredAnswer,
): Promise<Done> => ({
  answer: {
    status,
    headers: { ...headers, 'Idempotency-Replayed': 'true' },
    body:
      body === '' || built.renewed === undefined
        ? body || undefined
        : answers.outgoing(built, await built.renewed.again(JSON.parse(body), call)).body,
  },
  reply: undefined,
  kept: () => body,
})

/**
 * What an earlier try of the request has made. A record that is older than a key lives is of
 * another request, so this one gets an id of its own.
 */
const madeBefore = async (built: Route, call: HttpCall): Promise<unknown> => {
  try {
    const found = await built.made?.(call)
    if (found === undefined || Date.now() - Date.parse(found.createdAt) < keyLifeMs) return found?.answer
    call.newId = undefined
  } catch (error) {
    if (!(error instanceof Refusal) || error.code !== 'missing') throw error
  }
  return undefined
}

/** So much of a text shows its language. */
const languageBytes = 262_144

/** The refusal of a text that is no document, with the language that the route finds in it. */
const withLanguage = (built: Route, bytes: Buffer, error: unknown): unknown => {
  if (!(error instanceof Refusal) || error.code !== 'invalid') return error
  const language = built.foreignText?.(bytes.subarray(0, languageBytes).toString())
  return language === undefined
    ? error
    : new Refusal('invalid', `${language} (${error.message})`, { details: error.details })
}

/**
 * The document in the form of its schema. A refused document gets the findings of the store
 * together with those of the schema.
 */
const openFitting = () => {
  const shapeOf = createShapes()
  return async (
    built: Route,
    schema: z.ZodType,
    document: unknown,
    params: Record<string, string>,
  ): Promise<unknown> => {
    try {
      return checkDocument(schema, shapeOf(schema), document)
    } catch (error) {
      if (!(error instanceof Unfit) || error.code !== 'unacceptable' || built.alsoCheck === undefined)
        throw error
      throw unacceptable([...error.details, ...(await built.alsoCheck({ document: error.document, params }))])
    }
  }
}

/**
 * A route's own part of a request: Accept, admission, body, schema, idempotency, handler, answer.
 */
export const createPerform = ({ options, answers, audit, guarded, sockets, caller }: Surroundings) => {
  const { config, log } = options
  const pace = options.bodyPace ?? usualBodyPace
  const fitting = openFitting()
  const readYaml = createYamlReader()

  const takeBody = async ({ req, res }: Exchange, built: Route, call: HttpCall): Promise<Taken> => {
    const upload = openUpload(req, res, built, pace)
    if (upload !== undefined) {
      call.upload = upload
      return { ...nothing, format: upload.type, upload }
    }
    if (built.body === undefined) {
      if (built.upload !== undefined) throw otherType(false, built.upload.types)
      return nothing
    }
    // An empty body is of no type; where the document is optional there may be none.
    const isOptional = built.body._zod.optin !== undefined
    const announced = isOptional ? undefined : documentFormat(req, built.upload?.types)
    const limit = built.limitBytes ?? config.bodyLimitBytes
    const bytes = await readBody(req, res, { limit, withinMs: pace.wholeMs })
    const format = announced ?? (bytes.length === 0 ? 'json' : documentFormat(req, built.upload?.types))
    try {
      const document = await readDocument(bytes, format, { limit, readYaml })
      call.body = await fitting(built, built.body, document, call.params)
    } catch (error) {
      throw withLanguage(built, bytes, error)
    }
    return { format, bytes, upload: undefined }
  }

  const handle = async (built: Route, call: HttpCall, { upload }: Taken, keyed: boolean): Promise<Done> => {
    try {
      const result = (keyed ? await madeBefore(built, call) : undefined) ?? (await built.handle(call))
      // A handler that misses the failure of its stream has stored other bytes than the client's.
      if (upload?.stream.failure !== undefined) throw upload.stream.failure
      const reply = result instanceof Reply ? result : undefined
      const answer = answers.outgoing(built, result)
      const kept = (): string =>
        built.renewed === undefined
          ? (answer.body?.toString() ?? '')
          : JSON.stringify(built.renewed.kept(reply === undefined ? result : reply.body))
      return { answer, reply, kept }
    } catch (error) {
      throw upload?.stream.failure ?? error
    } finally {
      upload?.stream.destroy()
    }
  }

  /**
   * Runs the work unless its key has an answer. Only successes are stored: a refusal changed no
   * record, and the request may be repeated.
   */
  const once = async (
    { store, key, fingerprint }: { store: IdempotencyStore; key: string; fingerprint: string },
    built: Route,
    call: HttpCall,
    work: () => Promise<Done>,
  ): Promise<Done> => {
    const { requestId } = call
    const stored = await beginOnce(store, key, fingerprint)
    if (stored !== undefined) return replayed(answers, built, call, stored)
    const settled = (change: Promise<void>, text: string): Promise<void> =>
      change.catch((failure: unknown) => log.error({ err: failure, requestId }, text))
    let done: Done
    try {
      done = await renewed(() => settled(store.renew(key), 'an Idempotency-Key could not be renewed'), work)
    } catch (error) {
      await settled(store.abandon(key), 'an Idempotency-Key could not be released')
      throw error
    }
    const { answer, reply, kept } = done
    await settled(
      reply?.stream !== undefined || answer.status >= 400
        ? store.abandon(key)
        : store.complete(key, {
            status: answer.status,
            headers: answer.headers,
            body: kept(),
          }),
      'an answer could not be kept under its Idempotency-Key',
    )
    return done
  }

  /** Runs the handler, under the request's Idempotency-Key or preconditions where it has some. */
  const perform = (exchange: Exchange, built: Route, call: HttpCall, taken: Taken): Promise<Done> => {
    const run = (keyed = false): Promise<Done> => handle(built, call, taken, keyed)
    if (built.method === 'PUT' || built.method === 'DELETE')
      return guarded(exchange, built, call, () => run())
    const given = exchange.req.headers['idempotency-key']
    const store = options.idempotency
    if (built.method !== 'POST' || given === undefined || store === undefined) return run()
    if (typeof given !== 'string') throw new Refusal('invalid', 'Idempotency-Key must be given once')
    // The first answer of a read is that of the instance that it read.
    const read = built.reads === true ? (exchange.instance ?? '') : ''
    const key = idempotencyKey(given, { method: built.method, path: read + exchange.path, caller })
    const fingerprint = idempotencyFingerprint({ query: exchange.search, ...comparable(taken) })
    call.newId = idOfRequest(key, fingerprint)
    return once({ store, key, fingerprint }, built, call, () => run(true))
  }

  const openSocket = async (exchange: Exchange, built: Route, call: HttpCall): Promise<void> => {
    await built.admit?.({ params: call.params, query: call.query })
    exchange.call = call
    // A missing record is missing whatever the client asks with.
    const attend = (await built.handle(call)) as Attend
    checkHandshake(exchange)
    await audit(exchange, built, call, { status: 101, code: undefined })
    sockets.accept(exchange, built, attend)
    answers.switched(exchange)
  }

  return async (exchange: Exchange, built: Route, call: HttpCall): Promise<void> => {
    if (built.socket !== undefined) return openSocket(exchange, built, call)
    const types = typesToChooseFrom(built)
    if (types.length > 0 && !accepts(exchange.req.headers.accept, types))
      throw new HttpRefusal(
        'not_acceptable',
        `this route answers ${types.join(', ')}; the Accept header excludes that`,
      )
    await built.admit?.({ params: call.params, query: call.query })
    exchange.call = call
    const { answer, reply } = await perform(exchange, built, call, await takeBody(exchange, built, call))
    if (reply?.stream !== undefined) {
      await audit(exchange, built, call, { status: answer.status, code: undefined })
      return answers.stream(exchange, reply, answer.status, answer.headers)
    }
    const final = built.method === 'GET' ? await conditional(exchange, built, answer) : answer
    // A replayed answer is no new event, unless it opens something anew.
    if (final.headers['Idempotency-Replayed'] === undefined || built.renewed !== undefined)
      await audit(exchange, built, call, { status: final.status, code: undefined, body: final.body })
    answers.write(exchange, await coded(exchange, final), final.body)
  }
}

export type Perform = ReturnType<typeof createPerform>
