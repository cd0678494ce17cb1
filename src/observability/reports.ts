import type { ConnectionChange } from '../domains/environment-connections/changes.ts'
import type { StorageCall } from '../drivers/storage/measured.ts'
import type { EndedAttempt, Silence, SiteReports } from '../executor/reports.ts'
import type { Log } from './log.ts'
import type { Measures } from './measures.ts'

/** A run that has just ended. */
export interface EndedRun {
  runId: string
  mode: string
  status: string
  reason?: string | undefined
  /** From its start to its end; absent where it never started. */
  seconds?: number | undefined
  activities: number
  completed: number
  failed: number
  /** Cost of all its attempts, and the part since an earlier end. */
  cost: number
  costAdded: number
  /**
   * Measured makespan over the planned one; absent where it did not complete, or was not executed.
   */
  planError?: number | undefined
}

const three = (value: number): number => Number(value.toPrecision(3))
const milli = (value: number): number => Math.round(value * 1_000) / 1_000

/**
 * Connections (sites without one) where a person has to log in: the first finder reports each once.
 */
const openLogins = (log: Log) => {
  const needed = new Set<string>()
  return {
    need(at: string, members: Record<string, unknown>): void {
      if (needed.has(at)) return
      needed.add(at)
      log.info(members, 'a login is needed')
    },
    end: (at: string): void => void needed.delete(at),
  }
}

/** Silent runs and sites on which a process works now. */
const openSilences = (log: Log, logins: ReturnType<typeof openLogins>) => {
  const silent = new Map<string, { runs: Set<string>; since: number }>()
  const siteFields = (site: string, connectionId: string | undefined) => ({
    site,
    ...(connectionId === undefined ? {} : { connectionId }),
  })
  return {
    begin(
      site: string,
      connectionId: string | undefined,
      runId: string,
      { since, reason, needsLogin }: Silence,
    ): void {
      const known = silent.get(site)
      const entry = known ?? { runs: new Set<string>(), since }
      silent.set(site, entry)
      entry.runs.add(runId)
      if (known === undefined)
        log.info({ ...siteFields(site, connectionId), runId, reason }, 'a site does not answer')
      if (needsLogin) logins.need(connectionId ?? site, { ...siteFields(site, connectionId), runId, reason })
    },
    /**
     * `answers`: the run's executor found that the site answers; otherwise it only stopped looking.
     */
    end(site: string, connectionId: string | undefined, runId: string, answers: boolean): void {
      const entry = silent.get(site)
      if (entry === undefined || !entry.runs.delete(runId) || entry.runs.size > 0) return
      silent.delete(site)
      if (!answers) return
      logins.end(connectionId ?? site)
      log.info(
        { ...siteFields(site, connectionId), runId, seconds: milli(Date.now() / 1_000 - entry.since) },
        'a site answers again',
      )
    },
  }
}

/**
 * Reports events of the service to its operators: each event is counted, and is one line of the
 * log. The names of members and the texts are those of docs/operations.md.
 */
export const openReports = (log: Log, measures: Measures) => {
  const logins = openLogins(log)
  const silences = openSilences(log, logins)
  return {
    runAccepted: (run: { id: string; mode: string; schedulePlanId: string; activityCount: number }): void => {
      const { id: runId, mode, schedulePlanId: planId, activityCount: activities } = run
      log.info({ runId, mode, planId, activities }, 'a run was accepted')
    },
    runStarted: (run: { runId: string; mode: string; activities: number }): void => {
      log.info(run, 'a run started')
    },
    runEnded: ({ costAdded, seconds, planError, cost, ...run }: EndedRun): void => {
      measures.runsEnded.inc({ status: run.status, mode: run.mode })
      if (run.mode === 'real') {
        if (seconds !== undefined) measures.runSeconds.observe(seconds)
        measures.cost.inc(Math.max(0, costAdded))
      }
      if (planError !== undefined) measures.planError.observe(planError)
      const figures = {
        ...(seconds === undefined ? {} : { seconds: milli(seconds) }),
        cost,
        ...(planError === undefined ? {} : { planError: three(planError) }),
      }
      log.info({ ...run, ...figures }, 'a run ended')
    },
    /** `driver` names the kind of the site. */
    site: (of: {
      runId: string
      site: string
      driver: string
      connectionId: string | undefined
    }): SiteReports => {
      const { runId, site, driver, connectionId } = of
      return {
        leaseTaken: (from) => {
          measures.leaseTakeovers.inc()
          log.info({ runId, site, from }, 'a lease was taken over')
        },
        committed: (seconds) => {
          measures.commitSeconds.observe(seconds)
        },
        attemptEnded: (ended) => {
          attemptEnded(log, measures, { runId, site, driver }, ended)
        },
        transferred: (strategy, bytes) => {
          measures.transferBytes.inc({ strategy }, bytes)
        },
        waited: (cause, seconds) => {
          measures.taskWaits.observe({ driver, cause }, seconds)
        },
        silent: (silence) => {
          if (silence === undefined) silences.end(site, connectionId, runId, true)
          else silences.begin(site, connectionId, runId, silence)
        },
        left: () => {
          silences.end(site, connectionId, runId, false)
        },
      }
    },
    /** A fault of the service ended the work on a site of a run. */
    siteGivenUp: ({ error, ...of }: { runId: string; site: string; error: unknown }): void => {
      log.error({ ...of, err: error }, 'a site of a run was given up')
    },
    planningFailed: ({ error, ...of }: { sessionId: string; algorithm?: string; error: unknown }): void => {
      log.error({ ...of, err: error }, 'planning failed')
    },
    connectionChanged: ({ waitsForLogin, ...change }: ConnectionChange): void => {
      log.info(change, 'a connection changed')
      const { connectionId, reason } = change
      if (waitsForLogin) logins.need(connectionId, { connectionId, reason })
      else logins.end(connectionId)
    },
    sessionEnded: (session: { sessionId: string; status: string; reason?: string | undefined }): void => {
      log.info(session, 'a session ended')
    },
    planned: (algorithm: string, seconds: number): void => {
      measures.planningSeconds.observe({ algorithm }, seconds)
    },
    storageCall: (type: string, { method, outcome, bytes }: StorageCall): void => {
      measures.storageCalls.inc({ type, method, outcome })
      if (bytes > 0) measures.storageBytes.inc({ type, method }, bytes)
    },
    /**
     * A client follows events or a log until the returned function is called, with whether it was
     * too slow.
     */
    streamOpened: (): ((cut: boolean) => void) => {
      measures.eventStreams.inc()
      return (cut) => {
        measures.eventStreams.dec()
        if (cut) measures.eventStreamsCut.inc()
      }
    },
  }
}

const attemptEnded = (
  log: Log,
  measures: Measures,
  { runId, site, driver }: { runId: string; site: string; driver: string },
  { activityId, attempt, status, failureClass, exitCode, reason }: EndedAttempt,
): void => {
  measures.attemptsEnded.inc({ driver, status, failure_class: failureClass ?? '' })
  if (status !== 'failed') return
  log.info(
    { runId, activityId, attempt, site, failureClass, ...(exitCode === null ? {} : { exitCode }), reason },
    'an attempt failed',
  )
}

export type Reports = ReturnType<typeof openReports>
