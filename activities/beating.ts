import { Context } from '@temporalio/activity'

/** Says once a second that this process is alive, so that the server gives the work to another soon after it is not; of a local activity the workflow's task says so. */
export const beating = async <T>(work: () => Promise<T>): Promise<T> => {
  const context = Context.current()
  if (context.info.isLocal) return work()
  const beats = setInterval(() => {
    context.heartbeat()
  }, 1_000)
  try {
    return await work()
  } finally {
    clearInterval(beats)
  }
}
