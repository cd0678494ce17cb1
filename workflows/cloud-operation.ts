import { ActivityCancellationType, patched, proxyActivities } from '@temporalio/workflow'
import type { CloudOperationActivities } from '../activities/cloud-operation.ts'
import type { Headline } from '../src/page-details.ts'
import { durably } from './operation.ts'

const patient = {
  initialInterval: '500 milliseconds',
  backoffCoefficient: 2,
  maximumInterval: '30 seconds',
} as const

const there = (summary: string, startToCloseTimeout: '2 minutes' | '15 minutes' = '15 minutes') =>
  proxyActivities<CloudOperationActivities>({
    ...{ summary, startToCloseTimeout, heartbeatTimeout: '10 seconds' },
    // A provider that does not answer, or limits the rate, is retried for about an hour.
    scheduleToCloseTimeout: '1 hour',
    retry: patient,
    cancellationType: ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
  })

/** No time limit ends a playbook. When a worker ends, another worker runs the playbook again. */
const configuring = proxyActivities<CloudOperationActivities>({
  ...{ summary: 'run its playbooks', startToCloseTimeout: '6 hours', heartbeatTimeout: '10 seconds' },
  scheduleToCloseTimeout: '12 hours',
  retry: { ...patient, maximumAttempts: 10 },
  cancellationType: ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
})

/** One operation at a cloud provider: create, configure, stop, start, check or end a machine. */
export async function cloudOperation(
  id: string,
  generation: number,
  headline?: Headline,
  key?: string,
): Promise<void> {
  const live = { phase: 'queued' }
  await durably({
    ...{ kind: 'cloud-operation', failure: 'CloudOperationFailed', id, generation, key, headline, live },
    steps: async (report) => {
      const phase = (name: string): void => {
        live.phase = name
        report(name)
      }
      const { kind, configures } = await there('what is to be done', '2 minutes').readCloudOperation(id)
      const configure = async (): Promise<void> => {
        phase('configuration')
        await configuring.configureCloudMachine(id)
        phase('validation')
        await there('check the machine').validateCloudMachine(id)
      }
      if (kind === 'provision' || kind === 'start') {
        phase('provisioning')
        if (kind === 'provision') await there('make the machine', '2 minutes').createCloudMachine(id)
        else await there('start the machine', '2 minutes').startCloudMachine(id)
        await there('wait until it runs').awaitCloudMachine(id)
        phase('waiting-for-ssh')
        await there('wait until it takes a login').awaitCloudSsh(id)
        if (patched('playbooks run') && configures) await configure()
        await there('it is ready', '2 minutes').readyCloudMachine(id)
      } else if (kind === 'configure') {
        await configure()
        await there('it is ready', '2 minutes').readyCloudMachine(id)
      } else if (kind === 'validate') {
        phase('validation')
        await there('check the machine').validateCloudMachine(id)
      } else if (kind === 'stop') {
        phase('stopping')
        await there('stop the machine').stopCloudMachine(id)
      } else {
        phase('destroying')
        await there('end the machine').destroyCloudMachine(id)
      }
    },
    leave: (reason) =>
      there('take back what was left')
        .leaveCloudMachine(id, reason)
        .catch(() => undefined),
  })
}
