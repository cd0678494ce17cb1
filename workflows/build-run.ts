import { ActivityCancellationType, CancellationScope, proxyActivities } from '@temporalio/workflow'
import type { BuildRunActivities } from '../activities/build-run.ts'
import type { Headline } from '../src/page-details.ts'
import { durably, placed, takenAt, takenPatiently } from './operation.ts'

const patient = {
  initialInterval: '500 milliseconds',
  backoffCoefficient: 2,
  maximumInterval: '30 seconds',
} as const
const { placeBuildRun } = proxyActivities<BuildRunActivities>({
  summary: 'which host builds',
  startToCloseTimeout: '1 minute',
  retry: patient,
})

/**
 * One run of a build: fetch, build, convert, verify and publish, on the host that has the context.
 */
export async function buildRun(
  id: string,
  generation: number,
  headline?: Headline,
  key?: string,
): Promise<void> {
  const live = { phase: 'placing' }
  let taskQueue: string | undefined
  const there = (summary: string, more: object = {}) =>
    proxyActivities<BuildRunActivities>({
      ...{ summary, startToCloseTimeout: '1 day', heartbeatTimeout: '10 seconds', ...takenPatiently },
      // An engine that does not answer is retried for about an hour.
      retry: { ...patient, maximumAttempts: 120 },
      cancellationType: ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
      ...(taskQueue === undefined ? {} : { taskQueue }),
      ...more,
    })
  const tidy = async (): Promise<void> => {
    if (taskQueue !== undefined)
      await there('remove what is left', { scheduleToCloseTimeout: '10 minutes' })
        .tidyBuildRun(id)
        .catch(() => undefined)
  }
  await durably({
    ...{ kind: 'build-run', failure: 'BuildRunFailed', id, generation, key, headline, live },
    steps: async (report) => {
      const queue = await placeBuildRun(id)
      taskQueue = queue
      const taken = <T>(act: () => Promise<T>): Promise<T> =>
        takenAt(queue, act, (options) => proxyActivities<BuildRunActivities>(options).placeBuildRun(id))
      live.phase = 'fetching'
      report('fetches what is built from')
      if (await taken(() => there('fetch what is built from').fetchBuildRun(id))) return
      live.phase = 'building'
      report('builds the image')
      await taken(() => there('build the image').executeBuildRun(id))
      live.phase = 'publishing'
      report('converts and publishes the image')
      await taken(() => there('convert, verify and publish').publishBuildRun(id))
      await CancellationScope.nonCancellable(tidy)
    },
    leave: async () => {
      taskQueue = await placed(taskQueue, () => placeBuildRun(id))
      await tidy()
    },
  })
}
