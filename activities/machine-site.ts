import { ApplicationFailure, type Context } from '@temporalio/activity'
import { setTimeout as sleep } from 'node:timers/promises'
import { openTurns } from '../src/db/each-record.ts'
import type { Clouds } from '../src/domains/cloud/clouds.ts'
import { lookAtInstance, recordLost, type Loss } from '../src/domains/cloud/loss.ts'
import {
  acquireMachine,
  endsWithTasks,
  endUnusedMachines,
  failedMachines,
  heldMachine,
  isOver,
  machineNeed,
  markUsed,
  releaseMachines,
  showMachineWait,
  turnMachine,
  type HeldMachine,
  type MachineParts,
} from '../src/domains/execution-runs/machines.ts'
import { machineRests, machineStartDue } from '../src/domains/execution-runs/machine-start.ts'
import { abandonRun } from '../src/domains/execution-runs/operation.ts'
import type { RuntimeDriver } from '../src/drivers/runtime/contract/driver.ts'
import { kindOf, type KindName } from '../src/drivers/runtime/registry.ts'
import { goneDriver } from '../src/drivers/transfer/keeping-driver.ts'
import { LeasePassedOn } from '../src/executor/journal.ts'
import type { SiteOutcome } from '../src/executor/loop.ts'
import { poll } from '../src/pacing/poll.ts'
import { Refusal } from '../src/refusal.ts'

export interface MachineSiteParts extends MachineParts {
  clouds: Clouds
}

/** What a site's executor does differently in one call. */
export interface Differently {
  stop: AbortSignal
  /** In place of the site's own driver. */
  driver?: RuntimeDriver
  onlyEnds?: boolean
}

/** A run at a site whose machine is made for it. */
interface MachineSite {
  runId: string
  key: string | undefined
  site: string
  targetId: string
  kind: KindName
  stop: AbortSignal
  context: Context
  /** Runs the executor over the present instance of the run. */
  execute: (differently: Differently) => Promise<SiteOutcome>
}

/**
 * Pause between two looks at the record while a machine is awaited: longer where many tasks have to
 * be read.
 */
const lookMs = (openTasks: number): number => Math.min(5_000, 500 + openTasks / 4)
/** The provider is asked about the machines in use this often, for all of them at once. */
const watchMs = 2_000
/** A machine that the provider does not show for so many looks in a row is lost. */
const mostUnseen = 5
/** After so many machines that failed before their first task, the run fails. */
const mostFailures = 3

export const nothingDone: SiteOutcome = { settled: true, completed: 0, failed: 0 }

/** The machine was lost; the site goes on with another one. */
class MachineLost extends Error {}

/**
 * Releases the run's machines of a target, or of all, and asks for the ends of those that no run
 * uses. What is not asked for here, the service's rounds ask for.
 */
export const endMachines = async (
  parts: Pick<MachineSiteParts, 'db' | 'engine'>,
  runId: string,
  of: { targetId?: string; reason: string },
): Promise<void> => {
  await releaseMachines(parts.db, runId, of)
  await endUnusedMachines(
    parts,
    openTurns(
      ({ id }) => id,
      () => undefined,
    ),
  )
}

/** Why a failed machine failed: with the fault of the last of several, the run ends. */
const replace = async (
  parts: MachineSiteParts,
  { runId, key, site, targetId, stop }: MachineSite,
  held: HeldMachine,
): Promise<void> => {
  const reason = held.used ? 'lost' : 'failed'
  await endMachines(parts, runId, { targetId, reason })
  if (held.used) return
  const failures = await failedMachines(parts.db, runId, targetId)
  // The record counts the failures, over all processes that executed here: a backoff would begin anew.
  if (failures < mostFailures)
    await sleep(1_000 * 2 ** failures, undefined, { signal: stop }).catch(() => undefined)
  else
    await abandonRun(
      parts.db,
      { id: runId, key },
      site,
      `no machine of capacity target ${JSON.stringify(targetId)} could be made in ${String(failures)} ` +
        `tries: ${held.reason ?? 'its provisioning was cancelled'}`,
    )
}

