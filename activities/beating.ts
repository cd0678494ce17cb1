import { Context } from '@temporalio/activity'

/**
 * Sends a heartbeat every second while the work runs; `beat` replaces the plain heartbeat, for one
 * with details. After this process has died, the server soon gives the work to another one. For a
 * local activity, the heartbeat of the workflow's task does this.
 */
export const beating = async <T>(
  work: () => Promise<T>,
  { beat }: { beat?: () => void } = {},
): Promise<T> => {
  const context = Context.current()
  if (context.info.isLocal) return work()
  const beats = setInterval(beat ?? (() => context.heartbeat()), 1_000)
  try {
    return await work()
  } finally {
    clearInterval(beats)
  }
}
