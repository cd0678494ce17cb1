import { setTimeout as sleep } from 'node:timers/promises'
import { StringDecoder } from 'node:string_decoder'
import { append } from '../lists.ts'
import { openBackoff } from '../pacing/backoff.ts'
import type { HttpAnswer } from './http-exchange.ts'
import { openHttp, type AddressJudge } from './http.ts'
import { openExec, type ExecChannel, type ExecRequest } from './kubernetes-exec.ts'
import { kubernetesError, KubernetesError, parseAnswer } from './kubernetes.ts'

export interface ClusterOptions {
  host: string
  port: number
  /** PEM; absent: the certificate authorities of this machine. */
  certificateAuthority?: string
  /** Judges the address itself before a byte is sent to it. */
  addressAllowed: AddressJudge
  /**
   * Called at the first request, and again after the server refused the last one: a token expires
   * and is replaced. Undefined: requests have no token.
   */
  token: () => Promise<string | undefined>
}

export interface ClusterRequest {
  /**
   * `apply`: server-side apply as the field manager `orrery`; the fields of the body become ours.
   * Default `get`.
   */
  verb?: 'get' | 'create' | 'apply' | 'delete'
  /** `/api/v1/namespaces/…`, without query. */
  path: string
  query?: Readonly<Record<string, string>>
  body?: object
  /** Limit for all tries together, default 30 s. */
  deadlineMs?: number
}

export interface WatchedObject {
  metadata?: { name?: string; resourceVersion?: string }
}

/**
 * `changed` reports one object. An object that the list before held and this list does not hold is
 * gone.
 */
export interface WatchHandlers<T> {
  listed(items: readonly T[]): void
  changed(how: 'ADDED' | 'MODIFIED' | 'DELETED', object: T): void
  /**
   * Whether changes arrive now; false until the first list, and while the server does not answer.
   */
  standing(now: boolean): void
}

/**
 * One cluster, over kept connections. The client connects only to the judged address, treats
 * redirects as errors, and checks the certificate against the name. It retries after network
 * faults, 429 and 5xx until the deadline: every request may safely be sent twice (a `create` has a
 * deterministic name, and its second try is answered 409). All calls reject with `KubernetesError`.
 */
export interface KubernetesCluster {
  /**
   * The version, asked once, within 10 s and over a connection of its own, and the address of that.
   * A TLS fault has the stage `host key`.
   */
  probe(): Promise<{ version: unknown; address: string }>
  request<T>(request: ClusterRequest): Promise<T>
  /** All pages of a list. */
  list<T>(
    path: string,
    query?: Readonly<Record<string, string>>,
  ): Promise<{ items: T[]; resourceVersion: string }>
  /**
   * One list, then one watch that resumes at its last version. It lists again when the server has
   * dropped that version (410). Returns the function that stops it.
   */
  watch<T extends WatchedObject>(
    path: string,
    query: Readonly<Record<string, string>>,
    handlers: WatchHandlers<T>,
  ): () => void
  /** Runs a command in a container, with its streams. */
  exec(request: ExecRequest): Promise<ExecChannel>
  /** The last bytes of a container's log. */
  log(namespace: string, pod: string, container: string, tailBytes: number): Promise<string>
  /** Requests sent since the start; each try and each watch counts. */
  requests(): number
  close(): void
}

const defaultDeadlineMs = 30_000
const tryDeadlineMs = 15_000
const probeMs = 10_000
const maxBytes = 64 * 1024 * 1024
const pageSize = 1000
/** The server ends a watch after this time; a longer silence means a lost link. */
const watchSeconds = 290

/** Whether the same request may have another answer later without a change by a person. */
const isPassing = ({ status, stage, permanent }: KubernetesError): boolean =>
  !permanent && (status === undefined ? stage !== 'host key' : status === 429 || status >= 500)

interface Status {
  kind?: string
  reason?: string
  message?: string
  details?: { retryAfterSeconds?: number }
}

const advice: Readonly<Record<number, string>> = {
  401: 'the token is refused (401); store a valid one',
  403: 'the token is known, but may not do this (403); give its account the rights',
}

/**
 * The error for a refusal or for an event of a watch; `quotable` removes text that repeats the
 * request.
 */
const refusal = (
  status: number,
  text: string,
  { headers, quotable }: Pick<HttpAnswer, 'headers' | 'quotable'>,
): KubernetesError => {
  let document: Status = {}
  try {
    document = JSON.parse(text) as Status
  } catch {
    // The body is a proxy's page, or empty.
  }
  const detail = quotable(document.message ?? text)
    .trim()
    .slice(0, 500)
  const known = advice[status]
  const message =
    known === undefined
      ? `the server answers ${status}${detail === '' ? '' : `: ${detail}`}`
      : `${known}${detail === '' || status === 401 ? '' : `: ${detail}`}`
  const after = document.details?.retryAfterSeconds ?? Number(headers['retry-after'])
  return new KubernetesError('login', message, {
    status,
    ...(document.reason === undefined ? {} : { reason: quotable(document.reason) }),
    ...(Number.isFinite(after) ? { retryAfterSeconds: after } : {}),
  })
}

