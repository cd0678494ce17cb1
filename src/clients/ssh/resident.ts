import { randomBytes } from 'node:crypto'
import { within } from '../../pacing/within.ts'
import { quote } from '../../shell/quote.ts'
import { LastBytes } from '../../shell/outputs.ts'
import { LinkError, type ShellResult } from '../../shell/site-shell.ts'
import { printable } from './printable.ts'

/** Standard input and outputs of a shell, over an SSH channel or any other channel. */
export interface ResidentChannel {
  on(event: 'data', listener: (chunk: Buffer) => void): unknown
  on(event: 'error', listener: () => void): unknown
  /** `code` is absent when the link was lost. */
  on(event: 'close', listener: (code: number | null | undefined, signal?: string) => void): unknown
  readonly stderr: { on(event: 'data', listener: (chunk: Buffer) => void): unknown }
  write(text: string): unknown
  signal(name: string): unknown
  close(): unknown
}

/**
 * Collects bytes up to a mark, which may arrive in pieces; bytes before the first mark are not part
 * of the answer.
 */
class Marked {
  readonly #keep: (bytes: Buffer) => void
  readonly #start: Buffer
  readonly #end: Buffer
  #begun = false
  #before = ''
  #held: Buffer = Buffer.alloc(0)
  /** The text after the end mark, up to the end of its line. */
  tail?: string

  constructor(start: string, end: string, keep: (bytes: Buffer) => void) {
    this.#start = Buffer.from(start)
    this.#end = Buffer.from(end)
    this.#keep = keep
  }

