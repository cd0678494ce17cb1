import type { z } from 'zod'
import { Refusal, unacceptable } from '../refusal.ts'
import { accepts } from './accept.ts'
import type { Answers } from './answer.ts'
import { auditRecord } from './audit.ts'
import { documentFormat, otherType, readBody, readDocument } from './body.ts'
import type { HttpCall } from './call.ts'
import { checkDocument, Unfit } from './check.ts'
import { conditional, type Guard } from './conditional.ts'
import { HttpRefusal } from './errors.ts'
import type { Exchange, Outgoing } from './exchange.ts'
import { beginOnce, idempotencyFingerprint, idempotencyKey, type IdempotencyStore } from './idempotency.ts'
import { createShapes } from './keys.ts'
import type { AppOptions } from './options.ts'
import { usualBodyPace } from './pace.ts'
import type { Attend } from './peer.ts'
import { Reply, type Route } from './route.ts'
import { checkHandshake, type Sockets } from './sockets.ts'
import { openUpload, type OpenUpload } from './upload.ts'
import { createYamlReader } from './yaml-reader.ts'

const documentTypes = ['application/json']

interface Done {
  answer: Outgoing
  reply: Reply | undefined
}

/** What came with a request: nothing, a document's bytes, or a stream that is not read yet. */
interface Taken {
  format: string
  bytes: Buffer
  upload: OpenUpload | undefined
}

const nothing: Taken = { format: 'json', bytes: Buffer.alloc(0), upload: undefined }

/** What an Idempotency-Key compares of a body. @throws Refusal `invalid` for a stream whose digest is not known before it is read */
const comparable = ({ format, bytes, upload }: Taken): { format: string; body: Buffer } => {
  if (upload === undefined) return { format, body: bytes }
  if (upload.digest !== undefined) return { format, body: Buffer.from(upload.digest) }
  throw new Refusal('invalid', 'a streamed body under an Idempotency-Key needs the header Content-Digest with its sha-256 or sha-512')
}

/** Writes the audit record of a request that may change something; its failure is logged and changes no answer. */
export const createAudit =
  ({ audit, log }: Pick<AppOptions, 'audit' | 'log'>) =>
  async (exchange: Exchange, built: Route, call: HttpCall, answer: Parameters<typeof auditRecord>[2]): Promise<void> => {
    if (audit === undefined || built.audit === false || (built.method === 'GET' && built.socket === undefined)) return
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
  /** What stands for the caller in the key of a repeated request. */
  caller: string
}

