import { lookup as lookupName } from 'node:dns'
import type { IncomingMessage } from 'node:http'
import { Agent, request as httpsRequest, type RequestOptions } from 'node:https'
import { isIP, type LookupFunction } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { StringDecoder } from 'node:string_decoder'
import { certificateFault } from './certificate-fault.ts'
import { openExec, type ExecChannel, type ExecRequest } from './kubernetes-exec.ts'
import { KubernetesError, type KubernetesServer } from './kubernetes.ts'

export interface ClusterOptions extends Omit<KubernetesServer, 'token'> {
  /** Asked at the first request, and again after the server refused the one before: a token expires and is replaced. */
  token: () => Promise<string>
}

export interface ClusterRequest {
  /** `apply`: server-side apply as the field manager `orrery`, the body's fields become ours. Default `get`. */
  verb?: 'get' | 'create' | 'apply' | 'delete'
  /** `/api/v1/namespaces/…`, without query. */
  path: string
  query?: Readonly<Record<string, string>>
  body?: object
  /** For all tries together, default 30 s. */
  deadlineMs?: number
}

export interface WatchedObject {
  metadata?: { name?: string; resourceVersion?: string }
}

/** `changed` tells of one object; what a list before did not hold and this list does not hold is gone. */
export interface WatchHandlers<T> {
  listed(items: readonly T[]): void
  changed(how: 'ADDED' | 'MODIFIED' | 'DELETED', object: T): void
  /** Whether changes are being told now; false until the first list, and while the server does not answer. */
  standing(now: boolean): void
}

/**
 * One cluster, asked over kept connections. Only the address that was judged is connected to, redirects are errors, a certificate is the
 * name's. What the network, a 429 or a 5xx hinders is tried again until the deadline: every request is written so that it may be done twice (a
 * `create` has a deterministic name, its second try is answered 409). All reject with `KubernetesError`.
 */
export interface KubernetesCluster {
  request<T>(request: ClusterRequest): Promise<T>
  /** All pages of a list. */
  list<T>(path: string, query?: Readonly<Record<string, string>>): Promise<{ items: T[]; resourceVersion: string }>
  /** One list, then one watch that goes on from where it broke off; a new list when the server has forgotten that (410). Returns what stops it. */
  watch<T extends WatchedObject>(path: string, query: Readonly<Record<string, string>>, handlers: WatchHandlers<T>): () => void
  /** A command in a container, with its streams. */
  exec(request: ExecRequest): Promise<ExecChannel>
  /** The last bytes of a container's log. */
  log(namespace: string, pod: string, container: string, tailBytes: number): Promise<string>
  /** Requests sent since the start, tries and watches counted each. */
  requests(): number
  close(): void
}

const defaultDeadlineMs = 30_000
const tryDeadlineMs = 15_000
const maxBytes = 64 * 1024 * 1024
const pageSize = 1000
/** The server ends a watch after this time; an answer that is silent for longer is a lost link. */
const watchSeconds = 290

/** Whether the same request may be answered otherwise without anybody changing something. */
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