const textOf = async (answer: HttpAnswer): Promise<string> => {
  try {
    return (await answer.bytes(maxBytes)).toString('utf8')
  } catch (error) {
    throw kubernetesError(error, 'route')
  }
}

const methods = { get: 'GET', create: 'POST', apply: 'PATCH', delete: 'DELETE' } as const

/** Requests to one server, with its token, over kept connections. */
const openRequests = (options: ClusterOptions) => {
  const { host, port, addressAllowed, certificateAuthority } = options
  const tls = { certificateAuthority }
  const http = openHttp({ addressAllowed, connections: 24, connectMs: tryDeadlineMs, tls })
  const url = `https://${host.includes(':') ? `[${host}]` : host}:${port}`
  const closing = new AbortController()
  let count = 0
  let token: Promise<string | undefined> | undefined

  /** Makes a request with the token; after a refusal the next request asks for another token. */
  const withToken = async <T>(
    work: (bearer: string | undefined) => Promise<T>,
    isRefused: (answer: T) => boolean,
  ): Promise<T> => {
    if (closing.signal.aborted) throw new KubernetesError('route', 'the connection was closed')
    token ??= options.token()
    const used = token
    const forget = (): void => {
      if (token === used) token = undefined
    }
    used.catch(forget)
    const bearer = await used
    count++
    try {
      const answer = await work(bearer)
      if (isRefused(answer)) forget()
      return answer
    } catch (error) {
      const known = kubernetesError(error, 'route')
      if (known instanceof KubernetesError && known.status === 401) forget()
      throw known
    }
  }

  /**
   * One exchange up to the head of the answer, within `headMs`; its body may take `bodyMs` more.
   */
  const send = (
    { verb = 'get', path, query = {}, body }: ClusterRequest,
    {
      headMs,
      bodyMs,
      ...within
    }: { headMs: number; bodyMs: number; limitBytes: number; signal?: AbortSignal; fresh?: true },
  ): Promise<HttpAnswer> => {
    const parameters = { ...(verb === 'apply' ? { fieldManager: 'orrery', force: 'true' } : {}), ...query }
    const search = new URLSearchParams(parameters).toString()
    const ask = (bearer: string | undefined): Promise<HttpAnswer> =>
      http.request(`${url}${path}${search === '' ? '' : `?${search}`}`, {
        ...within,
        headMs,
        deadlineMs: headMs + bodyMs,
        method: methods[verb],
        headers: {
          accept: 'application/json',
          ...(bearer === undefined ? {} : { authorization: `Bearer ${bearer}` }),
          ...(body && {
            'content-type': verb === 'apply' ? 'application/apply-patch+yaml' : 'application/json',
          }),
        },
        body: body && JSON.stringify(body),
      })
    return withToken(ask, ({ status }) => status === 401)
  }

  return {
    send,
    closing: closing.signal,
    count: () => count,

    async probe(): ReturnType<KubernetesCluster['probe']> {
      const within = { headMs: probeMs, bodyMs: 0, limitBytes: maxBytes, fresh: true } as const
      try {
        const answer = await send({ path: '/version' }, within)
        const text = await textOf(answer)
        if (answer.status >= 300) throw refusal(answer.status, text, answer)
        const found = parseAnswer<{ gitVersion?: unknown } | null>(text)
        return { version: found?.gitVersion, address: answer.address }
      } catch (error) {
        throw kubernetesError((error as Error).cause ?? error, 'host key')
      }
    },

    /** Returns the text of a good answer. */
    async text(request: ClusterRequest, deadlineMs: number): Promise<string> {
      const answer = await send(request, { headMs: deadlineMs, bodyMs: deadlineMs, limitBytes: maxBytes })
      const text = await textOf(answer)
      if (answer.status >= 300) throw refusal(answer.status, text, answer)
      return text
    },

    exec: (request: ExecRequest): Promise<ExecChannel> =>
      withToken(
        (bearer = '') => openExec({ url, agent: http.agents.fresh['https:'], tls }, bearer, request),
        () => false,
      ),

    /**
     * A token that was good a moment ago may have been replaced: after one refusal it asks for the
     * next.
     */
    async tried<T>(deadlineMs: number, work: (leftMs: number) => Promise<T>): Promise<T> {
      const until = performance.now() + deadlineMs
      let refusals = 0
      for (const backoff = openBackoff({ firstMs: 100, longestMs: 4000, spread: 0.5 }); ;) {
        try {
          return await work(Math.min(tryDeadlineMs, Math.max(1000, until - performance.now())))
        } catch (error) {
          if (!(error instanceof KubernetesError)) throw error
          if (error.status === 401 && refusals++ === 0) continue
          const pause = Math.max(backoff.next(), (error.retryAfterSeconds ?? 0) * 1000)
          if (!isPassing(error) || closing.signal.aborted || performance.now() + pause > until) throw error
          await sleep(pause, undefined, { signal: closing.signal }).catch(() => undefined)
        }
      }
    },

    close() {
      closing.abort()
      http.close()
    },
  }
}

type Requests = ReturnType<typeof openRequests>

