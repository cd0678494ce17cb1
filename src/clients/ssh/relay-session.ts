import { randomBytes } from 'node:crypto'
import type { ClientHttp2Stream } from 'node:http2'
import { Duplex } from 'node:stream'
import { z } from 'zod'
import { leftOf, within } from '../../pacing/within.ts'
import { collectOutput } from '../../shell/outputs.ts'
import {
  LinkError,
  runDefaults,
  type RunOptions,
  type ShellResult,
  type ShellStream,
} from '../../shell/site-shell.ts'
import { errorOf, Frames, headBytes, frameKinds, NotHeld, type Head } from './relay-frames.ts'
import type { RelayLink } from './relay-link.ts'
import type { OpenOptions } from './session.ts'
import { fedInput } from './resident.ts'
import { endsOf } from './shell-stream.ts'
import type { SshProbe } from './target.ts'

/** The other side's own deadline comes first and gives more detail. */
const graceMs = 2_000
const lookMs = 3_000
const probeMs = 15_000
/** How long to wait for the last frames of an ended stream. */
const killMs = 7_000

/** The conditional type distributes over the union. */
type Call = Head extends infer T ? (T extends Head ? Omit<T, 'login' | 'id'> : never) : never

interface Events {
  begun?: () => void
  bytes?: (chunk: Buffer) => void
  answer: (value: unknown) => void
  /** Called once, instead of an answer. */
  failure: (error: Error) => void
}

const End = z.object({ code: z.number().nullable(), signal: z.string().nullable(), stderr: z.string() })

/**
 * A login that another process holds, usable here like a session of this process. Calls reject with
 * `NotHeld`, before any effect, when that process does not hold it.
 */
export class RelaySession {
  readonly #link: RelayLink
  readonly #login: string
  readonly #notHeld: (unreachable: boolean) => void

  /** `notHeld`: called when the other process reports so or is not there. */
  constructor(link: RelayLink, login: string, notHeld: (unreachable: boolean) => void) {
    this.#link = link
    this.#login = login
    this.#notHeld = notHeld
  }

