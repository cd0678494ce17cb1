/**
 * Names of Temporal's task queues. Each process polls the shared one, that of its host, and those of
 * the runs and the monitors beside both.
 */

/** The queue of the workers of one host, for what only that host can do; without a host the shared one. */
export const queueOfHost = (sharedQueue: string, host: string | undefined): string =>
  host === undefined ? sharedQueue : `${sharedQueue}@${host}`

/** The queue of sites of runs beside another one: each takes its worker's slot for as long as tasks run there. */
export const queueOfRuns = (queue: string): string => `${queue}/runs`

/** The queue of checks beside another one: they are short, and must not wait behind activities of days. */
export const queueOfMonitors = (queue: string): string => `${queue}/monitors`
