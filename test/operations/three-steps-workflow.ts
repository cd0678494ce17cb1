import { proxyActivities, workflowInfo } from '@temporalio/workflow'
import { durably, takenAt } from '../../workflows/operation.ts'
import type { Headline } from '../../src/page-details.ts'
import type { ThreeStepsActivities } from './three-steps.ts'

export * from '../../workflows/index.ts'

const options = {
  startToCloseTimeout: '1 minute',
  heartbeatTimeout: '3 seconds',
  retry: { initialInterval: '100 milliseconds', maximumInterval: '1 second' },
} as const
const { step, takeBack } = proxyActivities<ThreeStepsActivities>(options)
const within = proxyActivities<ThreeStepsActivities>({
  ...options,
  heartbeatTimeout: '1 minute',
  scheduleToCloseTimeout: '20 seconds',
})

/** A step that no worker takes at first: of a host that is gone, or of one that takes what is short. */
const untaken = (id: string, generation: number): Promise<void> => {
  const { taskQueue } = workflowInfo()
  const gone = `${taskQueue}@gone`
  /** Only what no worker polls is given up soon. */
  const soon = (queue: string) => (queue === gone ? ({ scheduleToStartTimeout: '1 second' } as const) : {})
  const host = id === 'full' ? taskQueue : gone
  let at = gone
  return takenAt(
    host,
    () => {
      const there = proxyActivities<ThreeStepsActivities>({ ...options, ...soon(at), taskQueue: at })
      at = host
      return there.step(id, generation, 1)
    },
    (short) => proxyActivities<ThreeStepsActivities>({ ...short, ...soon(host) }).takeBack(id, 'it is there'),
  )
}

/** Three steps in order; each leaves a line in the operation's table. */
export async function threeSteps(
  id: string,
  generation: number,
  headline?: Headline,
  key?: string,
): Promise<void> {
  const live = { step: 0 }
  await durably({
    ...{ kind: 'three-steps', failure: 'ThreeStepsFailed', id, generation, key, headline, live },
    steps: async (report) => {
      for (live.step = 1; live.step <= 3; live.step++) {
        report(`step ${String(live.step)} of 3`)
        if (live.step === 1 && ['full', 'gone'].includes(id)) await untaken(id, generation)
        else await (id === 'in-vain' ? within.step : step)(id, generation, live.step)
      }
    },
    leave: (reason) => takeBack(id, reason),
  })
}
