import type { Db } from '../src/db/sql.ts'
import { readSiteNews } from '../src/domains/execution-runs/waiting.ts'
import type { Engine } from '../src/engine.ts'
import type { SiteFacts } from '../src/executor/loop.ts'

/** Doubling pauses between progress signals: a run of an hour sends about a dozen, a run of a second none. */
const firstProgressSeconds = 1
const lastProgressSeconds = 300
/** A changed reason and a failure are said at once, and this often at most: each signal costs events. */
const newsEveryMs = 10_000
/** A resting site is told of ends elsewhere this often at most. */
const wakeEveryMs = 500

/**
 * Tells a run's workflow how one of its sites is: now and then, and at once when what its tasks wait for has changed. `alone`: no other
 * site waits for its ends. A lost signal is made up by the next; only Temporal's page and `live` gain by it.
 */
export const siteProgress = (
  { db, engine }: { db: Db; engine: Pick<Engine, 'signal'> },
  of: { runId: string; generation: number; site: string; alone: boolean },
  debug: (message: string, facts: Record<string, unknown>) => void,
) => {
  const { runId, generation, site, alone } = of
  let progressAt = Date.now() + firstProgressSeconds * 1_000
  let pause = firstProgressSeconds
  let wokenFor = 0
  let wokenAt = 0
  let saidAt = 0
  let said: Pick<SiteFacts, 'news' | 'paused'> = { news: 0, paused: false }
  let beat: { completed: number; running: number; waitsFor?: string } = { completed: 0, running: 0 }

  const signal = (name: string, ...args: unknown[]): Promise<unknown> => engine.signal('executionRun', runId, generation, name, ...args)
  const say = async ({ completed, running, paused }: SiteFacts): Promise<void> => {
    const news = await readSiteNews(db, runId, site)
    const [first] = news.waits
    beat = { completed, running, ...(first === undefined ? {} : { waitsFor: first.reason }) }
    await signal('progress', site, completed, running, { ...news, paused })
  }

  return {
    /** Details of the next heartbeat. */
    heartbeat: () => beat,

    /** After each step of the executor. */
    step(facts: SiteFacts): void {
      const { completed, running } = facts
      beat = { ...beat, completed, running }
      const now = Date.now()
      if (!alone && completed > wokenFor && now - wokenAt >= wakeEveryMs) {
        wokenFor = completed
        wokenAt = now
        // A lost one costs the resting site's own look, seconds later.
        signal('wake').catch((error: unknown) => {
          debug('a resting site was not woken', { error: String(error) })
        })
      }
      const changed = facts.news !== said.news || facts.paused !== said.paused
      if (now < progressAt && !(changed && now - saidAt >= newsEveryMs)) return
      if (now >= progressAt) {
        pause = Math.min(pause * 2, lastProgressSeconds)
        progressAt = now + pause * 1_000
      }
      saidAt = now
      said = facts
      say(facts).catch((error: unknown) => {
        debug('progress was not told', { error: String(error) })
      })
    },
  }
}
