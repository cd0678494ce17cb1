import type { LogLevel, Logger, LogMetadata } from '@temporalio/common'
import type { Log } from './log.ts'

/** Two of our three workers have no workflows, which the SDK takes for a mistake at each start. */
const intended = 'No workflows registered, not polling for workflow tasks'

/**
 * A logger for the Temporal SDK (runtime, worker, bundler) that writes to ours, warnings and worse: its information is about itself.
 * Without one it writes plain text between our JSON lines.
 */
export const sdkLog = (log: Log): Logger => {
  const write = (level: LogLevel, message: string, meta?: LogMetadata): void => {
    if (message === intended) return
    log[level === 'ERROR' ? 'error' : level === 'WARN' ? 'warn' : 'trace']({ temporal: meta }, message)
  }
  const at = (level: LogLevel) => (message: string, meta?: LogMetadata) => {
    write(level, message, meta)
  }
  return { log: write, trace: at('TRACE'), debug: at('DEBUG'), info: at('INFO'), warn: at('WARN'), error: at('ERROR') }
}