/** The reason for a wait while a machine is on its way. */
const wordsOf = (targetId: string, { phase, instanceId, rests, wakes }: HeldMachine): string =>
  `waiting for a machine of ${targetId}: ${instanceId} is being ` +
  `${rests ? 'stopped' : wakes ? 'started' : 'made'} (${phase ?? 'queued'})`

/**
 * Asks for a machine. A refusal that lasts ends the run. @returns why none can be had now
 * @throws ApplicationFailure where this worker cannot ask, which Temporal repeats
 */
const acquire = async (
  parts: MachineSiteParts,
  { runId, key, site, targetId }: MachineSite,
): Promise<string | undefined> => {
  try {
    const answer = await acquireMachine(parts, runId, targetId)
    return answer && `waiting for a machine: ${answer.waits}`
  } catch (error) {
    if (!(error instanceof Refusal)) throw error
    if (error.code === 'unavailable') {
      await showMachineWait(parts.db, runId, targetId, `waiting for a machine: ${error.message}`)
      // Another worker may have what this one lacks.
      throw ApplicationFailure.create({ message: error.message, type: 'MachineUnavailable' })
    }
    await abandonRun(
      parts.db,
      { id: runId, key },
      site,
      `no machine of ${targetId} can be made: ${error.message}`,
    )
    return undefined
  }
}

/**
 * Waits until the run has a ready machine of the target, which is asked for when a task could start
 * there, or when the plan says so.
 * @returns undefined where nothing more will run there
 */
const awaitMachine = async (
  parts: MachineSiteParts,
  of: MachineSite,
): Promise<{ held: HeldMachine; isLost: boolean } | undefined> => {
  const { db } = parts
  const { runId, targetId, stop } = of
  let pauseMs = 0
  const look = async (): Promise<{ held: HeldMachine; isLost: boolean } | 'not needed' | undefined> => {
    stop.throwIfAborted()
    const [held, need] = await Promise.all([
      heldMachine(db, runId, targetId),
      machineNeed(db, runId, targetId),
    ])
    if (held !== undefined && isOver(held)) {
      if (need.inFlight > 0) return { held, isLost: true }
      await replace(parts, of, held)
      return look()
    }
    if (held?.status === 'ready' && !held.rests && (need.inFlight > 0 || !need.over))
      return { held, isLost: false }
    if (need.over || need.open === 0) return 'not needed'
    if (held?.rests === true && held.phase === undefined && !need.paused) {
      const wakes = need.ready > 0 || (await machineRests(db, runId, targetId)).wakes
      if (wakes) await turnMachine(parts, runId, targetId, 'start')
    }
    const due = (await machineStartDue(db, runId, targetId)) ?? need.ready > 0
    const waits =
      held !== undefined ? wordsOf(targetId, held) : due && !need.paused ? await acquire(parts, of) : ''
    if (waits !== undefined && waits !== '') await showMachineWait(db, runId, targetId, waits)
    pauseMs = lookMs(need.open)
    return undefined
  }
  const found = await poll(look, { everyMs: { next: () => pauseMs }, signal: stop })
  if (found === undefined) throw stop.reason
  return found === 'not needed' ? undefined : found
}