  take(chunk: Buffer): void {
    if (this.tail !== undefined) return
    let bytes = this.#held.length === 0 ? chunk : Buffer.concat([this.#held, chunk])
    if (!this.#begun) {
      const at = bytes.indexOf(this.#start)
      if (at < 0) {
        const sure = Math.max(0, bytes.length - this.#start.length + 1)
        this.#before = (this.#before + bytes.toString('utf8', 0, sure)).slice(-300)
        this.#held = Buffer.from(bytes.subarray(sure))
        return
      }
      this.#begun = true
      bytes = bytes.subarray(at + this.#start.length)
    }
    const at = bytes.indexOf(this.#end)
    if (at < 0) {
      const sure = Math.max(0, bytes.length - this.#end.length + 1)
      if (sure > 0) this.#keep(bytes.subarray(0, sure))
      this.#held = Buffer.from(bytes.subarray(sure))
      return
    }
    const line = bytes.indexOf(10, at + this.#end.length)
    if (line < 0) {
      if (at > 0) this.#keep(bytes.subarray(0, at))
      this.#held = Buffer.from(bytes.subarray(at))
      return
    }
    if (at > 0) this.#keep(bytes.subarray(0, at))
    this.tail = bytes.toString('latin1', at + this.#end.length, line)
  }

  get begun(): boolean {
    return this.#begun
  }

  /** The end of the bytes before the first mark. */
  get before(): string {
    return this.#begun ? '' : this.#before + this.#held.toString('utf8')
  }
}

const longestFedInput = 16 * 1024

/**
 * Input that can be part of a script, undefined for none; false: only a channel's own input can carry
 * it, as it is long, has NUL, or is no text.
 */
export const fedInput = (input: Uint8Array | string = ''): string | undefined | false => {
  if (input.length === 0) return undefined
  if (input.length > longestFedInput) return false
  const text = typeof input === 'string' ? input : Buffer.from(input).toString()
  const isText = typeof input === 'string' || Buffer.from(text).equals(input)
  return isText && !text.includes('\0') ? text : false
}

interface Work {
  stdout: Marked
  stderr: Marked
  chunks: Buffer[]
  bytes: number
  maxBytes: number
  lastError: LastBytes
  result: PromiseWithResolvers<ShellResult>
}

/**
 * One `sh` at the site that runs script after script: 1–2 ms each, where a channel with the
 * account's own shell costs up to 200 ms. Each script runs in a subshell of its own, between two
 * marks with a random token on both outputs. So neither a script's changes to its shell nor the
 * output of the account's start files affects another answer.
 */
export class Resident {
  readonly #channel: ResidentChannel
  #work: Work | undefined
  #over = false
  /** Whether its `sh` is a bash, which reads a script from its input byte by byte. */
  bash = false
  /** Its process, which leads a group. */
  pid = ''
  /** Called once when it has ended, whatever the reason. */
  onEnd: () => void = () => undefined
  /**
   * Called when it was abandoned in the middle of a script, which may still be running in the group
   * `pid`.
   */
  onLeft: () => void = () => undefined

  constructor(channel: ResidentChannel) {
    this.#channel = channel
    const take =
      (side: 'stdout' | 'stderr') =>
      (chunk: Buffer): void => {
        const work = this.#work
        if (work === undefined) return
        work[side].take(chunk)
        this.#finish(work)
      }
    channel.on('data', take('stdout'))
    channel.stderr.on('data', take('stderr'))
    channel.on('error', () => this.#end('the channel broke'))
    channel.on('close', (code: number | null | undefined, signal?: string) => {
      const how =
        code === undefined
          ? 'the link was lost'
          : `the shell at the site ended (${code === null ? (signal ?? 'a signal') : `exit code ${code}`})`
      this.#end(how)
    })
  }

  get idle(): boolean {
    return this.#work === undefined && !this.#over
  }

  /** Runs the first script, which proves that a shell answers. */
  async greet(deadlineMs: number): Promise<void> {
    const answer = await this.run(`printf '%s %s' "$$" "\${BASH_VERSION-}"`, undefined, deadlineMs, 1000)
    const [pid = '', bash = ''] = answer.stdout.toString('latin1').split(' ')
    this.pid = /^\d+$/.test(pid) ? pid : ''
    this.bash = bash !== ''
  }

  /** One script at a time; `input` without NUL. */
  run(script: string, input: string | undefined, deadlineMs: number, maxBytes: number): Promise<ShellResult> {
    if (!this.idle) throw new Error('a resident shell runs one script at a time')
    const token = randomBytes(16).toString('hex')
    const marked = (keep: (bytes: Buffer) => void): Marked => new Marked(`<${token}\n`, `>${token} `, keep)
    const work: Work = {
      ...{ chunks: [], bytes: 0, maxBytes, lastError: new LastBytes() },
      stdout: marked((bytes) => {
        work.bytes += bytes.length
        if (work.bytes <= maxBytes) work.chunks.push(bytes)
      }),
      stderr: marked((bytes) => work.lastError.add(bytes)),
      result: Promise.withResolvers<ShellResult>(),
    }
    this.#work = work
    const fed = input === undefined ? '' : `printf %s ${quote(input)} 2>/dev/null | `
    const source = input === undefined ? ' </dev/null' : ''
    this.#channel.write(
      `printf '<${token}\\n'; printf '<${token}\\n' >&2\n` +
        `${fed}( eval ${quote(script)} )${source}\n` +
        `printf '>${token} %d\\n' "$?"; printf '>${token} \\n' >&2\n`,
    )
    return within(work.result.promise, deadlineMs, () => {
      const seen = work.stdout.begun ? 'did not end' : 'gave no answer'
      const late = `the script ${seen} within ${Math.round(deadlineMs / 100) / 10} s`
      this.#stop(new LinkError('link', late))
      return new LinkError('link', late)
    })
  }

  /** Ends the shell and what it runs. */
  close(): void {
    this.#stop(new LinkError('link', 'the connection was closed'))
  }

  #finish(work: Work): void {
    if (work.bytes > work.maxBytes) {
      this.#stop(new RangeError(`the script wrote more than ${work.maxBytes} bytes`))
      return
    }
    if (work.stdout.tail === undefined || work.stderr.tail === undefined) return
    this.#work = undefined
    work.result.resolve({
      code: Number(work.stdout.tail),
      signal: null,
      stdout: Buffer.concat(work.chunks),
      stderr: work.lastError.toString(),
    })
  }

  #stop(error: Error): void {
    const work = this.#work
    this.#work = undefined
    work?.result.reject(error)
    if (work !== undefined) this.#channel.signal('KILL')
    this.#channel.close()
    this.#end('closed')
    if (work !== undefined) this.onLeft()
  }

  #end(how: string): void {
    if (this.#over) return
    this.#over = true
    const work = this.#work
    this.#work = undefined
    if (work !== undefined) {
      const detail = printable(`${work.stdout.before} ${work.stderr.before} ${work.lastError.toString()}`)
      // There was no first mark, so no shell has answered: the account has none, or may not use it.
      const stage = work.stdout.begun || how === 'the link was lost' ? 'link' : 'shell'
      work.result.reject(new LinkError(stage, detail === '' ? how : `${how}: ${detail}`))
    }
    this.onEnd()
  }
}
