import { Readable } from 'node:stream'
import { ReaderUnavailable, StatementRefused, type Reader } from '../../db/reader.ts'
import { RecentMap } from '../../pacing/recent.ts'
import { invalid, Refusal } from '../../refusal.ts'
import { readableNames } from './catalogue.ts'
import { cutAtPlaceholders, fill, type Cut } from './placeholders.ts'
import { lengthOfText } from './growth.ts'
import { judge, loadParser, shortValue } from './statement.ts'
import type { Statement } from './schemas.ts'

/** The limits of a statement. */
export const bounds = {
  statementBytes: 64 * 1024,
  params: 1_000,
  rows: 10_000,
  bytes: 32 * 1024 * 1024,
  seconds: 10,
  csvSeconds: 60,
  /** Seconds for which a client takes no bytes that are there: it has stopped reading. */
  stalledSeconds: 10,
  /** Seconds behind the deadline of PostgreSQL, whose refusal says more than a cut answer. */
  csvGraceSeconds: 5,
  atOnce: 4,
} as const

type Param = NonNullable<Statement['params']>[number]

const withoutNul = (text: string): string => {
  if (text.includes('\0'))
    throw invalid('params: a value holds the character NUL', [
      { path: 'params', message: 'must not hold NUL' },
    ])
  return text
}

// With standard strings a backslash means itself.
const quoted = (text: string): string => `'${withoutNul(text).replaceAll("'", "''")}'`

const element = (value: Exclude<Param, unknown[]>): string =>
  value === null ? 'NULL' : `"${String(value).replace(/[\\"]/g, '\\$&')}"`

const listText = (value: readonly Exclude<Param, unknown[]>[]): string => `{${value.map(element).join(',')}}`
const isFraction = (value: Param): boolean => typeof value === 'number' && !Number.isInteger(value)

/** A value as the text of a parameter. */
const valueOf = (value: Param): string | null =>
  value === null ? null : withoutNul(Array.isArray(value) ? listText(value) : String(value))

/**
 * A value as a literal of unknown type. PostgreSQL reads it like the text of a parameter. A
 * fraction becomes a numeric literal, so that it can be compared with an integer.
 */
export const literal = (value: Param): string => {
  if (value === null) return 'NULL'
  if (Array.isArray(value)) return quoted(listText(value))
  return isFraction(value) ? `(${String(value)})` : quoted(String(value))
}

export interface Ready {
  table: string
  /** The text sent to PostgreSQL. */
  text: string
  placeOf: (character: number) => number
}

const refuse = (path: string, message: string): never => {
  throw invalid(`${path}: ${message}`, [{ path, message }])
}

/** A statement that was judged, with `$1`, `$2`, … for its values. */
interface Judged extends Ready {
  cut: Cut
  /** How often it was asked. */
  asked: number
}

/** Texts of this length and number are kept with their judgement. */
const kept = { characters: 4_096, statements: 200 } as const

/**
 * Judges statements. Recent ones are kept: a client that asks one statement with other values has
 * it parsed once.
 */
const openJudge = () => {
  const recent = new RecentMap<string, Judged>(kept.statements)
  const judged = async ({ statement, params = [] }: Statement): Promise<Judged> => {
    const key = params.map((value) => (isFraction(value) ? 'f' : '-')).join('') + statement
    const known = recent.get(key)
    if (known !== undefined) {
      recent.set(key, known)
      known.asked++
      return known
    }
    if (Buffer.byteLength(statement) > bounds.statementBytes)
      refuse('statement', `is longer than ${String(bounds.statementBytes)} bytes`)
    if (statement.includes('\0')) refuse('statement', 'holds the character NUL')
    if (params.length > bounds.params)
      refuse('params', `has ${String(params.length)} values; at most ${String(bounds.params)} are possible`)
    await loadParser()
    const cut = cutAtPlaceholders(statement)
    const holes = cut.pieces.length - 1
    const names = Array.from({ length: holes }, (_, i) => `$${String(i + 1)}`)
    // A fraction becomes a numeric value, so that it can be compared with an integer.
    const asked = fill(
      cut,
      names.map((name, i) => (isFraction(params[i] ?? null) ? `cast(${name} as numeric)` : name)),
    )
    const found = judge(asked.text, readableNames, asked.placeOf)
    if (found.placeholders !== holes) refuse('statement', 'a ? stands where no value can be')
    if (params.length !== holes)
      refuse(
        'params',
        `has ${String(params.length)} values, the statement ${String(holes)} placeholders; give one for each ?`,
      )
    const made = { table: found.table, text: found.text, placeOf: asked.placeOf, cut, asked: 1 }
    if (statement.length <= kept.characters) recent.set(key, made)
    return made
  }
  return async (given: Statement): Promise<Judged> => {
    const made = await judged(given)
    const lengths = (given.params ?? []).map((value) => lengthOfText(valueOf(value) ?? ''))
    if (lengths.some((length) => length > shortValue))
      judge(made.text, readableNames, made.placeOf, (placeholder) => lengths[placeholder - 1] ?? 0)
    return made
  }
}

