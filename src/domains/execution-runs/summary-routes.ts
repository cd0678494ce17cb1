import type { Db } from '../../db/sql.ts'
import { Reply, route, type Route } from '../../http/route.ts'
import type { Feed } from '../../operations/feed.ts'
import { existing } from '../../refusal.ts'
import { runKind } from './operation.ts'
import { openSummaries, preferredWait, reasonsMs, RunSummary, type SummaryText } from './summary.ts'

/**
 * A held request is answered after this time, unless the run is over: a run of many tasks changes its
 * summary ten times a second, and a client that asks again at once would get all of that. 30 answers
 * a minute are 15 to 50 kB, at a steady rate.
 */
const heldMs = 2_000

export const summaryRoutes = ({ db, feed }: { db: Db; feed: Feed }): Route[] => {
  const summaries = openSummaries(db)

  const summaryOf = async (runId: string): Promise<SummaryText> =>
    existing(await summaries.read(runId), 'run', runId)

  /**
   * The summary, once it differs from the client's version or the client's wait is over; of an open
   * run not before `heldMs`.
   */
  const changed = async (
    runId: string,
    known: string | undefined,
    seconds: number,
    signal: AbortSignal,
  ): Promise<SummaryText> => {
    const began = Date.now()
    const until = began + seconds * 1_000
    const reader = feed.join()
    try {
      for (;;) {
        const now = Date.now()
        const [left, held] = [until - now, began + heldMs - now]
        const longest = Math.min(Math.max(left, 0), held > 0 ? held : reasonsMs)
        const change = reader.wait({ kind: runKind.name, id: runId }, longest, signal)
        const summary = await summaryOf(runId)
        const isSame = known?.includes(summary.tag.slice(0, -1)) === true
        const isDue = known === undefined || summary.isOver || held <= 0
        if (left <= 0 || signal.aborted || (!isSame && isDue)) {
          change.leave()
          return summary
        }
        await change.over
      }
    } finally {
      reader.leave()
    }
  }

  return [
    route('getRunSummary', 'GET /execution-runs/{runId}/summary/', {
      summary:
        'A run in at most 4 kB: counts by state and by type, reasons of waiting, first failures, ' +
        'expected end; with `If-None-Match` and `Prefer: wait=30` the answer comes when it changes, ' +
        'of an open run after two seconds at the earliest',
      response: RunSummary,
      raw: ['application/json'],
      requestHeaders: {
        Prefer:
          '`wait=30` holds the request up to 30 seconds (60 at most), until another than If-None-Match ' +
          'can be given',
      },
      handle: async ({ params, headers, signal }) => {
        const seconds = preferredWait(headers['prefer'])
        const { body, tag } =
          seconds === undefined
            ? await summaryOf(params.runId)
            : await changed(params.runId, headers['if-none-match'], seconds, signal)
        return new Reply({
          body,
          headers: {
            ETag: tag,
            vary: 'Prefer',
            ...(seconds === undefined ? {} : { 'preference-applied': `wait=${String(seconds)}` }),
          },
        })
      },
    }),
  ]
}
