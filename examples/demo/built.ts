import { setTimeout as sleep } from 'node:timers/promises'
import type { Config } from '../../src/config.ts'
import { findRunnerProgram } from '../../src/embedded/runner-program.ts'
import { openLog } from '../../src/observability/log.ts'
import type { RunningService } from './service.ts'

/** Temporal's bundle of the workflows takes seconds of a core, and a minute on a busy machine. */
const readyWithinSeconds = 300

/**
 * Waits for the builds that the service finishes after its first answer, because a build takes all
 * cores and would distort the measurement: the workflows' bundle (`/readyz` answers 200 after it)
 * and the runner of local tasks (one process builds it, the others wait).
 * @throws Error when the service ends, is not ready in time, or the runner cannot be built; the
 *   reason of `stop` when it is aborted
 */
export const awaitBuilt = async (
  { ready, ended }: Pick<RunningService, 'ready' | 'ended'>,
  { cacheDir, childEnvironment }: Pick<Config, 'cacheDir' | 'childEnvironment'>,
  { onProgress, stop }: { onProgress: (message: string) => void; stop: AbortSignal },
): Promise<void> => {
  const over = new AbortController()
  const either = AbortSignal.any([stop, over.signal])
  void ended.then(() => over.abort(new Error('the service ended while the demo waited for it')))
  const deadline = performance.now() + 1000 * readyWithinSeconds
  while (!(await isReady(ready.adminUrl))) {
    if (performance.now() > deadline)
      throw new Error(
        `the service is not ready after ${readyWithinSeconds} s: ${ready.adminUrl}/readyz names the ` +
          'part that is missing',
      )
    onProgress('waiting until the worker has its workflows')
    await sleep(200, undefined, { signal: either })
  }
  const built = findRunnerProgram({
    cacheDir,
    environment: childEnvironment,
    log: openLog('silent'),
    onProgress,
  })
  await Promise.race([
    built,
    new Promise((_, reject) => {
      if (either.aborted) reject(either.reason as Error)
      else either.addEventListener('abort', () => reject(either.reason as Error), { once: true })
    }),
  ])
}

const isReady = (adminUrl: string): Promise<boolean> =>
  fetch(`${adminUrl}/readyz`, { signal: AbortSignal.timeout(5_000) }).then(
    ({ ok }) => ok,
    () => false,
  )
