import type { Db } from './db/sql.ts'
import type { Engine, Kind } from './engine.ts'
import type { Log } from './observability/log.ts'

/** Records of one kind whose workflow may be missing. */
export interface Dispatched {
  kind: Kind
  /** Accepted and never started, in order of acceptance. */
  undispatched: (db: Db, limit: number) => Promise<{ id: string; generation: number }[]>
  markDispatched: (db: Db, id: string) => Promise<unknown>
  /** Open in the record; their workflow may have been terminated, or lost with Temporal's data. */
  open: (db: Db, limit: number) => Promise<{ id: string; generation: number }[]>
}

const everyMs = 1_000
/** Open records are offered again this often; the server refuses those whose workflow is open. */
const reofferMs = 60_000
const batch = 200

/**
 * Starts what was accepted while Temporal was away, in order of acceptance, and offers open records again now and then. The record
 * is the queue: nothing is lost by a crash between commit and start.
 */
export const openDispatcher = (
  { db, engine }: { db: Db; engine: Engine },
  kinds: readonly Dispatched[],
  log: Log,
): { stop(): Promise<void> } => {
  let stopped = false
  let wake: () => void = () => undefined
  let reofferAt = 0

  const round = async (): Promise<void> => {
    const reoffer = Date.now() >= reofferAt
    for (const { kind, undispatched, markDispatched, open } of kinds) {
      for (const { id, generation } of await undispatched(db, batch)) {
        if (stopped || !(await engine.start(kind, id, generation))) return
        await markDispatched(db, id)
      }
      if (!reoffer) continue
      for (const { id, generation } of await open(db, 1_000)) if (stopped || !(await engine.start(kind, id, generation))) return
    }
    if (reoffer) reofferAt = Date.now() + reofferMs
  }

  const running = (async () => {
    while (!stopped) {
      try {
        await round()
      } catch (error) {
        log.warn({ err: error }, 'accepted work could not be looked for; it is looked for again')
      }
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, everyMs)
        wake = () => {
          clearTimeout(timer)
          resolve()
        }
      })
    }
  })()
  return {
    async stop() {
      stopped = true
      wake()
      await running
    },
  }
}
