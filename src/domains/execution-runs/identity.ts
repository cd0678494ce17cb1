import { sql, type Sql } from '../../db/sql.ts'

/** Whether a run of the id exists, as SQL. */
export const isRun = (id: string): Sql => sql`exists (select from execution_runs where id = ${id})`

/**
 * An expression over a row of `execution_runs`: the key under which a cache keeps facts of a run. The
 * id alone is none. An archive may have a run of the same id, and after a deletion or a reset the id
 * is free for another run.
 */
export const runIdentity = "concat(current_schema(), ' ', effect_key)"
