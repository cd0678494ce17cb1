import { eachRecord, openTurns } from './db/each-record.ts'
import type { Db } from './db/sql.ts'
import { beginLateBills } from './domains/cloud/billing.ts'
import type { Clouds } from './domains/cloud/clouds.ts'
import { resumeRefreshes } from './domains/cloud/catalog.ts'
import { sweepAll } from './domains/cloud/orphans.ts'
import { moveVariables } from './domains/cloud/target-secrets.ts'
import { watchBudgets } from './domains/execution-runs/budget.ts'
import { anyToKeep, endUnusedMachines, unusedByRuns } from './domains/execution-runs/machines.ts'
import { settleCosts } from './domains/execution-runs/receipt.ts'
import type { Engine } from './engine.ts'
import type { Log } from './observability/log.ts'
import { everyRound } from './pacing/every-round.ts'
import type { Vault } from './vault/vault.ts'

const everyMs = 1_000
const refreshMs = 10_000

interface KeeperParts {
  db: Db
  engine: Pick<Engine, 'start' | 'cancel' | 'signal'>
  clouds: Clouds
  vault: Pick<Vault, 'put' | 'ready'>
  /** Seconds between two sweeps; 0: none. */
  cloudSweepSeconds: number
}

/** Ends machines that no run uses, settles their costs and watches budgets. */
const endUnused = (parts: KeeperParts, log: Log) => {
  const turnsOf = () =>
    openTurns<{ id: string }>(
      ({ id }) => id,
      (error, { id }) =>
        log.warn(
          { err: error, recordId: id },
          'one run or cloud machine could not be looked after; it is later',
        ),
    )
  const [machines, costs, budgets] = [turnsOf(), turnsOf(), turnsOf()]
  const end = async (signal: AbortSignal): Promise<void> => {
    const ended = await endUnusedMachines(parts, machines, signal)
    if (ended > 0) log.info({ ended }, 'the ends of cloud machines that no run uses were asked for')
  }
  const watch = async (signal: AbortSignal): Promise<void> => {
    const stopped = await watchBudgets(parts, budgets, signal)
    if (stopped > 0) log.info({ stopped }, 'runs were cancelled because their budgets are used up')
  }
  const steps = [
    () => beginLateBills(parts.db),
    end,
    (signal: AbortSignal) => settleCosts(parts.db, costs, signal),
    watch,
  ]
  const warn = (error: unknown): void =>
    log.warn(
      { err: error },
      'cloud machines that no run uses could not be looked for; they are looked for again',
    )
  return everyRound(
    everyMs,
    async (signal) => {
      if (!(await anyToKeep(parts.db))) return
      await eachRecord(
        steps,
        async (step) => {
          await step(signal)
        },
        warn,
        signal,
      )
    },
    warn,
  )
}

/** Ends machines of this service that have no living record, and notes what others have ended. */
const sweep = (parts: KeeperParts, log: Log) => {
  const { cloudSweepSeconds: seconds } = parts
  return everyRound(
    Math.max(1, Math.min(seconds, 60)) * 1_000,
    async (signal) => {
      const { ended, lost, failures } = await sweepAll(
        { ...parts, unused: unusedByRuns },
        { seconds, signal },
      )
      for (const { environmentId, providerId, instanceId } of ended)
        log.warn(
          { environmentId, providerId, instanceId },
          'a cloud machine of this service without a living record was ended',
        )
      for (const facts of lost) log.warn(facts, 'a cloud machine was ended or stopped by others')
      for (const { environmentId, error } of failures)
        log.warn(
          { err: error, environmentId },
          'the cloud could not be searched for machines without a record',
        )
    },
    (error) => {
      log.warn({ err: error }, 'the search for cloud machines without a record failed; it is repeated')
    },
  )
}

/** Takes up refreshes of catalogs whose processes have ended. */
const refresh = (parts: KeeperParts, log: Log) => {
  const warn = (error: unknown, facts: object = {}): void =>
    log.warn(
      { err: error, ...facts },
      'a refresh of a cloud catalog could not be taken up; the stored one stays',
    )
  return everyRound(refreshMs, (signal) => resumeRefreshes(parts, warn, signal), warn)
}

/** Moves the secrets that rows of capacity targets hold to the vault. */
const moveSecrets = async ({ db, vault }: KeeperParts, log: Log): Promise<void> => {
  if (!vault.ready) return
  try {
    const moved = await moveVariables(db, vault)
    if (moved > 0) log.info({ moved }, 'secret variables of capacity targets were moved to the vault')
  } catch (error) {
    log.warn({ err: error }, 'secret variables of capacity targets could not be moved to the vault')
  }
}

/**
 * Ends the cloud machines that no run uses, and machines of this service without a record. It keeps
 * no state of its own, so the next round finds them after a crash of every process. Any number of
 * processes may do so at once.
 */
export const openMachineKeeper = (parts: KeeperParts, log: Log): { stop(): Promise<void> } => {
  const moving = moveSecrets(parts, log)
  const rounds = [
    ...[endUnused(parts, log), refresh(parts, log)],
    ...(parts.cloudSweepSeconds === 0 ? [] : [sweep(parts, log)]),
  ]
  return {
    async stop() {
      await moving
      await Promise.all(rounds.map((round) => round.stop()))
    },
  }
}
