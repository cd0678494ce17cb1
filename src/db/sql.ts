import type { z } from 'zod'
import { storableParameter } from '../outside-text.ts'

/**
 * A piece of SQL text with its values. Only the tag `sql` makes one, so a plain string can never be
 * run.
 */
export class Sql {
  readonly strings: readonly string[]
  readonly values: readonly unknown[]
  constructor(strings: readonly string[], values: readonly unknown[]) {
    this.strings = strings
    this.values = values
  }
  /**
   * `{text, values}` for pg: nested pieces are flattened and placeholders numbered. Texts from outside
   * may hold NUL; a statement that is refused for it would be tried again without end.
   */
  toQuery(): { text: string; values: unknown[] } {
    let text = ''
    const values: unknown[] = []
    const walk = (piece: Sql): void => {
      piece.strings.forEach((part, i) => {
        text += part
        if (i >= piece.values.length) return
        const value = piece.values[i]
        if (value instanceof Sql) walk(value)
        else text += `$${values.push(storableParameter(value))}`
      })
    }
    walk(this)
    return { text, values }
  }
}

/** Tag for SQL text: interpolated values become parameters, interpolated `Sql` is spliced in. */
export const sql = (strings: TemplateStringsArray, ...values: unknown[]): Sql => new Sql(strings, values)
export const empty = new Sql([''], [])
/** Trusted text (a column or table name of this program), never text from a caller. */
export const raw = (text: string): Sql => new Sql([text], [])
export const join = (pieces: readonly Sql[], separator = ', '): Sql =>
  pieces.length === 0 ? empty : new Sql(['', ...pieces.slice(1).map(() => separator), ''], pieces)
/** `where a and b` of the conditions that are present, or nothing. */
export const where = (...conditions: (Sql | undefined | false)[]): Sql => {
  const present = conditions.filter((c): c is Sql => c instanceof Sql)
  return present.length === 0 ? empty : sql`where ${join(present, ' and ')}`
}

/** The signature of a text, and the id of the key that made it. */
export type Sign = (text: string) => Promise<{ keyId: string; signature: string }>

/**
 * The first parameter of a store function: the pool or a transaction. The opener of the transaction
 * passes it on.
 */
export interface Db {
  /** The schema whose tables it reads now: `public`, or an archive's. Part of each key of a cache. */
  readonly schema: string
  /** Signs the records written through it, with the id of the key; absent where none are signed. */
  readonly sign?: Sign | undefined
  /** Rows, keys in camelCase, each parsed by `schema`. */
  many<T extends z.ZodType>(schema: T, query: Sql): Promise<z.output<T>[]>
  /** The only row or undefined; more than one is a fault. */
  maybe<T extends z.ZodType>(schema: T, query: Sql): Promise<z.output<T> | undefined>
  one<T extends z.ZodType>(schema: T, query: Sql): Promise<z.output<T>>
  /** The only column of the rows, each value parsed by `type`; null is undefined. */
  values<T extends z.ZodType>(type: T, query: Sql): Promise<z.output<T>[]>
  /** The only column of the only row; undefined without a row. More than one is a fault. */
  value<T extends z.ZodType>(type: T, query: Sql): Promise<z.output<T> | undefined>
  /** The only column of the row that there always is. */
  only<T extends z.ZodType>(type: T, query: Sql): Promise<z.output<T>>
  /** Number of rows that the statement changed. */
  run(query: Sql): Promise<number>
  /**
   * A statement prepared once per connection under `name` for hot paths: `text` has $n
   * placeholders; raw snake_case rows come back unparsed.
   */
  prepared<Row extends object>(name: string, text: string, values: unknown[]): Promise<Row[]>
  /**
   * Commits when `work` resolves, rolls back when it rejects; nested calls join the outer
   * transaction.
   */
  transaction<T>(work: (tx: Db) => Promise<T>): Promise<T>
  /**
   * A transaction that sees one state of the database and changes nothing. It is never part of
   * another. `genericPlans`: prepared statements keep one plan, whatever their values.
   */
  snapshot<T>(work: (tx: Db) => Promise<T>, options?: { genericPlans?: boolean }): Promise<T>
}

/** The schema of this installation's tables. */
export const ownSchema = 'public'

/** Whether it reads an archive now, whose records are those of another installation. */
export const readsArchive = ({ schema }: Pick<Db, 'schema'>): boolean => schema !== ownSchema
