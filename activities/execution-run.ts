import { ApplicationFailure, Context } from '@temporalio/activity'
import { databaseAway } from '../src/db/errors.ts'
import type { Reports } from '../src/observability/reports.ts'
import type { Db } from '../src/db/sql.ts'
import type { Engine } from '../src/engine.ts'
import type { Compute } from '../src/compute/compute.ts'
import { LeasePassedOn } from '../src/executor/journal.ts'
import { stopLeftovers } from '../src/executor/leftovers.ts'
import { runScope } from '../src/executor/names.ts'
import { runSite as executeSite, type SiteOutcome } from '../src/executor/loop.ts'
import type { OpenSite, SiteDrivers } from '../src/executor/drivers.ts'
import { makeSitePlan } from '../src/executor/intents.ts'
import { findSiteSnapshot, readSiteSnapshot, usedPairs, type SiteSnapshot } from '../src/executor/snapshot.ts'
import { placesOf, runsOnMachines, taskQueueOf, type Place } from '../src/executor/sites.ts'
import { deliveryHooks, type DeliveryParts } from '../src/domains/execution-runs/deliveries.ts'
import { playRun } from '../src/domains/execution-runs/simulation.ts'
import { deliverOutputs, hostOfUndelivered } from '../src/domains/execution-runs/deliver.ts'
import { needsApproval } from '../src/domains/execution-runs/budget.ts'
import {
  abandonRun,
  closeRun,
  openRun,
  readRunEnd,
  reportRunEnd,
  warnRun,
  runKind,
  type RunEnd,
} from '../src/domains/execution-runs/operation.ts'
import type { OperationRef, RecordRef } from '../src/operations/kind.ts'
import { readOperation, requestCancel, temporalActor } from '../src/operations/records.ts'
import type { RunWakeUps } from '../src/executor/wake-ups.ts'
import { removeUnkept } from '../src/domains/execution-runs/work-directories.ts'
import type { Storages } from '../src/domains/storages/open.ts'
import { StorageError } from '../src/drivers/storage/contract.ts'
import { firstTexts } from '../src/lists.ts'
import { Refusal } from '../src/refusal.ts'
import { queueOfHost, queueOfRuns } from '../src/task-queues.ts'
import { beating } from './beating.ts'
import {
  endMachines,
  executeOnMachines,
  nothingDone,
  type Differently,
  type MachineSiteParts,
} from './machine-site.ts'
import { siteProgress } from './progress.ts'
import { openTries } from './tries.ts'
import { poll } from '../src/pacing/poll.ts'

export interface ExecutionRunParts extends MachineSiteParts, Pick<DeliveryParts, 'artifactStore'> {
  storages: Storages
  db: Db
  engine: Pick<Engine, 'taskQueue' | 'signal' | 'start' | 'cancel'>
  compute: Compute
  sites: SiteDrivers
  wakeUps: RunWakeUps
  reports: Reports
  sitePatienceSeconds: number
  hostId: string
  workRoot: string
  seedRoot: string | undefined
  variablePrefix: string
  clock: () => number
  failpoint: (name: string) => void
  /**
   * Aborted when this worker is being drained: sites release the tasks that run, and another worker
   * adopts the run.
   */
  draining: AbortSignal
}

type Opened = {
  /** `approval`: a person has to approve it before it begins. */
  state: 'over' | 'simulate' | 'execute' | 'approval'
  total: number
  sites: { site: string; taskQueue: string }[]
  /** How the run ended, where it is over. */
  end?: RunEnd | undefined
}

/** Unexpected errors this often in a row, over about two minutes, count as a permanent fault. */
const errorsBeforeGivingUp = 30

/** A storage that is down for this long does not keep a run from its end. */
const deliverySeconds = 60

/** Files that one warning names. */
const mostNamed = 20

/**
 * Brings files of machines to default storages. Where a storage fails, or a copy on this host has
 * other bytes than its record, the copies remain, and the run's warnings say so, as they do of files
 * without a readable copy.
 * @returns false where copies have to remain
 */
