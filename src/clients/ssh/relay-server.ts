import {
  createSecureServer,
  type Http2SecureServer,
  type ServerHttp2Session,
  type ServerHttp2Stream,
} from 'node:http2'
import type { AddressInfo, Socket } from 'node:net'
import type { Duplex } from 'node:stream'
import { finished } from 'node:stream/promises'
import { within } from '../../pacing/within.ts'
import type { ShellStream } from '../../shell/site-shell.ts'
import { failureOf, framed, Head, header, frameKinds, longestHead, NotHeld } from './relay-frames.ts'
import { relayKey, serverTls, type FleetKeys } from './relay-keys.ts'
import type { SshSession } from './session.ts'
import type { SshProbe } from './target.ts'

/** The logins that a process holds, each named by the hash of its target. */
export interface HeldLogins {
  /** The live logins that a person made here, and the logins that wait here for a person. */
  list(): { login: string; waiting: boolean; since: Date }[]
  session(login: string): SshSession | undefined
  probe(login: string): Promise<SshProbe>
  forget(login: string): void
}

/** Open streams of one other process; further ones wait there. */
const mostCalls = 1_024
/** Open connections, handshakes of strangers included. */
const mostConnections = 256
const headMs = 10_000
/** The other side sends something every 5 s. */
const silenceMs = 30_000
/** Keys that were added to the file are known after this long at most. */
const refreshMs = 5_000
export const windowBytes = { stream: 1024 * 1024, connection: 16 * 1024 * 1024 }

/** Streams that other processes opened, by the id of the call. */
type OpenCalls = Map<string, Pick<ShellStream, 'kill' | 'resize'>>

export interface RelayServer {
  /** HOST:PORT at which other processes connect. */
  address: string
  close(): void
}

/**
 * Listens for the other processes of the fleet and runs their calls over the logins that this
 * process holds.
 * @throws Error when it cannot listen at the address
 */
export const openRelayServer = async (
  held: HeldLogins,
  options: { keys: FleetKeys; address: { host: string; port: number } },
): Promise<RelayServer> => {
  let secrets = new Map<string, Buffer>()
  const refresh = async (): Promise<void> => {
    secrets = new Map((await options.keys.all()).map(relayKey).map(({ id, secret }) => [id, secret]))
  }
  await refresh()
  // While the file cannot be read the known keys stay in use; a process that opens a credential
  // reports the fault.
  const timer = setInterval(() => void refresh().catch(() => undefined), refreshMs)
  timer.unref()

  const server = createSecureServer({
    ...serverTls((id) => secrets.get(id)),
    settings: {
      maxConcurrentStreams: mostCalls,
      initialWindowSize: windowBytes.stream,
      maxHeaderListSize: 4_096,
    },
    maxSessionMemory: 256,
  })
  server.maxConnections = mostConnections
  const sessions = new Set<ServerHttp2Session>()
  const calls: OpenCalls = new Map()
  server.on('session', (session) => {
    sessions.add(session)
    session.setLocalWindowSize(windowBytes.connection)
    session.setTimeout(silenceMs, () => session.destroy())
    session.on('error', () => undefined)
    session.once('close', () => sessions.delete(session))
  })
  server.on('connection', (socket: Socket) => socket.setNoDelay(true))
  // Strangers get no answer, and no line in the log.
  server.on('tlsClientError', () => undefined)
  server.on('sessionError', () => undefined)
  server.on('stream', (stream) => {
    stream.on('error', () => undefined)
    serve(held, calls, stream).catch((error: unknown) => {
      if (stream.destroyed) return
      begin(stream)
      stream.end(framed(frameKinds.failure, failureOf(error)))
    })
  })
  await listen(server, options.address).catch((error: unknown) => {
    clearInterval(timer)
    throw error
  })
  const { port } = server.address() as AddressInfo
  const { host } = options.address
  return {
    address: `${host.includes(':') ? `[${host}]` : host}:${port}`,
    close: () => {
      clearInterval(timer)
      server.close()
      for (const session of sessions) session.destroy()
    },
  }
}

const listen = (server: Http2SecureServer, { host, port }: { host: string; port: number }): Promise<void> =>
  new Promise((resolve, reject) => {
    server.once('error', reject)
    server.listen(port, host, () => {
      server.removeListener('error', reject)
      server.on('error', () => undefined)
      resolve()
    })
  })

/** Sent together with the next frame, so that a short answer is one packet. */
const begin = (stream: ServerHttp2Stream): void => {
  if (!stream.headersSent) stream.respond({ ':status': 200 })
}

