import { existsSync } from 'node:fs'
import type { WorkflowBundleOption } from '@temporalio/worker'
import { createActivities, type Activities } from '../activities/index.ts'
import { everyRound } from './pacing/every-round.ts'
import type { Log } from './observability/log.ts'
import type { Traces } from './observability/traces.ts'
import type { OperationKind } from './operations/kind.ts'
import type { Parts } from './parts.ts'
import { queueOfHost, queueOfMonitors, queueOfRuns } from './task-queues.ts'
import { failureConverterPath } from './vault/data-converter.ts'

export interface TaskWorkers {
  /** Whether the workers poll for tasks. */
  ready: () => boolean
  /**
   * Detaches from running tasks, lets activities in progress end or hand back, and takes no new
   * work.
   */
  stop(): Promise<void>
}

export interface TaskWorkersOptions {
  /** The address of Temporal. */
  address: string
  /** Whether SERVICE_TEMPORAL_ADDRESS names the address. */
  named: boolean
  namespace: string
  log: Log
  traces: Traces
  workflowBundle?: WorkflowBundleOption
  /** Kinds of operations that the workers serve. */
  kinds: readonly OperationKind[]
  /** Activities of workflows that only `workflowBundle` has. */
  furtherActivities?: Activities
}

/**
 * The limit of concurrent activities: far below the 2,000 outstanding ones at which a workflow
 * hangs without an error.
 */
const concurrentActivities = 200
/** After a failed connection or a failure of its own, a worker is opened again after this time. */
const againAfterMs = 1_000
/** The same failure is reported once in this time, however often the workers are opened again. */
const reportEveryMs = 60_000

/** Temporal cannot be connected to; the message is a sentence for the log. */
class TemporalAway extends Error {}

/**
 * The native library puts the system's own reason last, in quotes: "Connection refused", "Name or
 * service not known".
 */
const reasonOf = (error: unknown): string => {
  const text = error instanceof Error ? error.message : String(error)
  return [...text.matchAll(/(?:message|error): "([^"]+)"/g)].at(-1)?.[1] ?? text
}

const temporalAway = (address: string, named: boolean, error: unknown): TemporalAway => {
  const remedy = named
    ? 'start it there or correct SERVICE_TEMPORAL_ADDRESS'
    : 'the daemon starts it again by itself'
  const what = `${named ? 'SERVICE_TEMPORAL_ADDRESS=' : 'the embedded Temporal at '}${address} does not answer`
  return new TemporalAway(`${what} (${reasonOf(error)}): what is accepted begins when it does; ${remedy}`, {
    cause: error,
  })
}

const attributesMissing = (namespace: string, error: unknown): string =>
  `workflows wait: the namespace ${namespace} lacks search attributes, and they cannot be added ` +
  `(${reasonOf(error)}); ` +
  'add those of temporal-config/namespace.yaml with temporal-config/namespace.sh, or as an administrator of that server'

/**
 * The workers of a process: one on the shared task queue (workflows, planning, simulation, operations
 * that any host carries out), one on this host's own queue (what uses its files), and beside each of
 * both two more: one for the sites of runs, which last for days, and one for the monitors, whose
 * short checks wait behind nothing that lasts. They open in the background and again after a failure, so that the
 * API answers while Temporal is unavailable. `workflowBundle` replaces the bundle that the build or
 * the start makes.
 */
export const openTaskWorkers = (parts: Parts, options: TaskWorkersOptions): TaskWorkers => {
  const { log } = options
  const drain = new AbortController()
  const activities = {
    ...options.furtherActivities,
    ...createActivities({ ...parts, kinds: options.kinds, draining: drain.signal }),
  }
  let polling = false
  let reported: { text: string; at: number } | undefined
  const report = (error: unknown): void => {
    const text = error instanceof Error ? error.message : String(error)
    if (reported?.text === text && Date.now() - reported.at < reportEveryMs) return
    reported = { text, at: Date.now() }
    if (error instanceof TemporalAway) log.warn(text)
    else log.warn({ err: error }, 'the task workers stopped and are opened again')
  }
  let stopCurrent: () => void = () => undefined

  const runOnce = async (): Promise<void> => {
    const { bundleWorkflowCode, NativeConnection, Runtime, Worker } = await import('@temporalio/worker')
    // The connection comes first: a worker made without one keeps its workflow thread when the
    // connection fails.
    const connection = await NativeConnection.connect({ address: options.address }).catch(
      (error: unknown) => {
        throw temporalAway(options.address, options.named, error)
      },
    )
    try {
      // A workflow that sets an attribute which the namespace lacks stops. So no workflow is taken
      // before the attributes exist.
      await parts.engine.ensureSearchAttributes().catch((error: unknown) => {
        throw new TemporalAway(attributesMissing(options.namespace, error), { cause: error })
      })
      const built = new URL('../workflow-bundle.js', import.meta.url)
      const workflowBundle =
        options.workflowBundle ??
        (existsSync(built)
          ? { codePath: built.pathname }
          : await bundleWorkflowCode({
              workflowsPath: new URL(
                `../workflows/index${import.meta.url.endsWith('.ts') ? '.ts' : '.js'}`,
                import.meta.url,
              ).pathname,
              failureConverterPath,
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
        dataConverter: parts.engine.dataConverter,
      } as const
      const shared = await Worker.create({
        ...common,
        taskQueue: parts.engine.taskQueue,
        workflowBundle,
        maxCachedWorkflows: 500,
      })
      const ownQueue = queueOfHost(parts.engine.taskQueue, parts.hostId)
      const workers = [shared, await Worker.create({ ...common, taskQueue: ownQueue })]
      for (const queue of [parts.engine.taskQueue, ownQueue])
        workers.push(
          await Worker.create({ ...common, taskQueue: queueOfRuns(queue) }),
          await Worker.create({
            ...common,
            taskQueue: queueOfMonitors(queue),
            maxConcurrentActivityTaskPolls: 2,
          }),
        )
      stopCurrent = () => {
        for (const worker of workers) if (worker.getState() === 'RUNNING') worker.shutdown()
      }
      polling = true
      if (reported !== undefined) log.info('the task workers run')
      reported = undefined
      const ends = workers.map((worker) =>
        worker.run().catch((error: unknown) => {
          stopCurrent()
          throw error
        }),
      )
      // A stop that came while the workers were being opened found none to stop.
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

  const running = everyRound(againAfterMs, runOnce, (error) => {
    if (!drain.signal.aborted) report(error)
  })

  return {
    ready: () => polling,
    async stop() {
      drain.abort(new Error('this worker is being drained'))
      stopCurrent()
      await running.stop()
    },
  }
}
