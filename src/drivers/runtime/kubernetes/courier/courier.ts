import { randomBytes } from 'node:crypto'
import type { KubernetesCluster } from '../../../../clients/kubernetes-cluster.ts'
import { quote } from '../../../../shell/quote.ts'
import type { SiteShell } from '../../../../shell/site-shell.ts'
import type { LogRange, LogSlice } from '../../contract/driver.ts'
import { messageOf } from '../../contract/errno.ts'
import { openBackoff } from '../../../../pacing/backoff.ts'
import { openGate } from '../../../../pacing/gate.ts'
import { parseSlice, sliceScript } from '../../remote/slice.ts'
import type { TaskPod } from '../pods.ts'
import { openErrands } from './errands.ts'
import { openCommands } from './flow.ts'
import { atKeeper, tokenScript } from './scripts.ts'

/**
 * Tasks whose Pods share no file system with the keeper: their inputs are carried to the Pod before
 * they start, and their outputs are carried back before their end counts. Each Pod has a folder of
 * its own at the path of the site's root. Beside the task's container it has one of the helper
 * image, a sidecar called the *courier*, in which our commands run.
 *
 * In the Pod, below the root:
 * - `.alive`: a FIFO that the task's container holds open; its end is the end of that container,
 *   whatever the cause. `.over`: that end has come.
 * - `.go`: all files have been delivered; the task's container waits for it. Made once, by rename
 *   under a lock.
 * - `.fetched`: all files have been copied back; the sidecar waits for it, at most an hour beyond
 *   the end.
 *
 * At the keeper: `tasks/NAME.task` is created exclusively before `.go` is made (`start … 0 0 -`),
 * so that a task with a recorded end never starts, and a task that may have started gets no such
 * record; the Pod's
 * own record takes its place when everything is back. `tasks/NAME.delivered` and
 * `tasks/NAME.fetched` save other workers the transfer. `fetch/NAME.WORKER_TRY`: the files that are
 * arriving; moved into place under a lock, the record last.
 *
 * Several workers may do all of this at once, and each may break off anywhere.
 */
export interface Courier {
  /** Takes a Pod from the watch and begins its next transfer. */
  see(pod: TaskPod): void
  /** The Pod is gone. */
  drop(pod: string): void
  /** All Pods that are not in this set are gone. */
  keep(pods: ReadonlySet<string>): void
  /** Why the last try for a Pod failed, as text. */
  trouble(pod: string): string | undefined
  /**
   * Marks tasks in their Pods as cancelled before they are stopped. A Pod that cannot be reached
   * stays unmarked.
   */
  markCancelled(pods: readonly { pod: string; name: string }[], graceSeconds: number): Promise<void>
  /**
   * Reads from the Pod while the keeper does not have the output yet. Undefined where only the
   * keeper has it.
   */
  logs(
    pod: TaskPod,
    name: string,
    stream: 'stdout' | 'stderr',
    range: LogRange,
  ): Promise<LogSlice | undefined>
  /** Removes the remains of broken transfers. */
  forget(name: string): Promise<void>
  /** Names the keeper's set of files: another set, where the folder was lost with its Pod. */
  keeperToken(): Promise<string>
  close(): void
}

export interface CourierOptions {
  cluster: Pick<KubernetesCluster, 'exec'>
  namespace: string
  /** The shell of the keeper. */
  shell: SiteShell
  root: () => Promise<string>
  /** Deletes the Pod of a task that is buried. */
  end: (pod: TaskPod) => Promise<void>
}

const roundsAtOnce = 8
const [firstWaitMs, longestWaitMs] = [250, 15_000]
/** Pause before the end of a leaving Pod's task is queried again. */
const againMs = 500

/** The next transfer that a Pod needs; undefined: none, or none that is possible yet. */
const wanted = (pod: TaskPod): 'deliver' | 'fetch' | undefined => {
  if (pod.courier !== 'running') return undefined
  if (pod.terminated !== undefined || pod.deleting !== undefined) return 'fetch'
  return pod.startedAt === undefined ? undefined : 'deliver'
}