/** The statement with its values in it. @throws Refusal `invalid` with the reason */
const withValues = (judged: Judged, params: readonly Param[]): Ready => {
  if (params.length === 0) return judged
  const filled = fill(judged.cut, params.map(literal))
  // The filled statement is judged again: this finds a value that the parser reads as anything but
  // a value.
  const { text } = judge(filled.text, readableNames, filled.placeOf)
  return { table: judged.table, text, placeOf: filled.placeOf }
}

/** A statement that may be run, with its values in it. @throws Refusal `invalid` with the reason */
export const prepare = async (given: Statement): Promise<Ready> =>
  withValues(await openJudge()(given), given.params ?? [])

const told = (error: unknown, { placeOf }: Ready, seconds: number): unknown => {
  if (error instanceof ReaderUnavailable)
    return new Refusal(
      'unavailable',
      `SQL is not set up: ${error.message}. Have an administrator of the database run: ` +
        `${error.statements} Then name that login in ${error.setting}`,
      { cause: error },
    )
  if (!(error instanceof StatementRefused)) return error
  if (error.late)
    return invalid(`statement: took longer than ${String(seconds)} s; narrow it`, [
      { path: 'statement', message: `took longer than ${String(seconds)} s` },
    ])
  const at = error.position === undefined ? '' : ` (at character ${String(placeOf(error.position))})`
  return invalid(`statement: ${error.message}${at}`, [{ path: 'statement', message: error.message + at }])
}

export interface Answer {
  /** A JSON array. */
  body: string
  /** Why the answer is incomplete. */
  truncated: 'rows' | 'bytes' | undefined
}

