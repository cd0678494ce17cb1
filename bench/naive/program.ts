import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { Client, Connection } from '@temporalio/client'
import { checkOrder, type Dag } from '../dag.ts'
import type { Daemon } from '../daemon.ts'
import { secondsOf } from '../rounds.ts'
import type { dagOfActivities } from './workflow.ts'

const taskQueue = 'naive'
const namespace = 'default'

/** Number of events and bytes of a workflow's history on the daemon's Temporal server. */
export interface History {
  events: number
  bytes: number
}

/**
 * The naive program (`workflow.ts`) beside the daemon: its own worker process on the daemon's own
 * Temporal server.
 */
export const startNaive = async (daemon: Daemon) => {
  const address = daemon.facts().temporalAddress
  const worker = spawn(
    process.execPath,
    [join(import.meta.dirname, 'worker.ts'), address, namespace, taskQueue],
    {
      stdio: ['ignore', 'pipe', 'ignore'],
    },
  )
  const ended = once(worker, 'exit')
  await Promise.race([
    once(worker.stdout, 'data'),
    ended.then(([code]) => Promise.reject(new Error(`the naive worker ended with ${String(code)}`))),
  ])
  const connection = await Connection.connect({ address })
  const client = new Client({ connection, namespace })
  const historyOf = async (workflowId: string): Promise<History> => {
    // The request skips decoding, because the memo of a run is encrypted with a key of the daemon.
    const { workflowExecutionInfo } = await client.workflowService.describeWorkflowExecution({
      namespace,
      execution: { workflowId },
    })
    return {
      events: Number(workflowExecutionInfo?.historyLength ?? 0),
      bytes: Number(workflowExecutionInfo?.historySizeBytes ?? 0),
    }
  }
  return {
    historyOf,
    /** Seconds from the start of the workflow to its result. */
    async run(workflowId: string, dag: Dag): Promise<number> {
      let times: Record<string, [number, number]> = {}
      const seconds = await secondsOf(async () => {
        times = await client.workflow.execute<typeof dagOfActivities>('dagOfActivities', {
          workflowId,
          taskQueue,
          args: [dag],
        })
      })
      checkOrder('the naive program', dag, new Map(Object.entries(times)))
      return seconds
    },
    async stop(): Promise<void> {
      worker.kill('SIGTERM')
      await ended
      await connection.close()
    },
  }
}

export type Naive = Awaited<ReturnType<typeof startNaive>>
