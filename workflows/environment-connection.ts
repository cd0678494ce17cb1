import {
  ActivityFailure,
  condition,
  continueAsNew,
  defineSignal,
  isCancellation,
  proxyActivities,
  setCurrentDetails,
  setHandler,
  workflowInfo,
} from '@temporalio/workflow'
import type { EnvironmentConnectionActivities } from '../activities/environment-connection.ts'

/** Sent when a connection was changed or somebody logged in: look now. */
export const wakeSignal = defineSignal('wake')

const patient = { initialInterval: '1 second', backoffCoefficient: 2, maximumInterval: '1 minute' } as const
const brief = { startToCloseTimeout: '5 minutes', heartbeatTimeout: '20 seconds', retry: patient } as const
const { failDiscovery } = proxyActivities<EnvironmentConnectionActivities>(brief)
const { discoverConnection } = proxyActivities<EnvironmentConnectionActivities>({
  startToCloseTimeout: '10 minutes',
  heartbeatTimeout: '20 seconds',
  retry: { initialInterval: '2 seconds', backoffCoefficient: 2, maximumInterval: '30 seconds', maximumAttempts: 5 },
})

/** A check costs about 12 events; the server warns at 10,240. */
const eventsBeforeNewHistory = 2_000

/**
 * Watches one connection as long as it exists: waits, checks, and waits longer while all is well. What is found, and how long to wait, is
 * in the record; this is the clock. It ends when the connection is gone, and may be started again at any time.
 */
export async function connectionMonitor(connectionId: string, generation: number, woken = false): Promise<void> {
  // Checks are short: they do not stand behind what lasts for days.
  const taskQueue = `${workflowInfo().taskQueue}/monitors`
  const { pauseBeforeCheck, checkConnection } = proxyActivities<EnvironmentConnectionActivities>({ ...brief, taskQueue })
  let awake = woken
  setHandler(wakeSignal, () => {
    awake = true
  })
  let pause = await pauseBeforeCheck(connectionId)
  while (pause !== null) {
    setCurrentDetails(`the next check follows in ${String(pause)} s`)
    await condition(() => awake, `${String(pause)} seconds`)
    awake = false
    pause = await checkConnection(connectionId)
    if (workflowInfo().historyLength > eventsBeforeNewHistory)
      // A wake that came meanwhile goes along.
      await continueAsNew<typeof connectionMonitor>(connectionId, generation, awake)
  }
}

/** One discovery; everything is recorded by its activity under the discovery's row. */
export async function connectionDiscovery(connectionId: string, number: number): Promise<void> {
  try {
    setCurrentDetails(await discoverConnection(connectionId, number))
  } catch (error) {
    if (isCancellation(error) || !(error instanceof ActivityFailure)) throw error
    await failDiscovery(connectionId, number, error.cause?.message ?? error.message)
    setCurrentDetails('failed')
  }
}
