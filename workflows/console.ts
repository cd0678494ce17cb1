import { proxyActivities } from '@temporalio/workflow'
import type { ConsoleActivities } from '../activities/console.ts'
import type { Headline } from '../src/page-details.ts'
import { durably, placed } from './operation.ts'

const patient = {
  initialInterval: '200 milliseconds',
  backoffCoefficient: 2,
  maximumInterval: '10 seconds',
} as const
const { placeConsoleCommand } = proxyActivities<ConsoleActivities>({
  summary: 'where the command runs',
  startToCloseTimeout: '1 minute',
  retry: patient,
})

/** One console command: its run at its site, and the record of its output. */
export async function consoleCommand(
  id: string,
  generation: number,
  headline?: Headline,
  key?: string,
): Promise<void> {
  const live = { phase: 'placing' }
  let taskQueue: string | undefined
  const there = (summary: string, more: object = {}) =>
    proxyActivities<ConsoleActivities>({
      ...{ summary, startToCloseTimeout: '1 day', heartbeatTimeout: '10 seconds', retry: patient },
      ...(taskQueue === undefined ? {} : { taskQueue }),
      ...more,
    })
  await durably({
    ...{ kind: 'console-command', failure: 'ConsoleCommandFailed', id, generation, key, headline, live },
    steps: async (report) => {
      taskQueue = await placeConsoleCommand(id)
      live.phase = 'running'
      report('runs')
      // A site that cannot be reached is retried for this long.
      await there('run the command', { scheduleToCloseTimeout: '2 hours' }).runConsoleCommand(id)
    },
    leave: async () => {
      taskQueue = await placed(taskQueue, () => placeConsoleCommand(id))
      if (taskQueue !== undefined)
        await there('end what is left of the command', { scheduleToCloseTimeout: '10 minutes' })
          .stopConsoleCommand(id)
          .catch(() => undefined)
    },
  })
}
