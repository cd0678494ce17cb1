import type { Db } from '../src/db/sql.ts'
import { runKind } from '../src/domains/execution-runs/operation.ts'
import { readSiteStatus } from '../src/domains/execution-runs/waiting.ts'
import type { Engine } from '../src/engine.ts'
import type { SiteProgress } from '../src/executor/site-progress.ts'

/**
 * Doubling pauses between progress signals: a run of an hour sends about a dozen, a run of a second
 * none.
 */
const firstProgressSeconds = 1
const lastProgressSeconds = 300
/**
 * A changed reason and a failure are reported at once, and this often at most: each signal costs
 * events.
 */
const changesEveryMs = 10_000
/** A resting site receives a wake for ends at other sites this often at most. */
const wakeEveryMs = 500

/**
 * Signals the state of one of a run's sites to the run's workflow: now and then, and at once when
 * what its tasks wait for has changed; wakes resting sites whose tasks its ends open. The next signal
 * makes up for a lost one; only Temporal's page and `live` depend on them.
 */
export const siteProgress = (
  { db, engine }: { db: Db; engine: Pick<Engine, 'signal'> },
  of: { runId: string; generation: number; site: string },
  debug: (message: string, facts: Record<string, unknown>) => void,
) => {
  const { runId, generation, site } = of
  let progressAt = performance.now() + firstProgressSeconds * 1_000
  let pause = firstProgressSeconds
  let wokenFor = 0
  let wokenAt = -Infinity
  let saidAt = -Infinity
  let before: Pick<SiteProgress, 'changes' | 'paused'> = { changes: 0, paused: false }
  let beat: { completed: number; running: number; waitsFor?: string } = { completed: 0, running: 0 }

  const report = async ({ completed, running, paused }: SiteProgress): Promise<void> => {
    const status = await readSiteStatus(db, runId, site)
    const [first] = status.waits
    beat = { completed, running, ...(first === undefined ? {} : { waitsFor: first.reason }) }
    await engine.signal(runKind, runId, generation, 'progress', site, completed, running, {
      ...status,
      paused,
    })
  }

  return {
    /** Details of the next heartbeat. */
    heartbeat: () => beat,

    /** Called after each step of the executor. */
    step(facts: SiteProgress): void {
      const { completed, running, wakes } = facts
      beat = { ...beat, completed, running }
      const now = performance.now()
      if (wakes > wokenFor && now - wokenAt >= wakeEveryMs) {
        wokenFor = wakes
        wokenAt = now
        // After a lost signal the resting site finds the end by its own look, seconds later.
        engine.signal(runKind, runId, generation, 'wake').catch((error: unknown) => {
          debug('a resting site was not woken', { error: String(error) })
        })
      }
      const changed = facts.changes !== before.changes || facts.paused !== before.paused
      if (now < progressAt && !(changed && now - saidAt >= changesEveryMs)) return
      if (now >= progressAt) {
        pause = Math.min(pause * 2, lastProgressSeconds)
        progressAt = now + pause * 1_000
      }
      saidAt = now
      before = facts
      report(facts).catch((error: unknown) => {
        debug('progress was not reported', { error: String(error) })
      })
    },
  }
}
