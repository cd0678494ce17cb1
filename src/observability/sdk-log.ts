import type { LogLevel, Logger, LogMetadata } from '@temporalio/common'
import type { Log } from './log.ts'

/** Two of the three workers have no workflows, which the SDK takes for a mistake at each start. */
const intended = 'No workflows registered, not polling for workflow tasks'

/**
 * Members that the SDK adds to the lines of workflows and activities; the code's own members are
 * beside them.
 */
const ofSdk = new Set([
  ...[
    'namespace',
    'taskQueue',
    'workflowId',
    'workflowType',
    'workflowRunId',
    'runId',
    'activityId',
    'activityType',
    'attempt',
  ],
  ...['isLocal', 'sdkComponent'],
])

/**
 * The members of a line: an error in the log's form, the code's own members by their names, and the
 * SDK's members under `temporal`, without the token that would let its reader end the task. `runId`
 * and `attempt` of the SDK belong to the workflow's execution, and to its activity's tries.
 */
const membersOf = ({ error, taskToken: _, ...meta }: LogMetadata): Record<string, unknown> => {
  const own = Object.entries(meta).filter(([name]) => !ofSdk.has(name))
  const sdk = Object.entries(meta).filter(([name]) => ofSdk.has(name))
  return {
    ...Object.fromEntries(own),
    ...(error === undefined ? {} : { err: error as unknown }),
    ...(sdk.length === 0 ? {} : { temporal: Object.fromEntries(sdk) }),
  }
}

/**
 * A logger for the Temporal SDK (runtime, worker, bundler) that writes warnings and errors to this
 * log: the SDK's information is about itself. Without one it writes plain text between the JSON
 * lines.
 */
export const sdkLog = (log: Log): Logger => {
  const write = (level: LogLevel, message: string, meta?: LogMetadata): void => {
    if (message === intended) return
    log[level === 'ERROR' ? 'error' : level === 'WARN' ? 'warn' : 'trace'](membersOf(meta ?? {}), message)
  }
  const at = (level: LogLevel) => (message: string, meta?: LogMetadata) => {
    write(level, message, meta)
  }
  return {
    log: write,
    trace: at('TRACE'),
    debug: at('DEBUG'),
    info: at('INFO'),
    warn: at('WARN'),
    error: at('ERROR'),
  }
}