export function openKubernetesCluster(options: ClusterOptions): KubernetesCluster {
  const { host, port, certificateAuthority, addressAllowed } = options
  const agent = new Agent({ keepAlive: true, keepAliveMsecs: 30_000, maxSockets: 24 })
  const place = `${host}:${port}`
  let count = 0
  let token: Promise<string> | undefined
  const closing = new AbortController()

  const judge = (address: string): void => {
    const verdict = addressAllowed(address)
    if (verdict !== true) throw new KubernetesError('route', verdict, { permanent: true })
  }
  /** The address that is judged is the one that is connected to: the name is not asked again. */
  const lookup: LookupFunction = (name, wanted, callback) => {
    lookupName(name, { all: true }, (error, found) => {
      const [first] = found ?? []
      try {
        if (error !== null || first === undefined)
          throw new KubernetesError('name', `the name ${name} has no address (${error?.code ?? 'unknown'})`, { cause: error })
        judge(first.address)
      } catch (refusal) {
        return callback(refusal as NodeJS.ErrnoException, '', 0)
      }
      if (wanted.all === true) callback(null, [first])
      else callback(null, first.address, first.family)
    })
  }
  const link: RequestOptions = {
    host,
    port,
    lookup,
    ...(certificateAuthority === undefined ? {} : { ca: certificateAuthority }),
  }

  /** Of an answer, or of a connection that was not made. */
  const refusal = (status: number, text: string, headers: IncomingMessage['headers']): KubernetesError => {
    let said: Status = {}
    try {
      said = JSON.parse(text) as Status
    } catch {
      // A proxy's page, or nothing.
    }
    const words = said.message ?? text.trim().slice(0, 500)
    const known = advice[status]
    const message =
      status >= 300 && status < 400
        ? `the server answers with a redirect (${status}), which is not followed`
        : known === undefined
          ? `the server answers ${status}${words === '' ? '' : `: ${words}`}`
          : `${known}${words === '' || status === 401 ? '' : `: ${words}`}`
    const after = said.details?.retryAfterSeconds ?? Number(headers['retry-after'])
    return new KubernetesError('login', message, {
      status,
      ...(said.reason === undefined ? {} : { reason: said.reason }),
      ...(Number.isFinite(after) ? { retryAfterSeconds: after } : {}),
    })
  }
  const broken = (error: Error, connected: boolean): KubernetesError => {
    if (error instanceof KubernetesError) return error
    const { code = '' } = error as NodeJS.ErrnoException
    if (!connected && certificateFault.test(code))
      return new KubernetesError('host key', `the certificate of ${host} is refused: ${error.message}`, { cause: error, permanent: true })
    return new KubernetesError(connected ? 'login' : 'route', `${place}: ${error.message}`, { cause: error })
  }

  /** One exchange up to the head of the answer. */
  const send = async (
    { verb = 'get', path, query = {}, body }: ClusterRequest,
    deadlineMs: number,
    signal?: AbortSignal,
  ): Promise<IncomingMessage> => {
    if (closing.signal.aborted) throw new KubernetesError('route', 'the connection was closed')
    if (isIP(host) !== 0) judge(host)
    token ??= options.token()
    const used = token
    used.catch(() => token === used && (token = undefined))
    const bearer = await used
    const parameters = { ...(verb === 'apply' ? { fieldManager: 'orrery', force: 'true' } : {}), ...query }
    const text = body === undefined ? undefined : JSON.stringify(body)
    const method = ({ get: 'GET', create: 'POST', apply: 'PATCH', delete: 'DELETE' } as const)[verb]
    count++
    return new Promise((resolve, reject) => {
      const search = new URLSearchParams(parameters).toString()
      const asked = httpsRequest({
        ...link,
        agent,
        method,
        path: search === '' ? path : `${path}?${search}`,
        ...(signal === undefined ? {} : { signal }),
        headers: {
          accept: 'application/json',
          'user-agent': 'orrery',
          authorization: `Bearer ${bearer}`,
          ...(text === undefined
            ? {}
            : {
                'content-type': verb === 'apply' ? 'application/apply-patch+yaml' : 'application/json',
                'content-length': Buffer.byteLength(text),
              }),
        },
      })
      let connected = false
      const timer = setTimeout(() => {
        asked.destroy(
          new KubernetesError(
            connected ? 'login' : 'route',
            `${place} did not ${connected ? 'answer' : 'accept a connection'} within ${deadlineMs / 1000} s`,
          ),
        )
      }, deadlineMs)
      asked.on('socket', (socket) => {
        if (!socket.connecting) connected = true
        else socket.once('secureConnect', () => (connected = true))
      })
      asked.on('error', (error) => {
        clearTimeout(timer)
        reject(broken(error, connected))
      })
      asked.on('response', (response) => {
        clearTimeout(timer)
        if (response.statusCode === 401 && token === used) token = undefined
        resolve(response)
      })
      asked.end(text)
    })
  }

  const textOf = (response: IncomingMessage, deadlineMs: number): Promise<string> =>
    new Promise((resolve, reject) => {
      const chunks: Buffer[] = []
      let size = 0
      const stop = (message: string, permanent = false): void => {
        response.destroy(new KubernetesError('login', message, { permanent }))
      }
      const timer = setTimeout(() => stop(`${place}: the answer did not end within ${deadlineMs / 1000} s`), deadlineMs)
      response.on('data', (chunk: Buffer) => {
        chunks.push(chunk)
        size += chunk.length
        if (size > maxBytes) stop(`the answer is larger than ${maxBytes} bytes`, true)
      })
      response.on('end', () => {
        clearTimeout(timer)
        resolve(Buffer.concat(chunks).toString('utf8'))
      })
      response.on('error', (error) => {
        clearTimeout(timer)
        reject(broken(error, true))
      })
    })

  const answer = async (request: ClusterRequest, deadlineMs: number): Promise<string> => {
    const response = await send(request, deadlineMs)
    const text = await textOf(response, deadlineMs)
    const status = response.statusCode ?? 0
    if (status >= 300) throw refusal(status, text, response.headers)
    return text
  }

  /** A token that was good a moment ago may have been replaced: one refusal asks for the next. */
  const tried = async <T>(deadlineMs: number, work: (leftMs: number) => Promise<T>): Promise<T> => {
    const until = performance.now() + deadlineMs
    let refusals = 0
    for (let wait = 100; ; wait = Math.min(wait * 2, 4000)) {
      try {
        return await work(Math.min(tryDeadlineMs, Math.max(1000, until - performance.now())))
      } catch (error) {
        if (!(error instanceof KubernetesError)) throw error
        if (error.status === 401 && refusals++ === 0) continue
        const pause = Math.max(wait * (0.5 + Math.random() / 2), (error.retryAfterSeconds ?? 0) * 1000)
        if (!isPassing(error) || closing.signal.aborted || performance.now() + pause > until) throw error
        await sleep(pause, undefined, { signal: closing.signal }).catch(() => undefined)
      }
    }
  }

  const request = async <T>(asked: ClusterRequest): Promise<T> => {
    const text = await tried(asked.deadlineMs ?? defaultDeadlineMs, (left) => answer(asked, left))
    try {
      return JSON.parse(text) as T
    } catch (error) {
      throw new KubernetesError('login', 'the answer is not JSON: this is no Kubernetes API', { cause: error, permanent: true })
    }
  }

  interface Page<T> {
    metadata?: { resourceVersion?: string; continue?: string }
    items?: T[]
  }
  const list = async <T>(path: string, query: Readonly<Record<string, string>> = {}): Promise<{ items: T[]; resourceVersion: string }> => {
    const items: T[] = []
    for (let next = ''; ;) {
      const page: Page<T> = await request<Page<T>>({
        path,
        query: { ...query, limit: String(pageSize), ...(next === '' ? {} : { continue: next }) },
      })
      items.push(...(page.items ?? []))
      next = page.metadata?.continue ?? ''
      if (next === '') return { items, resourceVersion: page.metadata?.resourceVersion ?? '' }
    }
  }

  interface Event<T> {
    type: 'ADDED' | 'MODIFIED' | 'DELETED' | 'BOOKMARK' | 'ERROR'
    object: T & Status & { code?: number }
  }

  function watch<T extends WatchedObject>(path: string, query: Readonly<Record<string, string>>, handlers: WatchHandlers<T>): () => void {
    const stopping = new AbortController()
    const signal = AbortSignal.any([stopping.signal, closing.signal])
    let version = ''
    /** Resolves when the server ends the watch; rejects when the link or the history broke. */
    const follow = async (): Promise<void> => {
      const parameters = {
        ...query,
        watch: '1',
        resourceVersion: version,
        allowWatchBookmarks: 'true',
        timeoutSeconds: String(watchSeconds),
      }
      const response = await send({ path, query: parameters }, tryDeadlineMs, signal)
      const status = response.statusCode ?? 0
      if (status !== 200) throw refusal(status, await textOf(response, tryDeadlineMs), response.headers)
      handlers.standing(true)
      const decoder = new StringDecoder('utf8')
      let rest = ''
      const timer = setTimeout(() => response.destroy(new Error('the watch did not end')), (watchSeconds + 30) * 1000)
      try {
        for await (const chunk of response as AsyncIterable<Buffer>) {
          const lines = (rest + decoder.write(chunk)).split('\n')
          rest = lines.pop() ?? ''
          for (const line of lines) {
            if (line === '') continue
            const { type, object } = JSON.parse(line) as Event<T>
            if (type === 'ERROR') throw refusal(object.code ?? 500, JSON.stringify(object), {})
            version = object.metadata?.resourceVersion ?? version
            if (type !== 'BOOKMARK') handlers.changed(type, object)
          }
        }
      } catch (error) {
        throw broken(error as Error, true)
      } finally {
        clearTimeout(timer)
      }
    }
    const keepWatching = async (): Promise<void> => {
      let wait = 100
      while (!signal.aborted) {
        const from = performance.now()
        try {
          if (version === '') {
            const all = await list<T>(path, query)
            if (signal.aborted) return
            handlers.listed(all.items)
            version = all.resourceVersion
          }
          await follow()
          if (performance.now() - from > 1000) continue
        } catch (error) {
          if (signal.aborted) return
          handlers.standing(false)
          // The server no longer knows what came after that version.
          if (error instanceof KubernetesError && error.status === 410) {
            version = ''
            if (performance.now() - from > 1000) continue
          }
        }
        wait = performance.now() - from > 30_000 ? 100 : Math.min(wait * 2, 10_000)
        await sleep(wait * (0.5 + Math.random() / 2), undefined, { signal }).catch(() => undefined)
      }
    }
    void keepWatching()
    return () => stopping.abort()
  }

  return {
    request,
    list,
    watch,
    exec: (asked) =>
      tried(asked.deadlineMs ?? defaultDeadlineMs, async (left) => {
        if (isIP(host) !== 0) judge(host)
        token ??= options.token()
        const used = token
        used.catch(() => token === used && (token = undefined))
        count++
        try {
          return await openExec({ host, port, link: { lookup, ...(link.ca === undefined ? {} : { ca: link.ca }) } }, await used, {
            ...asked,
            deadlineMs: left,
          })
        } catch (error) {
          if (error instanceof KubernetesError && error.status === 401 && token === used) token = undefined
          throw error
        }
      }),
    log: (namespace, pod, container, tailBytes) =>
      tried(defaultDeadlineMs, async (left) => {
        // The server cuts at the beginning, so lines are what bounds the end.
        const query = { container, tailLines: '200', limitBytes: String(Math.max(tailBytes, 64 * 1024)) }
        const text = await answer({ path: `/api/v1/namespaces/${namespace}/pods/${pod}/log`, query }, left)
        return Buffer.from(text).subarray(-tailBytes).toString('utf8')
      }),
    requests: () => count,
    close() {
      closing.abort()
      agent.destroy()
    },
  }
}
