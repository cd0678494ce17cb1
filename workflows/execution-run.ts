import {
  ActivityFailure,
  condition,
  continueAsNew,
  defineQuery,
  defineSignal,
  isCancellation,
  patched,
  proxyActivities,
  proxyLocalActivities,
  setCurrentDetails,
  setHandler,
  upsertMemo,
  upsertSearchAttributes,
  workflowInfo,
} from '@temporalio/workflow'
import { defineSearchAttributeKey, SearchAttributeType } from '@temporalio/common'
import type { ExecutionRunActivities } from '../activities/execution-run.ts'

/** What an open run says of itself; served as `live` by the status route. */
export interface LiveRun {
  phase: 'opening' | 'simulating' | 'running' | 'closing'
  sites: { site: string; state: 'in flight' | 'waiting for other sites' | 'settled' | 'given up'; completed: number; running: number }[]
  completed: number
  total: number
}

export const liveQuery = defineQuery<LiveRun>('live')
/** Sent by whoever changed something that a resting site may act on: a cancel, a resume, a predecessor's end elsewhere. */
export const wakeSignal = defineSignal('wake')
/** Sent by a working site now and then: how far it is. */
export const progressSignal = defineSignal<[site: string, completed: number, running: number]>('progress')

const retry = { initialInterval: '200 milliseconds', backoffCoefficient: 2, maximumInterval: '10 seconds' } as const
const dispatched = proxyActivities<ExecutionRunActivities>({
  startToCloseTimeout: '1 hour',
  // They beat once a second; a big record can keep their process from it for some.
  heartbeatTimeout: '15 seconds',
  retry,
})
/** In the process of the workflow's own task: one trip through the server less at the start of a run, and one at its end. */
const alongside = proxyLocalActivities<ExecutionRunActivities>({
  startToCloseTimeout: '10 minutes',
  localRetryThreshold: '5 seconds',
  retry,
})

const runState = defineSearchAttributeKey('RunState', SearchAttributeType.KEYWORD)
const runMode = defineSearchAttributeKey('RunMode', SearchAttributeType.KEYWORD)

/** A resting site looks again by itself after this long, in case a signal was lost with its sender. */
const restSeconds = 15
/** Far below the server's warning at 10,240 events; a site costs about 10 events a rest. */
const eventsBeforeNewHistory = 2_000

/**
 * One run in one generation: open, execute at every site (or simulate), close. The order of things only; what is ready, started and
 * finished is decided and recorded by the site's activity. Losing this history loses nothing that is recorded.
 */
export async function executionRun(runId: string, generation: number): Promise<void> {
  const live: LiveRun = { phase: 'opening', sites: [], completed: 0, total: 0 }
  const { openRun, closeRun } = patched('open and close alongside') ? alongside : dispatched
  let wakes = 0
  setHandler(liveQuery, () => live)
  setHandler(wakeSignal, () => {
    wakes += 1
  })
  const tell = (): void => {
    live.completed = live.sites.reduce((sum, { completed }) => sum + completed, 0)
    setCurrentDetails(
      `${live.phase}: ${String(live.completed)} of ${String(live.total)} activities completed${live.sites.map(({ site, state, running }) => `\n- ${site}: ${state}, ${String(running)} running`).join('')}`,
    )
  }
  setHandler(progressSignal, (site, completed, running) => {
    const entry = live.sites.find((candidate) => candidate.site === site)
    if (entry !== undefined) Object.assign(entry, { completed, running })
    tell()
  })

  const opened = await openRun(runId, generation)
  live.total = opened.total
  if (opened.state === 'over') return
  upsertSearchAttributes([
    { key: runState, value: 'running' },
    { key: runMode, value: opened.state === 'simulate' ? 'simulation' : 'real' },
  ])
  if (opened.state === 'simulate') {
    live.phase = 'simulating'
    tell()
    await dispatched.simulateRun(runId)
  } else {
    live.phase = 'running'
    live.sites = opened.sites.map(({ site }) => ({ site, state: 'in flight', completed: 0, running: 0 }))
    tell()
    let renew = false
    await Promise.all(
      opened.sites.map(async ({ site, taskQueue }, k) => {
        const { runSite } = proxyActivities<ExecutionRunActivities>({
          taskQueue,
          summary: `${site}: run what is planned there`,
          startToCloseTimeout: '365 days',
          heartbeatTimeout: '6 seconds',
          retry: { initialInterval: '100 milliseconds', backoffCoefficient: 1.5, maximumInterval: '5 seconds' },
        })
        const entry = live.sites[k] as LiveRun['sites'][number]
        let reported = 0
        for (;;) {
          entry.state = 'in flight'
          let outcome
          try {
            outcome = await runSite(runId, generation, site)
          } catch (error) {
            // The executor gave the site up and has said so in the record; the other sites see it there and stop.
            if (!(error instanceof ActivityFailure) || isCancellation(error)) throw error
            wakes += 1
            entry.state = 'given up'
            tell()
            return
          }
          // What ended here may be what a resting site waits for.
          if (outcome.settled || outcome.completed > reported) wakes += 1
          reported = outcome.completed
          Object.assign(entry, { completed: outcome.completed, running: 0 })
          if (outcome.settled) {
            entry.state = 'settled'
            tell()
            return
          }
          entry.state = 'waiting for other sites'
          tell()
          const seen = wakes
          await condition(() => wakes !== seen, `${String(restSeconds)} seconds`)
          if (renew || workflowInfo().historyLength > eventsBeforeNewHistory) {
            renew = true
            return
          }
        }
      }),
    )
    if (renew) await continueAsNew<typeof executionRun>(runId, generation)
  }
  live.phase = 'closing'
  const closed = await closeRun(runId, generation)
  upsertSearchAttributes([{ key: runState, value: closed.status }])
  upsertMemo({ status: closed.status, completed: closed.completed, total: opened.total })
  setCurrentDetails(`${closed.status}: ${String(closed.completed)} of ${String(opened.total)} activities completed`)
}
