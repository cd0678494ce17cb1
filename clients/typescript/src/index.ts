import { createHash, randomUUID } from 'node:crypto'
import { createWriteStream } from 'node:fs'
import { rename, rm } from 'node:fs/promises'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { setTimeout as sleep } from 'node:timers/promises'
import createClient, { type Client } from 'openapi-fetch'
import type { components, paths } from './schema.js'

export type Schemas = components['schemas']
export type Summary = Schemas['RunSummary']
export type RunEvent = Schemas['RunEvent']

/** What the service refused, with its reasons. */
export class Refused extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly details: { path: string; message: string }[],
    readonly body: Record<string, unknown>,
  ) {
    super(message)
    this.name = new.target.name
  }
}
/** 401, 403: the token or the peer. */
export class NotAllowed extends Refused {}
/** 404. */
export class NotFound extends Refused {}
/** 409, 412, 423: the state of the record. */
export class Conflict extends Refused {}
/** 400, 413, 415, 422: the request. */
export class Unacceptable extends Refused {}
/** 503 `not_built`: this version lacks it. Never asked again. */
export class NotBuilt extends Refused {}
/** 5xx and 429 after the last try. */
export class Unavailable extends Refused {}
/** What was downloaded is not what the service has recorded. */
export class DigestMismatch extends Error {}

const kindOf = (status: number, code: string): typeof Refused => {
  if (code === 'not_built') return NotBuilt
  if (status === 401 || status === 403) return NotAllowed
  if (status === 404) return NotFound
  if ([409, 412, 423].includes(status)) return Conflict
  return status >= 500 || status === 429 ? Unavailable : Unacceptable
}

/** @throws the reason of the signal */
const pause = (milliseconds: number, signal?: AbortSignal): Promise<void> =>
  sleep(milliseconds, undefined, signal === undefined ? {} : { signal }).catch((error: unknown) => {
    signal?.throwIfAborted()
    throw error
  })

const refusal = async (answer: Response): Promise<Refused> => {
  const text = await answer.text()
  let body: Record<string, unknown> = {}
  try {
    body = JSON.parse(text) as Record<string, unknown>
  } catch {
    // Something between here and the service has answered.
  }
  const code = typeof body['code'] === 'string' ? body['code'] : ''
  const message = typeof body['error'] === 'string' ? body['error'] : text.slice(0, 200)
  const details = (body['details'] ?? []) as { path: string; message: string }[]
  return new (kindOf(answer.status, code))(answer.status, code, message, details, body)
}

export interface Options {
  /** With the prefix: `http://127.0.0.1:8080/api`. */
  baseUrl: string
  token?: string
  /**
   * Tries of a request that was not answered, or with 429, 502, 503 or 504. Default 5. Waiting for a
   * run and following its events end with their signal alone.
   */
  tries?: number
}

const ended = ['completed', 'failed', 'cancelled']
const retried = [429, 502, 503, 504]
const documents = ['application/json', 'application/yaml', 'application/x-yaml', 'text/yaml']

const waitSeconds = (attempt: number): number => Math.min(0.2 * 2 ** (attempt - 1), 5)

/** Whether a request has no body, or a document. Another body is a stream, which is read once. */
const isRepeatable = ({ body, headers }: Request): boolean =>
  body === null ||
  documents.includes((headers.get('content-type') ?? '').split(';')[0]?.trim().toLowerCase() ?? '')

/**
 * A client of the service: `api` has every operation, the rest is what takes more than one call.
 */
export class Orrery {
  readonly api: Client<paths>
  readonly #options: Options

  constructor(options: Options) {
    this.#options = { ...options, baseUrl: options.baseUrl.replace(/\/$/, '') }
    this.api = createClient<paths>({
      baseUrl: this.#options.baseUrl,
      fetch: (request) => this.#send(request),
    })
  }

