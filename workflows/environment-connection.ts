import {
  ActivityFailure,
  CancellationScope,
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
import { endAsRecord, outOfReach, type End } from './ends.ts'
import { sentence, type Told } from '../src/telling.ts'

/** Sent when a connection was changed or somebody logged in: look now. */
export const wakeSignal = defineSignal('wake')

const patient = { initialInterval: '1 second', backoffCoefficient: 2, maximumInterval: '1 minute' } as const
const brief = { startToCloseTimeout: '5 minutes', heartbeatTimeout: '20 seconds', retry: patient } as const
const recording = (summary: string) => proxyActivities<EnvironmentConnectionActivities>({ ...brief, summary })
const { discoverConnection } = proxyActivities<EnvironmentConnectionActivities>({
  summary: 'ask what is behind the connection, and record it',
  startToCloseTimeout: '10 minutes',
  heartbeatTimeout: '20 seconds',
  retry: { initialInterval: '2 seconds', backoffCoefficient: 2, maximumInterval: '30 seconds', maximumAttempts: 5 },
})

/** A check costs about 12 events; the server warns at 10,240. */
const eventsBeforeNewHistory = 2_000

const monitorCancelled =
  'cancelled on this page. A connection is watched as long as it exists: the service starts its monitor again within a minute'

/**
 * Watches one connection as long as it exists: waits, checks, and waits longer while all is well. What is found, and how long to wait, is
 * in the record; this is the clock. It ends when the connection is gone, and may be started again at any time.
 */
export async function connectionMonitor(connectionId: string, generation: number, woken = false, told?: Told): Promise<void> {
  // Checks are short: they do not stand behind what lasts for days.
  const taskQueue = `${workflowInfo().taskQueue}/monitors`
  const checks = (summary: string) => proxyActivities<EnvironmentConnectionActivities>({ ...brief, taskQueue, summary })
  let awake = woken
  setHandler(wakeSignal, () => {
    awake = true
  })
  try {
    let pause = await checks('how long to wait').pauseBeforeCheck(connectionId)
    while (pause !== null) {
      setCurrentDetails(sentence(told, `the next check follows in ${String(pause)} s`))
      await condition(() => awake, `${String(pause)} seconds`)
      awake = false
      pause = await checks('check the connection').checkConnection(connectionId)
      if (workflowInfo().historyLength > eventsBeforeNewHistory)
        // A wake that came meanwhile goes along.
        await continueAsNew<typeof connectionMonitor>(connectionId, generation, awake, told)
    }
  } catch (error) {
    if (isCancellation(error)) setCurrentDetails(sentence(told, monitorCancelled))
    throw error
  }
}

/**
 * One discovery; everything is recorded by its activity under the discovery's row. A cancel of Temporal's page ends the
 * record as failed, with that reason.
 */
export async function connectionDiscovery(connectionId: string, number: number, told?: Told): Promise<void> {
  let stop: () => void = () => undefined
  const discover = async (): Promise<End> => {
    try {
      const end: End | string = await discoverConnection(connectionId, number)
      // Histories of the version before hold the status alone.
      return typeof end === 'string' ? { status: end } : end
    } catch (error) {
      if (isCancellation(error) || !(error instanceof ActivityFailure)) throw error
      const reason = error.cause?.message ?? error.message
      await recording('record that nothing was discovered').failDiscovery(connectionId, number, reason)
      return { status: 'failed', reason }
    }
  }
  await outOfReach(
    async (cancel) => {
      const scope = new CancellationScope()
      let stopped = false
      stop = () => {
        stopped = true
        scope.cancel()
      }
      let end: End
      try {
        end = await scope.run(discover)
      } catch (error) {
        if (!stopped) throw error
        end = { status: 'cancelled' }
      }
      if (end.status !== undefined)
        setCurrentDetails(sentence(told, end.reason === undefined ? end.status : `${end.status}: ${end.reason}`))
      await endAsRecord(cancel, 'DiscoveryFailed', end)
    },
    async () => {
      if (await recording("make the cancel the discovery's").cancelDiscovery(connectionId, number)) stop()
    },
  )
}