export function openCourier({ cluster, namespace, shell, root, end }: CourierOptions): Courier {
  const commands = openCommands({ cluster, namespace, shell })
  const errands = openErrands(commands, root, end)
  const closing = new AbortController()
  const pods = new Map<string, TaskPod>()
  const troubles = new Map<string, string>()
  const finished = { deliver: new Set<string>(), fetch: new Set<string>() }
  const busy = new Set<string>()
  /** One transfer at a time for each Pod, several Pods at once. */
  const rounds = openGate(roundsAtOnce)
  const round = <T>(work: () => Promise<T>): Promise<T> => rounds.inTurn(work, closing.signal)
  const open = (pod: TaskPod | undefined): 'deliver' | 'fetch' | undefined => {
    const what = pod === undefined ? undefined : wanted(pod)
    return pod === undefined || what === undefined || finished[what].has(pod.name) ? undefined : what
  }

  /** Makes one try; `over`: there is nothing to do. */
  const attempt = async (name: string): Promise<'over' | 'next' | 'later' | 'failed'> => {
    const pod = pods.get(name)
    const what = open(pod)
    if (pod === undefined || what === undefined || closing.signal.aborted) return 'over'
    try {
      const done = await errands[what](pod)
      if (done) finished[what].add(name)
      troubles.delete(name)
      return done ? 'next' : 'later'
    } catch (error) {
      troubles.set(name, messageOf(error))
      return 'failed'
    }
  }
  const attend = async (name: string): Promise<void> => {
    const failures = openBackoff({ firstMs: firstWaitMs * 2, longestMs: longestWaitMs, spread: 0.5 })
    const rests = openBackoff({ firstMs: againMs, longestMs: againMs, spread: 0.5 })
    while (!closing.signal.aborted) {
      const again = await round(() => attempt(name))
      if (again === 'over') return
      if (again !== 'failed') failures.reset()
      if (again !== 'next') await (again === 'later' ? rests : failures).pause(closing.signal)
    }
  }
  const drop = (name: string): void => {
    for (const memory of [pods, troubles, finished.deliver, finished.fetch]) memory.delete(name)
  }
  const see = (pod: TaskPod): void => {
    pods.set(pod.name, pod)
    if (busy.has(pod.name) || closing.signal.aborted || open(pod) === undefined) return
    busy.add(pod.name)
    void attend(pod.name)
      .catch(() => undefined)
      .finally(() => {
        busy.delete(pod.name)
        const now = pods.get(pod.name)
        if (now !== undefined) see(now)
      })
  }

  return {
    see,
    drop,
    keep(names) {
      for (const name of pods.keys()) if (!names.has(name)) drop(name)
    },
    trouble: (pod) => troubles.get(pod),
    async markCancelled(some, graceSeconds) {
      const at = await root()
      const grace = Math.max(0, Math.ceil(graceSeconds * 100))
      const scripts = some.map(({ pod, name }) => ({
        pod,
        script: `cd ${quote(`${at}/tasks`)} && echo ${grace} > ${name}.cancel`,
      }))
      await Promise.allSettled(scripts.map(({ pod, script }) => round(() => commands.runInPod(pod, script))))
    },
    async logs(pod, name, stream, range) {
      if (pod.courier !== 'running' || finished.fetch.has(pod.name)) return undefined
      const script =
        `cd ${quote(`${await root()}/tasks`)} || ` +
        `exit\n${sliceScript(`${name}.${stream === 'stdout' ? 'out' : 'err'}`, range)}`
      const answer = await commands.runInPod(pod.name, script).catch(() => undefined)
      return answer?.code === 0 ? parseSlice(answer.stdout) : undefined
    },
    async forget(name) {
      await commands.doAtKeeper(
        `cannot forget ${name}`,
        atKeeper(await root(), `rm -rf fetch/${quote(name)}.*`),
      )
    },
    async keeperToken() {
      const script = atKeeper(await root(), tokenScript(randomBytes(8).toString('hex')))
      return (await commands.doAtKeeper('cannot name the files of the keeper', script)).trim()
    },
    close: () => closing.abort(),
  }
}
