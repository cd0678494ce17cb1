import { spawn } from 'node:child_process'
import { lookup } from 'node:dns/promises'
import { once } from 'node:events'
import { connect, isIP, type Socket } from 'node:net'
import { homedir } from 'node:os'
import { Duplex } from 'node:stream'
import { LinkError } from '../../shell/site-shell.ts'
import { within } from '../../pacing/within.ts'
import { hasStreams, noStreamsText } from '../../shell/has-streams.ts'
import { quote } from '../../shell/quote.ts'
import type { LoginProgress } from './login-progress.ts'
import { printable } from './printable.ts'
import type { SshTarget } from './target.ts'

/**
 * A TCP connection to the target. The name is looked up once, and each found address is judged
 * before the connection is made to it. A name that changes its address in between leads nowhere
 * else.
 *
 * @throws LinkError in stage `name` or `route`.
 */
export const openRoute = async (
  target: SshTarget,
  progress: LoginProgress,
  addressAllowed: (address: string) => true | string,
): Promise<Socket> => {
  const timeout = target.timeouts?.routeMs ?? 10_000
  const until = performance.now() + timeout
  const late = (): Error =>
    new LinkError('name', `no answer about the name ${target.host} within ${timeout / 1000} s`)
  const found = isIP(target.host)
    ? [{ address: target.host }]
    : await within(lookup(target.host, { all: true }), timeout, late).catch((error: unknown) => {
        if (error instanceof LinkError) throw error
        throw new LinkError(
          'name',
          `the name ${printable(target.host)} is not known (${(error as NodeJS.ErrnoException).code ?? 'no answer'})`,
        )
      })
  progress.reached('route', found.map(({ address }) => address).join(', '))

  const refused: string[] = []
  const failed: string[] = []
  for (const { address } of found) {
    const allowed = addressAllowed(address)
    if (allowed !== true) {
      refused.push(`${address}: ${allowed}`)
      continue
    }
    const remaining = until - performance.now()
    if (remaining <= 0) break
    const attempt = await connectTo(address, target.port, remaining).catch(
      (error: unknown) => error as NodeJS.ErrnoException,
    )
    if ('destroy' in attempt) {
      progress.address = address
      return attempt
    }
    failed.push(
      `${address} port ${target.port}: ${reasons[attempt.code ?? ''] ?? attempt.code ?? attempt.message}`,
    )
  }
  if (failed.length === 0 && refused.length > 0) {
    throw new LinkError('route', `connections to this address are not allowed: ${refused.join('; ')}`, {
      permanent: true,
    })
  }
  throw new LinkError('route', failed.join('; ') || `no connection within ${timeout / 1000} s`)
}

const reasons: Record<string, string> = {
  ECONNREFUSED: 'connection refused',
  ETIMEDOUT: 'no answer',
  EHOSTUNREACH: 'no way to the host',
  ENETUNREACH: 'no way to the network',
  ECONNRESET: 'connection reset',
}

const connectTo = (address: string, port: number, milliseconds: number): Promise<Socket> => {
  // Without delay of small packets: 2 ms a command instead of 44.
  const socket = connect({ host: address, port, noDelay: true, keepAlive: true })
  const connected = once(socket, 'connect').then(() => socket)
  return within(connected, milliseconds, () =>
    Object.assign(new Error('no answer'), { code: 'ETIMEDOUT' }),
  ).catch((error: unknown) => {
    socket.on('error', () => undefined).destroy()
    throw error
  })
}

const plain = /^[\w.:@%+-]+$/

/** The command with `%h`, `%p`, `%r` (and `%%`) replaced, each by one word for `sh`. */
export const proxyCommandText = (
  command: string,
  target: Pick<SshTarget, 'host' | 'port' | 'username'>,
): string => {
  const word = (text: string): string => (plain.test(text) ? text : quote(text))
  const values: Record<string, string> = {
    h: word(target.host),
    p: String(target.port),
    r: word(target.username),
    '%': '%',
  }
  return command.replace(/%([hpr%])/g, (_all, letter: string) => values[letter]!)
}

/** What an ended command has written to its error output is read within this time. */
const lastWordsMs = 200

/**
 * A connection over the input and output of a local command, which ends with it. The command does
 * not see this process' environment.
 */
export const openProxyCommand = (
  command: string,
  target: SshTarget,
): { stream: Duplex; printed: () => Promise<string> } => {
  const child = spawn('/bin/sh', ['-c', proxyCommandText(command, target)], {
    stdio: 'pipe',
    // A process group of its own, so that a whole pipeline ends.
    detached: true,
    cwd: '/',
    env: { PATH: '/usr/local/bin:/usr/bin:/bin', HOME: homedir() },
  })
  if (!hasStreams(child))
    throw new LinkError('route', `the proxy command cannot be started: ${noStreamsText}`)
  let output = ''
  child.stderr.setEncoding('utf8').on('data', (text: string) => (output = (output + text).slice(-500)))
  const end = (): void => {
    if (child.pid === undefined) return
    try {
      process.kill(-child.pid, 'SIGKILL')
    } catch {
      // All processes of the group have ended.
    }
  }
  const closed = new Promise<void>((resolve) =>
    child.once('close', () => resolve()).once('error', () => resolve()),
  )
  // Not Duplex.from: it takes the end of the command as a fault, "Premature close".
  const stream = new Duplex({
    read: () => child.stdout.resume(),
    write: (chunk: Buffer, _encoding, callback) => child.stdin.write(chunk, () => callback()),
    final: (callback) => child.stdin.end(() => callback()),
    destroy: (error, callback) => {
      end()
      child.stdin.destroy()
      child.stdout.destroy()
      // A process that has left the group may keep this output open.
      const late = setTimeout(() => child.stderr.destroy(), lastWordsMs).unref()
      void closed.then(() => clearTimeout(late))
      callback(error)
    },
  })
  child.stdout.on('data', (chunk: Buffer) => {
    if (!stream.push(chunk)) child.stdout.pause()
  })
  child.stdout.on('end', () => stream.push(null))
  child.stdin.on('error', () => stream.destroy())
  child.on('error', (error) => stream.destroy(error))
  child.on('close', () => stream.destroy())
  return { stream, printed: () => closed.then(() => printable(output)) }
}
