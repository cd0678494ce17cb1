import { hash } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import { openBackoff } from '../../../pacing/backoff.ts'
import { openGate, type Gate } from '../../../pacing/gate.ts'
import { call, readProgram } from '../../../shell/program.ts'
import { DriverError } from '../contract/driver.ts'
import { gather } from '../contract/gather.ts'
import { chunks } from './answers.ts'
import type { CollectedPart, EndedPart, RemoteCollected } from './collecting.ts'
import type { RemoteContext } from './context.ts'
import { parseSums } from './files.ts'
import { digests } from './staging.ts'

/** Files of a task, absolute, whose digests are read together; one reading of a task at a time. */
interface Reading {
  name: string
  paths: readonly string[]
}
interface Answer {
  state: 'sums' | 'cut' | 'reading' | 'begun'
  sums: Map<string, string>
}

const lookProgram = readProgram(import.meta.dirname, 'look.sh')
/**
 * Tasks whose files are read at once, of each order of magnitude of bytes: none waits for another
 * one that has ten times as much.
 */
const readAtOnce = 2
/**
 * Readings of the same files that may be begun. At a full disk none goes on, and what is read again
 * after a reader that was killed may take hours each time.
 */
const mostBegun = 5

/** The answers of look.sh, by task. A line of sha256sum begins with none of its words. */
export function parseLooks(bytes: Buffer): Map<string, Answer> {
  const answers = new Map<string, Answer>()
  for (const part of bytes.toString('latin1').split(/^(?=(?:sums|cut|reading|begun) [a-z0-9-]+$)/m)) {
    const [, state, name = ''] = /^(sums|cut|reading|begun) ([a-z0-9-]+)\n/.exec(part) ?? []
    if (state === undefined) continue
    answers.set(name, { state: state as Answer['state'], sums: parseSums(Buffer.from(part, 'latin1')) })
  }
  return answers
}

/** The signal ends one pause; a site that does not know of the cancel yet is not asked without pauses. */
const untilAborted = (signal: AbortSignal): { signal?: AbortSignal } => (signal.aborted ? {} : { signal })

/** One question about all files that are being read at a site. */
const openReadings = ({ site }: RemoteContext): ((reading: Reading) => Promise<Answer>) =>
  gather(async (readings) => {
    const calls = readings.map(({ name, paths }) => {
      const list = hash('sha256', paths.join('\0'), 'hex').slice(0, 16)
      return call('look', name, list, ...paths)
    })
    const { stdout } = await site.run(() => `${lookProgram}${calls.join('\n')}\ntrue`)
    const answers = parseLooks(stdout)
    const none = new DriverError('unknown', 'the site gave no answer about files that are read there')
    return new Map(
      readings.map((reading): [Reading, Answer | Error] => [reading, answers.get(reading.name) ?? none]),
    )
  })

/**
 * What each ended task alone waits for: files that arrive late, and the digests of large ones.
 *
 * @param part the result of an ended task as far as it is soon read; many share a question
 */
export function openCompleting(context: RemoteContext, part: (name: string) => Promise<CollectedPart>) {
  const { chunkBytes } = context
  const look = openReadings(context)
  const gates = new Map<number, Gate>()
  const waits = new Map<string, AbortController>()
  let closed = false

  const checkOpen = (): void => {
    if (closed) throw new DriverError('unknown', 'the driver was closed meanwhile; open another')
  }

  /** The part behind whose files no others are awaited. */
  const arrived = async (
    name: string,
    signal: AbortSignal,
    onWait: (reason: string) => void,
  ): Promise<EndedPart> => {
    for (;;) {
      const last = await part(name)
      if ('complete' in last) return last
      const { next } = last
      if (next.reason !== undefined) onWait(next.reason)
      if (next.afterMs > 0) await sleep(next.afterMs, undefined, untilAborted(signal)).catch(() => undefined)
      checkOpen()
    }
  }

  /**
   * Reads files, however long that takes; it goes on where an earlier reading of them stands. Where
   * no reader can go on by itself, one call reads them, and holds a channel for as long.
   */
  const read = async (
    name: string,
    { unread, unreadBytes }: EndedPart,
    signal: AbortSignal,
  ): Promise<Answer> => {
    const sums = new Map<string, string>()
    for (const some of chunks(unread, Infinity, ({ length }) => length + 8, chunkBytes / 4)) {
      const reading = { name, paths: some }
      let begun = 0
      for (const backoff = openBackoff({ firstMs: 50, longestMs: 5_000 }); ;) {
        const answer = await look(reading)
        for (const [path, sum] of answer.sums) sums.set(path, sum)
        if (answer.state === 'cut') return { state: 'cut', sums }
        if (answer.state === 'sums') break
        if (answer.state === 'begun') begun++
        if (begun > mostBegun) {
          for (const [path, sum] of await digests(context, some, unreadBytes)) sums.set(path, sum)
          break
        }
        await backoff.pause(untilAborted(signal).signal)
        checkOpen()
      }
    }
    return { state: 'sums', sums }
  }

  const readInTurn = async (name: string, last: EndedPart, signal: AbortSignal): Promise<Answer> => {
    const size = Math.floor(Math.log10(last.unreadBytes + 1))
    const gate = gates.get(size) ?? openGate(readAtOnce)
    gates.set(size, gate)
    // A cancelled task needs no turn: nothing of it is read any more.
    const leave = await gate.enter(1, signal).catch(() => undefined)
    try {
      checkOpen()
      return await read(name, last, signal)
    } finally {
      leave?.()
    }
  }

  return {
    /** `onWait` gets the reason of a wait that people should see. */
    async collect(
      name: string,
      onWait: (reason: string) => void = () => undefined,
    ): Promise<RemoteCollected> {
      const wait = new AbortController()
      waits.set(name, wait)
      try {
        const last = await arrived(name, wait.signal, onWait)
        const { state, sums } =
          last.unread.length === 0
            ? { state: 'sums', sums: new Map<string, string>() }
            : await readInTurn(name, last, wait.signal)
        const { sight, ...collected } = last.complete(sums, state === 'cut')
        // It did not get the time that others have for their outputs.
        return last.next === 'cut' && sight.form === 'ended'
          ? { sight: { ...sight, reason: 'cancelled' }, ...collected }
          : { sight, ...collected }
      } finally {
        if (waits.get(name) === wait) waits.delete(name)
      }
    },
    /** Cancels of these tasks are recorded at the site: their waits end. */
    cancelled(names: readonly string[]): void {
      for (const name of names) waits.get(name)?.abort()
    },
    /** Ends all waits; their calls reject. */
    close(): void {
      closed = true
      for (const wait of waits.values()) wait.abort()
    },
  }
}
