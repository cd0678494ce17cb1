import { randomBytes } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Duplex } from 'node:stream'
import type { Client, ClientChannel, ExecOptions, SFTPWrapper } from 'ssh2'
import { leftOf, within } from '../../pacing/within.ts'
import { collectOutput, LastBytes } from '../../shell/outputs.ts'
import { evaluated, withLastLine } from '../../shell/program.ts'
import {
  LinkError,
  runDefaults,
  type RunOptions,
  type ShellResult,
  type ShellStream,
  type TerminalSize,
} from '../../shell/site-shell.ts'
import { printableMessage, printable } from './printable.ts'
import { fedInput, Resident } from './resident.ts'
import { endsOf } from './shell-stream.ts'

/**
 * Most bytes of a script that goes into the request for its channel; servers other than OpenSSH
 * take packets of 32 KiB.
 */
const longestInRequest = 20 * 1024
/** Longest script for a resident shell; bash reads its input byte by byte, 1 µs each. */
const longestForResident = { bash: 16 * 1024, other: 512 * 1024 }
const residentShells = 3
const refusedPauseMs = 50
/** A server may count a channel for this long after its end. */
const noticeMs = 1_000
/** Pause between TERM and KILL. */
const politeMs = 5000
/** What ssh2 says where the server refuses a pseudo terminal, or closes the channel at the request. */
const terminalRefused = 'Unable to request a pseudo-terminal'
const noTerminal =
  'the server gives no pseudo terminal; let it give one to the account (PermitTTY yes, neither "restrict" nor ' +
  '"no-pty" at its key, a devpts with gid=5)'

/**
 * A command for whatever shell the account has (sh, fish, csh …) that makes `/bin/sh` evaluate a
 * script. Every character that some shell might interpret inside single quotes is written as an
 * octal number for `printf %b`.
 */
export const shellCommand = (script: string): string =>
  `exec /bin/sh -c 'eval "$(printf %b "${encoded(script)}")"'`

