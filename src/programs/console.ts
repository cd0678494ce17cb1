import { existsSync, readFileSync } from 'node:fs'
import { text as textOf } from 'node:stream/consumers'
import { setTimeout as sleep } from 'node:timers/promises'
import { WebSocket } from 'ws'
import { ConfigError, configFromEnvironment } from '../config.ts'
import { findApi } from '../embedded/ready-file.ts'
import { ArgumentError, readArguments } from './arguments.ts'
import { openKeys } from './console-keys.ts'
import { poll } from '../pacing/poll.ts'

// `console RESOURCE`: a terminal on a resource, over the API of a running service.
const usage = `npm run console -- RESOURCE           opens a terminal; ~. at the beginning of a line leaves it open
npm run console -- --join SESSION     goes on with an open terminal, in place of who writes to it
npm run console -- --watch SESSION    shows an open terminal
npm run console -- --play RECORDING   plays the recording of a session, or a file (asciicast v2)
npm run console -- --help | --version
`

/** Limit for requests of a waiting person. */
const requestMs = 60_000
/** A restarting service is back within this time. */
const backMs = 120_000
/** A connection that was open for longer had found its terminal. */
const steadyMs = 5_000
/** A pause of a recording is shortened to this. */
const longestPauseMs = 2_000
/** A terminal answers an escape sequence within this time. */
const answerMs = 500
/** What Ctrl-C sends in raw mode. */
const interrupt = 3
/** Close codes of the stream after which a new attempt would end in the same way. */
const ended = new Set([1000, 1008, 4001, 4002])

interface Api {
  url: string
  headers: Record<string, string>
}

/** The text of an answer that is no: its status, and what its body names as the error. */
const refusalText = (status: number, phrase: string, body: string): string => {
  let error: unknown
  try {
    error = (JSON.parse(body) as { error?: unknown } | null)?.error
  } catch {
    // Not an answer of the service.
  }
  return `${String(status)}: ${typeof error === 'string' ? error : phrase}`
}

const ask = async (api: Api, method: string, path: string, body?: object): Promise<Response> => {
  const answer = await fetch(`${api.url}${path}`, {
    method,
    headers: { ...api.headers, ...(body === undefined ? {} : { 'content-type': 'application/json' }) },
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    signal: AbortSignal.timeout(requestMs),
  })
  if (answer.ok) return answer
  throw new Error(refusalText(answer.status, answer.statusText, await answer.text().catch(() => '')))
}

interface Session {
  id: string
  status: 'starting' | 'connected' | 'closed' | 'failed'
  failure?: string
}

/** Returns the session once its terminal exists. @throws Error with the reason of its failure */
const connected = async (api: Api, id: string): Promise<void> => {
  const look = async (): Promise<true | undefined> => {
    const session = (await (await ask(api, 'GET', `/console-sessions/${id}/`)).json()) as Session
    if (session.status === 'connected') return true
    if (session.status !== 'starting')
      throw new Error(`session ${id} is ${session.status}${session.failure ? `: ${session.failure}` : ''}`)
    return undefined
  }
  if ((await poll(look, { everyMs: 200, deadlineMs: backMs })) === undefined)
    throw new Error(`session ${id} has no terminal after ${String(backMs / 1_000)} s`)
}

const sizeFrame = (): string =>
  JSON.stringify({
    type: 'resize',
    rows: process.stdout.rows || 24,
    columns: process.stdout.columns || 80,
  })

/** What came of one connection to the stream. */
interface Outcome {
  /** The code that closed it, 0 for one that was lost or never opened. */
  code: number
  reason: string
  /** The time for which it was open. */
  openMs: number
  /** The answer to the request for it was no, and stays so. */
  isRefused: boolean
}

