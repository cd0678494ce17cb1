import { existsSync } from 'node:fs'
import type { WorkflowBundleOption } from '@temporalio/worker'
import { createActivities } from '../activities/index.ts'
import type { Log } from './observability/log.ts'
import type { Traces } from './observability/traces.ts'
import type { Parts } from './parts.ts'

export interface TaskWorkers {
  /** Whether tasks are being polled for. */
  ready: () => boolean
  /** Sites let go of what runs, activities under way end or hand back, nothing new is taken. */
  stop(): Promise<void>
}

export interface TaskWorkersOptions {
  address: string
  namespace: string
  log: Log
  traces: Traces
  workflowBundle?: WorkflowBundleOption
}

/** Activities at once: far below the 2,000 outstanding ones that hang a workflow in silence. */
const concurrentActivities = 200
/** A worker whose connection could not be had, or that failed, is opened again after this long. */
const againAfterMs = 1_000

/**
 * The three workers of a process: one on the shared task queue (workflows, planning, simulation, rehearsal, sites that anybody reaches), one on
 * this host's own queue (tasks that use its processes and files), one on that of the monitors, whose short checks must not stand behind activities
 * that last for days. They are opened in the background and again after a failure, so that the API
 * answers while Temporal is away. `workflowBundle` takes the place of the bundle that is built, or made at the start.
 */
export const openTaskWorkers = (parts: Parts, options: TaskWorkersOptions): TaskWorkers => {
  const { log } = options
  const drain = new AbortController()
  const activities = createActivities({ ...parts, draining: drain.signal })
  let polling = false
  let stopCurrent: () => void = () => undefined

  const runOnce = async (): Promise<void> => {
    const { bundleWorkflowCode, NativeConnection, Runtime, Worker } = await import('@temporalio/worker')
    // Connect first: a worker made without a connection keeps its workflow thread when connecting fails.
    const connection = await NativeConnection.connect({ address: options.address })
    try {
      const built = new URL('../workflow-bundle.js', import.meta.url)
      const workflowBundle =
        options.workflowBundle ??
        (existsSync(built)
          ? { codePath: built.pathname }
          : await bundleWorkflowCode({
              workflowsPath: new URL(`../workflows/index${import.meta.url.endsWith('.ts') ? '.ts' : '.js'}`, import.meta.url).pathname,
              logger: Runtime.instance().logger,
            }))
      const common = {
        connection,
        namespace: options.namespace,
        activities,
        maxConcurrentActivityTaskExecutions: concurrentActivities,
        maxHeartbeatThrottleInterval: '1 second',
        shutdownGraceTime: '10 seconds',
        plugins: options.traces.temporalPlugins,
        ...(parts.engine.dataConverter === undefined ? {} : { dataConverter: parts.engine.dataConverter }),
      } as const
      const shared = await Worker.create({ ...common, taskQueue: parts.engine.taskQueue, workflowBundle, maxCachedWorkflows: 500 })
      const own = await Worker.create({ ...common, taskQueue: `${parts.engine.taskQueue}@${parts.hostId}` })
      const monitors = await Worker.create({
        ...common,
        // As `workflows/environment-connection.ts` names it.
        taskQueue: `${parts.engine.taskQueue}/monitors`,
        maxConcurrentActivityTaskPolls: 2,
      })
      const workers = [shared, own, monitors]
      stopCurrent = () => {
        for (const worker of workers) if (worker.getState() === 'RUNNING') worker.shutdown()
      }
      polling = true
      const ends = workers.map((worker) =>
        worker.run().catch((error: unknown) => {
          stopCurrent()
          throw error
        }),
      )
      // A stop that came while they were being opened found nothing to stop.
      if (drain.signal.aborted) stopCurrent()
      const settled = await Promise.allSettled(ends)
      const failed = settled.find((outcome) => outcome.status === 'rejected')
      if (failed !== undefined) throw failed.reason
    } finally {
      polling = false
      stopCurrent = () => undefined
      await connection.close()
    }
  }

  const running = (async () => {
    while (!drain.signal.aborted) {
      try {
        await runOnce()
      } catch (error) {
        if (drain.signal.aborted) return
        log.warn({ err: error }, 'the task workers stopped and are opened again')
      }
      if (!drain.signal.aborted) await new Promise((resolve) => setTimeout(resolve, againAfterMs))
    }
  })()

  return {
    ready: () => polling,
    async stop() {
      drain.abort(new Error('this worker is being drained'))
      stopCurrent()
      await running
    },
  }
}
