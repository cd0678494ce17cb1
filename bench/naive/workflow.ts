import { proxyActivities } from '@temporalio/workflow'
import type * as steps from './steps.ts'

const { noop } = proxyActivities<typeof steps>({ startToCloseTimeout: '1 minute' })

/**
 * The obvious first version of such a workflow: an activity per task, started when its parents are
 * done.
 * @returns start and end of each
 */
export async function dagOfActivities(
  dag: Record<string, string[]>,
): Promise<Record<string, [number, number]>> {
  const times: Record<string, [number, number]> = {}
  const done = new Map<string, Promise<void>>()
  const run = (task: string): Promise<void> => {
    const known = done.get(task)
    if (known !== undefined) return known
    const work = Promise.all((dag[task] ?? []).map(run)).then(async () => {
      times[task] = await noop(task)
    })
    done.set(task, work)
    return work
  }
  await Promise.all(Object.keys(dag).map(run))
  return times
}
