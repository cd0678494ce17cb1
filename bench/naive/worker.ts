import { NativeConnection, Runtime, Worker } from '@temporalio/worker'
import * as activities from './steps.ts'

// A worker of its own process with the SDK's default options, on the server whose address and
// namespace are given.
const [address = '', namespace = '', taskQueue = ''] = process.argv.slice(2)
Runtime.install({ telemetryOptions: { logging: { filter: 'ERROR', forward: {} } } })
const connection = await NativeConnection.connect({ address })
const worker = await Worker.create({
  connection,
  namespace,
  taskQueue,
  activities,
  workflowsPath: new URL('./workflow.ts', import.meta.url).pathname,
})
process.stdout.write('polling\n')
process.once('SIGTERM', () => {
  worker.shutdown()
})
await worker.run()
await connection.close()
