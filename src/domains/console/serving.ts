import { setTimeout as pause } from 'node:timers/promises'
import { databaseTrouble } from '../../db/errors.ts'
import type { Db } from '../../db/sql.ts'
import { DriverError } from '../../drivers/runtime/contract/driver.ts'
import { LinkError } from '../../shell/site-shell.ts'
import type { Vault } from '../../vault/vault.ts'
import { openFrames, type Frame } from './frames.ts'
import { leastBytes, openMasks } from './masks.ts'
import type { Served } from './served.ts'
import {
  appendRecords,
  connectSession,
  endSession,
  readConsoleSession,
  recordWait,
  type ConsoleSessionRow,
} from './sessions.ts'
import { NoTerminal, startTerminal, takenAway, type Terminal, type TerminalParts } from './terminal.ts'

export interface ServingParts extends TerminalParts {
  db: Db
  vault: Pick<Vault, 'values'>
}

/** The terminal waits this long for the reader that writes; then it is cut. */
const slowMs = 2_000
/** A terminal that cannot be reached for this long ends. */
const reachPatienceMs = 24 * 3_600_000
/**
 * A place that runs scripts and gives no terminal so often gives none. Of five tries three at least make a
 * connection; the others may get the failure of the one before.
 */
const mostRefusals = 5
/** Secrets that are stored while a session is open are masked this much later at most. */
const secretsMs = 5_000
/** A terminal without a holder shows what may begin a secret after this time. */
const heldMs = 250
/** Output beyond this waits at the resource until the record has it. */
const mostWaitingBytes = 8 * 1024 * 1024

/** Output that readers are given before the next look at how far they are. */
const mostAtOnceBytes = 128 * 1024

/** Why a recording is over: all of it was read. */
const isWhole = Symbol('whole')

/** Whether a later try may find the terminal. */
const passes = (error: unknown): boolean => {
  if (error instanceof DriverError)
    return error.cause instanceof LinkError ? passes(error.cause) : error.trouble === 'unknown'
  return error instanceof LinkError ? !error.permanent : databaseTrouble(error)?.code === 'unavailable'
}

/** Stores what is due; `all`: also what may begin a secret. One call at a time per session. */
const store = async (db: Db, id: string, session: Served, all: boolean): Promise<void> => {
  for (let due = session.due(all); due !== undefined; due = session.due(all)) {
    if (!(await appendRecords(db, id, due.records, due)))
      throw new LinkError('link', 'the session is over, or another process records it')
    due.recorded()
    session.acknowledge(due.to)
  }
}

/**
 * Stores the recording as it comes, until `over`, whose reason may be `isWhole`. Ends the stream
 * where that fails.
 */
const record = async (
  { db, vault }: ServingParts,
  row: ConsoleSessionRow,
  session: Served,
  over: AbortSignal,
): Promise<void> => {
  let secretsAt = performance.now()
  let flushes = false
  const flush = (): void => {
    flushes = true
    session.wake()
  }
  const timer = session.recordsFirst ? setInterval(flush, heldMs) : undefined
  over.addEventListener('abort', () => session.wake())
  try {
    while (!over.aborted) {
      await session.changed()
      if (performance.now() - secretsAt > secretsMs) {
        session.masks = openMasks(await vault.values(leastBytes))
        secretsAt = performance.now()
      }
      await store(db, row.id, session, flushes)
      flushes = false
    }
    // The next reading of the terminal begins with the bytes that may begin a secret.
    await store(db, row.id, session, session.recordsFirst || over.reason === isWhole)
  } catch (error) {
    session.stream?.kill()
    throw error
  } finally {
    clearInterval(timer)
  }
}

/** Frames in parts that a reader that keeps up takes at once; a read may give a MiB. */
function* inParts(frames: readonly Frame[]): Generator<Frame[]> {
  let some: Frame[] = []
  let bytes = 0
  for (const frame of frames) {
    some.push(frame)
    bytes += frame.content.length
    if (bytes < mostAtOnceBytes) continue
    yield some
    some = []
    bytes = 0
  }
  if (some.length > 0) yield some
}

/**
 * Reads the recording to its end.
 * @returns how it ended; undefined where the holder is gone
 * @throws LinkError
 */