/** One connection to the stream. `keys` has the user's input for as long as it is open. */
const attach = async (
  api: Api,
  id: string,
  { watch, left, keys }: { watch: boolean; left: AbortController; keys: TerminalKeys },
  again: boolean,
): Promise<Outcome> => {
  const search = watch ? '?mode=watch' : '?takeOver=true'
  const ws = new WebSocket(`${api.url.replace(/^http/, 'ws')}/console-sessions/${id}/stream/${search}`, {
    headers: api.headers,
    handshakeTimeout: requestMs,
  })
  const outcome: Outcome = { code: 0, reason: '', openMs: 0, isRefused: false }
  ws.on('error', (error) => (outcome.reason ||= error.message))
  ws.on('unexpected-response', (_request, answer) => {
    const status = answer.statusCode ?? 0
    void textOf(answer)
      .catch(() => '')
      .then((body) => {
        outcome.reason = refusalText(status, answer.statusMessage ?? '', body)
        // What the service cannot do now it may do later: 503 while it starts, or takes the terminal up.
        outcome.isRefused = status < 500
        ws.terminate()
      })
  })
  // The close follows an error, too, at which `once` of node:events would reject.
  const closed = new Promise<[code: number, why: Buffer]>((resolve) =>
    ws.once('close', (...end) => resolve(end)),
  )
  const stop = (): void => ws.close()
  left.signal.addEventListener('abort', stop)
  const resize = (): void => ws.send(sizeFrame())
  let openedAt: number | undefined
  ws.on('open', () => {
    openedAt = Date.now()
    // The last MiB arrives again: it is shown on an empty screen.
    if (again) process.stdout.write('\x1b[2J\x1b[H')
    if (!watch) {
      resize()
      process.stdout.on('resize', resize)
    }
    keys.open((input) => watch || ws.send(Buffer.from(input, 'latin1')))
  })
  ws.on('message', (bytes: Buffer) => process.stdout.write(bytes))
  const [code, why] = await closed
  keys.close()
  process.stdout.off('resize', resize)
  left.signal.removeEventListener('abort', stop)
  return {
    ...outcome,
    code: code === 1006 ? 0 : code,
    ...(why.length > 0 ? { reason: why.toString() } : {}),
    openMs: openedAt === undefined ? 0 : Date.now() - openedAt,
  }
}

/**
 * The user's keys for as long as a session is shown. What is typed while no connection is open waits
 * for the next one; `~.` is read then, too, and so is Ctrl-C, which no terminal would receive.
 */
const readKeys = (left: AbortController) => {
  let keysOf = openKeys()
  let send: ((input: string) => unknown) | undefined
  let waiting = ''
  const { stdin } = process
  const onKeys = (piece: Buffer): void => {
    const { input, leaves } = keysOf(piece.toString('latin1'))
    if (leaves || (send === undefined && stdin.isTTY && piece.includes(interrupt))) return left.abort()
    if (send !== undefined) return void send(input)
    waiting += input
    // A file has more input than a person types.
    if (!stdin.isTTY) stdin.pause()
  }
  stdin.on('data', onKeys)
  return {
    open(to: (input: string) => unknown): void {
      send = to
      if (waiting !== '') to(waiting)
      waiting = ''
      stdin.resume()
    },
    close(): void {
      send = undefined
      keysOf = openKeys()
    },
  }
}
type TerminalKeys = ReturnType<typeof readKeys>

/**
 * Keeps the keys of the terminal, and its answers to escape sequences, from the shell behind while
 * `work` goes on. `left` is aborted by a signal.
 */
const withRawKeys = async (work: (left: AbortController) => Promise<void>): Promise<void> => {
  const left = new AbortController()
  const leave = (): void => left.abort()
  process.on('SIGTERM', leave).on('SIGINT', leave)
  const raw = process.stdin.isTTY
  if (raw) process.stdin.setRawMode(true)
  try {
    await work(left)
  } finally {
    if (raw) process.stdin.setRawMode(false)
    process.stdin.destroy()
  }
}

