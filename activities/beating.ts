import { Context } from '@temporalio/activity'

/** Says once a second that this process is alive, so that the server gives the work to another soon after it is not. */
export const beating = async <T>(work: () => Promise<T>): Promise<T> => {
  const context = Context.current()
  const beats = setInterval(() => {
    context.heartbeat()
  }, 1_000)
  try {
    return await work()
  } finally {
    clearInterval(beats)
  }
}