/** Runs statements of clients, at most `bounds.atOnce` at a time. */
export const openStatements = (reader: Reader, { stalledSeconds }: { stalledSeconds: number } = bounds) => {
  let running = 0
  const begin = (): (() => void) => {
    if (running >= bounds.atOnce)
      throw new Refusal(
        'unavailable',
        `${String(bounds.atOnce)} statements run already; try again in a moment`,
        { retryAfterSeconds: 1 },
      )
    running++
    let over = false
    return () => {
      if (!over) running--
      over = true
    }
  }

  const judged = openJudge()
  const limits = { limit: bounds.rows + 1, mostBytes: bounds.bytes }

  const answerOf = ({ rows, whole }: { rows: string[]; whole: boolean }): Answer => ({
    body: `[${(rows.length > bounds.rows ? rows.slice(0, bounds.rows) : rows).join(',')}]`,
    truncated: whole ? (rows.length > bounds.rows ? 'rows' : undefined) : 'bytes',
  })

  /**
   * Values go as parameters, so that a session plans a repeated statement once. Where PostgreSQL
   * refuses that, for a parameter has no place in a text and not always a type, the statement goes
   * with the values in it, and that answer counts.
   */
  const ask = async (asked: Judged, params: readonly Param[], signal: AbortSignal): Promise<Answer> => {
    const until = performance.now() + bounds.seconds * 1_000
    const left = () => ({ ...limits, deadlineMs: Math.max(1, until - performance.now()), signal })
    let ready: Ready = asked
    try {
      try {
        const values = params.map(valueOf)
        return answerOf(await reader.rows(asked.text, { values, again: asked.asked > 1, ...left() }))
      } catch (error) {
        if (params.length === 0 || !(error instanceof StatementRefused) || error.late) throw error
      }
      ready = withValues(asked, params)
      return answerOf(await reader.rows(ready.text, { values: [], again: false, ...left() }))
    } catch (error) {
      throw told(error, ready, bounds.seconds)
    }
  }

  return {
    async rows(given: Statement, signal: AbortSignal): Promise<Answer> {
      const asked = await judged(given)
      const end = begin()
      try {
        return await ask(asked, given.params ?? [], signal)
      } finally {
        end()
      }
    },

    /**
     * The whole answer as CSV. The method waits for its first bytes, so that a refusal still gets
     * an answer of its own. `signal` ends the statement of a client that has gone.
     */
    async csv(given: Statement, signal: AbortSignal): Promise<Readable> {
      const ready = withValues(await judged(given), given.params ?? [])
      const end = begin()
      const cut = new AbortController()
      let stream: Readable
      try {
        stream = await reader.copy(ready.text, {
          deadlineMs: bounds.csvSeconds * 1_000,
          signal: AbortSignal.any([signal, cut.signal]),
        })
      } catch (error) {
        end()
        throw told(error, ready, bounds.csvSeconds)
      }
      return watched(stream, {
        ...{ end, stalledSeconds },
        translate: (error) => told(error, ready, bounds.csvSeconds),
        cut: (reason) => {
          cut.abort(reason)
          // The abort reaches a statement that computes, and this one whose rows wait.
          stream.destroy(reason)
        },
      })
    },

    async explain(
      given: Statement,
    ): Promise<{ entity: string; statement: string; plan: Record<string, unknown> }> {
      const ready = withValues(await judged(given), given.params ?? [])
      const end = begin()
      try {
        const [plan] = (await reader.explain(ready.text, bounds.seconds * 1_000)) as Record<string, unknown>[]
        return { entity: ready.table, statement: ready.text, plan: plan ?? {} }
      } catch (error) {
        throw told(error, ready, bounds.seconds)
      } finally {
        end()
      }
    },
  }
}

/**
 * Waits for the first bytes. It ends the session where the deadline passes, or where the client takes no
 * bytes that are there. The time that PostgreSQL needs is not the client's.
 */
const watched = async (
  stream: Readable,
  {
    end,
    stalledSeconds,
    translate,
    cut,
  }: {
    end: () => void
    stalledSeconds: number
    translate: (error: unknown) => unknown
    cut: (reason: Error) => void
  },
): Promise<Readable> => {
  const began = performance.now()
  /** Since when the client has bytes to take. */
  let handed: number | undefined
  const look = setInterval(() => {
    const now = performance.now()
    if (now - began > (bounds.csvSeconds + bounds.csvGraceSeconds) * 1_000)
      cut(new Error('the deadline of a CSV answer has passed'))
    else if (handed !== undefined && now - handed > stalledSeconds * 1_000)
      cut(new Error('the reader of a CSV answer has stopped reading'))
  }, 1_000)
  const chunks = stream[Symbol.asyncIterator]() as AsyncIterator<Buffer>
  const over = (): void => {
    clearInterval(look)
    end()
  }
  stream.once('close', over)
  const first = await chunks.next().catch((error: unknown) => {
    stream.destroy()
    throw translate(error)
  })
  const rest = async function* (): AsyncGenerator<Buffer> {
    try {
      for (let chunk = first; chunk.done !== true; chunk = await chunks.next()) {
        handed = performance.now()
        yield chunk.value
        handed = undefined
      }
    } finally {
      stream.destroy()
    }
  }
  const answer = Readable.from(rest(), { objectMode: false })
  // Where the session is lost, the answer ends as broken, so that it cannot pass for complete.
  stream.once('error', (error) => answer.destroy(error))
  // An answer that is no longer wanted does not leave PostgreSQL at work.
  answer.once('close', () => {
    if (!stream.destroyed) cut(new Error('the reader of a CSV answer has gone'))
  })
  return answer
}