interface Page<T> {
  metadata?: { resourceVersion?: string; continue?: string }
  /** Null in place of an empty list. */
  items?: T[] | null
}

interface Event<T> {
  type: 'ADDED' | 'MODIFIED' | 'DELETED' | 'BOOKMARK' | 'ERROR'
  object: T & Status & { code?: number }
}

/** The lines of a stream, each parsed. */
async function* eventsOf<T>(body: AsyncIterable<Buffer>): AsyncGenerator<Event<T>> {
  const decoder = new StringDecoder('utf8')
  let rest = ''
  for await (const chunk of body) {
    const lines = (rest + decoder.write(chunk)).split('\n')
    rest = lines.pop() ?? ''
    if (rest.length > maxBytes)
      throw new KubernetesError('login', `an event of the watch is larger than ${maxBytes} bytes`)
    for (const line of lines) if (line !== '') yield parseAnswer<Event<T>>(line)
  }
}

/**
 * One watch from a version on. Resolves when the server ends it; rejects when the link or the
 * history broke.
 */
async function follow<T extends WatchedObject>(
  { send }: Requests,
  path: string,
  query: Readonly<Record<string, string>>,
  from: { version: string },
  handlers: WatchHandlers<T>,
  signal: AbortSignal,
): Promise<void> {
  const parameters = {
    ...query,
    watch: '1',
    resourceVersion: from.version,
    allowWatchBookmarks: 'true',
    timeoutSeconds: String(watchSeconds),
  }
  const within = { headMs: tryDeadlineMs, bodyMs: (watchSeconds + 30) * 1000, limitBytes: Infinity, signal }
  const answer = await send({ path, query: parameters }, within)
  if (answer.status !== 200) throw refusal(answer.status, await textOf(answer), answer)
  handlers.standing(true)
  for await (const { type, object } of eventsOf<T>(answer.body)) {
    if (type === 'ERROR') throw refusal(object.code ?? 500, JSON.stringify(object), answer)
    from.version = object.metadata?.resourceVersion ?? from.version
    if (type !== 'BOOKMARK') handlers.changed(type, object)
  }
}

export function openKubernetesCluster(options: ClusterOptions): KubernetesCluster {
  const requests = openRequests(options)

  const request = async <T>(asked: ClusterRequest): Promise<T> =>
    parseAnswer<T>(
      await requests.tried(asked.deadlineMs ?? defaultDeadlineMs, (left) => requests.text(asked, left)),
    )

  const list = async <T>(
    path: string,
    query: Readonly<Record<string, string>> = {},
  ): Promise<{ items: T[]; resourceVersion: string }> => {
    const items: T[] = []
    for (let next = ''; ;) {
      const page = await request<Page<T> | null>({
        path,
        query: { ...query, limit: String(pageSize), ...(next === '' ? {} : { continue: next }) },
      })
      if (page?.items === undefined)
        throw new KubernetesError('login', `the answer to ${path} is no list of Kubernetes`)
      append(items, page.items ?? [])
      next = page.metadata?.continue ?? ''
      if (next === '') return { items, resourceVersion: page.metadata?.resourceVersion ?? '' }
    }
  }

  function watch<T extends WatchedObject>(
    path: string,
    query: Readonly<Record<string, string>>,
    handlers: WatchHandlers<T>,
  ): () => void {
    const stopping = new AbortController()
    const signal = AbortSignal.any([stopping.signal, requests.closing])
    const from = { version: '' }
    const keepWatching = async (): Promise<void> => {
      const backoff = openBackoff({ firstMs: 100, longestMs: 10_000, spread: 0.5 })
      while (!signal.aborted) {
        const since = performance.now()
        try {
          if (from.version === '') {
            const all = await list<T>(path, query)
            if (signal.aborted) return
            handlers.listed(all.items)
            from.version = all.resourceVersion
          }
          await follow(requests, path, query, from, handlers, signal)
          if (performance.now() - since > 1000) continue
        } catch (error) {
          if (signal.aborted) return
          handlers.standing(false)
          // The server no longer has the changes after that version.
          if (error instanceof KubernetesError && error.status === 410) {
            from.version = ''
            if (performance.now() - since > 1000) continue
          }
        }
        if (performance.now() - since > 30_000) backoff.reset()
        await backoff.pause(signal)
      }
    }
    void keepWatching()
    return () => stopping.abort()
  }

  return {
    probe: () => requests.probe(),
    request,
    list,
    watch,
    exec: (asked) =>
      requests.tried(asked.deadlineMs ?? defaultDeadlineMs, (left) =>
        requests.exec({ ...asked, deadlineMs: left }),
      ),
    log: (namespace, pod, container, tailBytes) =>
      requests.tried(defaultDeadlineMs, async (left) => {
        // The server cuts at the beginning, so the number of lines bounds the end.
        const query = { container, tailLines: '200', limitBytes: String(Math.max(tailBytes, 64 * 1024)) }
        const text = await requests.text(
          { path: `/api/v1/namespaces/${namespace}/pods/${pod}/log`, query },
          left,
        )
        return Buffer.from(text).subarray(-tailBytes).toString('utf8')
      }),
    requests: requests.count,
    close: () => requests.close(),
  }
}
