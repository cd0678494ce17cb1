import type { Writable } from 'node:stream'
import { append } from '../../lists.ts'
import type { ShellStream } from '../../shell/site-shell.ts'
import { frameOf, offsetContent, type Frame } from './frames.ts'
import { openMasks } from './masks.ts'
import type { ConsoleRecord } from './sessions.ts'

/** The output of one frame, with the offset after it in the recording. */
export interface ShownPart {
  bytes: Buffer
  end: number
}
export interface OutputWatcher {
  output: (parts: readonly ShownPart[]) => void
  /** Called when the session is over. */
  ended: () => void
  /** Whether the terminal should wait for it, for a while. */
  isSlow: () => boolean
}

/** Bytes that may begin a secret are held back while no more than this follows them. */
const mostHeldBytes = 1024 * 1024
/** The limit of one record. */
const mostAtOnceBytes = 4 * 1024 * 1024
const mostAtOnceFrames = 4_096

/** Frames that follow each other within this time are one record. */
const togetherSeconds = 0.05

const directions = { i: 'input', o: 'output' } as const

const sizeText = ({ content }: Frame): Buffer =>
  Buffer.from(`${String(content.readUInt32BE(4))}x${String(content.readUInt32BE(0))}`)

const outputOf = (frames: readonly Frame[]): ShownPart[] =>
  frames.filter(({ kind }) => kind === 'o').map(({ content, end }) => ({ bytes: content, end }))

/** Resolves when more can be written, or never again. */
const flowsAgain = (stdin: Writable): Promise<void> =>
  new Promise((resolve) => {
    const go = (): void => {
      for (const event of ['drain', 'close']) stdin.removeListener(event, go)
      resolve()
    }
    for (const event of ['drain', 'close']) stdin.once(event, go)
  })

/** A session that this process serves. Its recording goes to the record and to its watchers. */
export class Served {
  readonly watchers = new Set<OutputWatcher>()
  writer: (() => void) | undefined
  stream: ShellStream | undefined
  usedAt = performance.now()
  shownAt = performance.now()
  /** Of the secrets that its record must not hold. */
  masks = openMasks([])
  /** When the end of its terminal was first asked for. */
  closingAt: number | undefined
  /** Whether the end of its terminal was ever asked for. */
  endAsked = false
  /** When its terminal was last followed; undefined before the first link. */
  linkedAt: number | undefined
  /** Aborted once the record of the session has its end: what follows is cleared away. */
  readonly over = new AbortController()
  /**
   * True for a terminal without a recording of its own: its output is recorded before a watcher
   * receives it.
   */
  recordsFirst = false
  /** Whether this process serves it no longer. */
  hasEnded = false
  /** Frames that are not recorded yet. */
  #waiting: Frame[] = []
  #waitingBytes = 0
  /** Offset to which the recording is stored. */
  #taken = 0
  /** Ends the wait of `changed`. */
  #wake: (() => void) | undefined
  #isChanged = false

  /** Recorded output that has not reached the record yet; empty where watchers must not see it. */
  get unrecorded(): ShownPart[] {
    return this.recordsFirst ? [] : outputOf(this.#waiting)
  }

  get waitingBytes(): number {
    return this.#waitingBytes
  }

  /** @returns false where the terminal cannot be reached now */
  async send(frame: Buffer): Promise<boolean> {
    const stdin = this.stream?.stdin
    if (stdin === undefined || stdin.destroyed || !stdin.writable) return false
    this.usedAt = performance.now()
    if (!stdin.write(frame)) await flowsAgain(stdin)
    return true
  }

  /** Tells every watcher that it is over; one that comes later sees `hasEnded`. */
  end(): void {
    this.hasEnded = true
    for (const watcher of this.watchers) watcher.ended()
  }

  /** Tells the holder that the recording is stored to an offset, where it can be reached now. */
  acknowledge(taken: number): void {
    this.#tell(frameOf('k', offsetContent(taken)))
  }

  /** Asks for the end of the terminal, where it can be reached now; waits for nothing. */
  close(): void {
    this.closingAt ??= performance.now()
    this.endAsked = true
    this.#tell(frameOf('c'))
  }

  #tell(frame: Buffer): void {
    const stdin = this.stream?.stdin
    if (stdin !== undefined && !stdin.destroyed && stdin.writable) stdin.write(frame)
  }