  /** As `SiteShell.run`. */
  async run(script: string, options: RunOptions = {}): Promise<ShellResult> {
    const deadlineMs = options.deadlineMs ?? runDefaults.deadlineMs
    const maxBytes = options.maxBytes ?? runDefaults.maxBytes
    const until = performance.now() + deadlineMs
    const input = fedInput(options.input)
    if (input === false)
      return collectOutput(await this.open(script, { deadlineMs }), {
        ...options,
        deadlineMs: leftOf(until),
      })
    const chunks: Buffer[] = []
    const rest = await this.#asked(
      { call: 'run', script, ...(input === undefined ? {} : { input }), deadlineMs, maxBytes },
      deadlineMs + graceMs,
      (chunk) => chunks.push(chunk),
    )
    return { ...End.parse(rest), stdout: Buffer.concat(chunks) }
  }

  /** As `SshSession.open`. */
  open(
    script: string,
    { deadlineMs = runDefaults.deadlineMs, terminal, lasting }: Omit<OpenOptions, 'hasInput'> = {},
  ): Promise<ShellStream> {
    const head: Call = {
      ...{ call: 'open', script, deadlineMs, hasInput: true },
      ...(terminal && { terminal }),
      ...(lasting === true && { lasting }),
    }
    const sized = (id: string) => (rows: number, columns: number) => {
      this.#asked({ call: 'resize', size: { rows, columns } }, lookMs, undefined, id).catch(() => undefined)
    }
    return new Promise((resolve, reject) => {
      this.#call(head, deadlineMs + graceMs, (stream, id) => {
        const { shell, events } = shellStream(stream, () => {
          // Where this does not arrive, the end of the stream, which comes after the same time,
          // ends the script there.
          this.#asked({ call: 'kill' }, killMs, undefined, id).catch(() => undefined)
        })
        return {
          ...events,
          begun: () => resolve(terminal === undefined ? shell : { ...shell, resize: sized(id) }),
          failure: (error) => (reject(error), events.failure(error)),
        }
      }).catch(reject)
    })
  }

  /** A connection from the host on, for a host behind it. */
  forward(host: string, port: number): Promise<Duplex> {
    return new Promise((resolve, reject) => {
      this.#call({ call: 'forward', host, port }, runDefaults.deadlineMs, (stream) => {
        const way: Duplex = new Duplex({
          read: () => stream.resume(),
          write: (chunk: Buffer, _encoding, callback) => stream.write(chunk, () => callback()),
          final: (callback) => stream.end(() => callback()),
          destroy: (error, callback) => {
            stream.close()
            callback(error)
          },
        })
        way.on('error', () => undefined)
        return {
          begun: () => resolve(way),
          bytes: (chunk) => {
            if (!way.push(chunk)) stream.pause()
          },
          answer: () => way.push(null),
          failure: (error) => (reject(error), way.destroy(error)),
        }
      }).catch(reject)
    })
  }

  /** Since when the login is held. */
  async since(): Promise<Date> {
    return z.object({ since: z.coerce.date() }).parse(await this.#asked({ call: 'look' }, lookMs)).since
  }

  /** The result of the other process' probe of the site. */
  async probe(): Promise<SshProbe> {
    return (await this.#asked({ call: 'probe' }, probeMs)) as SshProbe
  }

  /** Makes the other process end the login. */
  async forget(): Promise<void> {
    await this.#asked({ call: 'forget' }, lookMs)
  }

  #asked(head: Call, deadlineMs: number, bytes?: (chunk: Buffer) => void, id?: string): Promise<unknown> {
    return new Promise((resolve, reject) => {
      this.#call(
        head,
        deadlineMs,
        (stream) => {
          stream.end()
          return { answer: resolve, failure: reject, ...(bytes === undefined ? {} : { bytes }) }
        },
        id,
      ).catch(reject)
    })
  }

  /** `deadlineMs`: until the answer, or until its beginning where one comes first. */
  async #call(
    call: Call,
    deadlineMs: number,
    listen: (stream: ClientHttp2Stream, id: string) => Events,
    id = randomBytes(16).toString('hex'),
  ): Promise<void> {
    const head = headBytes({ ...call, login: this.#login, id })
    const late = (): LinkError =>
      new LinkError(
        'link',
        `the process that holds the login gave no answer within ${Math.round(deadlineMs / 100) / 10} s`,
      )
    const session = await within(this.#link.session(), deadlineMs, late).catch((error: unknown) => {
      if (error instanceof NotHeld) this.#notHeld(true)
      throw error
    })
    const lost = (): LinkError =>
      new LinkError('link', 'the link over the process that holds the login was lost')
    let stream: ClientHttp2Stream
    try {
      stream = session.request({ ':method': 'POST', ':path': '/' })
    } catch {
      // It has ended this moment.
      throw lost()
    }
    this.#link.calls++
    stream.on('error', () => undefined)
    stream.cork()
    stream.write(head)
    const events = listen(stream, id)
    stream.uncork()
    let over = false
    const end = (report: () => void): void => {
      if (over) return
      over = true
      clearTimeout(timer)
      report()
    }
    const fail = (error: Error): void => {
      end(() => {
        if (error instanceof NotHeld) this.#notHeld(false)
        events.failure(error)
      })
    }
    const timer = setTimeout(() => {
      fail(late())
      stream.close()
    }, deadlineMs)
    const frames = new Frames(
      (chunk) => events.bytes?.(chunk),
      (kind, value) => {
        if (kind === frameKinds.begun) {
          clearTimeout(timer)
          events.begun?.()
          return
        }
        if (kind === frameKinds.answer) end(() => events.answer(value))
        else fail(errorOf(value))
      },
    )
    stream.on('data', (chunk: Buffer) => {
      try {
        frames.take(chunk)
      } catch {
        fail(lost())
        stream.close()
      }
    })
    stream.on('end', () => stream.close())
    stream.once('close', () => {
      this.#link.calls--
      fail(lost())
    })
  }
}

/**
 * A stream of HTTP/2 as the stream of a shell; its promises behave like those of a session of this
 * process.
 */
const shellStream = (
  stream: ClientHttp2Stream,
  ask: () => void,
): { shell: ShellStream; events: Required<Omit<Events, 'begun'>> } => {
  let ended = false
  let killed = false
  const done = Promise.withResolvers<{ code: number | null; signal: string | null; stderr: string }>()
  done.promise.catch(() => undefined)
  const kill = (): void => {
    if (killed || ended) return
    killed = true
    ask()
    // The rest of the output is dropped so that the last frames arrive.
    stream.resume()
    setTimeout(() => {
      done.resolve({ code: null, signal: 'SIGTERM', stderr: '' })
      stream.close()
    }, killMs).unref()
    stdout.destroy()
    stdin.destroy()
  }
  const { stdin, stdout, over, broken } = endsOf(stream, kill)
  return {
    shell: { stdin, stdout, done: done.promise, kill },
    events: {
      bytes: (chunk) => {
        if (!killed && !stdout.push(chunk)) stream.pause()
      },
      answer: (value) => {
        ended = true
        const end = End.parse(value)
        if (!killed) over()
        done.resolve(end)
      },
      failure: (error) => {
        ended = true
        if (killed) {
          done.resolve({ code: null, signal: 'SIGTERM', stderr: '' })
          return
        }
        broken(error)
        done.reject(error)
      },
    },
  }
}