const deliver = async (parts: ExecutionRunParts, runId: string, signal: AbortSignal): Promise<boolean> => {
  let last: unknown
  let left: Awaited<ReturnType<typeof deliverOutputs>> = { unread: [], differing: [] }
  /** False where a repetition cannot succeed. */
  const attempt = async (): Promise<boolean | undefined> => {
    try {
      left = await deliverOutputs(parts, runId, signal)
      return true
    } catch (error) {
      if (databaseAway(error) || signal.aborted) throw error
      last = error
      const passes =
        error instanceof StorageError
          ? error.passes
          : !(error instanceof Refusal) || error.code === 'unavailable'
      return passes ? undefined : false
    }
  }
  const delivered =
    (await poll(attempt, { everyMs: 2_000, deadlineMs: deliverySeconds * 1_000, signal })) === true
  signal.throwIfAborted()
  if (!delivered) await warnRun(parts.db, runId, `outputs are on host ${parts.hostId} only: ${String(last)}`)
  const warn = async (what: string, files: readonly string[]): Promise<void> => {
    if (files.length === 0) return
    const named = firstTexts(files, mostNamed).join(', ')
    await warnRun(parts.db, runId, `outputs that ${what} were not brought to their storage: ${named}`)
  }
  await warn(`cannot be read on host ${parts.hostId}`, left.unread)
  await warn(`have other bytes on host ${parts.hostId} than on record stay there, and`, left.differing)
  return delivered && left.differing.length === 0
}

/** Brings a run's outputs on this host to their storage, and removes what the run no longer keeps. */
const finish = async (parts: ExecutionRunParts, runId: string, signal: AbortSignal): Promise<void> => {
  if (await deliver(parts, runId, signal)) await removeUnkept(parts, runId, signal)
}

/**
 * The files of a run that is about to be closed: a host may have to finish some, all are finished,
 * or a host did not finish its own and they are left there.
 */
export type FilesAtEnd = 'to finish' | 'finished' | 'left'

/**
 * Removes what a run no longer keeps and this process can remove, and warns of outputs that are
 * left on their host.
 * @returns the host whose workers have to finish files before the run is closed
 */
const tidyBeforeClose = async (
  parts: ExecutionRunParts,
  runId: string,
  files: Exclude<FilesAtEnd, 'finished'>,
  signal: AbortSignal,
): Promise<string | undefined> => {
  const { db } = parts
  const withOutputs = await hostOfUndelivered(db, runId)
  if (withOutputs !== undefined && files === 'left') {
    const reason = 'no worker there has brought them to their storage'
    await warnRun(db, runId, `outputs are on host ${withOutputs} only: ${reason}`)
    return undefined
  }
  const host = withOutputs ?? (await removeUnkept(parts, runId, signal))
  return files === 'to finish' ? host : undefined
}

/** Ends a run: records its sums and its state. */
const end = async (parts: ExecutionRunParts, of: Parameters<typeof closeRun>[1]): Promise<RunEnd> => {
  const runId = of.id
  const { status, completed, ...closed } = await closeRun(parts.db, of)
  if (status !== 'running' && status !== 'created')
    // The run is recorded as over: a failure here must not undo that, and the service's rounds end
    // what is left within a second.
    await endMachines(parts, runId, { reason: 'run-over' }).catch((error: unknown) => {
      Context.current().log.debug('machines of a run that is over were not ended', { error: String(error) })
    })
  if ('costBefore' in closed) await reportRunEnd(parts, runId, closed.costBefore)
  return status === 'failed' ? readRunEnd(parts.db, runId) : { status, completed }
}
/** created → running, once. Returns what has to be done, and at which sites. */
const begin = async (parts: ExecutionRunParts, of: OperationRef): Promise<Opened> => {
  const runId = of.id
  if (await needsApproval(parts.db, of)) return { state: 'approval', total: 0, sites: [] }
  const run = await openRun(parts.db, of)
  if (run?.change === 'started')
    parts.reports.runStarted({ runId, mode: run.mode, activities: run.activityCount })
  if (run?.change === 'ended') await reportRunEnd(parts, runId)
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
      .map((place) => ({
        site: place.site,
        taskQueue: queueOfRuns(taskQueueOf(place, all, parts.engine.taskQueue)),
      }))
      .sort((a, b) => (a.site < b.site ? -1 : 1)),
  }
}

/** One call of the activity that executes a run at a site. */
interface SiteCall {
  runId: string
  generation: number
  key: string | undefined
  site: string
  context: Context
  /** Aborted when the worker is drained, or the activity cancelled. */
  stop: AbortSignal
  /** The site's driver, once it is open; the code that ends the call needs it too. */
  opened?: OpenSite
  progress?: ReturnType<typeof siteProgress>
}