/** Reads the head of a call; the bytes behind it are put back into the stream. */
const readHead = async (stream: ServerHttp2Stream): Promise<Head> => {
  let bytes: Buffer = Buffer.alloc(0)
  for (;;) {
    const length = bytes.length < 4 ? undefined : bytes.readUInt32BE(0)
    if (length !== undefined && length > longestHead)
      throw new RangeError(`the head of a call is longer than ${longestHead} bytes`)
    if (length !== undefined && bytes.length >= 4 + length) {
      const rest = bytes.subarray(4 + length)
      if (rest.length > 0) stream.unshift(rest)
      return Head.parse(JSON.parse(bytes.toString('utf8', 4, 4 + length)))
    }
    const chunk = (stream.read() as Buffer | null) ?? undefined
    if (chunk !== undefined) bytes = Buffer.concat([bytes, chunk])
    else if (stream.readableEnded || stream.destroyed) throw new RangeError('the head of a call is not whole')
    else
      await new Promise<void>((resolve) => {
        const go = (): void => {
          for (const event of ['readable', 'end', 'close']) stream.removeListener(event, go)
          resolve()
        }
        for (const event of ['readable', 'end', 'close']) stream.once(event, go)
      })
  }
}

const serve = async (held: HeldLogins, calls: OpenCalls, stream: ServerHttp2Stream): Promise<void> => {
  const head = await within(
    readHead(stream),
    headMs,
    () => new RangeError('the head of a call did not come in time'),
  )
  const answer = (value: unknown, stdout?: Buffer): void => {
    if (stream.destroyed) return
    stream.resume()
    begin(stream)
    if (stdout !== undefined && stdout.length > 0) send(stream, stdout)
    stream.end(framed(frameKinds.answer, value))
  }
  if (head.call === 'kill') {
    calls.get(head.id)?.kill()
    answer({})
    return
  }
  if (head.call === 'resize') {
    calls.get(head.id)?.resize?.(head.size.rows, head.size.columns)
    answer({})
    return
  }
  const session = held.session(head.login)
  if (session === undefined) throw new NotHeld()
  switch (head.call) {
    case 'look':
      answer({ since: held.list().find(({ login, waiting }) => login === head.login && !waiting)?.since })
      break
    case 'probe':
      answer(await held.probe(head.login))
      break
    case 'forget':
      held.forget(head.login)
      answer({})
      break
    case 'run': {
      const { script, input, deadlineMs, maxBytes } = head
      const { stdout, ...rest } = await session.run(script, {
        ...(input === undefined ? {} : { input }),
        deadlineMs,
        maxBytes,
      })
      answer(rest, stdout)
      break
    }
    case 'open': {
      const { script, deadlineMs, hasInput, terminal, lasting } = head
      const opened = await session.open(script, { deadlineMs, hasInput, terminal, lasting })
      calls.set(head.id, opened)
      await serveStream(stream, opened).finally(() => calls.delete(head.id))
      break
    }
    case 'forward':
      await serveStream(stream, shellStreamOf(await session.forward(head.host, head.port)))
  }
}

/** @returns whether more may follow at once */
const send = (stream: ServerHttp2Stream, chunk: Buffer): boolean => {
  stream.cork()
  stream.write(header(frameKinds.bytes, chunk.length))
  const room = stream.write(chunk)
  stream.uncork()
  return room
}

const serveStream = async (stream: ServerHttp2Stream, opened: ShellStream): Promise<void> => {
  const { stdin, stdout } = opened
  const kill = (): void => opened.kill()
  // The caller is gone: its script ends.
  stream.once('close', kill)
  if (stream.destroyed) kill()
  else {
    begin(stream)
    stream.write(framed(frameKinds.begun, {}))
  }
  stream.pipe(stdin)
  const ended = new Promise<void>((resolve) => stdout.once('close', resolve))
  stdout.on('data', (chunk: Buffer) => {
    if (!stream.destroyed && !send(stream, chunk)) stdout.pause()
  })
  stream.on('drain', () => stdout.resume())
  const { code, signal, stderr } = await opened.done
  await ended
  // The rest of the input is discarded.
  stream.unpipe(stdin)
  stream.resume()
  stream.end(framed(frameKinds.answer, { code, signal, stderr }))
}

/** A connection as a stream without a script. */
const shellStreamOf = (channel: Duplex): ShellStream => ({
  stdin: channel,
  stdout: channel,
  done: finished(channel).then(() => ({ code: null, signal: null, stderr: '' })),
  kill: () => channel.destroy(),
})