/** Polls the provider about a machine in use; calls `lost` once with the provider's reason. */
const watchMachine = (
  { db, clouds }: MachineSiteParts,
  { runId, targetId, context }: MachineSite,
  held: HeldMachine,
  lost: (cause: string) => void,
): (() => void) => {
  const over = new AbortController()
  const watched = { ...held, providerId: held.providerId ?? '' }
  let unseen = 0
  /** `noted`: the record has it already. */
  const look = async (): Promise<(Loss & { noted?: true }) | undefined> => {
    const now = await heldMachine(db, runId, targetId)
    if (now?.instanceId !== held.instanceId || isOver(now)) {
      const reason = now?.reason ?? `the cloud instance ${held.instanceId} is ${now?.status ?? 'gone'}`
      return { reason, stays: true, noted: true }
    }
    const seen = await lookAtInstance(clouds, watched)
    unseen = seen === 'unseen' ? unseen + 1 : 0
    if (typeof seen === 'object') return seen
    if (unseen < mostUnseen) return undefined
    return { reason: `the provider shows the machine ${watched.providerId} no more`, stays: false }
  }
  const lookForLoss = async (): Promise<string | undefined> => {
    try {
      const loss = await look()
      if (loss !== undefined && loss.noted !== true) await recordLost(db, watched, loss)
      return loss?.reason
    } catch (error) {
      // A missing answer of the provider or the database does not show the state of the machine.
      context.log.debug('a machine could not be asked for', { error: String(error) })
      return undefined
    }
  }
  // On the same moments for all machines, so that one request asks about all.
  const everyMs = { next: () => watchMs - (Date.now() % watchMs) }
  void poll(lookForLoss, { everyMs, pausesFirst: true, signal: over.signal }).then((cause) => {
    if (cause !== undefined && !over.signal.aborted) lost(cause)
  })
  return () => {
    over.abort()
  }
}

/** Records the ends of all attempts on a lost machine, before another one takes its place. */
const recordEnds = async ({ execute, kind, stop }: MachineSite, held: HeldMachine): Promise<void> => {
  const cause = held.reason ?? `the cloud instance ${held.instanceId} is ${held.status}`
  const drained = AbortSignal.abort(new MachineLost(cause))
  try {
    await execute({
      stop: drained,
      driver: goneDriver(cause, { kind: 'ssh', capabilities: kindOf(kind).capabilities }),
      onlyEnds: true,
    })
  } catch (error) {
    if (!(error instanceof MachineLost) || stop.aborted) throw error
  }
}

/** Runs the tasks on a machine until they are over, or rest, or the machine is lost. */
const executeOn = async (
  parts: MachineSiteParts,
  of: MachineSite,
  held: HeldMachine,
): Promise<SiteOutcome | undefined> => {
  const lost = new AbortController()
  const unwatch = watchMachine(parts, of, held, (cause) => {
    lost.abort(new MachineLost(cause))
  })
  try {
    await markUsed(parts.db, of.runId, of.targetId)
    return await of.execute({ stop: AbortSignal.any([of.stop, lost.signal]) })
  } catch (error) {
    if (!lost.signal.aborted || of.stop.aborted || error instanceof LeasePassedOn) throw error
    return undefined
  } finally {
    unwatch()
  }
}

/**
 * Asks for the stop that the plan has for a machine without work: at its time while tasks there wait
 * for others, and at once where none is left.
 */
const stopAsPlanned = async (
  parts: MachineSiteParts,
  { runId, targetId }: MachineSite,
  { settled }: SiteOutcome,
): Promise<void> => {
  const { isDue, isPlanned } = await machineRests(parts.db, runId, targetId)
  if (settled ? isPlanned : isDue) await turnMachine(parts, runId, targetId, 'stop')
}

/**
 * Executes a run at a capacity target: it gets a machine when it needs one, another one where that
 * is lost, and gives it back when its tasks there are over.
 */
export const executeOnMachines = async (parts: MachineSiteParts, of: MachineSite): Promise<SiteOutcome> => {
  const { db } = parts
  const { runId, targetId } = of
  for (;;) {
    const found = await awaitMachine(parts, of)
    if (found === undefined) {
      await endMachines(parts, runId, { targetId, reason: 'not-needed' })
      return nothingDone
    }
    const { held, isLost } = found
    if (isLost) {
      await recordEnds(of, held)
      continue
    }
    const outcome = await executeOn(parts, of, held)
    if (outcome === undefined) continue
    if (outcome.settled && (await endsWithTasks(db, targetId)))
      await endMachines(parts, runId, { targetId, reason: 'tasks-over' })
    else await stopAsPlanned(parts, of, outcome)
    return outcome
  }
}
