import { createHash, randomUUID } from 'node:crypto'
import { rename, rm, writeFile } from 'node:fs/promises'
import { setTimeout as sleep } from 'node:timers/promises'
import createClient, { type Client } from 'openapi-fetch'
import type { components, paths } from './schema.js'

export type Schemas = components['schemas']
export type Summary = Schemas['RunSummary']
export type RunEvent = Schemas['RunEvent']
type Api = Client<paths>

/** What the service refused, with its reasons. */
export class Refused extends Error {
  readonly code: string
  readonly details: Schemas['Error']['details']
  constructor(
    readonly status: number,
    readonly body: Partial<Schemas['Error']>,
    text = '',
  ) {
    super(String(body.error ?? text.slice(0, 200)))
    this.name = new.target.name
    this.code = String(body.code ?? '')
    this.details = body.details ?? []
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

const kinds: Record<number, typeof Refused> = {
  ...{ 401: NotAllowed, 403: NotAllowed, 404: NotFound },
  ...{ 409: Conflict, 412: Conflict, 423: Conflict },
}

const refusal = async (answer: Response): Promise<Refused> => {
  const { status } = answer
  const text = await answer.text()
  let body: Partial<Schemas['Error']> = {}
  try {
    body = Object(JSON.parse(text)) as typeof body
  } catch {
    // Something between here and the service has answered.
  }
  const other = status >= 500 || status === 429 ? Unavailable : Unacceptable
  const Kind = body.code === 'not_built' ? NotBuilt : (kinds[status] ?? other)
  return new Kind(status, body, text)
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

const waitSeconds = (attempt: number): number => Math.min(0.2 * 2 ** (attempt - 1), 5)

/** @throws the reason of the signal */
const pause = (seconds: number, signal?: AbortSignal): Promise<void> =>
  sleep(seconds * 1_000, undefined, { signal }).catch(() => signal?.throwIfAborted())

/** Whether `fetch` lost the connection, before its answer or within. */
const isLost = (error: unknown): boolean => (error as Error | undefined)?.name === 'TypeError'

/** Whether a request has no body, or a document. Another body is a stream, which is read once. */
const isRepeatable = ({ body, headers }: Request): boolean =>
  body === null ||
  /^(application\/(json|(x-)?yaml)|text\/yaml)\s*(;|$)/i.test(headers.get('content-type') ?? '')

/** An answer whose document, if it is one, is here. */
const whole = async (answer: Response): Promise<Response> =>
  answer.body !== null && answer.headers.get('content-type')?.startsWith('application/json')
    ? new Response(await answer.arrayBuffer(), answer)
    : answer

/**
 * Sends a request until it is answered. A POST gets an Idempotency-Key, so that it is done once. A
 * body that is no document is sent once, without a key: the service compares it by a digest that
 * nobody knows before it is read. A request that the service still answers under its key is no
 * try, so that long work is waited for.
 * @throws Refused
 */
const send = async (request: Request, most: number): Promise<Response> => {
  const repeatable = isRepeatable(request)
  const tries = repeatable ? most : 1
  if (request.method === 'POST' && repeatable && !request.headers.has('idempotency-key'))
    request.headers.set('idempotency-key', randomUUID())
  for (let attempt = 1; ; attempt += 1) {
    let wait = waitSeconds(attempt)
    try {
      const answer = await fetch(repeatable ? request.clone() : request)
      if (answer.ok || answer.status === 304) return await whole(answer)
      const refused = await refusal(answer)
      const after = answer.headers.get('retry-after')
      const isPassing = answer.status === 409 && after !== null
      // Other conflicts that pass say what is in the way.
      const isInFlight = repeatable && isPassing && refused.details.length === 0 && !('state' in refused.body)
      const again = isPassing || (retried.includes(answer.status) && !(refused instanceof NotBuilt))
      if (!again || (attempt >= tries && !isInFlight)) throw refused
      if (isInFlight) attempt -= 1
      if (Number(after) > 0) wait = Math.min(Number(after), 60)
    } catch (error) {
      if (!isLost(error) || attempt >= tries) throw error
    }
    await pause(wait, request.signal)
  }
}

/**
 * Every item of a list; `load` reads one page of it, from 1 on. A list that is a plain array names
 * its next page in the header `Link` of the response.
 */
async function* pages<Item>(
  load: (page: number) => Promise<{ data?: unknown; response?: Response }>,
): AsyncGenerator<Item> {
  for (let page = 1; ; page += 1) {
    const { data, response } = await load(page)
    const listed = data as Item[] | { items: Item[]; hasNext: boolean }
    yield* Array.isArray(listed) ? listed : listed.items
    const link = response?.headers.get('link') ?? ''
    if (!(Array.isArray(listed) ? link.includes('rel="next"') : listed.hasNext)) return
  }
}

/** The events of a `text/event-stream` that have an id. */
async function* serverSent(body: ReadableStream<Uint8Array>): AsyncGenerator<{ id: string; data: string }> {
  let rest = ''
  for await (const text of body.pipeThrough(new TextDecoderStream())) {
    const blocks = (rest + text).split('\n\n')
    rest = blocks.pop() ?? ''
    for (const block of blocks) {
      const lines = block.split('\n')
      const valuesOf = (name: string): string[] =>
        lines.filter((line) => line.startsWith(name)).map((line) => line.slice(name.length).replace(/^ /, ''))
      const [[id], data] = [valuesOf('id:'), valuesOf('data:')]
      if (id !== undefined && data.length > 0) yield { id, data: data.join('\n') }
    }
  }
}

/** @param api sends requests however long the service is away */
const runsOf = (api: Api) => ({
  /**
   * Waits until a run has ended, and gives its summary; without a poll each second. Goes on while
   * the service is away. @throws Refused; the reason of the signal
   */
  async wait(runId: string, { signal }: { signal?: AbortSignal } = {}): Promise<Summary> {
    for (let header = {}; ;) {
      const params = { path: { runId }, header }
      const options = { params, signal: signal ?? null }
      const { data, response } = await api.GET('/execution-runs/{runId}/summary/', options)
      if (data !== undefined && ended.includes(data.run.status)) return data
      const tag = response.headers.get('etag')
      if (tag !== null) header = { prefer: 'wait=30', 'if-none-match': tag }
    }
  },

  /**
   * Events of a run in order, until it has ended. A broken stream goes on where it ended, however
   * long the service is away. @throws Refused; the reason of the signal
   */
  async *events(
    runId: string,
    { after, signal }: { after?: number; signal?: AbortSignal } = {},
  ): AsyncGenerator<RunEvent> {
    for (let last = after?.toString(); ;) {
      const headers = { accept: 'text/event-stream', 'last-event-id': last }
      const { data: stream } = await api.GET('/execution-runs/{runId}/events/', {
        params: { path: { runId } },
        headers,
        parseAs: 'stream',
        signal: signal ?? null,
      })
      // The run has ended, and has no more of them.
      if (!stream) return
      try {
        for await (const { id, data } of serverSent(stream)) {
          last = id
          yield JSON.parse(data) as RunEvent
        }
      } catch (error) {
        if (!isLost(error)) throw error
      }
      await pause(0.1, signal)
    }
  },
})

const outputsOf = (api: Api, tries: number) => {
  const folder = '/execution-runs/{runId}/activities/{activityId}/outputs/'
  type Output = paths[`${typeof folder}{path}`]['get']['parameters']['path']

  const recorded = async (path: Output): Promise<string> => {
    const load = (page: number) => api.GET(folder, { params: { path, query: { page } } })
    for await (const { relativePath, checksum } of pages<Schemas['DataObjectInstance']>(load))
      if (relativePath === path.path && checksum !== undefined) return checksum.replace(/^sha256:/, '')
    const error = `activity ${path.activityId} of run ${path.runId} has no output ${path.path} with a digest`
    throw new NotFound(404, { code: 'missing', error })
  }

  /** Writes the bytes of an output to a file. @returns their SHA-256 in hexadecimal */
  const save = async (path: Output, target: string): Promise<string> => {
    const headers = { 'accept-encoding': 'identity' }
    for (let attempt = 1; ; attempt += 1) {
      const { data } = await api.GET(`${folder}{path}`, { params: { path }, headers, parseAs: 'stream' })
      const hash = createHash('sha256')
      const hashed = async function* (): AsyncGenerator<Uint8Array> {
        for await (const chunk of data ?? []) {
          hash.update(chunk)
          yield chunk
        }
      }
      try {
        await writeFile(target, hashed())
        return hash.digest('hex')
      } catch (error) {
        if (!isLost(error) || attempt >= tries) throw error
      }
      await pause(waitSeconds(attempt))
    }
  }

  return {
    /**
     * Downloads a file that an activity made. One that breaks off begins anew, as often as requests
     * are tried. @throws DigestMismatch, and then leaves nothing
     */
    async download(runId: string, activityId: string, file: string, target: string): Promise<void> {
      const path = { runId, activityId, path: file }
      const expected = await recorded(path)
      const partial = `${target}.${randomUUID()}.part`
      try {
        const found = await save(path, partial)
        if (found !== expected)
          throw new DigestMismatch(`${file}: sha256 is ${found}, recorded is ${expected}`)
        await rename(partial, target)
      } finally {
        await rm(partial, { force: true })
      }
    },
  }
}

/** A path with its parameters. The slashes of a file's path stay: some proxies refuse them encoded. */
const pathSerializer = (pathname: string, params: Record<string, unknown>): string =>
  pathname.replace(/\{(\w+)\}/g, (_, name: string) => {
    const encoded = encodeURIComponent(String(params[name]))
    return name === 'path' ? encoded.replaceAll('%2F', '/') : encoded
  })

/** A client of the service: `api` has every operation, the rest is what takes more than one call. */
export class Orrery {
  readonly api: Api
  readonly runs: ReturnType<typeof runsOf>
  readonly outputs: ReturnType<typeof outputsOf>
  readonly pages = pages

  constructor({ baseUrl, token, tries = 5 }: Options) {
    const headers = token === undefined ? {} : { authorization: `Bearer ${token}` }
    const open = (most: number): Api =>
      createClient<paths>({ baseUrl, headers, pathSerializer, fetch: (request) => send(request, most) })
    this.api = open(tries)
    this.runs = runsOf(open(Infinity))
    this.outputs = outputsOf(this.api, tries)
  }
}