  /**
   * Sends a request until it is answered. A POST gets an Idempotency-Key, so that it is done once. A
   * body that is no document is sent once, without a key: the service compares it by a digest that
   * nobody knows before it is read. A request that the service still answers under its key is no
   * try, so that long work is waited for.
   * @throws Refused
   */
  async #send(request: Request, most = this.#options.tries ?? 5): Promise<Response> {
    const { token } = this.#options
    if (token !== undefined) request.headers.set('authorization', `Bearer ${token}`)
    const repeatable = isRepeatable(request)
    const tries = repeatable ? most : 1
    if (request.method === 'POST' && repeatable && !request.headers.has('idempotency-key'))
      request.headers.set('idempotency-key', randomUUID())
    for (let attempt = 1; ; attempt += 1) {
      let wait = waitSeconds(attempt)
      try {
        const answer = await fetch(repeatable ? request.clone() : request)
        if (answer.ok || answer.status === 304) return answer
        const refused = await refusal(answer)
        const passing = answer.status === 409 && answer.headers.has('retry-after')
        // Other conflicts that pass say what is in the way.
        const inFlight = repeatable && passing && refused.details.length === 0 && !('state' in refused.body)
        const again = (retried.includes(answer.status) && !(refused instanceof NotBuilt)) || passing
        if (!again || (attempt >= tries && !inFlight)) throw refused
        if (inFlight) attempt -= 1
        const after = Number(answer.headers.get('retry-after'))
        if (after > 0) wait = Math.min(after, 60)
      } catch (error) {
        if (error instanceof Refused || request.signal.aborted || attempt >= tries) throw error
      }
      await pause(wait * 1000, request.signal)
    }
  }

  #get(path: string, headers: Record<string, string>): Promise<Response> {
    return this.#send(new Request(this.#options.baseUrl + path, { headers }))
  }

  /** As `#get`, but however long the service is away. @throws Refused; the reason of the signal */
  #follow(path: string, headers: Record<string, string>, signal?: AbortSignal): Promise<Response> {
    const init = { headers, ...(signal === undefined ? {} : { signal }) }
    return this.#send(new Request(this.#options.baseUrl + path, init), Infinity)
  }

  /**
   * Every item of a list; `load` reads one page of it, from 1 on. A list that is a plain array names
   * its next page in the header `Link` of the response.
   */
  async *pages<Item>(
    load: (page: number) => Promise<{ data?: unknown; response?: Response }>,
  ): AsyncGenerator<Item> {
    for (let page = 1; ; page += 1) {
      const { data, response } = await load(page)
      const link = response?.headers.get('link') ?? ''
      const { items, hasNext } = Array.isArray(data)
        ? { items: data as Item[], hasNext: link.includes('rel="next"') }
        : (data as { items: Item[]; hasNext: boolean })
      yield* items
      if (!hasNext) return
    }
  }

  readonly runs = {
    /**
     * Waits until a run has ended, and gives its summary; without a poll each second. Goes on while
     * the service is away. @throws Refused; the reason of the signal
     */
    wait: async (runId: string, options: { signal?: AbortSignal } = {}): Promise<Summary> => {
      const path = `/execution-runs/${encodeURIComponent(runId)}/summary/`
      let tag: string | undefined
      for (;;) {
        const known = tag === undefined ? {} : { prefer: 'wait=30', 'if-none-match': tag }
        const answer = await this.#follow(path, known, options.signal)
        if (answer.status === 304) continue
        let summary: Summary
        try {
          summary = (await answer.json()) as Summary
        } catch (error) {
          if (options.signal?.aborted === true || error instanceof SyntaxError) throw error
          await pause(100, options.signal)
          continue
        }
        // Only of a summary that was read: an end that was not read would be "unchanged" for ever.
        tag = answer.headers.get('etag') ?? tag
        if (ended.includes(summary.run.status)) return summary
      }
    },

    /**
     * Events of a run in order, until it has ended. A broken stream goes on where it ended, however
     * long the service is away. @throws Refused; the reason of the signal
     */
    events: async function* (
      this: { orrery: Orrery },
      runId: string,
      options: { after?: number; signal?: AbortSignal } = {},
    ): AsyncGenerator<RunEvent> {
      let last = options.after === undefined ? undefined : String(options.after)
      for (;;) {
        const headers = { accept: 'text/event-stream', ...(last && { 'last-event-id': last }) }
        const path = `/execution-runs/${encodeURIComponent(runId)}/events/`
        const answer = await this.orrery.#follow(path, headers, options.signal)
        if (answer.status === 204 || answer.body === null) return
        try {
          for await (const { id, data } of serverSent(answer.body)) {
            last = id
            yield JSON.parse(data) as RunEvent
          }
        } catch (error) {
          if (options.signal?.aborted === true || error instanceof SyntaxError) throw error
        }
        await pause(100, options.signal)
      }
    }.bind({ orrery: this }),
  }

  readonly outputs = {
    /**
     * Downloads a file that an activity made. One that breaks off begins anew, as often as requests are
     * tried. @throws DigestMismatch, and then leaves nothing
     */
    download: async (runId: string, activityId: string, file: string, target: string): Promise<void> => {
      const [run, activity] = [runId, activityId].map(encodeURIComponent)
      const folder = `/execution-runs/${run}/activities/${activity}/outputs/`
      const found = await this.#digest(folder, file)
      const name = file.split('/').map(encodeURIComponent).join('/')
      const partial = `${target}.${randomUUID()}.part`
      try {
        const digest = await this.#save(folder + name, partial)
        if (digest !== found) throw new DigestMismatch(`${file}: sha256 is ${digest}, recorded is ${found}`)
        await rename(partial, target)
      } finally {
        await rm(partial, { force: true })
      }
    },
  }

  /** Writes the bytes of a path to a file. @returns their SHA-256 in hexadecimal */
  async #save(path: string, target: string): Promise<string> {
    for (let attempt = 1; ; attempt += 1) {
      const answer = await this.#get(path, { 'accept-encoding': 'identity' })
      const hash = createHash('sha256')
      let broken: unknown
      const hashing = async function* (): AsyncGenerator<Uint8Array> {
        try {
          for await (const chunk of answer.body ?? []) {
            hash.update(chunk)
            yield chunk
          }
        } catch (error) {
          broken = error
          throw error
        }
      }
      try {
        await pipeline(Readable.from(hashing()), createWriteStream(target))
        return hash.digest('hex')
      } catch (error) {
        if (broken === undefined || attempt >= (this.#options.tries ?? 5)) throw error
      }
      await pause(waitSeconds(attempt) * 1_000)
    }
  }

  async #digest(folder: string, file: string): Promise<string> {
    const load = async (page: number): Promise<{ data: unknown }> => ({
      data: await (await this.#get(`${folder}?page=${String(page)}`, {})).json(),
    })
    for await (const output of this.pages<Schemas['DataObjectInstance']>(load))
      if (output.relativePath === file && output.checksum !== undefined)
        return output.checksum.replace(/^sha256:/, '')
    throw new NotFound(404, 'missing', `no output ${file} with a digest below ${folder}`, [], {})
  }
}

/** The events of a `text/event-stream` that have an id. */
async function* serverSent(body: AsyncIterable<Uint8Array>): AsyncGenerator<{ id: string; data: string }> {
  const decoder = new TextDecoder()
  let rest = ''
  for await (const chunk of body) {
    const blocks = (rest + decoder.decode(chunk, { stream: true })).split('\n\n')
    rest = blocks.pop() ?? ''
    for (const block of blocks) {
      const fields = block.split('\n').map((line) => /^(\w+): ?(.*)$/.exec(line) ?? [])
      const of = (name: string): string[] =>
        fields.flatMap(([, key, value]) => (key === name ? [value ?? ''] : []))
      const [id] = of('id')
      if (id !== undefined && of('data').length > 0) yield { id, data: of('data').join('\n') }
    }
  }
}
