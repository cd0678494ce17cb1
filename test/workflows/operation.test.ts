import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { Client, Connection } from '@temporalio/client'
import { NativeConnection, Worker } from '@temporalio/worker'
import { until } from '../failures/programs.ts'
import { startTemporal, type TestTemporal } from '../support/temporal.ts'
import { workflowBundle } from '../support/workflow-bundle.ts'

let temporal: TestTemporal
beforeAll(async () => {
  temporal = await startTemporal()
}, 900_000)
afterAll(() => temporal.stop())

test('work that returns before the cancel that ended its record ends its workflow as cancelled', async () => {
  const taskQueue = 'operation'
  const [asked, ended] = [Promise.withResolvers<null>(), Promise.withResolvers<null>()]
  const placing = Promise.withResolvers<null>()
  const native = await NativeConnection.connect({ address: temporal.address })
  const worker = await Worker.create({
    connection: native,
    namespace: temporal.namespace,
    taskQueue,
    workflowBundle: await workflowBundle(),
    activities: {
      placeDiscovery: async () => {
        placing.resolve(null)
        return asked.promise
      },
      cancelDiscovery: async () => {
        asked.resolve(null)
        await ended.promise
        return true
      },
      discoverConnection: () => Promise.resolve({ status: 'over' }),
    },
  })
  const connection = await Connection.connect({ address: temporal.address })
  const { workflow } = new Client({ connection, namespace: temporal.namespace })
  await worker.runUntil(async () => {
    const handle = await workflow.start('connectionDiscovery', {
      ...{ taskQueue, workflowId: 'discovery', args: ['mute', 1] },
    })
    await placing.promise
    await handle.cancel()
    await asked.promise
    const isRead = async (): Promise<boolean> => {
      const { events } = await handle.fetchHistory()
      return (events ?? []).filter((event) => event.activityTaskCompletedEventAttributes).length === 2
    }
    await until('the work has returned', 120, isRead)
    ended.resolve(null)
    await expect(handle.result()).rejects.toThrow()
    expect((await handle.describe()).status.name).toBe('CANCELLED')
  })
  await connection.close()
  await native.close()
})
