import { Refusal, type Problem } from '../refusal.ts'

/**
 * The meaning of a violated constraint for the caller: the path in the document and the remedy. The
 * answer is 422 unless `code` names another.
 */
export interface ConstraintText extends Problem {
  code?: 'conflict'
}

/** Texts by the name of the constraint. Each domain has the texts of its own tables. */
export type ConstraintTexts = Readonly<Record<string, ConstraintText>>

/** Texts of constraints whose violation concerns one member of the document. */
export const textsAt = (path: string, messages: Readonly<Record<string, string>>): ConstraintTexts =>
  Object.fromEntries(Object.entries(messages).map(([name, message]) => [name, { path, message }]))

/**
 * Connection refused, reset, timed out; server starting, stopping or crashed; too many connections.
 */
const away = new Set([
  'ECONNREFUSED',
  'ECONNRESET',
  'EPIPE',
  'ETIMEDOUT',
  'ENOTFOUND',
  'EAI_AGAIN',
  'EHOSTUNREACH',
  'ENETUNREACH',
  '57P01',
  '57P02',
  '57P03',
  '53300',
  '08006',
  '08001',
  '08003',
  '08004',
  '25P03',
])

/** Unique, foreign key, check, not null, exclusion. */
const violations = new Set(['23505', '23503', '23514', '23502', '23P01'])

interface PgError {
  code?: string
  constraint?: string
  message?: string
  table?: string
}

const tooLong: ConstraintText = {
  path: '',
  message: 'an id or a label is too long to be kept in an index; shorten it',
}
/** Constraints of no table. */
const ofDomains: ConstraintTexts = { identifier_check: tooLong }

const connectionLost = new RegExp(
  [
    'Connection terminated|connection timeout|timeout exceeded when trying to connect',
    'Client has encountered a connection error',
  ].join('|'),
)

/** True for an error by which PostgreSQL cannot be reached now. A later attempt may succeed. */
export const databaseAway = (error: unknown): boolean => {
  const { code, message } = error as PgError
  if (code !== undefined && away.has(code)) return true
  return connectionLost.test(message ?? '')
}

/** True for a transaction that PostgreSQL rolled back because it and another waited for each other's locks. */
export const isDeadlock = (error: unknown): boolean => (error as PgError).code === '40P01'

/** True for a statement that PostgreSQL ended, as its time was over or an operator asked for it. */
export const isCancelled = (error: unknown): boolean => (error as PgError).code === '57014'

/**
 * Turns errors of PostgreSQL into refusals; undefined for errors that are faults of the service.
 */
export const createTranslation =
  (texts: ConstraintTexts) =>
  (error: unknown): Refusal | undefined => {
    if (databaseAway(error))
      return new Refusal('unavailable', 'the database cannot be reached now; try again', {
        retryAfterSeconds: 2,
        cause: error,
      })
    const { code, constraint, message, table } = error as PgError
    if (code === undefined) return undefined
    if (violations.has(code)) {
      const known = constraint === undefined ? undefined : (texts[constraint] ?? ofDomains[constraint])
      if (known === undefined && code !== '23503') return undefined
      const { path, message: text } = known ?? {
        path: '',
        message: `the record is used by ${(table ?? 'another record').replaceAll('_', ' ')}`,
      }
      return new Refusal(known?.code ?? 'unacceptable', path === '' ? text : `${path}: ${text}`, {
        details: [{ path, message: text }],
        cause: error,
      })
    }
    if (code === '54000' && message?.startsWith('index row ') === true)
      return new Refusal('unacceptable', tooLong.message, { details: [tooLong], cause: error })
    if (isDeadlock(error) || code === '40001' || code === '55P03')
      return new Refusal('unavailable', 'another request holds the same records; try again', {
        retryAfterSeconds: 1,
        cause: error,
      })
    if (isCancelled(error))
      return new Refusal(
        'unavailable',
        'the database ended a statement of this request, which may take 60 s; ask for less, or try again',
        { retryAfterSeconds: 30, cause: error },
      )
    if (code === '25006')
      return new Refusal('unavailable', 'the database takes no changes now; try again', {
        retryAfterSeconds: 5,
        cause: error,
      })
    if (code === '53100')
      return new Refusal('unavailable', 'the database has no disk space left; free some and try again', {
        retryAfterSeconds: 30,
        cause: error,
      })
    return undefined
  }

/** What an error of PostgreSQL means where no constraint has words of its own. */
export const databaseTrouble = createTranslation({})