/** A route's own part of a request: Accept, admission, body, schema, idempotency, handler, answer. */
export const createPerform = ({ options, answers, audit, guarded, sockets, caller }: Surroundings) => {
  const { config, log } = options
  const pace = options.bodyPace ?? usualBodyPace
  const shapeOf = createShapes()
  const readYaml = createYamlReader()

  /** The document as its schema gives it; one that is refused gets the findings of the store with those of the schema, all at once. */
  const fitting = async (built: Route, schema: z.ZodType, document: unknown, params: Record<string, string>): Promise<unknown> => {
    try {
      return checkDocument(schema, shapeOf(schema), document)
    } catch (error) {
      if (!(error instanceof Unfit) || error.code !== 'unacceptable' || built.alsoCheck === undefined) throw error
      throw unacceptable([...error.details, ...(await built.alsoCheck({ document: error.document, params }))])
    }
  }

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
    const format = documentFormat(req, built.upload?.types)
    const bytes = await readBody(req, res, { limit: built.limitBytes ?? config.bodyLimitBytes, withinMs: pace.wholeMs })
    call.body = await fitting(built, built.body, await readDocument(bytes, format, readYaml), call.params)
    return { format, bytes, upload: undefined }
  }

  const handle = async (built: Route, call: HttpCall, { upload }: Taken): Promise<Done> => {
    try {
      const result = await built.handle(call)
      // A handler that misses the failure of its stream has kept something else than what the client has.
      if (upload?.stream.failure !== undefined) throw upload.stream.failure
      return { answer: answers.outgoing(built, result), reply: result instanceof Reply ? result : undefined }
    } catch (error) {
      throw upload?.stream.failure ?? error
    } finally {
      upload?.stream.destroy()
    }
  }

  /** Runs the work unless its key has an answer. Only successes are kept: a refusal changed nothing and may be tried again. */
  const once = async (
    store: IdempotencyStore,
    key: string,
    fingerprint: string,
    requestId: string,
    work: () => Promise<Done>,
  ): Promise<Done> => {
    const stored = await beginOnce(store, key, fingerprint)
    if (stored !== undefined) {
      const { status, headers, body } = stored
      return {
        answer: { status, headers: { ...headers, 'Idempotency-Replayed': 'true' }, body: body === '' ? undefined : body },
        reply: undefined,
      }
    }
    const settled = (change: Promise<void>, text: string): Promise<void> =>
      change.catch((failure: unknown) => log.error({ err: failure, requestId }, text))
    let done: Done
    try {
      done = await work()
    } catch (error) {
      await settled(store.abandon(key), 'an Idempotency-Key could not be released')
      throw error
    }
    const { answer, reply } = done
    await settled(
      reply?.stream !== undefined || answer.status >= 400
        ? store.abandon(key)
        : store.complete(key, { status: answer.status, headers: answer.headers, body: answer.body?.toString() ?? '' }),
      'an answer could not be kept under its Idempotency-Key',
    )
    return done
  }

  /** Runs the handler, under the request's Idempotency-Key or If-Match if there is one. */
  const perform = (exchange: Exchange, built: Route, call: HttpCall, taken: Taken): Promise<Done> => {
    const run = (): Promise<Done> => handle(built, call, taken)
    if (built.method === 'PUT' || built.method === 'DELETE') return guarded(exchange, call, run)
    const given = exchange.req.headers['idempotency-key']
    const store = options.idempotency
    if (built.method !== 'POST' || given === undefined || store === undefined) return run()
    if (typeof given !== 'string') throw new Refusal('invalid', 'Idempotency-Key must be given once')
    const key = idempotencyKey(given, { method: built.method, path: exchange.path, caller })
    const fingerprint = idempotencyFingerprint({ query: exchange.search, ...comparable(taken) })
    return once(store, key, fingerprint, exchange.requestId, run)
  }

  const openSocket = async (exchange: Exchange, built: Route, call: HttpCall): Promise<void> => {
    checkHandshake(exchange)
    await built.admit?.({ params: call.params, query: call.query })
    exchange.call = call
    const attend = (await built.handle(call)) as Attend
    await audit(exchange, built, call, { status: 101, code: undefined })
    sockets.accept(exchange, built, attend)
    answers.switched(exchange)
  }

  return async (exchange: Exchange, built: Route, call: HttpCall): Promise<void> => {
    if (built.socket !== undefined) return openSocket(exchange, built, call)
    const types = [...new Set([...(built.raw ?? []), ...(built.response === undefined ? [] : documentTypes)])]
    if (types.length > 0 && !accepts(exchange.req.headers.accept, types))
      throw new HttpRefusal('not_acceptable', `this route answers ${types.join(', ')}; the Accept header excludes that`)
    await built.admit?.({ params: call.params, query: call.query })
    exchange.call = call
    const { answer, reply } = await perform(exchange, built, call, await takeBody(exchange, built, call))
    if (reply?.stream !== undefined) {
      await audit(exchange, built, call, { status: answer.status, code: undefined })
      return answers.stream(exchange, reply, answer.status, answer.headers)
    }
    const final = built.method === 'GET' ? conditional(exchange, answer) : answer
    // Nothing happened when an earlier answer was given again.
    if (final.headers['Idempotency-Replayed'] === undefined)
      await audit(exchange, built, call, { status: final.status, code: undefined, body: final.body })
    answers.write(exchange, final)
  }
}

export type Perform = ReturnType<typeof createPerform>
