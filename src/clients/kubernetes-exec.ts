import { Readable, Writable } from 'node:stream'
import { HttpError } from './http-error.ts'
import type { Http, HttpTls } from './http.ts'
import { kubernetesError, KubernetesError } from './kubernetes.ts'

export interface ExecRequest {
  namespace: string
  pod: string
  container: string
  command: readonly string[]
  /** Time until the channel is open. */
  deadlineMs?: number
}

/** A command in a container, over one WebSocket. */
export interface ExecChannel {
  stdin: Writable
  stdout: Readable
  stderr: Readable
  /**
   * The command's exit code; rejects with `KubernetesError` when the link broke before. Settles
   * after the last byte of both outputs.
   */
  done: Promise<number>
  /** Closes the socket; the processes in the container go on. */
  close(): void
}

export interface ExecServer {
  /** `https://host:port`. */
  url: string
  /** Connects to judged addresses only. */
  agent: Http['agents']['fresh']['https:']
  tls: HttpTls
}

/** The first byte of a frame gives the type of the rest. */
const frames = { stdin: 0, close: 255 } as const
const stdinClosed = Buffer.from([frames.close, frames.stdin])

/** The part of `ws`' socket that is used; the library's own types are not installed with it. */
interface Socket {
  readonly protocol: string
  readonly isPaused: boolean
  onclose: (event: { code: number; reason: string }) => void
  pause(): void
  resume(): void
  send(data: Buffer, callback: (error?: Error) => void): void
  close(): void
  terminate(): void
}

interface ExecStatus {
  status?: string
  message?: string
  details?: { causes?: { reason?: string; message?: string }[] }
}

/** The exit code from the kubelet's message, or why there is none. */
const exitCodeOf = ({ status, message = 'no words', details }: ExecStatus): number => {
  if (status === 'Success') return 0
  const code = details?.causes?.find(({ reason }) => reason === 'ExitCode')?.message
  if (code !== undefined) return Number(code)
  throw new KubernetesError('login', `the command was not run: ${message}`)
}

/** The status in the error of `ws` for a handshake with another answer. */
const statusIn = (message: string): number | undefined => {
  const [, status] = /Unexpected server response: (\d{3})/.exec(message) ?? []
  return status === undefined ? undefined : Number(status)
}

/** @throws KubernetesError with the status of a refused handshake. */
export async function openExec(
  { url, agent, tls }: ExecServer,
  token: string,
  { namespace, pod, container, command, deadlineMs = 15_000 }: ExecRequest,
): Promise<ExecChannel> {
  // The library takes 0.4 s to load.
  const { Exec, KubeConfig } = await import('@kubernetes/client-node')
  const config = new KubeConfig()
  config.loadFromClusterAndUser({ name: 'cluster', server: url, skipTLSVerify: false }, { name: 'user' })
  // The library's own agent would connect without judging the address.
  config.applyToHTTPSOptions = (options) => {
    Object.assign(options, {
      agent,
      ca: tls.certificateAuthority,
      headers: { authorization: `Bearer ${token}`, 'user-agent': 'orrery' },
      handshakeTimeout: deadlineMs,
      followRedirects: false,
      perMessageDeflate: false,
    })
    return Promise.resolve()
  }
  let resume: () => void = () => undefined
  let pause: () => void = () => undefined
  const readable = (): Readable => new Readable({ highWaterMark: 1024 * 1024, read: () => resume() })
  const [stdout, stderr] = [readable(), readable()]
  // Without this, the error would end the process of a caller that does not read it.
  stderr.on('error', () => undefined)
  stdout.on('error', () => undefined)
  let settled = false
  let finish: (code: number) => void = () => undefined
  let fail: (error: Error) => void = () => undefined
  const done = new Promise<number>((resolve, reject) => {
    const over = (): boolean => {
      if (settled) return false
      settled = true
      stdout.push(null)
      stderr.push(null)
      return true
    }
    finish = (code) => over() && resolve(code)
    fail = (error) => over() && reject(error)
  })
  done.catch(() => undefined)

  const into = (readable: Readable): Writable =>
    new Writable({
      write(bytes: Buffer, _, callback) {
        if (!settled && bytes.length > 0 && !readable.push(bytes)) pause()
        callback()
      },
    })
  const took = (status: ExecStatus): void => {
    try {
      finish(exitCodeOf(status))
    } catch (error) {
      fail(error as Error)
    }
  }
  // The library's writer ignores how fast the other side reads. It gets a silent stream, and the
  // frames are written here.
  const silent = new Readable({ read: () => undefined })
  const opening = new Exec(config).exec(
    namespace,
    pod,
    container,
    [...command],
    into(stdout),
    into(stderr),
    silent,
    false,
    took,
  ) as Promise<unknown> as Promise<Socket>
  const socket = await opening.catch((event: unknown) => {
    const { message = 'no words', error } = event as { message?: string; error?: unknown }
    if (error instanceof HttpError) throw kubernetesError(error, 'route')
    const status = statusIn(message)
    const what =
      status === undefined ? `${new URL(url).host}: ${message}` : `exec in Pod ${pod} is answered ${status}`
    throw new KubernetesError(
      status === undefined ? 'route' : 'login',
      what,
      status === undefined ? {} : { status },
    )
  })
  pause = () => socket.pause()
  resume = () => socket.isPaused && socket.resume()
  socket.onclose = ({ code, reason }) =>
    fail(
      new KubernetesError(
        'login',
        `the link to Pod ${pod} was lost (${code}${reason === '' ? '' : ` ${reason}`})`,
      ),
    )

  const frame = (bytes: Buffer): Buffer => Buffer.concat([Buffer.from([frames.stdin]), bytes])
  const stdin = new Writable({
    write: (bytes: Buffer, _, callback) => socket.send(frame(bytes), (error) => callback(error ?? null)),
    // Only the fifth version of the protocol has a message for the end of the input; older servers
    // end the command with the socket.
    final: (callback) => {
      if (socket.protocol === 'v5.channel.k8s.io')
        socket.send(stdinClosed, (error) => callback(error ?? null))
      else callback()
    },
  })
  stdin.on('error', () => undefined)
  return {
    stdin,
    stdout,
    stderr,
    done,
    close() {
      fail(new KubernetesError('login', 'the link was closed'))
      socket.close()
      socket.terminate()
    },
  }
}
