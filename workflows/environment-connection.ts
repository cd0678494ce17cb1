import {
  ActivityFailure,
  condition,
  continueAsNew,
  defineSignal,
  isCancellation,
  patched,
  proxyActivities,
  setCurrentDetails,
  setHandler,
  workflowInfo,
} from '@temporalio/workflow'
import type { EnvironmentConnectionActivities, NextCheck } from '../activities/environment-connection.ts'
import type { End } from './ends.ts'
import { isNotTaken, operate, takenInTime } from './operation.ts'
import { sentence, type Headline } from '../src/page-details.ts'
import { queueOfMonitors } from '../src/task-queues.ts'

/** Sent when a connection was changed or a person logged in: check now. */
export const wakeMonitorSignal = defineSignal('wake')

const patient = { initialInterval: '1 second', backoffCoefficient: 2, maximumInterval: '1 minute' } as const
const brief = { startToCloseTimeout: '5 minutes', heartbeatTimeout: '20 seconds', retry: patient } as const
const recording = (summary: string) => proxyActivities<EnvironmentConnectionActivities>({ ...brief, summary })
/** Absent in histories of earlier versions, whose discoveries any worker took. */
const isPlaced = 'a discovery is at the host that it describes'
const discoveringAt = (taskQueue: string | null) =>
  proxyActivities<EnvironmentConnectionActivities>({
    summary: 'ask what is behind the connection, and record it',
    startToCloseTimeout: '10 minutes',
    heartbeatTimeout: '20 seconds',
    retry: {
      initialInterval: '2 seconds',
      backoffCoefficient: 2,
      maximumInterval: '30 seconds',
      maximumAttempts: 5,
    },
    ...(taskQueue === null ? {} : { taskQueue, ...takenInTime }),
  })
const notTaken =
  'no worker of the host that it describes took it within 10 minutes: start that host, or discover again ' +
  'through the API of another one'

const reasonOf = (failure: ActivityFailure): string =>
  isNotTaken(failure) ? notTaken : (failure.cause?.message ?? failure.message)

/** A check costs about 12 events; the server warns at 10,240. */
const eventsBeforeNewHistory = 2_000

const monitorCancelled =
  'cancelled on this page. A connection is watched as long as it exists: the service starts its ' +
  'monitor again within a minute'

// Checks are short: their queue keeps them from waiting behind activities of days.
const checks = (summary: string) =>
  proxyActivities<EnvironmentConnectionActivities>({
    ...brief,
    ...{ taskQueue: queueOfMonitors(workflowInfo().taskQueue), summary },
  })

/** Makes a check at the host `taskQueue`; a host that is away takes none. */
const checkAt = async (connectionId: string, taskQueue: string): Promise<NextCheck> => {
  const there = proxyActivities<EnvironmentConnectionActivities>({
    ...brief,
    ...{ taskQueue, summary: 'check the connection at its host', scheduleToStartTimeout: '2 minutes' },
  })
  try {
    return await there.checkConnection(connectionId)
  } catch (error) {
    if (!isNotTaken(error)) throw error
    return checks('record that its host is away').recordUnchecked(connectionId, taskQueue)
  }
}

/**
 * Watches one connection as long as it exists: waits, checks, and waits longer while all is well.
 * The record holds the findings and the next pause; this workflow is the clock. It ends when the
 * connection is gone, and may be started again at any time.
 */
export async function connectionMonitor(
  connectionId: string,
  generation: number,
  woken = false,
  headline?: Headline,
): Promise<void> {
  let awake = woken
  setHandler(wakeMonitorSignal, () => {
    awake = true
  })
  try {
    let next = await checks('how long to wait').pauseBeforeCheck(connectionId)
    while (next !== null) {
      const { seconds, taskQueue } = typeof next === 'number' ? { seconds: next, taskQueue: undefined } : next
      setCurrentDetails(sentence(headline, `the next check follows in ${String(seconds)} s`))
      await condition(() => awake, `${String(seconds)} seconds`)
      awake = false
      next = await (taskQueue === undefined
        ? checks('check the connection').checkConnection(connectionId)
        : checkAt(connectionId, taskQueue))
      if (workflowInfo().historyLength > eventsBeforeNewHistory)
        // A wake that came meanwhile goes into the new history.
        await continueAsNew<typeof connectionMonitor>(connectionId, generation, awake, headline)
    }
  } catch (error) {
    if (isCancellation(error)) setCurrentDetails(sentence(headline, monitorCancelled))
    throw error
  }
}

/**
 * One discovery; its activity records everything under the discovery's row. A cancel of Temporal's
 * page ends the record as failed, with that reason.
 */
export async function connectionDiscovery(
  connectionId: string,
  number: number,
  headline?: Headline,
  key?: string,
): Promise<void> {
  const discover = async (): Promise<End> => {
    try {
      const taskQueue = patched(isPlaced)
        ? await recording('which host it describes').placeDiscovery(connectionId, number)
        : null
      const end: End | string = await discoveringAt(taskQueue).discoverConnection(connectionId, number, key)
      // Histories of the version before hold the status alone.
      return typeof end === 'string' ? { status: end } : end
    } catch (error) {
      if (isCancellation(error) || !(error instanceof ActivityFailure)) throw error
      const reason = reasonOf(error)
      await recording('record that nothing was discovered').failDiscovery(connectionId, number, reason, key)
      return { status: 'failed', reason }
    }
  }
  await operate(
    {
      headline,
      failure: 'DiscoveryFailed',
      cancel: () => recording("make the cancel the discovery's").cancelDiscovery(connectionId, number, key),
    },
    discover,
  )
}
