import { ApplicationFailure, Context } from '@temporalio/activity'
import { databaseAway } from '../src/db/errors.ts'
import type { Db } from '../src/db/sql.ts'
import type { Engine } from '../src/engine.ts'
import type { Compute } from '../src/schedulers/compute.ts'
import { LeasePassedOn } from '../src/executor/journal.ts'
import { runScope } from '../src/executor/names.ts'
import { runSite as executeSite, type SiteOutcome } from '../src/executor/loop.ts'
import type { OpenSite, SiteDrivers } from '../src/executor/drivers.ts'
import { makeSitePlan } from '../src/executor/intents.ts'
import { readSiteSnapshot, usedPairs } from '../src/executor/snapshot.ts'
import { placesOf, taskQueueOf } from '../src/executor/sites.ts'
import { simulate } from '../src/domains/execution-runs/simulation.ts'
import { abandonRun, closeRun, openRun, readRun, readRunEnd, type RunEnd } from '../src/domains/execution-runs/store.ts'
import { cancelFromTemporal } from '../src/domains/execution-runs/temporal-cancel.ts'
import type { Wakes } from '../src/executor/wakes.ts'
import { removeUnkept } from '../src/domains/execution-runs/work-directories.ts'
import { beating } from './beating.ts'
import { siteProgress } from './progress.ts'

export interface ExecutionRunParts {
  db: Db
  engine: Pick<Engine, 'taskQueue' | 'signal'>
  compute: Compute
  sites: SiteDrivers
  wakes: Wakes
  sitePatienceSeconds: number
  hostId: string
  workRoot: string
  seedRoot: string | undefined
  variablePrefix: string
  clock: () => number
  failpoint: (name: string) => void
  /** Aborted when this worker is being drained: sites let go of what runs, another worker adopts it. */
  draining: AbortSignal
}

type Opened = {
  state: 'over' | 'simulate' | 'execute'
  total: number
  sites: { site: string; taskQueue: string }[]
  /** How a run ended that is over. */
  end?: RunEnd | undefined
}

/** The same unexpected error this often in a row, over about two minutes, is a fault and not a passing trouble. */
const attemptsBeforeGivingUp = 30
const cancelGraceSeconds = 5

