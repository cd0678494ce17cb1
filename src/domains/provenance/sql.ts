import { Readable } from 'node:stream'
import type { Reader } from '../../db/reader.ts'
import { ReaderUnavailable, StatementRefused } from '../../db/reader.ts'
import { invalid, Refusal } from '../../refusal.ts'
import { readableNames } from './catalogue.ts'
import { cutAtPlaceholders, fill } from './placeholders.ts'
import { judge, loadParser } from './statement.ts'
import type { Statement } from './schemas.ts'

/** What a statement may cost. */
export const bounds = {
  statementBytes: 64 * 1024,
  params: 1_000,
  rows: 10_000,
  bytes: 32 * 1024 * 1024,
  seconds: 10,
  csvSeconds: 60,
  /** Without a byte that the client took: it does not read any more. */
  stalledSeconds: 10,
  atOnce: 4,
} as const

type Param = NonNullable<Statement['params']>[number]

const quoted = (text: string): string => {
  if (text.includes('\0')) throw invalid('params: a value holds the character NUL', [{ path: 'params', message: 'must not hold NUL' }])
  // Standard strings: a backslash means itself.
  return `'${text.replaceAll("'", "''")}'`
}

const element = (value: Exclude<Param, unknown[]>): string => (value === null ? 'NULL' : `"${String(value).replace(/[\\"]/g, '\\$&')}"`)

/**
 * A value as a literal of unknown type, which PostgreSQL reads as it would a parameter's text. A fraction is a number of its own, so that it can be
 * compared with a whole one.
 */
export const literal = (value: Param): string => {
  if (value === null) return 'NULL'
  if (Array.isArray(value)) return quoted(`{${value.map(element).join(',')}}`)
  return typeof value === 'number' && !Number.isInteger(value) ? `(${String(value)})` : quoted(String(value))
}

export interface Ready {
  table: string
  /** As PostgreSQL gets it. */
  text: string
  placeOf: (character: number) => number
}

/** A statement that may be run, with its values in it. @throws Refusal `invalid` with the reason */
export const prepare = async ({ statement, params = [] }: Statement): Promise<Ready> => {
  const refuse = (path: string, message: string): never => {
    throw invalid(`${path}: ${message}`, [{ path, message }])
  }
  if (Buffer.byteLength(statement) > bounds.statementBytes) refuse('statement', `is longer than ${String(bounds.statementBytes)} bytes`)
  if (statement.includes('\0')) refuse('statement', 'holds the character NUL')
  if (params.length > bounds.params) refuse('params', `has ${String(params.length)} values; at most ${String(bounds.params)} are possible`)
  await loadParser()
  const cut = cutAtPlaceholders(statement)
  const holes = cut.pieces.length - 1
  const asked = fill(
    cut,
    Array.from({ length: holes }, () => '$1'),
  )
  const judged = judge(asked.text, readableNames, asked.placeOf)
  if (judged.placeholders !== holes) refuse('statement', 'a ? stands where no value can be')
  if (params.length !== holes)
    refuse('params', `has ${String(params.length)} values, the statement ${String(holes)} placeholders; give one for each ?`)
  if (holes === 0) return { table: judged.table, ...asked }
  const filled = fill(cut, params.map(literal))
  // What runs is what was judged: a value that read as anything but a value would show here.
  judge(filled.text, readableNames, filled.placeOf)
  return { table: judged.table, ...filled }
}

const told = (error: unknown, { placeOf }: Ready, seconds: number): unknown => {
  if (error instanceof ReaderUnavailable)
    return new Refusal(
      'unavailable',
      `SQL is not set up: ${error.message}. Have an administrator of the database run: ${error.statements} Then name that login in SERVICE_PROVENANCE_DATABASE_URL`,
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
  /** Why it is not whole. */
  truncated: 'rows' | 'bytes' | undefined
}

/** Runs statements of clients, at most `bounds.atOnce` at a time. */
export const openStatements = (reader: Reader) => {
  let running = 0
  const begin = (): (() => void) => {
    if (running >= bounds.atOnce)
      throw new Refusal('unavailable', `${String(bounds.atOnce)} statements run already; try again in a moment`, { retryAfterSeconds: 1 })
    running++
    let over = false
    return () => {
      if (!over) running--
      over = true
    }
  }

  /** Whole lines of a stream, until it has more than may be answered. */
  const collect = async (stream: Readable): Promise<Answer> => {
    const rows: string[] = []
    let begun: Buffer[] = []
    let size = 2
    for await (const piece of stream) {
      let bytes = piece as Buffer
      size += bytes.length
      for (let end = bytes.indexOf(10); end !== -1; end = bytes.indexOf(10)) {
        if (rows.length === bounds.rows) return { body: joined(rows), truncated: 'rows' }
        begun.push(bytes.subarray(0, end))
        bytes = bytes.subarray(end + 1)
        if (size - bytes.length > bounds.bytes) return { body: joined(rows), truncated: 'bytes' }
        rows.push(Buffer.concat(begun).toString())
        begun = []
      }
      begun.push(bytes)
      if (size > bounds.bytes) return { body: joined(rows), truncated: 'bytes' }
    }
    return { body: joined(rows), truncated: undefined }
  }
  const joined = (rows: readonly string[]): string => `[${rows.join(',')}]`

  return {
    async rows(given: Statement, signal: AbortSignal): Promise<Answer> {
      const ready = await prepare(given)
      const end = begin()
      try {
        const stream = await reader.copy(ready.text, { as: 'json', limit: bounds.rows + 1, deadlineMs: bounds.seconds * 1_000 })
        const leave = (): void => void stream.destroy()
        signal.addEventListener('abort', leave)
        try {
          return await collect(stream)
        } finally {
          signal.removeEventListener('abort', leave)
          stream.destroy()
        }
      } catch (error) {
        throw told(error, ready, bounds.seconds)
      } finally {
        end()
      }
    },

    /** The whole answer as CSV. Its first bytes are awaited, so that a refusal is still an answer of its own. */
    async csv(given: Statement): Promise<Readable> {
      const ready = await prepare(given)
      const end = begin()
      let stream: Readable
      try {
        stream = await reader.copy(ready.text, { as: 'csv', deadlineMs: bounds.csvSeconds * 1_000 })
      } catch (error) {
        end()
        throw told(error, ready, bounds.csvSeconds)
      }
      return watched(stream, end, (error) => told(error, ready, bounds.csvSeconds))
    },

    async explain(given: Statement): Promise<{ entity: string; statement: string; plan: Record<string, unknown> }> {
      const ready = await prepare(given)
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

/** Waits for the first bytes, then lets nobody hold a session: neither past the deadline nor without reading. */
const watched = async (stream: Readable, end: () => void, translate: (error: unknown) => unknown): Promise<Readable> => {
  let moved = performance.now()
  const began = moved
  const look = setInterval(() => {
    const now = performance.now()
    if (now - began > bounds.csvSeconds * 1_000) stream.destroy(new Error('the deadline of a CSV answer has passed'))
    else if (now - moved > bounds.stalledSeconds * 1_000) stream.destroy(new Error('the reader of a CSV answer has stopped reading'))
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
        moved = performance.now()
        yield chunk.value
      }
    } finally {
      stream.destroy()
    }
  }
  const answer = Readable.from(rest(), { objectMode: false })
  // Where the session is taken away, the answer ends as broken and not as whole.
  stream.once('error', (error) => answer.destroy(error))
  return answer
}