  take(frames: readonly Frame[]): void {
    if (frames.length === 0) return
    append(this.#waiting, frames)
    for (const { content } of frames) this.#waitingBytes += content.length
    this.wake()
    if (!this.recordsFirst) this.#show(frames)
  }

  /** Resolves at the next frames, or at `wake`. */
  async changed(): Promise<void> {
    if (!this.#isChanged) await new Promise<void>((resolve) => (this.#wake = resolve))
    this.#isChanged = false
  }
  wake(): void {
    this.#isChanged = true
    this.#wake?.()
  }

  /** Whether a reader for whom the terminal waits is behind. */
  get hasSlowReader(): boolean {
    return [...this.watchers].some((watcher) => watcher.isSlow())
  }

  /** Drops what is not recorded: the recording is read again from `taken` on. */
  restart(taken: number): void {
    this.#taken = taken
    this.#waiting = []
    this.#waitingBytes = 0
  }

  /**
   * The records that are due now, of the recording between two offsets; `recorded` is to be called
   * once they are stored.
   */
  due(
    all: boolean,
  ): { records: ConsoleRecord[]; from: number; to: number; recorded: () => void } | undefined {
    let bytes = 0
    const over = this.#waiting.findIndex(
      ({ content }, place) => (bytes += content.length) > mostAtOnceBytes || place + 1 === mostAtOnceFrames,
    )
    const first = over < 0 ? this.#waiting : this.#waiting.slice(0, over + 1)
    const chosen = all && over < 0 ? first.slice() : first.slice(0, this.#sure(first))
    const last = chosen.at(-1)
    if (last === undefined) return undefined
    return {
      ...{ records: this.#recordsOf(chosen), from: this.#taken, to: last.end },
      recorded: () => {
        this.#taken = last.end
        this.#recorded(chosen)
      },
    }
  }

  /** The records of frames, in their order and with their times. */
  #recordsOf(frames: readonly Frame[]): ConsoleRecord[] {
    const masked = { i: this.#masked(frames, 'i'), o: this.#masked(frames, 'o') }
    const records: { direction: ConsoleRecord['direction']; atSeconds: number; pieces: Buffer[] }[] = []
    for (const frame of frames) {
      const { kind, atSeconds } = frame
      if (kind === 'r') records.push({ direction: 'resize', atSeconds, pieces: [sizeText(frame)] })
      if (kind !== 'i' && kind !== 'o') continue
      const content = masked[kind].next().value
      if (content === undefined || content.length === 0) continue
      const before = records.at(-1)
      const direction = directions[kind]
      if (before?.direction === direction && atSeconds - before.atSeconds < togetherSeconds)
        before.pieces.push(content)
      else records.push({ direction, atSeconds, pieces: [content] })
    }
    return records.map(({ pieces, ...rest }) => ({ ...rest, content: Buffer.concat(pieces) }))
  }

  #masked(frames: readonly Frame[], kind: 'i' | 'o'): Iterator<Buffer, undefined> {
    const pieces = frames.filter((frame) => frame.kind === kind).map(({ content }) => content)
    return this.masks.pieces(pieces).values()
  }

  /** The number of frames from the first on that no secret ties to what comes. */
  #sure(frames: readonly Frame[]): number {
    const directions = (['i', 'o'] as const).map((kind) => {
      const places = frames.flatMap((frame, place) => (frame.kind === kind ? [place] : []))
      const pieces = frames.filter((frame) => frame.kind === kind).map(({ content }) => content)
      return { places, most: this.masks.cuts(pieces) }
    })
    // A cut of one direction may split a secret of the other.
    let sure = frames.length
    for (let before = -1; before !== sure;) {
      before = sure
      for (const { places, most } of directions) {
        const number = places.filter((place) => place < sure).length
        const allowed = most(number)
        if (allowed < number) sure = places[allowed] ?? sure
      }
    }
    const held = frames.slice(sure).reduce((bytes, { content }) => bytes + content.length, 0)
    return held > mostHeldBytes ? frames.length : sure
  }

  #recorded(frames: readonly Frame[]): void {
    this.#waiting.splice(0, frames.length)
    for (const { content } of frames) this.#waitingBytes -= content.length
    if (this.#waiting.length > 0) this.wake()
    if (this.recordsFirst) this.#show(frames)
  }

  #show(frames: readonly Frame[]): void {
    const shown = outputOf(frames)
    if (shown.length === 0) return
    this.usedAt = this.shownAt = performance.now()
    for (const watcher of this.watchers) watcher.output(shown)
  }
}
