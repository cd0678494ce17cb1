import {
  startRunner,
  type Runner,
  type RunnerAnswer,
  type RunnerCallbacks,
  type RunnerOptions,
  type RunnerTask,
} from './runner.ts'

export interface RunnerPool {
  /**
   * Starts a task on an idle runner, or on a new one: the caller limits the number of tasks at
   * once. `abandoned` is called when the runner is gone before the end: the caller then looks the
   * task up.
   */
  run(task: RunnerTask, callbacks: RunnerCallbacks & { abandoned: () => void }): Promise<RunnerAnswer>
  /** Releases the runners; those with a task complete it. */
  close(): void
}

/** Idle runners are kept up to this number; one takes 3 to 7 MB. */
const idleKept = 16

/** A stopped runner goes on after so long. */
const wakeEveryMs = 1_000

/**
 * @param options.program is awaited at each start of a runner: the first may come while it is
 *   still being built.
 */
export function openRunnerPool(
  options: Omit<RunnerOptions, 'program'> & { program: () => Promise<string> },
): RunnerPool {
  const idle = new Set<Runner>()
  const busy = new Map<Runner, () => void>()
  let closed = false
  const waker = setInterval(() => {
    for (const runner of busy.keys()) runner.wake()
  }, wakeEveryMs).unref()

  const add = (program: string): Runner => {
    const runner = startRunner({
      ...options,
      program,
      onGone: () => {
        idle.delete(runner)
        const abandoned = busy.get(runner)
        busy.delete(runner)
        abandoned?.()
      },
    })
    return runner
  }
  const rest = (runner: Runner): void => {
    if (!busy.delete(runner)) return
    if (closed || idle.size >= idleKept) runner.release()
    else idle.add(runner)
  }

  return {
    async run(task, { started, ended, abandoned }) {
      const [waiting] = idle
      if (waiting !== undefined) idle.delete(waiting)
      const runner = waiting ?? add(await options.program())
      busy.set(runner, abandoned)
      const answer = await runner.start(task, {
        started,
        ended: () => {
          rest(runner)
          ended()
        },
      })
      if (answer.answer !== 'started') rest(runner)
      return answer
    },
    close() {
      closed = true
      clearInterval(waker)
      for (const runner of [...idle, ...busy.keys()]) runner.release()
      idle.clear()
      busy.clear()
    },
  }
}