export const executionRunActivities = (parts: ExecutionRunParts) => {
  const close = async (runId: string, generation: number | undefined): Promise<RunEnd> => {
    await removeUnkept(parts.db, parts.sites, runId)
    const { status, completed } = await closeRun(parts.db, runId, generation)
    return status === 'failed' ? readRunEnd(parts.db, runId) : { status, completed }
  }
  return {
    /** created → running, once; says what is to be done where. Ids and small facts only. */
    openRun: (runId: string, generation: number): Promise<Opened> =>
      beating(async () => {
        const run = await openRun(parts.db, runId, generation)
        if (run === undefined || run.status !== 'running')
          return {
            state: 'over',
            total: run?.activityCount ?? 0,
            sites: [],
            end: run === undefined ? undefined : await readRunEnd(parts.db, runId),
          }
        if (run.mode === 'simulation') return { state: 'simulate', total: run.activityCount, sites: [] }
        const [snapshot, pairs] = await Promise.all([readSiteSnapshot(parts.db, runId), usedPairs(parts.db, runId)])
        const all = [...placesOf(snapshot, pairs).values()]
        const open = [
          ...placesOf(
            snapshot,
            pairs.filter((pair) => pair.open),
          ).values(),
        ]
        return {
          state: 'execute',
          total: run.activityCount,
          sites: open
            .map((place) => ({ site: place.site, taskQueue: taskQueueOf(place, all, parts.engine.taskQueue) }))
            .sort((a, b) => (a.site < b.site ? -1 : 1)),
        }
      }),

    /** Runs what is planned at one site until it is settled or rests; see `src/executor/loop.ts`. */
    async runSite(runId: string, generation: number, site: string): Promise<SiteOutcome> {
      const context = Context.current()
      let opened: OpenSite | undefined
      const stop = AbortSignal.any([parts.draining, context.cancellationSignal])
      let progress: ReturnType<typeof siteProgress> | undefined
      const beats = setInterval(() => {
        context.heartbeat(progress?.heartbeat())
      }, 1_000)
      try {
        const [snapshot, pairs] = await Promise.all([readSiteSnapshot(parts.db, runId), usedPairs(parts.db, runId)])
        // Closed by its only site, and opened again before this was heard of.
        if (snapshot.generation !== generation) return { settled: true, completed: 0, failed: 0 }
        const places = placesOf(snapshot, pairs)
        const place = places.get(site)
        if (place === undefined) throw new Error(`run ${runId} has no site ${site}`)
        const alone = places.size === 1
        opened = parts.sites.of(place, places, snapshot, snapshot.storageMounts)
        const plan = makeSitePlan(parts.db, runId, snapshot, {
          here: `local@${parts.hostId}`,
          workRoot: parts.workRoot,
          seedRoot: parts.seedRoot,
          variablePrefix: parts.variablePrefix,
        })
        const told = siteProgress(parts, { runId, generation, site, alone }, (message, facts) => {
          context.log.debug(message, facts)
        })
        progress = told
        const outcome = await executeSite(
          {
            db: parts.db,
            ...opened,
            wakes: parts.wakes,
            patience: { silentSeconds: parts.sitePatienceSeconds },
            clock: parts.clock,
            failpoint: parts.failpoint,
          },
          runId,
          site,
          plan,
          `${parts.hostId}/${String(process.pid)}`,
          stop,
          (facts) => {
            told.step(facts)
          },
        )
        // Those that are left end by themselves when nothing has come for a while.
        if (outcome.settled)
          await opened.closeScope?.(runScope(snapshot.effectKey)).catch((error: unknown) => {
            context.log.debug('containers kept for a run were not closed', { error: String(error) })
          })
        // Whoever waits for the run's end is not kept waiting for a trip through Temporal (40 ms); the workflow's own step finds it closed.
        if (outcome.settled && alone) await close(runId, generation)
        return outcome
      } catch (error) {
        if (error instanceof LeasePassedOn) throw ApplicationFailure.create({ message: error.message, type: 'LeasePassedOn', cause: error })
        if (parts.draining.aborted)
          throw ApplicationFailure.create({ message: 'this worker is being drained; what runs goes on', type: 'Draining' })
        if (databaseAway(error) || context.info.attempt < attemptsBeforeGivingUp) throw error
        // A fault of the engine itself does not pass by trying: the run ends with it instead of standing still.
        context.log.error('a site of a run was given up', { runId, site, error })
        const names = await abandonRun(
          parts.db,
          runId,
          opened?.hostId ?? parts.hostId,
          `the engine failed at site ${site} (${(error as Error).name}); the log of its worker has the cause`,
        )
        await opened?.driver.cancel(names, cancelGraceSeconds)
        throw ApplicationFailure.nonRetryable(`site ${site} was given up`, 'SiteGivenUp')
      } finally {
        clearInterval(beats)
      }
    },

    /** Simulates the run's plan and records it like an execution, with seconds from 0. */
    simulateRun: (runId: string): Promise<void> =>
      beating(() => simulate(parts.db, parts.compute, runId, Context.current().cancellationSignal)),

    /** Makes a cancel of this workflow the run's; nothing when the run was cancelled before, is over, or was opened again. */
    cancelRun: async (runId: string, generation: number): Promise<void> => {
      await cancelFromTemporal(parts.db, runId, generation)
    },

    /** Sums and final state; nothing is written after it. */
    closeRun: (runId: string, generation?: number): Promise<RunEnd> =>
      beating(async () => {
        const run = await readRun(parts.db, runId)
        return run === undefined ? { status: 'cancelled', completed: 0 } : close(runId, generation)
      }),
  }
}

export type ExecutionRunActivities = ReturnType<typeof executionRunActivities>
