import { AsyncLocalStorage } from 'node:async_hooks'
import type { Database } from './pool.ts'

export interface Selected {
  /**
   * The database of this installation; within `reading`, that of an archive. Dedicated sessions and
   * clients always belong to this installation.
   */
  db: Database
  /** The archive's schema that this work reads; undefined outside an archive. */
  archive(): string | undefined
  reading<T>(schema: string, database: Database, work: () => T): T
  /** Runs work with the tables of this installation, also within `reading`. */
  outside<T>(work: () => T): T
}

/**
 * Gives requests that read an archive its tables in place of those of this installation. All other
 * work goes on with the tables of this installation.
 */
export const openSelected = (db: Database): Selected => {
  const store = new AsyncLocalStorage<{ schema: string; database: Database }>()
  const now = (): Database => store.getStore()?.database ?? db
  return {
    db: {
      sign: db.sign,
      get schema() {
        return now().schema
      },
      many: (schema, query) => now().many(schema, query),
      maybe: (schema, query) => now().maybe(schema, query),
      one: (schema, query) => now().one(schema, query),
      values: (type, query) => now().values(type, query),
      value: (type, query) => now().value(type, query),
      only: (type, query) => now().only(type, query),
      run: (query) => now().run(query),
      prepared: (name, text, values) => now().prepared(name, text, values),
      transaction: (work) => now().transaction(work),
      snapshot: (work, options) => now().snapshot(work, options),
      client: () => db.client(),
      session: () => db.session(),
      archive: (schema) => db.archive(schema),
      pool: () => db.pool(),
      [Symbol.asyncDispose]: () => db[Symbol.asyncDispose](),
    },
    archive: () => store.getStore()?.schema,
    outside: (work) => store.exit(work),
    reading: (schema, database, work) => store.run({ schema, database }, work),
  }
}