const encoded = (script: string): string =>
  script.replace(/[\\'"`$!%\n\r\t]/g, (letter) => `\\0${letter.charCodeAt(0).toString(8).padStart(3, '0')}`)

type Waiter = PromiseWithResolvers<undefined>

export interface OpenOptions {
  /** Until the script begins; default 60 s. */
  deadlineMs?: number
  /** Default true; false: nothing can be written to it. */
  hasInput?: boolean
  /** On a pseudo terminal of this size, as `SiteShell.terminal`. */
  terminal?: TerminalSize | undefined
  /** As `StreamOptions.lasting`: where the connection has no channel for it, it is refused at once. */
  lasting?: boolean | undefined
}

/** One connection after its login: runs scripts and streams over its channels. */
export class SshSession {
  readonly #client: Client
  readonly #route: Duplex
  #channels: number
  readonly #runsScripts: boolean
  #residents: Resident[] = []
  #opening = 0
  #streams = 0
  #lasting = 0
  #runs: Waiter[] = []
  #opens: Waiter[] = []
  #bash = false
  #forwards = 0
  #everOpened = false
  /** When a channel last ended. */
  #endedAt = -Infinity
  #lost: LinkError | undefined
  #idleSince = performance.now()
  #onEnd: ((error: LinkError) => void)[] = []

  /**
   * `route`: the stream below the client, destroyed when the peer does not answer the disconnect.
   * `runsScripts`: some channels are left for scripts.
   */
  constructor(client: Client, route: Duplex, channels: number, runsScripts = true) {
    this.#client = client
    this.#route = route
    this.#channels = channels
    this.#runsScripts = runsScripts
    let cause: Error | undefined
    client.on('error', (error: Error) => (cause ??= error))
    client.on('close', () =>
      this.#end(
        new LinkError(
          'link',
          `the link was lost${cause === undefined ? '' : `: ${printableMessage(cause)}`}`,
        ),
      ),
    )
  }

  get alive(): boolean {
    return this.#lost === undefined
  }

  /**
   * Since when the connection is idle, in `performance.now()` milliseconds; undefined while it is
   * in use.
   */
  get idleSince(): number | undefined {
    const busy =
      this.#streams > 0 ||
      this.#forwards > 0 ||
      this.#opening > 0 ||
      this.#residents.some((resident) => !resident.idle)
    return busy ? undefined : this.#idleSince
  }

  /** Called once when the connection has ended. */
  onEnd(listener: (error: LinkError) => void): void {
    if (this.#lost === undefined) this.#onEnd.push(listener)
    else listener(this.#lost)
  }

  close(reason = 'the connection was closed'): void {
    this.#client.end()
    this.#end(new LinkError('link', reason))
    setTimeout(() => this.#route.destroy(), 1000).unref()
  }

  /** As `SiteShell.run`. */
  async run(script: string, options: RunOptions = {}): Promise<ShellResult> {
    const deadlineMs = options.deadlineMs ?? runDefaults.deadlineMs
    const until = performance.now() + deadlineMs
    const maxBytes = options.maxBytes ?? runDefaults.maxBytes
    const input = fedInput(options.input)
    if (
      input !== false &&
      script.length <= (this.#bash ? longestForResident.bash : longestForResident.other)
    ) {
      const answer = await this.#onResident(until, (resident) =>
        // The first resident reports whether its `sh` is a bash.
        resident.bash && script.length > longestForResident.bash
          ? undefined
          : resident.run(script, input, leftOf(until), maxBytes),
      )
      if (answer !== undefined) return answer
    }
    return this.#runAlone(script, options.input, until, maxBytes)
  }

  /** Whether it carries as many lasting streams as it has channels for streams. */
  get full(): boolean {
    return Math.max(this.#lasting, this.#runsScripts ? 0 : this.#streams) >= this.#mostStreams
  }

  /** As `SiteShell.open`. @throws LinkError that is `full` */
  async open(script: string, options: OpenOptions = {}): Promise<ShellStream> {
    if (options.lasting !== true) return this.#open(script, options)
    if (this.full) throw this.#fullError()
    this.#lasting++
    const left = (): void => void this.#lasting--
    try {
      const stream = await this.#open(script, options)
      stream.done.then(left, left)
      return stream
    } catch (error) {
      left()
      throw error
    }
  }

  #fullError(): LinkError {
    return new LinkError(
      'shell',
      `the connection carries ${this.#mostStreams} terminals, as many as it can`,
      {
        full: true,
      },
    )
  }

  async #open(
    script: string,
    { deadlineMs = runDefaults.deadlineMs, hasInput = true, terminal, lasting = false }: OpenOptions,
  ): Promise<ShellStream> {
    const until = performance.now() + deadlineMs
    const mark = `<${randomBytes(16).toString('hex')} `
    // The mark ends the output of the account's start files and gives the process id.
    const { command, first } = commandOf(`printf '${mark}%s\\n' "$$"\n${script}`, hasInput)
    const channel = await this.#channel(() => this.#exec(command, until, terminal), until, lasting)
    const begun = Promise.withResolvers<undefined>()
    const stream = this.#stream(channel, Buffer.from(mark), () => begun.resolve(undefined))
    stream.done.then(({ code, stderr }) => {
      const detail = stderr === '' ? '' : `: ${printable(stderr)}`
      const fault = `the account has no usable shell (exit code ${code ?? 'none'})${detail}`
      begun.reject(new LinkError('shell', fault))
    }, begun.reject)
    if (!hasInput) channel.end(first)
    else if (first !== undefined) channel.write(first)
    await within(begun.promise, leftOf(until), () => {
      stream.kill()
      return new LinkError('shell', `no shell at the site within ${Math.round(deadlineMs / 100) / 10} s`)
    })
    return terminal === undefined
      ? stream
      : { ...stream, resize: (rows, columns) => channel.setWindow(rows, columns, 0, 0) }
  }

  /** A channel of the SFTP subsystem; it counts as one of the streams until it is closed. */
  files(deadlineMs = runDefaults.deadlineMs): Promise<SFTPWrapper> {
    const until = performance.now() + deadlineMs
    const open = (): Promise<SFTPWrapper> =>
      this.#opened(
        'has no SFTP',
        until,
        (answer) => this.#client.sftp(answer),
        (sftp) => sftp.end(),
      )
    return this.#channel(open, until)
  }

  /** A connection from the host on, for a host behind it. */
  forward(host: string, port: number): Promise<Duplex> {
    return new Promise((resolve, reject) => {
      if (this.#lost !== undefined) {
        reject(this.#lost)
        return
      }
      this.#forwards++
      const gone = (): void => {
        this.#forwards--
        this.#idleSince = performance.now()
      }
      this.#client.forwardOut('127.0.0.1', 0, host, port, (error, channel) => {
        if (error !== undefined && error !== null) {
          gone()
          reject(
            new LinkError(
              'route',
              `the jump host cannot reach ${host} port ${port}: ${printableMessage(error)}`,
            ),
          )
          return
        }
        channel.once('close', gone)
        resolve(channel)
      })
    })
  }

  /** Waits for one answer of a shell; @throws LinkError. */
  async greet(deadlineMs: number): Promise<void> {
    await this.run(':', { deadlineMs, maxBytes: 1000 })
  }

  #end(error: LinkError): void {
    if (this.#lost !== undefined) return
    this.#lost = error
    for (const waiter of [...this.#runs.splice(0), ...this.#opens.splice(0)]) waiter.reject(error)
    for (const listener of this.#onEnd.splice(0)) listener(error)
  }

  /** Channels that are reserved for resident shells, so that streams never take all. */
  get #reserve(): number {
    if (!this.#runsScripts) return 0
    return this.#channels >= 8 ? residentShells : this.#channels >= 2 ? 1 : 0
  }

  get #mostStreams(): number {
    return Math.max(1, this.#channels - this.#reserve)
  }

  get #inUse(): number {
    return this.#residents.length + this.#opening + this.#streams
  }

  /** Wakes calls that wait for a channel, while there is one for them. */
  #next(): void {
    this.#idleSince = performance.now()
    // Wakes as many as can begin: calls woken in vain would queue again, a thousand times for a
    // thousand calls.
    const idle = this.#residents.filter((resident) => resident.idle).length
    const more = Math.min(
      residentShells - this.#residents.length - this.#opening,
      this.#channels - this.#inUse,
    )
    for (const waiter of this.#runs.splice(0, idle + Math.max(0, more))) waiter.resolve(undefined)
    if (this.#opens.length > 0 && this.#mayOpen()) this.#opens.shift()!.resolve(undefined)
  }

  #mayRun(): boolean {
    return (
      this.#residents.some((resident) => resident.idle) ||
      (this.#residents.length + this.#opening < residentShells && this.#inUse < this.#channels)
    )
  }

  #mayOpen(): boolean {
    if (this.#streams >= this.#mostStreams) return false
    if (this.#inUse < this.#channels) return true
    // An idle resident gives up its channel.
    const idle =
      this.#residents.length > this.#reserve ? this.#residents.find((resident) => resident.idle) : undefined
    idle?.close()
    return this.#inUse < this.#channels
  }

  #turn(queue: Waiter[], may: () => boolean, until: number): Promise<unknown> {
    if (this.#lost !== undefined) return Promise.reject(this.#lost)
    if (queue.length === 0 && may()) return Promise.resolve()
    const waiter = Promise.withResolvers<undefined>()
    queue.push(waiter)
    return within(waiter.promise, leftOf(until), () => {
      queue.splice(queue.indexOf(waiter), 1)
      return new LinkError('link', 'all channels of the connection were busy until the deadline')
    })
  }

  /** Gives work to an idle resident shell; starts one if there is none. */
  async #onResident<T>(
    until: number,
    use: (resident: Resident) => Promise<T> | undefined,
  ): Promise<T | undefined> {
    for (;;) {
      await this.#turn(this.#runs, () => this.#mayRun(), until)
      const idle = this.#residents.find((resident) => resident.idle)
      if (idle !== undefined) {
        try {
          return await use(idle)
        } finally {
          this.#next()
        }
      }
      // Another call was faster.
      if (!this.#mayRun()) continue
      await this.#openResident(until)
    }
  }

  async #openResident(until: number): Promise<void> {
    this.#opening++
    let resident: Resident | undefined
    try {
      resident = new Resident(await this.#exec('exec /bin/sh', until))
      await resident.greet(leftOf(until))
    } catch (error) {
      resident?.close()
      if (error instanceof ChannelRefused && (await this.#refused(this.#inUse - 1, until, true))) return
      throw error instanceof ChannelRefused ? error.link : error
    } finally {
      this.#opening--
      this.#next()
    }
    const made = resident
    this.#bash ||= made.bash
    made.onEnd = () => {
      this.#endedAt = performance.now()
      const at = this.#residents.indexOf(made)
      if (at >= 0) this.#residents.splice(at, 1)
      this.#next()
    }
    made.onLeft = () => this.#endGroup(made.pid, 'KILL')
    this.#residents.push(made)
    this.#next()
  }

  /**
   * Ends the processes of a channel. OpenSSH refuses the protocol's own signals for root and had
   * none before 7.9.
   */
  #endGroup(pid: string, signal: 'TERM' | 'KILL'): void {
    if (pid === '' || this.#lost !== undefined) return
    const script = `kill -s ${signal} -- -${pid} 2>/dev/null || kill -s ${signal} ${pid} 2>/dev/null`
    if (this.#runsScripts) {
      this.run(script, { deadlineMs: 10_000 }).catch(() => undefined)
      return
    }
    // Terminals may hold all channels that this connection counts; servers mostly have some more.
    void this.#exec(script, performance.now() + 10_000).then(
      (channel) => void channel.resume().stderr.resume(),
      () => undefined,
    )
  }

  /**
   * The server opens no more channels than the `open` ones, which are the limit from now on, unless
   * it may not have noticed the end of another one yet. `isSure`: it has had time for that. @returns
   * whether to try again.
   */
  async #refused(open: number, until: number, isSure: boolean): Promise<boolean> {
    if (open > 0 && (isSure || performance.now() - this.#endedAt > noticeMs)) {
      this.#channels = Math.min(this.#channels, open)
      return true
    }
    if (!this.#everOpened || performance.now() + refusedPauseMs > until) return false
    // One pause for the server, not one of a row: what asks again is the caller's queue of channels.
    await sleep(refusedPauseMs)
    return true
  }

  /** Opens a channel in its turn; it counts as one of the streams until it is closed. */
  async #channel<Channel extends ClientChannel | SFTPWrapper>(
    open: () => Promise<Channel>,
    until: number,
    lasting = false,
  ): Promise<Channel> {
    for (let isSure = false; ;) {
      await this.#turn(this.#opens, () => this.#mayOpen(), until)
      if (!this.#mayOpen()) continue
      this.#streams++
      try {
        const channel = await open()
        channel.once('close', () => {
          this.#endedAt = performance.now()
          this.#streams--
          this.#next()
        })
        return channel
      } catch (error) {
        this.#streams--
        const again = error instanceof ChannelRefused && (await this.#refused(this.#inUse, until, isSure))
        isSure = true
        // Another call may have waited longer.
        this.#next()
        if (!again) throw error instanceof ChannelRefused ? error.link : error
        if (lasting && this.#lasting > this.#mostStreams) throw this.#fullError()
      }
    }
  }

  #exec(command: string, until: number, terminal?: TerminalSize): Promise<ClientChannel> {
    return this.#opened(
      'runs no command',
      until,
      (answer) => this.#client.exec(command, ptyOf(terminal), answer),
      (channel) => channel.close(),
    )
  }

  /** What a call of the client opens. @throws ChannelRefused; LinkError that says `lacks` of the server */
  #opened<Channel extends ClientChannel | SFTPWrapper>(
    lacks: string,
    until: number,
    ask: (answer: (error: Error | undefined, channel: Channel) => void) => unknown,
    end: (channel: Channel) => void,
  ): Promise<Channel> {
    const opened = new Promise<Channel>((resolve, reject) => {
      const refused = (error: Error): Error => {
        if ((error as { reason?: unknown }).reason !== undefined) return new ChannelRefused(error)
        if (error.message === terminalRefused)
          return new LinkError('shell', noTerminal, { permanent: true, cause: error })
        return new LinkError('shell', `the server ${lacks}: ${printableMessage(error)}`, { cause: error })
      }
      try {
        if (this.#lost !== undefined) throw this.#lost
        ask((error, channel) => {
          if (error !== undefined && error !== null) return reject(this.#lost ?? refused(error))
          this.#everOpened = true
          resolve(channel)
        })
      } catch (error) {
        // The socket has ended and its close event is on the way.
        reject(this.#lost ?? new LinkError('link', `the link was lost: ${printableMessage(error)}`))
      }
    })
    const late = (): LinkError =>
      new LinkError('shell', 'the server did not open a channel until the deadline')
    return within(opened, leftOf(until), late, end)
  }

  /** Runs a script on a channel of its own: one with large input, or too long for a resident. */
  async #runAlone(
    script: string,
    input: Uint8Array | string | undefined,
    until: number,
    maxBytes: number,
  ): Promise<ShellResult> {
    const deadlineMs = leftOf(until)
    const stream = await this.open(script, { deadlineMs, hasInput: input !== undefined })
    return collectOutput(stream, {
      ...(input === undefined ? {} : { input }),
      deadlineMs: leftOf(until),
      maxBytes,
    })
  }

  #stream(channel: ClientChannel, mark: Buffer, begun: () => void): ShellStream {
    const lastError = new LastBytes()
    let killed = false
    let ended = false
    let pid = ''
    let waiting: Buffer | undefined = Buffer.alloc(0)
    const kill = (): void => {
      if (killed || ended) return
      killed = true
      channel.signal('TERM')
      this.#endGroup(pid, 'TERM')
      channel.close()
      // The channel's end comes after its last byte was taken; OpenSSH reports it when the process
      // has ended.
      channel.resume()
      setTimeout(() => {
        if (!ended) this.#endGroup(pid, 'KILL')
        settle()
      }, politeMs).unref()
      stdout.destroy()
      stdin.destroy()
    }
    const { stdin, stdout, over, broken } = endsOf(channel, kill)

    const take = (chunk: Buffer): void => {
      if (waiting !== undefined) {
        waiting = Buffer.concat([waiting, chunk])
        const at = waiting.indexOf(mark)
        const end = at < 0 ? -1 : waiting.indexOf(10, at)
        if (end < 0) {
          waiting = Buffer.from(waiting.subarray(at < 0 ? Math.max(0, waiting.length - mark.length + 1) : at))
          return
        }
        pid = /^\d+/.exec(waiting.toString('latin1', at + mark.length, end))?.[0] ?? ''
        chunk = waiting.subarray(end + 1)
        waiting = undefined
        begun()
        if (chunk.length === 0) return
      }
      if (killed) return
      if (!stdout.push(chunk)) channel.pause()
    }
    channel.on('data', take)
    channel.stderr.on('data', (chunk: Buffer) => lastError.add(chunk))
    channel.on('error', () => undefined)

    let settle: () => void = () => undefined
    const done = new Promise<{ code: number | null; signal: string | null; stderr: string }>(
      (resolve, reject) => {
        settle = () => resolve({ code: null, signal: 'SIGTERM', stderr: lastError.toString() })
        channel.once('close', (code: number | null | undefined, signal?: string) => {
          ended = true
          if (killed) settle()
          else if (this.#lost !== undefined || code === undefined) {
            const error = this.#lost ?? new LinkError('link', 'the channel ended without an exit code')
            broken(error)
            reject(error)
          } else {
            over()
            resolve({ code, signal: signal ?? null, stderr: lastError.toString() })
          }
        })
      },
    )
    done.catch(() => undefined)
    return { stdin, stdout, done, kill }
  }
}

const ptyOf = (terminal: TerminalSize | undefined): ExecOptions =>
  terminal === undefined
    ? {}
    : { pty: { term: 'xterm-256color', rows: terminal.rows, cols: terminal.columns, width: 0, height: 0 } }

/** The server refused to open one more channel, maybe because of `MaxSessions`. */
class ChannelRefused extends Error {
  readonly link: LinkError
  constructor(error: Error) {
    super(error.message)
    this.link = new LinkError('shell', `the server opens no channel: ${printableMessage(error)}`, {
      cause: error,
    })
  }
}

/** The request for a script, and the bytes to write first where the script is too long for one. */
const commandOf = (script: string, hasInput: boolean): { command: string; first?: Buffer } => {
  const command = shellCommand(script)
  if (Buffer.byteLength(command) <= longestInRequest) return { command }
  const first = Buffer.from(withLastLine(script))
  // Reads byte by byte where input follows, so that it takes none of the input.
  return {
    command: shellCommand(evaluated(hasInput ? `dd bs=1 count=${first.length} 2>/dev/null` : 'cat')),
    first,
  }
}