/** Shows a session until it ends or the user leaves; a lost connection is opened again. */
const show = (api: Api, id: string, watch: boolean): Promise<void> =>
  withRawKeys(async (left) => {
    const { signal } = left
    const keys = readKeys(left)
    let lostAt: number | undefined
    for (let times = 0; !signal.aborted; times++) {
      const { code, reason, openMs, isRefused } = await attach(api, id, { watch, left, keys }, times > 0)
      if (signal.aborted) break
      if (isRefused) throw new Error(reason)
      if (ended.has(code))
        return void process.stderr.write(`\r\n${code === 1000 ? 'the session is over' : reason}\r\n`)
      if (openMs > steadyMs) lostAt = undefined
      if (times === 0 || openMs > 0)
        process.stderr.write(
          `\r\nthe connection is lost${reason === '' ? '' : ` (${reason})`} and is tried again for ` +
            `${String(backMs / 1_000)} s; ~. or Ctrl-C leaves the terminal open\r\n`,
        )
      lostAt ??= Date.now()
      if (Date.now() - lostAt > backMs) throw new Error(`the service cannot be reached: ${reason}`)
      await sleep(1_000, undefined, { signal }).catch(() => undefined)
    }
    process.stderr.write(`\r\nleft; go on with --join ${id}\r\n`)
  })

/**
 * Plays an asciicast v2 with shortened pauses, until Ctrl-C. What the terminal answers to a recorded
 * escape sequence is read here, up to the answer to the last one.
 */
const play = (text: string): Promise<void> =>
  withRawKeys(async (left) => {
    const { signal } = left
    if (process.stdin.isTTY)
      process.stdin.on('data', (keys: Buffer) => {
        if (keys.includes(interrupt)) left.abort()
      })
    let at = 0
    for (const line of text.split('\n').slice(1)) {
      if (line.trim() === '') continue
      const [seconds, kind, data] = JSON.parse(line) as [number, string, string]
      if (kind !== 'o') continue
      const pauseMs = Math.min(longestPauseMs, Math.max(0, (seconds - at) * 1_000))
      await sleep(pauseMs, undefined, { signal }).catch(() => undefined)
      if (signal.aborted) break
      at = seconds
      process.stdout.write(data)
    }
    if (process.stdin.isTTY) await sleep(answerMs)
  })

const recording = async (api: () => Api, named: string): Promise<string> =>
  existsSync(named)
    ? readFileSync(named, 'utf8')
    : (await ask(api(), 'GET', `/console-sessions/${encodeURIComponent(named)}/log/?format=asciicast`)).text()

const verbs = ['join', 'watch', 'play'] as const
const wanted = readArguments(
  {
    usage,
    options: { join: { type: 'string' }, watch: { type: 'string' }, play: { type: 'string' } },
    positionals: [0, 1],
  },
  ({ values, positionals: [resource] }) => {
    const given = verbs.filter((verb) => values[verb] !== undefined)
    if (given.length + (resource === undefined ? 0 : 1) !== 1)
      throw new ArgumentError('name one RESOURCE, or one of --join, --watch and --play')
    const [verb] = given
    return { verb, id: resource ?? String(values[verb ?? 'join']) }
  },
)

try {
  const config = configFromEnvironment()
  const api = (): Api => ({
    url: findApi(config),
    headers: config.apiToken === undefined ? {} : { authorization: `Bearer ${config.apiToken}` },
  })
  if (wanted.verb === 'play') await play(await recording(api, wanted.id))
  else {
    const at = api()
    const id =
      wanted.verb === undefined
        ? ((await (await ask(at, 'POST', '/console-sessions/', { resourceId: wanted.id })).json()) as Session)
            .id
        : wanted.id
    if (wanted.verb === undefined) process.stderr.write(`session ${id}; ~. leaves it open, exit ends it\n`)
    await connected(at, id)
    await show(at, id, wanted.verb === 'watch')
  }
} catch (error) {
  process.stderr.write(`${error instanceof Error ? error.message : String(error)}\n`)
  process.exitCode = error instanceof ConfigError ? 2 : 1
}