/** A run at one of its sites, read from the record. */
export interface AtSite {
  snapshot: SiteSnapshot
  places: Map<string, Place>
  place: Place
  alone: boolean
}

/**
 * The run at a site; undefined where the run was deleted or opened again since. `created`, for a
 * workflow that knows no key: another run of this id, accepted after its own was deleted.
 */
const findSite = async (
  { db }: Pick<ExecutionRunParts, 'db'>,
  { runId, generation, key, site }: SiteCall,
): Promise<AtSite | undefined> => {
  const [snapshot, pairs] = await Promise.all([findSiteSnapshot(db, runId), usedPairs(db, runId)])
  if (snapshot?.generation !== generation || snapshot.status === 'created') return undefined
  if (key !== undefined && snapshot.effectKey !== key) return undefined
  const places = placesOf(snapshot, pairs)
  const place = places.get(site)
  if (place === undefined) throw new Error(`run ${runId} has no site ${site}`)
  return { snapshot, places, place, alone: places.size === 1 }
}

/** Runs the executor of a site until the site is settled or rests. */
const executeAt = async (
  parts: ExecutionRunParts,
  call: SiteCall,
  { snapshot, places, place }: AtSite,
  differently: Differently,
): Promise<SiteOutcome> => {
  const { runId, generation, site, context } = call
  const scope = runScope(snapshot.effectKey)
  const hooks = deliveryHooks(parts, runId, snapshot.executables, scope)
  const opened = parts.sites.of(place, places, snapshot, snapshot.storageMounts, hooks)
  call.opened = opened
  const plan = makeSitePlan(parts.db, runId, snapshot, {
    here: `local@${parts.hostId}`,
    workRoot: parts.workRoot,
    seedRoot: parts.seedRoot,
    variablePrefix: parts.variablePrefix,
  })
  const progress = siteProgress(parts, { runId, generation, site }, (message, facts) => {
    context.log.debug(message, facts)
  })
  call.progress = progress
  const { driver = opened.driver, onlyEnds = false, stop } = differently
  const outcome = await executeSite(
    {
      db: parts.db,
      ...opened,
      ...{ driver, onlyEnds, machine: place.machine },
      ...(onlyEnds ? { cores: undefined } : {}),
      wakeUps: parts.wakeUps,
      acceptedAt: snapshot.acceptedAt,
      reports: parts.reports.site({
        runId,
        site,
        driver: place.kind,
        connectionId: place.connectionId,
      }),
      patience: { silentSeconds: parts.sitePatienceSeconds },
      clock: parts.clock,
      failpoint: parts.failpoint,
    },
    { runId, site, plan, holder: `${parts.hostId}/${String(process.pid)}`, signal: stop },
    (facts) => {
      progress.step(facts)
    },
  )
  // Kept containers that remain end by themselves after a while without a task.
  if (outcome.settled && !onlyEnds)
    await opened.closeScope?.(scope).catch((error: unknown) => {
      context.log.debug('containers kept for a run were not closed', { error: String(error) })
    })
  return outcome
}

/** Executes a run at a site until the site is settled or rests. */
const execute = async (parts: ExecutionRunParts, call: SiteCall): Promise<SiteOutcome> => {
  const { runId, generation, key } = call
  const at = await findSite(parts, call)
  // The run's only site has closed the run, and it is gone or open again.
  if (at === undefined) return nothingDone
  const outcome = runsOnMachines(at.place)
    ? await executeOnMachines(parts, {
        ...{ runId, key, site: call.site, targetId: call.site.slice('cloud/'.length) },
        ...{ stop: call.stop, context: call.context },
        kind: at.place.kind,
        execute: async (differently) => {
          const now = await findSite(parts, call)
          return now === undefined ? nothingDone : executeAt(parts, call, now, differently)
        },
      })
    : await executeAt(parts, call, at, { stop: call.stop })
  // The end of the run is recorded without a trip through Temporal (40 ms); the workflow's own
  // step finds it closed.
  if (outcome.settled && at.alone) {
    await finish(parts, runId, call.stop)
    await end(parts, { id: runId, generation, key })
  }
  return outcome
}

/**
 * Ends a run with a fault of the engine itself, which a retry does not cure, instead of letting it
 * stand still.
 */
const giveUp = (parts: ExecutionRunParts, of: RecordRef, site: string, error: unknown): Promise<void> => {
  parts.reports.siteGivenUp({ runId: of.id, site, error })
  return abandonRun(
    parts.db,
    of,
    site,
    `the engine failed at site ${site} (${(error as Error).name}); the log of its worker has the cause`,
  )
}