const follow = async (
  parts: ServingParts,
  row: ConsoleSessionRow,
  session: Served,
  at: Terminal,
  stopped: AbortSignal,
): Promise<string | undefined> => {
  const { db } = parts
  const taken = at.plain ? 0 : ((await readConsoleSession(db, row.id))?.takenBytes ?? 0)
  session.restart(taken)
  session.recordsFirst = at.plain
  const stream = await at.attach(taken)
  session.stream = stream
  session.usedAt = performance.now()
  // A client that finds the session connected can write to it.
  await connectSession(db, row, at.externalId)
  const stop = (): void => stream.kill()
  stopped.addEventListener('abort', stop)
  if (stopped.aborted) stop()
  const over = new AbortController()
  const recording = record(parts, row, session, over.signal)
  recording.catch(() => undefined)
  const framesOf = openFrames(taken)
  let end: string | undefined
  let whole = false
  try {
    for await (const chunk of stream.stdout) {
      const frames = framesOf(chunk as Buffer)
      end = frames.find(({ kind }) => kind === 'x')?.content.toString() ?? end
      // The end is no part of what is stored: a process that takes the session up before its end is
      // recorded reads it again.
      for (const some of inParts(frames.filter(({ kind }) => kind !== 'x'))) {
        session.take(some)
        while (session.waitingBytes > mostWaitingBytes && !stream.stdout.destroyed)
          await Promise.race([recording, pause(10)])
        const slowUntil = performance.now() + slowMs
        while (session.hasSlowReader && performance.now() < slowUntil) await pause(1)
      }
    }
    await stream.done
    whole = !stopped.aborted
    return end
  } finally {
    session.linkedAt = performance.now()
    session.stream = undefined
    stopped.removeEventListener('abort', stop)
    over.abort(whole ? isWhole : undefined)
    await at.place.close().catch(() => undefined)
    // Its fault explains the end of the stream.
    await recording
  }
}

/**
 * The failure of a terminal that ended; undefined where its shell or its user ended it. `end`: what the
 * recording says.
 * @throws TerminalLost for a place that is gone
 */
const failureOf = async (
  row: ConsoleSessionRow,
  session: Served,
  at: Terminal,
  end: string | undefined,
  stopped: AbortSignal,
): Promise<string | undefined> => {
  if (end === undefined) {
    // A place that is gone gives the better reason.
    await at.place.ready(false)
    return 'the holder of the terminal is gone: it was killed, or its machine was started anew'
  }
  if (end.startsWith('the recording')) return end
  return session.endAsked || end.endsWith('exit status 0') ? undefined : takenAway(at, row, stopped)
}

/**
 * Serves a session until its end, or until `stopped`: starts its terminal, follows it, and attaches
 * again after a lost link.
 */
export const serveSession = async (
  parts: ServingParts,
  row: ConsoleSessionRow,
  session: Served,
  stopped: AbortSignal,
): Promise<void> => {
  const { db, vault } = parts
  const began = performance.now()
  let first = row.status === 'starting'
  let refusals = 0
  for (let waitMs = 250; !stopped.aborted; waitMs = Math.min(waitMs * 2, 10_000)) {
    try {
      session.masks = openMasks(await vault.values(leastBytes))
      const now = (await readConsoleSession(db, row.id)) ?? row
      if (stopped.aborted || now.finishedAt !== undefined) return
      first = now.status === 'starting'
      const at = await startTerminal(parts, now, first)
      if (stopped.aborted) {
        // Its connection is open already.
        if (at.plain) (await at.attach(0)).kill()
        return await at.place.close().catch(() => undefined)
      }
      const end = await follow(parts, row, session, at, stopped)
      const failure = stopped.aborted ? undefined : await failureOf(row, session, at, end, stopped)
      if (stopped.aborted) return
      return await endSession(db, row, failure)
    } catch (error) {
      if (stopped.aborted) return
      // A terminal that runs waits for a link. A terminal whose first link the server refuses for want
      // of a channel ends: its user can open it again.
      const isRefused =
        (first && error instanceof LinkError && error.full) ||
        (error instanceof NoTerminal && ++refusals === mostRefusals)
      const reason = error instanceof Error ? error.message : String(error)
      const until = (session.linkedAt ?? began) + reachPatienceMs
      if (isRefused || !passes(error) || performance.now() > until) return endSession(db, row, reason)
      // Where the database does not answer, the next try records it.
      if (first) await recordWait(db, row.id, reason).catch(() => undefined)
      await pause(waitMs, undefined, { signal: stopped }).catch(() => undefined)
    }
  }
}
