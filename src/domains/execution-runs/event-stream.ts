import { Readable } from 'node:stream'
import type { Db } from '../../db/sql.ts'
import { listRunPart, readRun } from './store.ts'

/** A comment this often keeps proxies from closing a silent stream. */
const keepAliveMs = 15_000
const pollMs = 250
const batch = 500

/**
 * A run's events as server-sent events from `after` (exclusive): id = the per-run sequence, so that `Last-Event-ID` loses nothing.
 * Ends after the terminal event. Reads as fast as the reader takes them; a slow reader holds one batch, not the daemon.
 */
export const eventStream = (db: Db, runId: string, after: number, signal: AbortSignal): Readable => {
  const generate = async function* (): AsyncGenerator<string> {
    let sequence = after
    let quietSince = Date.now()
    while (!signal.aborted) {
      // The state is read before the events: a run that was over then has no later ones.
      const run = await readRun(db, runId)
      const { rows } = await listRunPart(db, 'events', runId, { limit: batch, offset: 0, afterSequence: sequence })
      if (rows.length > 0) {
        sequence = Number(rows.at(-1)?.['sequence'])
        quietSince = Date.now()
        yield rows
          .map((row) => `id: ${String(row['sequence'])}\nevent: ${String(row['eventType'])}\ndata: ${JSON.stringify(row)}\n\n`)
          .join('')
        continue
      }
      if (run === undefined || isOver(run.status)) return
      if (Date.now() - quietSince >= keepAliveMs) {
        quietSince = Date.now()
        yield ': still here\n\n'
      }
      await new Promise((resolve) => setTimeout(resolve, pollMs))
    }
  }
  return Readable.from(generate(), { objectMode: false })
}

export const isOver = (status: string): boolean => status === 'completed' || status === 'failed' || status === 'cancelled'
