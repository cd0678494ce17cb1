import type { ChildProcess } from 'node:child_process'

/**
 * Whether a child that was just spawned has its streams. Without a free file descriptor Node gives a
 * child without streams, and the event `error` a moment later; that event ends no process here.
 */
export const hasStreams = (child: ChildProcess): boolean => {
  child.on('error', () => undefined)
  return (child.stdio as readonly unknown[] | undefined) !== undefined
}

/** The remedy where it has none. */
export const noStreamsText = 'this process has no file descriptor left: raise its limit (ulimit -n)'