/** The error that Temporal receives for an error at a site. */
const shownAs = (error: unknown, draining: AbortSignal): unknown => {
  if (error instanceof LeasePassedOn)
    return ApplicationFailure.create({ message: error.message, type: 'LeasePassedOn', cause: error })
  if (!draining.aborted) return error
  const message = 'this worker is being drained; what runs goes on'
  return ApplicationFailure.create({ message, type: 'Draining' })
}

/**
 * The activities of a run. `key` names its record among all that have its id; a workflow of an earlier
 * version knows none.
 */
export const executionRunActivities = (parts: ExecutionRunParts) => {
  const tries = openTries(errorsBeforeGivingUp)
  const stopping = (): AbortSignal => AbortSignal.any([parts.draining, Context.current().cancellationSignal])
  return {
    /** created → running, once; returns what each site has to do. Ids and small facts only. */
    openRun: (id: string, generation: number, key?: string): Promise<Opened> =>
      beating(() => begin(parts, { id, generation, key })),

    /**
     * Runs the tasks that are planned at one site until the site is settled or rests; see
     * `src/executor/loop.ts`.
     */
    async runSite(runId: string, generation: number, site: string, key?: string): Promise<SiteOutcome> {
      const context = Context.current()
      const call: SiteCall = { runId, generation, key, site, context, stop: stopping() }
      const work = (): Promise<SiteOutcome> =>
        execute(parts, call).catch((error: unknown) => {
          throw shownAs(error, parts.draining)
        })
      const endRun = async (error: unknown): Promise<never> => {
        await giveUp(parts, { id: runId, key }, site, error)
        // Where the site was not opened or does not confirm the ends, the sweeper asks for them.
        if (call.opened !== undefined) await stopLeftovers(parts.db, { site, runId }, call.opened.driver)
        throw ApplicationFailure.nonRetryable(`site ${site} was given up`, 'SiteGivenUp')
      }
      return beating(() => tries([runId, generation, key, site], work, endRun), {
        beat: () => context.heartbeat(call.progress?.heartbeat()),
      })
    },

    /** Simulates the run's plan and records it like an execution, with seconds from 0. */
    simulateRun: (id: string, key?: string): Promise<void> =>
      beating(async () => {
        const { cancellationSignal } = Context.current()
        await tries(
          [id, key, 'simulation'],
          () => playRun(parts.db, parts.compute, { id, key }, cancellationSignal),
          (error) => giveUp(parts, { id, key }, 'simulation', error),
        )
      }),

    /**
     * Applies a cancel of this workflow to the run; does nothing when the run was cancelled before,
     * is over, was opened again, or is gone.
     */
    cancelRun: async (id: string, generation: number, key?: string): Promise<void> => {
      await requestCancel(parts.db, runKind, { id, generation, key }, { actorId: temporalActor })
    },

    /** Finishes the files of a run on this host, before the run is closed; however long it takes. */
    finishFiles: (runId: string): Promise<void> =>
      beating(() =>
        finish(parts, runId, stopping()).catch((error: unknown) => {
          throw shownAs(error, parts.draining)
        }),
      ),

    /**
     * Records the sums and the final state; no write follows. Where a host has files `to finish`, it
     * only answers with the queue of that host's workers.
     */
    closeRun: (
      runId: string,
      generation?: number,
      files?: FilesAtEnd,
      key?: string,
    ): Promise<RunEnd | { filesAt: string }> =>
      beating(async () => {
        const run = await readOperation(parts.db, runKind, { id: runId, key })
        // `created`, for a workflow that knows no key: another run of this id, accepted after its own
        // was deleted.
        if (run === undefined || run.status === 'created') return { status: 'cancelled', completed: 0 }
        if (run.status === 'running' && files !== 'finished') {
          // The workflow of a worker of an earlier version names no `files`, and knows no other host.
          const tidy =
            files === undefined
              ? finish(parts, runId, stopping())
              : tidyBeforeClose(parts, runId, files, stopping())
          const host = await tidy.catch((error: unknown) => {
            throw shownAs(error, parts.draining)
          })
          if (typeof host === 'string') return { filesAt: queueOfHost(parts.engine.taskQueue, host) }
        }
        return end(parts, { id: runId, generation, key })
      }),
  }
}

export type ExecutionRunActivities = ReturnType<typeof executionRunActivities>
