/**
 * An expression over a row of `execution_runs`: the key under which a cache keeps facts of a run. The
 * id alone is none. An archive may have a run of the same id, and after a deletion or a reset the id
 * is free for another run.
 */
export const runIdentity = "concat(current_schema(), ' ', effect_key)"
